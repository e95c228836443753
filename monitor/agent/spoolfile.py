"""The spool's SQLite file: tables, durability, bounds, and what happens to a file that cannot be read.

Hides SQLite. Everything here is synchronous and belongs to one thread, that of `spoolwriter.py`. The file is
WAL with `synchronous=FULL`: a commit has reached the disk. Ids are never used twice, so an acknowledgement can never
delete a row that came later. A lock file beside it keeps a second process out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from monitor.agent.schedule import Walked
from monitor.model import MonitorError, SeriesKey

APPLICATION_ID = 0x46545350  # "FTSP"
SCHEMA_VERSION = 2
ROW_OVERHEAD_BYTES = 64
MAX_REJECTED = 1_000
MAX_NOTES = 20_000
"""Of these the newest are kept: what they say of older slots is lost, and coverage calls those slots lost."""
MAX_SIGHTINGS = 60_000
"""Of these the newest are kept: more than a week of five endpoints a minute, some 20 MB."""
MAX_WALKED = 10_000
KEPT_ASIDE = 3
TABLES = {"attempts", "rejected", "losses", "notes", "identity", "walked"}
TABLES_1 = {"attempts", "rejected", "losses", "gaps", "walked"}
SCHEMA = """
CREATE TABLE attempts (id INTEGER PRIMARY KEY AUTOINCREMENT, at_us INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE TABLE rejected (id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, reason TEXT NOT NULL, payload BLOB NOT NULL);
CREATE TABLE losses (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE walked (
    vantage TEXT NOT NULL, target TEXT NOT NULL, probe TEXT NOT NULL,
    handled_us INTEGER NOT NULL, ceiling_us INTEGER NOT NULL, repeats INTEGER NOT NULL,
    PRIMARY KEY (vantage, target, probe)
) WITHOUT ROWID;
"""
NOTES = """
CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, vantage TEXT NOT NULL, payload TEXT NOT NULL);
CREATE TABLE identity (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1), agent TEXT NOT NULL, alive_us INTEGER, boot TEXT
);
INSERT INTO identity (only_row, agent) VALUES (1, lower(hex(randomblob(16))));
"""
"""What version 2 has more; version 1 kept gaps in a table of their own."""
SIGHTINGS = """
CREATE TABLE IF NOT EXISTS sightings (
    id INTEGER PRIMARY KEY AUTOINCREMENT, vantage TEXT NOT NULL, payload TEXT NOT NULL
)
"""
"""Added to version 2 later, and made where it is missing. Whatever is only added leaves the version as it is: the
release before, to which an agent may be rolled back, reads the file and leaves the new table alone."""

class SpoolBusy(MonitorError):
    """Another process holds this spool, or its directory cannot be used."""


class SpoolCorrupt(MonitorError):
    """The file is no spool that this version can read."""


class SpoolLock:
    """Holds `PATH.lock` exclusively until released; the operating system releases it when the process dies."""

    def __init__(self, path: Path) -> None:
        """Raises SpoolBusy with a sentence that says who holds it or why it cannot be taken."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpoolBusy(f"the state directory {path.parent} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise SpoolBusy(f"the spool {path} is in use by another process (pid {holder or 'unknown'})") from error
        with contextlib.suppress(OSError):  # a full disk: who holds it is then not told
            os.truncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process have it."""
        os.close(self._fd)


class SpoolFile:
    """One open spool file. `begin`, any calls, `commit`: durable together, or `rollback`."""

    def __init__(self, path: Path) -> None:
        """Open or create. Raises SpoolCorrupt when it cannot be read, sqlite3.Error when the disk refuses."""
        self.path = path
        self.depth = self.size_bytes = self.last_id = self.notes_waiting = self.sightings_waiting = 0
        self.oldest_us: int | None = None
        self.losses: Counter[str] = Counter()
        self.agent = ""
        """Who writes here: 32 hex digits, made with the file."""
        self._db = _connect(path)
        try:
            self.refresh()
            self._forget_old_marks()
        except BaseException:
            self._db.close()
            raise

    def begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        """Undo, and read the counts again; a broken file may refuse either."""
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self.refresh()

    def refresh(self) -> None:
        """Read depth, bytes, age and losses from the file."""
        row = self._db.execute("SELECT count(*), coalesce(sum(length(payload)), 0) FROM attempts").fetchone()
        self.depth, self.size_bytes = row[0], row[1] + row[0] * ROW_OVERHEAD_BYTES
        sequence = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'attempts'").fetchone()
        self.last_id = sequence[0] if sequence else 0
        self.losses = Counter(dict(self._db.execute("SELECT reason, count FROM losses")))
        self.notes_waiting = self._db.execute("SELECT count(*) FROM notes").fetchone()[0]
        self.sightings_waiting = self._db.execute("SELECT count(*) FROM sightings").fetchone()[0]
        self.agent = self._db.execute("SELECT agent FROM identity").fetchone()[0]
        self._refresh_oldest()

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def begin_ids_at(self, first: int) -> None:
        """Ids of a file that has none yet go on from here.

        For the one that takes the place of a broken file: with the time in microseconds, which no id has ever reached,
        what is still to be acknowledged of the broken one deletes nothing here.
        """
        rows = [(table, first) for table in ("attempts", "notes", "sightings")]
        self._db.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", rows)
        self.last_id = first

    def append(self, payload: bytes, at_us: int) -> int:
        """Add a row; its id."""
        cursor = self._db.execute("INSERT INTO attempts (at_us, payload) VALUES (?, ?)", (at_us, payload))
        self.depth += 1
        self.size_bytes += len(payload) + ROW_OVERHEAD_BYTES
        self.last_id = cursor.lastrowid or 0
        self.oldest_us = at_us if self.oldest_us is None else self.oldest_us
        return self.last_id

    def take(self, limit: int, *, newest_first: bool, after: int) -> list[tuple[int, bytes]]:
        """Up to `limit` rows with ids above `after`, (id, payload); they stay in the file."""
        order = "DESC" if newest_first else "ASC"
        query = f"SELECT id, payload FROM attempts WHERE id > ? ORDER BY id {order} LIMIT ?"  # noqa: S608  # one of two
        return list(self._db.execute(query, (after, limit)))

    def delete(self, ids: Iterable[int]) -> int:
        """Remove rows by id; how many there were."""
        removed = 0
        for row_id in ids:
            for (size,) in self._db.execute("DELETE FROM attempts WHERE id = ? RETURNING length(payload)", (row_id,)):
                removed += 1
                self.size_bytes -= size + ROW_OVERHEAD_BYTES
        self.depth -= removed
        self._refresh_oldest()
        return removed

    def reject(self, row_id: int, reason: str, at_us: int) -> None:
        """Move a row that can never be delivered into `rejected`, of which the newest thousand are kept."""
        self._db.execute(
            "INSERT OR REPLACE INTO rejected SELECT id, ?, ?, payload FROM attempts WHERE id = ?",
            (at_us, reason[:500], row_id),
        )
        self._db.execute(
            "DELETE FROM rejected WHERE id IN (SELECT id FROM rejected ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (MAX_REJECTED,),
        )
        self.lose("rejected", self.delete([row_id]))

    def rejected(self) -> list[tuple[int, str, bytes]]:
        """What was set aside row by row: (id, reason, payload), oldest first."""
        return list(self._db.execute("SELECT id, reason, payload FROM rejected ORDER BY id"))

    def lose(self, reason: str, count: int) -> None:
        """Count attempts that will never be delivered."""
        if count:
            self.losses[reason] += count
            self._db.execute(
                "INSERT INTO losses VALUES (?, ?) ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count",
                (reason, count),
            )

    def drop_oldest(self, bytes_to_free: int, reason: str) -> list[bytes]:
        """Make room from the oldest end; what was dropped."""
        gone: list[bytes] = []
        goal = self.size_bytes - bytes_to_free
        while self.depth and self.size_bytes > goal:
            mean = max(1, self.size_bytes // self.depth)
            count = min(self.depth, max(1, -(-(self.size_bytes - goal) // mean)))
            rows = self._db.execute("SELECT id, payload FROM attempts ORDER BY id LIMIT ?", (count,)).fetchall()
            gone += [payload for _, payload in rows]
            self.lose(reason, self.delete([row_id for row_id, _ in rows]))
        return gone

    def drop_older(self, than_us: int, reason: str) -> list[bytes]:
        """Drop rows that were appended before `than_us`; what was dropped."""
        gone: list[bytes] = []
        while self.oldest_us is not None and self.oldest_us < than_us:
            rows = self._db.execute("SELECT id, at_us, payload FROM attempts ORDER BY id LIMIT 500").fetchall()
            old = [(row_id, payload) for row_id, at_us, payload in rows if at_us < than_us]
            gone += [payload for _, payload in old]
            self.lose(reason, self.delete([row_id for row_id, _ in old]))
        return gone

    def give_back(self) -> None:
        """Return free pages to the file system, a bounded number at a time."""
        self._db.execute("PRAGMA incremental_vacuum(500)").fetchall()

    def note(self, vantage: str, payload: str) -> None:
        """Keep what is to be said about slots of a vantage point."""
        self._db.execute("INSERT INTO notes (vantage, payload) VALUES (?, ?)", (vantage, payload))
        self.notes_waiting += 1
        if self.notes_waiting > MAX_NOTES:
            old = "DELETE FROM notes WHERE id IN (SELECT id FROM notes ORDER BY id LIMIT ?)"
            self.notes_waiting -= self._db.execute(old, (self.notes_waiting - MAX_NOTES,)).rowcount

    def notes(self, limit: int) -> list[tuple[int, str, str]]:
        """The oldest that wait: (id, vantage, payload)."""
        return list(self._db.execute("SELECT id, vantage, payload FROM notes ORDER BY id LIMIT ?", (limit,)))

    def delete_notes(self, ids: Iterable[int]) -> None:
        """Forget what was said and acknowledged."""
        removed = self._db.executemany("DELETE FROM notes WHERE id = ?", [(one,) for one in ids]).rowcount
        self.notes_waiting -= max(0, removed)

    def sight(self, vantage: str, payload: str) -> None:
        """Keep what a look at a neutral endpoint saw."""
        self._db.execute("INSERT INTO sightings (vantage, payload) VALUES (?, ?)", (vantage, payload))
        self.sightings_waiting += 1
        if self.sightings_waiting > MAX_SIGHTINGS:
            old = "DELETE FROM sightings WHERE id IN (SELECT id FROM sightings ORDER BY id LIMIT ?)"
            self.sightings_waiting -= self._db.execute(old, (self.sightings_waiting - MAX_SIGHTINGS,)).rowcount

    def sightings(self, limit: int) -> list[tuple[int, str, str]]:
        """The newest that wait: (id, vantage, payload)."""
        return list(self._db.execute("SELECT id, vantage, payload FROM sightings ORDER BY id DESC LIMIT ?", (limit,)))

    def delete_sightings(self, ids: Iterable[int]) -> None:
        """Forget what was acknowledged."""
        removed = self._db.executemany("DELETE FROM sightings WHERE id = ?", [(one,) for one in ids]).rowcount
        self.sightings_waiting -= max(0, removed)

    def alive(self) -> tuple[int | None, str | None]:
        """Up to when everything is on disk (microseconds), and in which boot of the machine that was said."""
        row = self._db.execute("SELECT alive_us, boot FROM identity").fetchone()
        return row[0], row[1]

    def mark_alive(self, until_us: int, boot: str) -> None:
        """Everything up to this instant is on disk."""
        self._db.execute("UPDATE identity SET alive_us = ?, boot = ?", (until_us, boot))

    def mark(self, series: SeriesKey, walked: Walked) -> None:
        """Remember how far a series has come."""
        self._db.execute(
            "INSERT OR REPLACE INTO walked VALUES (?, ?, ?, ?, ?, ?)",
            (*series, walked.handled_us, walked.ceiling_us, walked.repeats),
        )

    def marks(self) -> Mapping[SeriesKey, Walked]:
        """How far each series had come."""
        rows = self._db.execute("SELECT vantage, target, probe, handled_us, ceiling_us, repeats FROM walked")
        return {(v, t, p): Walked(handled_us=h, ceiling_us=c, repeats=r) for v, t, p, h, c, r in rows}

    def _forget_old_marks(self) -> None:
        self._db.execute(
            "DELETE FROM walked WHERE handled_us < (SELECT min(handled_us) FROM "
            "(SELECT handled_us FROM walked ORDER BY handled_us DESC LIMIT ?))",
            (MAX_WALKED,),
        )

    def _refresh_oldest(self) -> None:
        row = self._db.execute("SELECT at_us FROM attempts ORDER BY id LIMIT 1").fetchone()
        self.oldest_us = row[0] if row else None


def _connect(path: Path) -> sqlite3.Connection:
    existed = path.exists()
    if existed and path.stat().st_size == 0:
        raise SpoolCorrupt("the file is empty")
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        _check(db) if existed else _create(db, path)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA journal_size_limit = 4194304")
        db.execute("PRAGMA cache_size = -2000")
    except BaseException:
        db.close()
        if not existed:
            remove(path)
        raise
    return db


def _create(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.executescript(
        f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; "
        f"{SCHEMA} {NOTES} {SIGHTINGS}; COMMIT;"
    )
    sync_directory(path.parent)


def _check(db: sqlite3.Connection) -> None:
    try:
        identity = tuple(db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        if identity[0] == APPLICATION_ID and identity[1] > SCHEMA_VERSION:
            raise SpoolBusy(
                "the spool was written by a newer release (format "
                f"{identity[1]}): run that one until nothing waits there, or name another state folder"
            )
        if identity not in ((APPLICATION_ID, SCHEMA_VERSION), (APPLICATION_ID, 1)):
            raise SpoolCorrupt(f"the file holds another schema ({identity[0]:#x}, version {identity[1]})")
        older = identity[1] == 1
        missing = (TABLES_1 if older else TABLES) - {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if missing:
            raise SpoolCorrupt(f"the file lacks {', '.join(sorted(missing))}")
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if older and verdict == "ok":
            _upgrade(db)
        if verdict == "ok":
            db.execute(SIGHTINGS)
        db.execute("PRAGMA journal_mode = WAL")
    except sqlite3.DatabaseError as error:
        if not is_corrupt(error):
            raise
        raise SpoolCorrupt(f"{error}") from error
    if verdict != "ok":
        raise SpoolCorrupt(f"the check of the file says: {str(verdict)[:200]}")


def _upgrade(db: sqlite3.Connection) -> None:
    """From version 1 in place, in one transaction: attempts, marks and gaps stay."""
    gaps = db.execute("SELECT vantage, target, probe, first_at, last_at, slots, reason FROM gaps ORDER BY id")
    rows = gaps.fetchall()
    db.execute("BEGIN IMMEDIATE")
    for statement in NOTES.split(";"):
        db.execute(statement)
    for vantage, *said in rows:
        names = ("target", "probe", "first_at", "last_at", "slots", "reason")
        payload = json.dumps({"kind": "gap", **dict(zip(names, said, strict=True))})
        db.execute("INSERT INTO notes (vantage, payload) VALUES (?, ?)", (vantage, payload))
    db.execute("DROP TABLE gaps")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether an error says that the file itself is broken, not that the disk refuses."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
    return code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def set_aside(path: Path, stamp: str) -> Path:
    """Rename a broken file and its journals to `NAME.corrupt-STAMP`; the newest three of these are kept."""
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    old = sorted(p for p in path.parent.glob(f"{path.name}.corrupt-*") if not p.name.endswith(("-wal", "-shm")))
    for forgotten in old[:-KEPT_ASIDE]:
        remove(forgotten)
    sync_directory(path.parent)
    return aside


def remove(path: Path) -> None:
    """Delete a database file with its journals."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Make renames and creations in a directory durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
