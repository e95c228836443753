"""Hourly rollups of each series: counts, sums and histograms, so that any range and any group of them can be added up.

Hides the queue of touched hours. `insert` marks hours as it stores rows; `refresh` claims marks, computes those hours
from the raw attempts again, and so gives the same result whenever rows come, late ones included. Any number of
processes may refresh at once: a claim is a row lock that others skip.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import Connection, Engine, text

from monitor import wire
from monitor.store.engine import transaction
from monitor.store.histogram import Histogram, Percentile, bin_sql
from monitor.store.measures import COUNTED, NAMES, VALID, is_censored, value_ns

CLAIM = 200
"""Series-hours in one transaction: inserts into a claimed hour wait for that long, so it stays short."""
DAYS_AT_ONCE = 100
"""Claims of days in one refresh."""
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OPEN_HOUR_EVERY = timedelta(minutes=5)
"""The hour that still runs gets new rows all the time; computing it that often keeps the cost a few rows an attempt."""
By = Literal["series", "vantage", "target", "all"]

_CLAIM = text(
    "DELETE FROM dirty_hours d USING ("
    "  SELECT vantage_id, series_id, hour FROM dirty_hours m"
    "  WHERE hour < :before AND (hour <= :open_hour OR NOT EXISTS ("
    "    SELECT FROM rollups r WHERE r.vantage_id = m.vantage_id AND r.series_id = m.series_id AND r.hour = m.hour"
    "    AND r.refreshed_at > :lately AND r.refreshed_at <= :now))"
    "  ORDER BY hour DESC, vantage_id, series_id LIMIT :limit FOR UPDATE OF m SKIP LOCKED"
    ") c WHERE d.vantage_id = c.vantage_id AND d.series_id = c.series_id AND d.hour = c.hour "
    "RETURNING d.vantage_id, d.series_id, d.hour"
)
_CLAIMED = (
    "JOIN json_to_recordset(CAST(:keys AS json)) AS k(vantage_id bigint, series_id bigint) "
    "ON a.vantage_id = k.vantage_id AND a.series_id = k.series_id "
    "WHERE a.scheduled_at >= :hour AND a.scheduled_at < :end"
)


def _tally(column: str, where: str) -> str:
    """SQL: column value -> count, as jsonb, for the planned attempts of a group."""
    return (
        f"coalesce((SELECT jsonb_object_agg(x.name, x.n) FROM (SELECT {column} AS name, count(*) AS n FROM picked p "
        f"WHERE p.vantage_id = a.vantage_id AND p.series_id = a.series_id AND p.try = 0 AND {where} "
        f"GROUP BY 1) x), '{{}}'::jsonb)"
    )


_COUNTS = text(f"""
WITH picked AS (SELECT a.* FROM attempts a {_CLAIMED})
INSERT INTO rollups (
    vantage_id, series_id, hour, attempts, confirming, success, failed, missed, doubtful, failures, misses,
    output_tokens, reasoning_tokens, input_tokens, cached_tokens, stalls, refreshed_at, slots_us)
SELECT
    a.vantage_id, a.series_id, :hour,
    count(*) FILTER (WHERE a.try = 0),
    count(*) FILTER (WHERE a.try > 0),
    count(*) FILTER (WHERE a.try = 0 AND a.outcome = 'success'),
    count(*) FILTER (WHERE a.try = 0 AND a.outcome = 'failed'),
    count(*) FILTER (WHERE a.try = 0 AND a.outcome = 'missed'),
    count(*) FILTER (WHERE a.try = 0 AND a.outcome <> 'missed' AND NOT {VALID}),
    {_tally("p.failure_kind", "p.outcome = 'failed' AND p.failure_kind IS NOT NULL")},
    {_tally("p.missed_reason", "p.outcome = 'missed' AND p.missed_reason IS NOT NULL")},
    coalesce(sum(a.output_tokens), 0), coalesce(sum(a.reasoning_tokens), 0),
    coalesce(sum(a.input_tokens), 0), coalesce(sum(a.cached_tokens), 0),
    coalesce(sum(a.stalls) FILTER (WHERE a.try = 0), 0), :now,
    coalesce(sum(extract(epoch FROM a.scheduled_at - :hour) * 1000000) FILTER (WHERE a.try = 0), 0)::bigint
