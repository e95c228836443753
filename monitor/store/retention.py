"""How long things are kept: days are made ahead, old ones dropped, rollups outlive them.

Hides the order that loses nothing: the rollups of a day are brought up to date before its raw attempts go, and from
then on they are final (`retention_floor`), so that a very late row cannot replace an hour by itself alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from sqlalchemy import Engine, text

from monitor.store import coverage_hours, notes, partitions, rollups, verdicts, witness
from monitor.store.engine import transaction
from monitor.store.measures import NAMES

MARGIN = timedelta(hours=1)
"""Days go that much later than promised: `insert` on a machine whose clock is behind still finds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to keep."""

    raw_days: int = 30
    rollup_days: int = 400
    ahead_days: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep did."""

    created: list[date]  # days that now have a partition
    dropped: list[date]  # days whose raw attempts are gone
    rollups_deleted: int  # hours of series


def sweep(engine: Engine, now: datetime, policy: Policy | None = None) -> Swept:
    """Make the coming days' partitions, drop days older than `raw_days`, delete older rollups. Run it hourly, anywhere.

    May run in several processes at once, and again after it was cut short. Raises StoreUnavailable.
    """
    policy = policy or Policy()
    today = partitions.day_of(now)
    with transaction(engine) as connection:
        coming = [today + timedelta(days=n) for n in range(policy.ahead_days + 1)]
        created = partitions.create(connection, coming)
    keep_from = now - timedelta(days=policy.rollup_days)
    coverage_hours.forget(engine, keep_from)
    notes.forget(engine, keep_from)
    witness.forget(engine, now - timedelta(days=policy.raw_days) - MARGIN)
    return Swept(
        created=created,
        dropped=_drop_raw(engine, now, now - timedelta(days=policy.raw_days) - MARGIN),
        rollups_deleted=_delete_rollups(engine, keep_from),
    )


def _drop_raw(engine: Engine, now: datetime, keep_from: datetime) -> list[date]:
    """Days wholly before `keep_from`, each in a transaction of its own: readers wait as shortly as possible."""
    with transaction(engine) as connection:
        days = [d for d in partitions.existing(connection) if partitions.start_of(d + timedelta(days=1)) <= keep_from]
    for day in days:
        end = partitions.start_of(day + timedelta(days=1))
        _raise_floor(engine, end)
        while rollups.refresh(engine, now, before=end):
            pass
        with transaction(engine) as connection:
            partitions.drop(connection, day)
        verdicts.forget(engine, end)
    return days


def _raise_floor(engine: Engine, raw_from: datetime) -> None:
    raise_it = text(
        "INSERT INTO retention_floor (only_row, raw_from) VALUES (true, :raw_from) ON CONFLICT (only_row) "
        "DO UPDATE SET raw_from = greatest(retention_floor.raw_from, excluded.raw_from)"
    )
    with transaction(engine) as connection:
        connection.execute(raise_it, {"raw_from": raw_from})


_SPLIT_DAY = text(
    "INSERT INTO dirty_days (vantage_id, series_id, day) SELECT DISTINCT vantage_id, series_id, day FROM rollup_days "
    "WHERE day < :keep_from AND day + interval '1 day' > :keep_from ON CONFLICT DO NOTHING"
)
"""A day that goes in part: what is left of it is hours, until it is added up again."""


def _delete_rollups(engine: Engine, keep_from: datetime) -> int:
    with transaction(engine) as connection:
        connection.execute(_SPLIT_DAY, {"keep_from": keep_from})
        for measure in NAMES:  # one at a time: each is a range of the index (measure, hour)
            query = text("DELETE FROM rollup_histograms WHERE measure = :measure AND hour < :keep_from")
            connection.execute(query, {"measure": measure, "keep_from": keep_from})
            days = text("DELETE FROM rollup_days WHERE measure = :measure AND day < :keep_from")
            connection.execute(days, {"measure": measure, "keep_from": keep_from})
        gone = connection.execute(text("DELETE FROM rollups WHERE hour < :keep_from"), {"keep_from": keep_from})
        return int(gone.rowcount)
