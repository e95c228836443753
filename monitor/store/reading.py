"""What the read API answers from: single attempts page by page, what is measured at all, percentiles over time.

Hides how a page is found again: attempts are ordered by their planned instant, newest first, and a cursor is the key of
the last one that was given. Every answer is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Engine, TextClause, text

from monitor.model import Attempt, MonitorError
from monitor.store.engine import transaction
from monitor.store.histogram import Histogram, Percentile
from monitor.store.rows import to_attempt

MOST_ATTEMPTS = 1_000
MOST_SERIES = 5_000
MOST_POINTS = 20_000
QUANTILES = (0.5, 0.9, 0.95, 0.99)
Step = Literal["hour", "day"]
STEPS: Mapping[Step, timedelta] = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "vantage": ("vantage",),
    "target": ("target",),
    "series": ("vantage", "target", "probe"),
    "all": (),
}

Key = tuple[datetime, int, int, int]
"""(planned instant, vantage id, series id, try) of an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which attempts; None: all."""

    since: datetime
    until: datetime
    vantage: str | None = None
    target: str | None = None
    probe: str | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """An attempt with what is known of its series."""

    attempt: Attempt
    facts: Mapping[str, Any]
    key: Key


@dataclass(frozen=True, slots=True)
class Point:
    """A group in one step of time: how many attempts counted, and their `QUANTILES`."""

    group: tuple[str, ...]
    start: datetime
    count: int
    percentiles: Sequence[Percentile]


class TooMuch(MonitorError):
    """The answer would be larger than `MOST_POINTS`; the sentence says how large."""


_FACTS = "f.vantage, f.target, f.probe, f.provider, f.model, f.country, f.simulated"
_ATTEMPTS = text(
    "WITH chosen AS (SELECT s.vantage_id, s.series_id FROM series s WHERE"
    "  (CAST(:vantage AS text) IS NULL OR s.vantage = :vantage)"
    "  AND (CAST(:target AS text) IS NULL OR s.target = :target)"
    "  AND (CAST(:probe AS text) IS NULL OR s.probe = :probe)) "
    f"SELECT a.*, {_FACTS} FROM (SELECT DISTINCT vantage_id FROM chosen) v CROSS JOIN LATERAL ("
    "  SELECT a.* FROM attempts a JOIN chosen c ON c.vantage_id = a.vantage_id AND c.series_id = a.series_id"
    "  WHERE a.vantage_id = v.vantage_id AND a.scheduled_at >= :since AND a.scheduled_at < :until"
    "  AND (CAST(:outcome AS text) IS NULL OR a.outcome = :outcome)"
    "  AND (CAST(:at AS timestamptz) IS NULL"
    "       OR (a.scheduled_at, a.vantage_id, a.series_id, a.try) < (:at, :of_vantage, :of_series, :of_try))"
    "  ORDER BY a.scheduled_at DESC, a.vantage_id DESC, a.series_id DESC, a.try DESC LIMIT :limit) a "
    "JOIN series_facts f ON f.vantage_id = a.vantage_id AND f.series_id = a.series_id "
    "ORDER BY a.scheduled_at DESC, a.vantage_id DESC, a.series_id DESC, a.try DESC LIMIT :limit"
)
"""Only vantage points that can have some are looked through: a name that nobody has costs nothing."""
_SERIES = text(f"SELECT {_FACTS}, f.city FROM series_facts f ORDER BY f.vantage, f.target, f.probe LIMIT :limit")


def attempts(engine: Engine, asked: Selection, limit: int, after: Key | None = None) -> list[Told]:
    """Attempts of [since, until) by planned instant, newest first, behind `after`. Raises StoreUnavailable."""
    with transaction(engine) as connection:
        rows = connection.execute(*question(asked, limit, after)).mappings().all()
    return [Told(to_attempt(row), dict(row), _key(row)) for row in rows]


def question(asked: Selection, limit: int, after: Key | None = None) -> tuple[TextClause, dict[str, Any]]:
    """What `attempts` executes, with its values: for whoever wants to know what it costs."""
    at, of_vantage, of_series, of_try = after or (None, None, None, None)
    until = asked.until if at is None else min(asked.until, at + timedelta(microseconds=1))  # in a prepared plan too
    return _ATTEMPTS, {
        "since": asked.since, "until": until, "vantage": asked.vantage, "target": asked.target,
        "probe": asked.probe, "outcome": asked.outcome, "limit": min(limit, MOST_ATTEMPTS),
        "at": at, "of_vantage": of_vantage, "of_series": of_series, "of_try": of_try,
    }  # fmt: skip


def _key(row: Mapping[Any, Any]) -> Key:
    return (row["scheduled_at"], row["vantage_id"], row["series_id"], row["try"])


def series(engine: Engine) -> list[Mapping[str, Any]]:
    """Everything that was ever measured or planned, with its labels. Raises StoreUnavailable."""
    with transaction(engine) as connection:
        return [dict(row) for row in connection.execute(_SERIES, {"limit": MOST_SERIES}).mappings()]


def over_time(
    engine: Engine,
    measure: str,
    since: datetime,
    until: datetime,
    *,
    step: Step,
    by: str,
    vantage: str | None = None,
    target: str | None = None,
) -> list[Point]:
    """Percentiles of a measure, for each group and whole step (UTC) that touches [since, until), oldest first.

    From rollups alone. Raises TooMuch before anything is computed, StoreUnavailable.
    """
    begin, end = _floor(since, step), _ceiling(until, step)
    names = "".join(f", s.{name}" for name in GROUPS[by])
    kept = ", ".join(("q.start", *(f"q.{name}" for name in GROUPS[by])))
    query = text(
        f"SELECT {kept}, array_agg(q.bin) AS bins, array_agg(q.n) AS counts, array_agg(q.cut) AS cut FROM ("
        f"  SELECT h.start, u.bin, sum(CAST(u.n AS int)) AS n, sum(CAST(u.cut AS int)) AS cut{names} FROM"
        f"  ({_STEPS[step]}) h JOIN series s ON s.vantage_id = h.vantage_id AND s.series_id = h.series_id"
        "  CROSS JOIN LATERAL unnest(h.bins, h.counts, h.censored) AS u(bin, n, cut)"
        f"  WHERE {_CHOSEN} GROUP BY h.start, u.bin{names}) q GROUP BY {kept}"
    )
    said = {"measure": measure, "since": begin, "until": end, "vantage": vantage, "target": target}
    with transaction(engine) as connection:
        _bounded(connection, (end - begin) // STEPS[step], by, said)
        found = [_point(*row) for row in connection.execute(query, said)]
    return sorted(found, key=lambda one: (one.start, one.group))


_CHOSEN = (
    "(CAST(:vantage AS text) IS NULL OR s.vantage = :vantage) AND (CAST(:target AS text) IS NULL OR s.target = :target)"
)
_COLUMNS = "h.bins, h.counts, h.censored FROM rollup_histograms h"
_STEPS: Mapping[Step, str] = {
    "hour": f"SELECT h.vantage_id, h.series_id, h.hour AS start, {_COLUMNS}"
    " WHERE h.measure = :measure AND h.hour >= :since AND h.hour < :until",
    "day": "SELECT vantage_id, series_id, day AS start, bins, counts, censored FROM rollup_days"
    " WHERE measure = :measure AND day >= :since AND day < :until"
    f" UNION ALL SELECT h.vantage_id, h.series_id, d.day, {_COLUMNS}"
    "  JOIN dirty_days d ON d.vantage_id = h.vantage_id AND d.series_id = h.series_id"
    "  AND h.hour >= d.day AND h.hour < d.day + interval '1 day'"
    " WHERE h.measure = :measure AND d.day >= :since AND d.day < :until",
}
"""Where the histograms of a step are: of days that are out of date their hours, see `rollups`."""


def _bounded(connection: Connection, steps: int, by: str, said: Mapping[str, Any]) -> None:
    names = ", ".join(f"s.{name}" for name in GROUPS[by]) or "1"
    query = text(f"SELECT count(*) FROM (SELECT DISTINCT {names} FROM series s WHERE {_CHOSEN}) g")
    groups = int(connection.execute(query, said).scalar_one())
    if steps * groups > MOST_POINTS:
        raise TooMuch(f"{steps:,} steps of {groups:,} groups are more than {MOST_POINTS:,} rows")


def _point(start: datetime, *rest: Any) -> Point:
    *group, bins, counts, cut = rest
    counted = Histogram(dict(zip(bins, map(int, counts), strict=True)), dict(zip(bins, map(int, cut), strict=True)))
    found = [percentile for q in QUANTILES if (percentile := counted.percentile(q)) is not None]
    return Point(tuple(group), start.astimezone(UTC), counted.count, found)


def _floor(moment: datetime, step: Step) -> datetime:
    whole = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return whole.replace(hour=0) if step == "day" else whole


def _ceiling(moment: datetime, step: Step) -> datetime:
    whole = _floor(moment, step)
    return whole if whole == moment else whole + STEPS[step]


def sequence(found: Sequence[Told], limit: int) -> Key | None:
    """The cursor behind a full page; None when it was the last."""
    return found[-1].key if len(found) == limit else None