FROM picked a GROUP BY a.vantage_id, a.series_id
ON CONFLICT (vantage_id, series_id, hour) DO UPDATE SET
    attempts = excluded.attempts, confirming = excluded.confirming, success = excluded.success,
    failed = excluded.failed, missed = excluded.missed, doubtful = excluded.doubtful,
    failures = excluded.failures, misses = excluded.misses, output_tokens = excluded.output_tokens,
    reasoning_tokens = excluded.reasoning_tokens, input_tokens = excluded.input_tokens,
    cached_tokens = excluded.cached_tokens, stalls = excluded.stalls, refreshed_at = excluded.refreshed_at,
    slots_us = excluded.slots_us
""")

_VALUES = ", ".join(f"('{name}', {value_ns(name)}, {is_censored(name)})" for name in NAMES)
_HISTOGRAMS = text(f"""
WITH measured AS (
    SELECT a.vantage_id, a.series_id, m.measure, m.ns, m.censored, {bin_sql("m.ns")} AS bin
    FROM attempts a CROSS JOIN LATERAL (VALUES {_VALUES}) AS m(measure, ns, censored)
    {_CLAIMED} AND {COUNTED} AND m.ns IS NOT NULL
), binned AS (
    SELECT vantage_id, series_id, measure, bin, count(*) AS n, count(*) FILTER (WHERE censored) AS cut,
        sum(ns) AS sum_ns, min(ns) AS min_ns, max(ns) AS max_ns
    FROM measured GROUP BY vantage_id, series_id, measure, bin
)
INSERT INTO rollup_histograms (vantage_id, series_id, measure, hour, bins, counts, censored, sum_ns, min_ns, max_ns)
SELECT vantage_id, series_id, measure, :hour, array_agg(bin ORDER BY bin), array_agg(n ORDER BY bin),
    array_agg(cut ORDER BY bin), sum(sum_ns), min(min_ns), max(max_ns)
FROM binned GROUP BY vantage_id, series_id, measure
ON CONFLICT (vantage_id, series_id, measure, hour) DO UPDATE SET
    bins = excluded.bins, counts = excluded.counts, censored = excluded.censored,
    sum_ns = excluded.sum_ns, min_ns = excluded.min_ns, max_ns = excluded.max_ns
