"""What today's attempts have cost, on disk, so that a restart does not forget it.

Hides SQLite. One small file beside the spool, WAL with `synchronous=FULL`: what was written has reached the disk. Kept
is the current day alone. A broken file is set aside like a broken spool, and leaves the mark that what was spent on
that day is unknown. Synchronous; belongs to one thread at a time. The spool's lock keeps other processes out.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import structlog

from monitor.agent.spoolfile import is_corrupt, set_aside, sync_directory

SCHEMA_VERSION = 1
SCHEMA = f"""
BEGIN;
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE day (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), day TEXT NOT NULL, unknown INTEGER NOT NULL);
CREATE TABLE spent (target TEXT PRIMARY KEY, tokens INTEGER NOT NULL, money REAL NOT NULL) WITHOUT ROWID;
COMMIT;
"""
log = structlog.get_logger("firsttoken.budget")


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens and money of one target on one day; several currencies never meet in one configuration."""

    tokens: int = 0
    money: float = 0.0

    def plus(self, tokens: int, money: float) -> Spent:
        return Spent(max(0, self.tokens + tokens), max(0.0, self.money + money))


@dataclass(frozen=True, slots=True)
class Page:
    """A day's account."""

    day: date
    spent: Mapping[str, Spent] = field(default_factory=dict)  # by target
    unknown: bool = False  # the account of this day was lost: nobody knows what was spent


class Ledger:
    """The account of the current day in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: sqlite3.Connection | None = None

    def read(self, today: date) -> Page:
        """What the file holds; an empty `today` where there is none. A broken file is set aside.

        Raises OSError or sqlite3.Error when the disk refuses.
        """
        try:
            return self._page(today)
        except (sqlite3.DatabaseError, ValueError) as error:
            if isinstance(error, sqlite3.Error) and not is_corrupt(error):
                raise
            return self._replace_broken(today, error)

    def write(self, page: Page) -> None:
        """Put this in the place of what the file holds; on return it has reached the disk. Raises as `read` does."""
        db = self._open()
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute("DELETE FROM spent")
            db.execute("INSERT OR REPLACE INTO day VALUES (1, ?, ?)", (page.day.isoformat(), page.unknown))
            rows = [(target, spent.tokens, spent.money) for target, spent in page.spent.items()]
            db.executemany("INSERT INTO spent VALUES (?, ?, ?)", rows)
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Let go of the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _page(self, today: date) -> Page:
        db = self._open()
        found = db.execute("SELECT day, unknown FROM day").fetchone()
        if found is None:
            return Page(today)
        rows = db.execute("SELECT target, tokens, money FROM spent")
        spent = {name: Spent(tokens, money) for name, tokens, money in rows}
        return Page(date.fromisoformat(found[0]), spent, bool(found[1]))

    def _replace_broken(self, today: date, error: Exception) -> Page:
        self.close()
        aside = set_aside(self.path, f"{today:%Y%m%d}-{os.getpid()}")
        log.error("the account of today's spending was broken and is set aside", aside=str(aside), cause=str(error))
        page = Page(today, unknown=True)
        self.write(page)
        return page

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = _connect(self.path)
        return self._db


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            db.executescript(SCHEMA)
            sync_directory(path.parent)
        elif version != SCHEMA_VERSION:
            raise ValueError(f"the file is of another version ({version})")
    except BaseException:
        db.close()
        raise
    return db
