"""The table `coverage`: ended hours written down for dashboards, which cannot derive them from plans themselves.

Hides when a row is written: only where it differs, so that late data shows and nothing else costs anything.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Engine, text

from monitor import wire
from monitor.store.attempts import hour_of
from monitor.store.coverage import Covered, covered
from monitor.store.engine import transaction
from monitor.store.rows import series_id, vantage_id


def sweep(engine: Engine, now: datetime, back: timedelta) -> int:
    """Write the ended hours of the last `back` into the table `coverage`, where they changed; how many did.

    May run anywhere, any number of times: late rows and notes show at the next run. Raises StoreUnavailable.
    """
    ended = hour_of(now)
    changed = 0
    found = covered(engine, ended - back, ended, now)
    for start in range(0, len(found), 5_000):
        with transaction(engine) as connection:
            rows = [_summary(one) for one in found[start : start + 5_000]]
            changed += connection.execute(_WRITE, {"rows": wire.dumps(rows).decode(), "now": now}).rowcount
    return changed


def forget(engine: Engine, before: datetime) -> None:
    """Delete the hours of the table `coverage` that begin before an instant."""
    with transaction(engine) as connection:
        connection.execute(text("DELETE FROM coverage WHERE hour < :before"), {"before": before})


_WRITE = text(
    "INSERT INTO coverage AS c (vantage_id, series_id, hour, owed, measured, missed, repeated, unplanned, counted_at) "
    "SELECT vantage_id, series_id, hour, owed, measured, missed, repeated, unplanned, :now "
    "FROM json_populate_recordset(NULL::coverage, CAST(:rows AS json)) ORDER BY vantage_id, series_id, hour "
    "ON CONFLICT (vantage_id, series_id, hour) DO UPDATE SET owed = excluded.owed, measured = excluded.measured,"
    " missed = excluded.missed, repeated = excluded.repeated, unplanned = excluded.unplanned,"
    " counted_at = excluded.counted_at "
    "WHERE (c.owed, c.measured, c.missed, c.repeated, c.unplanned) IS DISTINCT FROM"
    " (excluded.owed, excluded.measured, excluded.missed, excluded.repeated, excluded.unplanned)"
)


def _summary(one: Covered) -> dict[str, object]:
    tally = one.tally
    return {
        "vantage_id": vantage_id(one.vantage),
        "series_id": series_id(one.vantage, one.target, one.probe),
        "hour": wire.rfc3339(one.hour),
        "owed": tally.owed,
        "measured": tally.measured,
        "missed": dict(sorted(tally.missed.items())),
        "repeated": tally.repeated,
        "unplanned": tally.unplanned,
    }