""")

_HOURS = "SELECT h.vantage_id, h.series_id, h.bins, h.counts, h.censored FROM rollup_histograms h"
_HOURS_AND_DAYS = (
    "SELECT vantage_id, series_id, bins, counts, censored FROM rollup_days"
    " WHERE measure = :measure AND day >= :first_day AND day < :last_day"
    f" UNION ALL {_HOURS} WHERE h.measure = :measure AND h.hour >= :since AND h.hour < least(:first_day, :until)"
    f" UNION ALL {_HOURS} WHERE h.measure = :measure AND h.hour >= :last_day AND h.hour < :until"
    f" UNION ALL {_HOURS} JOIN dirty_days d ON d.vantage_id = h.vantage_id AND d.series_id = h.series_id"
    "  AND h.hour >= d.day AND h.hour < d.day + interval '1 day'"
    " WHERE h.measure = :measure AND d.day >= :first_day AND d.day < :last_day"
)
"""Whole days as days, what is left of the range at both ends as hours, and days that are out of date as hours too."""
_CHANGED = text(
    "INSERT INTO dirty_days (vantage_id, series_id, day) SELECT vantage_id, series_id, :day FROM "
    "json_to_recordset(CAST(:keys AS json)) AS k(vantage_id bigint, series_id bigint) ORDER BY 1, 2 "
    "ON CONFLICT DO NOTHING"
)
_OUTDATED = text(
    "DELETE FROM rollup_days d USING json_to_recordset(CAST(:keys AS json)) AS k(vantage_id bigint, series_id bigint) "
    "WHERE d.vantage_id = k.vantage_id AND d.series_id = k.series_id AND d.day = :day"
)
_ENDED = text(
    "DELETE FROM dirty_days d USING (SELECT vantage_id, series_id, day FROM dirty_days WHERE day <= :until"
    "  ORDER BY day DESC, vantage_id, series_id LIMIT :limit FOR UPDATE SKIP LOCKED) c "
    "WHERE d.vantage_id = c.vantage_id AND d.series_id = c.series_id AND d.day = c.day "
    "RETURNING d.vantage_id, d.series_id, d.day"
)
_ADD_UP = text(
    "INSERT INTO rollup_days (vantage_id, series_id, measure, day, bins, counts, censored) "
    "SELECT vantage_id, series_id, measure, day, array_agg(bin ORDER BY bin), array_agg(n ORDER BY bin),"
    " array_agg(cut ORDER BY bin) FROM ("
    "  SELECT h.vantage_id, h.series_id, h.measure, k.day, u.bin, CAST(sum(u.n) AS bigint) AS n,"
    "   CAST(sum(u.cut) AS bigint) AS cut FROM rollup_histograms h"
    "  JOIN json_to_recordset(CAST(:keys AS json)) AS k(vantage_id bigint, series_id bigint, day timestamptz)"
    "   ON h.vantage_id = k.vantage_id AND h.series_id = k.series_id"
    "   AND h.hour >= k.day AND h.hour < k.day + interval '1 day'"
    "  CROSS JOIN LATERAL unnest(h.bins, h.counts, h.censored) AS u(bin, n, cut)"
    "  GROUP BY h.vantage_id, h.series_id, h.measure, k.day, u.bin) b "
    "GROUP BY vantage_id, series_id, measure, day "
    "ON CONFLICT (vantage_id, series_id, measure, day) DO UPDATE SET"
    " bins = excluded.bins, counts = excluded.counts, censored = excluded.censored"
)

_TARGET = "JOIN series s ON s.vantage_id = h.vantage_id AND s.series_id = h.series_id "
_BY: Mapping[By, tuple[str, str, str]] = {
    "series": (
        "h.vantage_id, h.series_id",
        "s.vantage, s.target, s.probe",
        "JOIN series s ON s.vantage_id = q.vantage_id AND s.series_id = q.series_id",
    ),
    "vantage": ("h.vantage_id", "v.name", "JOIN vantages v ON v.vantage_id = q.vantage_id"),
    "target": ("s.target", "q.target", ""),
    "all": ("", "", ""),
}
"""What is grouped by, the names of a group, and where they stand."""


def refresh(engine: Engine, now: datetime, *, before: datetime | None = None, max_hours: int = 10_000) -> int:
    """Compute the marked hours again, newest first; returns how many series-hours were computed.

    A series' running hour is computed once in `OPEN_HOUR_EVERY`, ended hours at once. `before` limits it to hours that
    begin before that instant. Stops after `max_hours` series-hours, so that a large backlog is worked off in bounded
    steps. Raises StoreUnavailable; what was claimed then stays marked.
    """
    done = 0
    while done < max_hours:
        with transaction(engine) as connection:
            claimed = _claim(connection, before or now + timedelta(days=2), now)
            for hour, keys in claimed.items():
                _compute(connection, hour, keys, now)
        if not claimed:
            break
        done += sum(map(len, claimed.values()))
    _add_up_days(engine, now)
    return done


def _add_up_days(engine: Engine, now: datetime) -> None:
    """Days that have ended and whose hours have changed; until then their hours are asked."""
    until = now - DAY - OPEN_HOUR_EVERY
    for _ in range(DAYS_AT_ONCE):
        with transaction(engine) as connection:
            ended = connection.execute(_ENDED, {"until": until, "limit": CLAIM}).mappings().all()
            keys = [{**row, "day": wire.rfc3339(row["day"])} for row in ended]
            if keys:
                connection.execute(_ADD_UP, {"keys": wire.dumps(keys).decode()})
        if len(ended) < CLAIM:
            return


def backlog(engine: Engine) -> int:
    """How many series-hours wait for a refresh."""
    with transaction(engine) as connection:
        return int(connection.execute(text("SELECT count(*) FROM dirty_hours")).scalar_one())


def percentiles(
    engine: Engine,
    measure: str,
    since: datetime,
    until: datetime,
    qs: Sequence[float] = (0.5, 0.95),
    *,
    by: By = "series",
) -> dict[tuple[str, ...], list[Percentile | None]]:
    """Percentiles of a measure over whole hours that begin in [since, until), from rollups alone, for each group.

    Keys are names: (vantage, target, probe), (vantage,), (target,) or (). `measure` is one of `measures.NAMES`.
    """
    return {
        key: [found.percentile(q) for q in qs]
        for key, found in histograms(engine, measure, since, until, by=by).items()
    }


def histograms(
    engine: Engine, measure: str, since: datetime, until: datetime, *, by: By = "series"
) -> dict[tuple[str, ...], Histogram]:
    """The merged histograms behind `percentiles`."""
    keys, names, of = _BY[by]
    comma = ", " if keys else ""
    # ids before names, and counts of an hour as what they are: a sum of bigint is a numeric, which costs thrice as much
    query = text(
        f"SELECT q.bin, q.n, q.cut {comma}{names} FROM (SELECT u.bin, sum(CAST(u.n AS int)) AS n, "
        f"sum(CAST(u.cut AS int)) AS cut {comma}{keys} FROM ({_HOURS_AND_DAYS}) h {_TARGET if by == 'target' else ''}"
        "CROSS JOIN LATERAL unnest(h.bins, h.counts, h.censored) AS u(bin, n, cut) "
        f"GROUP BY u.bin {comma}{keys}) q {of}"
    )
    first_day = -(-(since - EPOCH) // DAY) * DAY + EPOCH
    last_day = max(first_day, (until - EPOCH) // DAY * DAY + EPOCH)
    said = {"measure": measure, "since": since, "until": until, "first_day": first_day, "last_day": last_day}
    found: dict[tuple[str, ...], Histogram] = defaultdict(Histogram)
    with transaction(engine) as connection:
        for number, count, cut, *key in connection.execute(query, said):
            found[tuple(key)].add(number, int(count), int(cut))
    return dict(found)


def percentile(bins: dict[int, int], q: float) -> float | None:
    """Seconds at the nearest-rank percentile `q` of counts by bin number; None when empty."""
    found = Histogram(bins).percentile(q)
    return None if found is None else found.seconds


def _claim(connection: Connection, before: datetime, now: datetime) -> dict[datetime, list[tuple[int, int]]]:
    asked = {"before": before, "open_hour": now - HOUR, "lately": now - OPEN_HOUR_EVERY, "now": now, "limit": CLAIM}
    claimed: dict[datetime, list[tuple[int, int]]] = defaultdict(list)
    for vantage, series, hour in connection.execute(_CLAIM, asked):
        claimed[hour].append((vantage, series))
    return claimed


def _compute(connection: Connection, hour: datetime, keys: Iterable[tuple[int, int]], now: datetime) -> None:
    """One hour of some series. In READ COMMITTED this statement sees every row whose mark has been claimed."""
    named = [{"vantage_id": vantage, "series_id": series} for vantage, series in sorted(keys)]
    said = {"keys": wire.dumps(named).decode(), "hour": hour, "end": hour + HOUR}
    connection.execute(_COUNTS, {**said, "now": now})
    connection.execute(_HISTOGRAMS, said)
    day = {"keys": said["keys"], "day": hour.astimezone(UTC).replace(hour=0)}
    connection.execute(_CHANGED, day)  # first: whoever adds this day up now is waited for, and its row goes next
    connection.execute(_OUTDATED, day)
