"""Brings a database to the schema of this version, from a checkout or from an installed wheel.

Hides Alembic. Versions live in `migrations/` (in a wheel: `monitor/_migrations`).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from monitor.model import MonitorError
from monitor.store.engine import open_engine, own_error, parse_url

LOCK = 0x46540002  # "FT" 2: one process at a time migrates
LOCK_WAIT_SECONDS = 120


class MigrationFailed(MonitorError):
    """The schema could not be changed; nothing of the failed version stayed."""


class SchemaNewer(MigrationFailed):
    """The database was migrated by a newer release than this one."""


@dataclass(frozen=True, slots=True)
class State:
    """Where a database's schema stands."""

    current: str | None  # None: never migrated
    newest: str
    pending: tuple[str, ...]  # versions to run, in order, each with its first docstring line

    @property
    def up_to_date(self) -> bool:
        return not self.pending


def upgrade(url: str) -> State:
    """Run what is pending; returns the state found before. Two at once: the second waits and finds nothing to do.

    Raises StoreUnavailable when the database cannot be reached, MigrationFailed when a version fails (also when a lock
    cannot be had in time; run it again).
    """
    with _connected(url) as connection:
        _take_lock(connection)
        before = _state(connection)
        if before.pending:
            _run(connection)
        return before


def check(url: str) -> State:
    """The state of a database, changing nothing."""
    with _connected(url) as connection:
        return _state(connection)


def script() -> str:
    """All versions as one SQL script, for those who let a DBA run it."""
    out = io.StringIO()
    config = _config()
    config.output_buffer = out
    command.upgrade(config, "head", sql=True)
    return out.getvalue()


def location() -> Path:
    """The folder of the versions: inside the installed package, or beside it in a checkout."""
    package = Path(str(resources.files("monitor")))
    for folder in (package / "_migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise MigrationFailed(
        f"the migrations are missing from this installation (looked beside {package}): install it again"
    )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    engine = open_engine(url, connections=1)
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise own_error(error, parse_url(url)) from error
    finally:
        engine.dispose()


def _take_lock(connection: Connection) -> None:
    """A lock of the session: it ends with the connection, whatever happens."""
    connection.execute(text(f"SET lock_timeout = '{LOCK_WAIT_SECONDS}s'; SET statement_timeout = 0"))
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
    connection.commit()


def _state(connection: Connection) -> State:
    versions = ScriptDirectory.from_config(_config())
    current = MigrationContext.configure(connection).get_current_revision()
    connection.rollback()
    newest = versions.get_current_head() or ""
    known = [step.revision for step in versions.walk_revisions()]
    if current is not None and current not in known:
        raise SchemaNewer(
            f"the database's schema is version {current}, which this program does not know (its newest is {newest}): "
            "it was made by a newer release; upgrade the program"
        )
    steps = [] if current == newest else list(versions.iterate_revisions(newest, current or "base"))
    return State(current, newest, tuple(f"{step.revision}: {step.doc}" for step in reversed(steps)))


def _run(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except DBAPIError as error:
        own = own_error(error, connection.engine.url)
        raise MigrationFailed(f"a migration failed and was rolled back: {own}") from error
    connection.commit()
