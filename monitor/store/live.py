"""What live pages ask: the newest attempts of each series, what has just come in, and the last hour's percentiles.

Hides the queries' shape, which keeps them at a few milliseconds whatever the record's size: one index range per series,
and only the partitions of the time looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine, text

from monitor.clock import Clock
from monitor.detect.coldstart import Judgement
from monitor.model import Attempt, SeriesKey
from monitor.store import verdicts
from monitor.store.engine import transaction
from monitor.store.measures import COUNTED, is_censored, value_ns
from monitor.store.rows import to_attempt

LOOK_BACK = timedelta(days=3)
FAILING_BACK = timedelta(days=7)
"""How far back the beginning of an outage is looked for."""
MAX_ROWS = 2000

_NAMES = "s.vantage, s.target, s.probe"
_LATEST = text(
    f"SELECT a.*, {_NAMES} FROM series s CROSS JOIN LATERAL ("
    "  SELECT * FROM attempts a"
    "  WHERE a.vantage_id = s.vantage_id AND a.series_id = s.series_id AND a.scheduled_at >= :since"
    "  ORDER BY a.scheduled_at DESC LIMIT :limit"
    ") a ORDER BY s.vantage, s.target, s.probe, a.scheduled_at DESC, a.try DESC"
)
_OF_SERIES = "JOIN series s ON s.vantage_id = a.vantage_id AND s.series_id = a.series_id"
_RECEIVED = text(
    f"SELECT a.*, {_NAMES} FROM attempts a {_OF_SERIES} "
    "WHERE a.received_at >= :since ORDER BY a.received_at DESC, a.scheduled_at DESC LIMIT :limit"
)
_RECENT = text(
    f"SELECT a.*, {_NAMES} FROM vantages v CROSS JOIN LATERAL ("
    "  SELECT * FROM attempts a WHERE a.vantage_id = v.vantage_id AND a.scheduled_at >= :since"
    "  ORDER BY a.scheduled_at DESC, a.series_id, a.try LIMIT :limit"
    f") a {_OF_SERIES} ORDER BY a.scheduled_at DESC, a.series_id, a.try LIMIT :limit"
)
_FAILING = text(
    "WITH one AS (SELECT vantage_id, series_id FROM series WHERE vantage = :vantage AND target = :target"
    "  AND probe = :probe),"
    " ok AS (SELECT a.scheduled_at FROM attempts a JOIN one USING (vantage_id, series_id)"
    "  WHERE a.scheduled_at >= :since AND a.outcome = 'success' AND a.try = 0 ORDER BY a.scheduled_at DESC LIMIT 1)"
    " SELECT min(a.started_at), (SELECT scheduled_at FROM ok)"
    " FROM attempts a JOIN one USING (vantage_id, series_id)"
    " WHERE a.scheduled_at >= :since AND a.outcome = 'failed' AND a.try = 0"
    " AND a.scheduled_at > coalesce((SELECT scheduled_at FROM ok), '-infinity')"
)
_SUMMARY = text(
    f"SELECT {_NAMES}, count(*), count(*) FILTER (WHERE a.outcome = 'success'),"
    " count(*) FILTER (WHERE a.outcome = 'failed'), count(*) FILTER (WHERE a.outcome = 'missed'),"
    f" percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY {value_ns('ttft')}) FILTER (WHERE {COUNTED}),"
    f" min({value_ns('ttft')}) FILTER (WHERE {COUNTED} AND {is_censored('ttft')}) "
    f"FROM attempts a {_OF_SERIES} "
    f"WHERE a.scheduled_at >= :since AND a.scheduled_at < :until AND a.try = 0 GROUP BY {_NAMES}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A series over a short time, from raw attempts."""

    attempts: int
    success: int
    failed: int
    missed: int
    ttft_p50: float | None  # seconds; attempts that a deadline cut count as at least what they lasted
    ttft_p95: float | None
    ttft_p50_at_least: bool  # a deadline cut values at or below it
    ttft_p95_at_least: bool


class LiveQueries:
    """The queries of live pages on one database. Thread-safe; every method raises StoreUnavailable."""

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock or Clock()

    def latest(self, per_series: int = 30) -> Sequence[Attempt]:
        """The newest attempts of each series in the last three days, at most `per_series` of each, newest first."""
        return self._attempts(_LATEST, self._clock.now() - LOOK_BACK, per_series)

    def received_since(self, moment: datetime) -> Sequence[Attempt]:
        """Attempts that the store took in at or after `moment`, late ones included, newest first, at most 2,000."""
        return self._attempts(_RECEIVED, moment, MAX_ROWS)

    def latest_verdicts(self, per_series: int = 30) -> Sequence[Judgement]:
        """The verdicts about the newest attempts of each series in the last three days."""
        return verdicts.latest(self._engine, per_series, self._clock.now() - LOOK_BACK)

    def judged_since(self, moment: datetime) -> Sequence[Judgement]:
        """Verdicts written or changed at or after `moment`, newest first, at most 2,000."""
        return verdicts.judged_since(self._engine, moment, MAX_ROWS)

    def failing_since(self, vantage: str, target: str, probe: str) -> tuple[datetime, bool] | None:
        """When the first failure after the last success began, and whether that success is known.

        Looks back seven days; without a success in them the outage has lasted since then at least. None: no failure.
        """
        names = {"vantage": vantage, "target": target, "probe": probe}
        with transaction(self._engine) as connection:
            row = connection.execute(_FAILING, {**names, "since": self._clock.now() - FAILING_BACK}).one()
        return None if row[0] is None else (row[0], row[1] is not None)

    def recent(self, limit: int = 50) -> Sequence[Attempt]:
        """The attempts scheduled last, over all series, newest first."""
        return self._attempts(_RECENT, self._clock.now() - LOOK_BACK, min(limit, MAX_ROWS))

    def last_hour(self, span: timedelta = timedelta(hours=1)) -> dict[SeriesKey, Summary]:
        """Counts and TTFT percentiles of each (vantage, target, probe) over the last hour."""
        now = self._clock.now()
        with transaction(self._engine) as connection:
            rows = connection.execute(_SUMMARY, {"since": now - span, "until": now}).all()
        return {(row[0], row[1], row[2]): _summary(*row[3:]) for row in rows}

    def _attempts(self, query: object, since: datetime, limit: int) -> Sequence[Attempt]:
        with transaction(self._engine) as connection:
            rows = connection.execute(query, {"since": since, "limit": limit}).mappings()  # type: ignore[call-overload]
            return [to_attempt(row) for row in rows]


def _summary(
    attempts: int, success: int, failed: int, missed: int, ttft_ns: list[int | None] | None, cut_ns: int | None
) -> Summary:
    p50, p95 = ttft_ns or (None, None)
    return Summary(
        attempts=attempts,
        success=success,
        failed=failed,
        missed=missed,
        ttft_p50=None if p50 is None else p50 / 1e9,
        ttft_p95=None if p95 is None else p95 / 1e9,
        ttft_p50_at_least=p50 is not None and cut_ns is not None and p50 >= cut_ns,
        ttft_p95_at_least=p95 is not None and cut_ns is not None and p95 >= cut_ns,
    )
