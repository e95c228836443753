"""Connections to Postgres: URLs, time limits, and the one place where database errors become the product's own.

Hides psycopg. Callers get transactions that either commit or raise: `StoreUnavailable` when the database cannot take
rows now (away, restarting, read-only, full, not migrated: the same rows may work later; `StoreRefuses` when somebody
has to do something first), `RowRefused` when it is the content that Postgres will never take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from monitor.model import ConfigError, StoreUnavailable
from monitor.store.errors import RowRefused, own_error, place

__all__ = ["Engine", "RowRefused", "describe", "open_engine", "own_error", "parse_url", "transaction"]

CONNECT_TIMEOUT_SECONDS = 5
STATEMENT_TIMEOUT_SECONDS = 30
LOCK_TIMEOUT_SECONDS = 5

_SESSION = (
    f"SET TIME ZONE 'UTC'; SET statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'; "
    f"SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'; SET jit = off"  # compiling costs more than our queries take
)


def open_engine(url: str, *, connections: int = 8) -> Engine:
    """An engine for `url` (`postgresql://user:password@host:port/database`), at most `connections` at a time.

    Connects lazily: a database that is away shows at the first transaction. Raises ConfigError for another kind of URL.
    Thread-safe; dispose of it with `.dispose()`.
    """
    engine = create_engine(
        parse_url(url),
        pool_size=min(4, connections),
        max_overflow=max(0, connections - 4),
        pool_timeout=CONNECT_TIMEOUT_SECONDS,
        pool_pre_ping=True,  # a server that restarted costs a reconnect, not a failed batch
        hide_parameters=True,  # no prompt and no row content in error texts
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "application_name": "firsttoken",
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": STATEMENT_TIMEOUT_SECONDS * 1_000,  # a line cut in mid-statement: else a quarter hour
        },
    )
    event.listen(engine, "connect", _prepare_session)
    return engine


def _prepare_session(connection: object, _record: object) -> None:
    """Set per session and not as start-up options: connection poolers refuse those."""
    with connection.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(_SESSION)
    connection.commit()  # type: ignore[attr-defined]


def parse_url(url: str) -> URL:
    """A database URL as people write it, with our driver; raises ConfigError without repeating the URL's password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            "the database URL cannot be read: write postgresql://user:password@host:5432/database"
        ) from None
    scheme = parsed.drivername.partition("+")[0]
    if scheme not in ("postgresql", "postgres"):
        raise ConfigError(f"the database URL must start with postgresql://, not {parsed.drivername}://")
    return parsed.set(drivername="postgresql+psycopg")


def describe(engine: Engine) -> str:
    """Where an engine's database is, for logs: never with its password, nor with what options say."""
    return place(engine.url)


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """A connection in a transaction that commits at the end; raises StoreUnavailable or RowRefused, with the cause."""
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        raise own_error(error, engine.url) from error
    except PoolTimeout as error:
        raise StoreUnavailable("Postgres is too slow: all our connections to it are busy") from error
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"Postgres cannot be used: {type(error).__name__}") from error
