"""What the read API answers from: single attempts page by page, what is measured at all, percentiles over time.

Hides how a page is found again: attempts are ordered by their planned instant, newest first, and a cursor is the key of
the last one that was given. Every answer is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Engine, text

from monitor.model import Attempt
from monitor.store.engine import transaction
from monitor.store.histogram import Histogram
from monitor.store.rows import to_attempt

MOST_ATTEMPTS = 1_000
MOST_SERIES = 5_000
MOST_POINTS = 20_000
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
    """A group in one step of time."""

    group: tuple[str, ...]
    start: datetime
    histogram: Histogram


_FACTS = "f.vantage, f.target, f.probe, f.provider, f.model, f.country, f.simulated"
_ATTEMPTS = text(
    f"SELECT a.*, {_FACTS} FROM (SELECT DISTINCT vantage_id FROM series) v CROSS JOIN LATERAL ("
    "  SELECT a.* FROM attempts a JOIN series s ON s.vantage_id = a.vantage_id AND s.series_id = a.series_id"
    "  WHERE a.vantage_id = v.vantage_id AND a.scheduled_at >= :since AND a.scheduled_at < :until"
    "  AND (CAST(:vantage AS text) IS NULL OR s.vantage = :vantage)"
    "  AND (CAST(:target AS text) IS NULL OR s.target = :target)"
    "  AND (CAST(:probe AS text) IS NULL OR s.probe = :probe)"
    "  AND (CAST(:outcome AS text) IS NULL OR a.outcome = :outcome)"
    "  AND (CAST(:at AS timestamptz) IS NULL"
    "       OR (a.scheduled_at, a.vantage_id, a.series_id, a.try) < (:at, :of_vantage, :of_series, :of_try))"
    "  ORDER BY a.scheduled_at DESC, a.vantage_id DESC, a.series_id DESC, a.try DESC LIMIT :limit) a "
    "JOIN series_facts f ON f.vantage_id = a.vantage_id AND f.series_id = a.series_id "
    "ORDER BY a.scheduled_at DESC, a.vantage_id DESC, a.series_id DESC, a.try DESC LIMIT :limit"
)
_SERIES = text(f"SELECT {_FACTS}, f.city FROM series_facts f ORDER BY f.vantage, f.target, f.probe LIMIT :limit")


def attempts(engine: Engine, asked: Selection, limit: int, after: Key | None = None) -> list[Told]:
    """Attempts of [since, until) by planned instant, newest first, behind `after`. Raises StoreUnavailable."""
    at, of_vantage, of_series, of_try = after or (None, None, None, None)
    said = {
        "since": asked.since, "until": asked.until, "vantage": asked.vantage, "target": asked.target,
        "probe": asked.probe, "outcome": asked.outcome, "limit": min(limit, MOST_ATTEMPTS),
        "at": at, "of_vantage": of_vantage, "of_series": of_series, "of_try": of_try,
    }  # fmt: skip
    with transaction(engine) as connection:
        rows = connection.execute(_ATTEMPTS, said).mappings().all()
    return [Told(to_attempt(row), dict(row), _key(row)) for row in rows]


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
    """Merged histograms of a measure, for each group and step that touches [since, until), oldest first.

    From hourly rollups alone. Raises StoreUnavailable.
    """
    names = GROUPS[by]
    chosen = "".join(f", s.{name}" for name in names)
    bucket = f"date_trunc('{step}', h.hour, 'UTC')"
    query = text(
        f"SELECT {bucket} AS start, u.bin, sum(u.n) AS n, sum(u.cut) AS cut{chosen} FROM rollup_histograms h "
        "JOIN series s ON s.vantage_id = h.vantage_id AND s.series_id = h.series_id "
        "CROSS JOIN LATERAL unnest(h.bins, h.counts, h.censored) AS u(bin, n, cut) "
        "WHERE h.measure = :measure AND h.hour >= :since AND h.hour < :until "
        "AND (CAST(:vantage AS text) IS NULL OR s.vantage = :vantage) "
        "AND (CAST(:target AS text) IS NULL OR s.target = :target) "
        f"GROUP BY 1, 2{chosen}"
    )
    said = {"measure": measure, "since": _floor(since, step), "until": until, "vantage": vantage, "target": target}
    found: dict[tuple[datetime, tuple[str, ...]], Histogram] = defaultdict(Histogram)
    with transaction(engine) as connection:
        for start, number, count, cut, *key in connection.execute(query, said):
            found[start, tuple(key)].add(number, int(count), int(cut))
    return [Point(group, start, found[start, group]) for start, group in sorted(found)]


def points(since: datetime, until: datetime, step: Step) -> int:
    """How many steps touch [since, until)."""
    return -(-(until - _floor(since, step)) // STEPS[step])


def _floor(moment: datetime, step: Step) -> datetime:
    whole = moment.replace(minute=0, second=0, microsecond=0)
    return whole.replace(hour=0) if step == "day" else whole


def sequence(found: Sequence[Told], limit: int) -> Key | None:
    """The cursor behind a full page; None when it was the last."""
    return found[-1].key if len(found) == limit else None
