"""The daily partitions of `attempts`: their names, and how they are made and dropped.

A day each, because retention is promised in days, because a day of a large fleet (about a million rows) keeps its
indexes in memory, and because a late row then touches exactly its own day. There is no default partition: it would have
to be scanned whenever a day is added; instead `insert` makes the day it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta

from sqlalchemy import Connection, text

PREFIX = "attempts_p"
LOCK = 0x46540001  # "FT" 1: one process at a time changes the set of partitions


def name_of(day: date) -> str:
    """The partition that holds a UTC day: `attempts_p20260131`."""
    return f"{PREFIX}{day:%Y%m%d}"


def day_of(moment: datetime) -> date:
    """The UTC day of an instant."""
    return moment.astimezone(UTC).date()


def start_of(day: date) -> datetime:
    """The first instant of a UTC day."""
    return datetime.combine(day, time(), UTC)


def missing(connection: Connection, days: Iterable[date]) -> list[date]:
    """Those of `days` that have no partition yet."""
    by_name = {name_of(day): day for day in days}
    # pg_class and not to_regclass(), which may answer from a cache that has not heard of another session's commit yet
    found = text(
        "SELECT name FROM unnest(CAST(:names AS text[])) AS name WHERE NOT EXISTS (SELECT FROM pg_class "
        "WHERE relname = name AND relnamespace = CAST(current_schema() AS regnamespace))"
    )
    return sorted(by_name[name] for name in connection.execute(found, {"names": list(by_name)}).scalars())


def existing(connection: Connection) -> list[date]:
    """The days that have a partition, ascending."""
    found = text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'attempts'::regclass")
    names = connection.execute(found).scalars()
    return sorted(date.fromisoformat(n.rpartition(PREFIX)[2]) for n in names if PREFIX in n)


def create(connection: Connection, days: Iterable[date]) -> list[date]:
    """Make the missing partitions of `days` in this transaction; returns those made. Safe from several processes.

    A table is made apart and then attached, which lets inserts into the other days go on.
    """
    wanted = missing(connection, days)
    if wanted:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        wanted = missing(connection, wanted)
    for day in wanted:
        name, first, after = name_of(day), start_of(day), start_of(day + timedelta(days=1))
        connection.execute(text(f"CREATE TABLE {name} (LIKE attempts INCLUDING ALL)"))
        bounds = f"FROM ('{first.isoformat()}') TO ('{after.isoformat()}')"
        connection.execute(text(f"ALTER TABLE attempts ATTACH PARTITION {name} FOR VALUES {bounds}"))
    return wanted


def drop(connection: Connection, day: date) -> None:
    """Drop a day with its rows. Waits at most the session's lock timeout for readers."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    connection.execute(text(f"DROP TABLE IF EXISTS {name_of(day)}"))
