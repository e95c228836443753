"""What the log says of failing series: one line when it begins, one when it is over, never one for each attempt.

A series that comes and goes is said at most every five minutes; an outage that begins within that time is said once it
has outlived it. Memory is bounded by the number of series.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import structlog

from monitor.clock import NS, Clock
from monitor.model import Attempt, Outcome, Series, SeriesKey

QUIET_SECONDS = 300
log = structlog.get_logger("firsttoken")


@dataclass(slots=True)
class _Standing:
    failing_since: datetime | None = None
    attempts: int = 0
    said: bool = False
    said_ns: int | None = None
    unsaid: int = 0  # short outages since the last line


class Outages:
    """For one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._standing: dict[SeriesKey, _Standing] = {}

    def take(self, attempt: Attempt, series: Series) -> None:
        """Say what this attempt changes. Second tries and missed slots change nothing."""
        if attempt.try_number or attempt.outcome is Outcome.MISSED:
            return
        key = series.key
        standing = self._standing.setdefault(key, _Standing())
        if attempt.outcome is Outcome.FAILED:
            self._fails(attempt, standing)
        elif standing.failing_since is not None:
            self._recovers(attempt, standing)

    def keep(self, wanted: set[SeriesKey]) -> None:
        """Forget the series that are not configured any more."""
        self._standing = {key: one for key, one in self._standing.items() if key in wanted}

    def _fails(self, attempt: Attempt, standing: _Standing) -> None:
        standing.failing_since = standing.failing_since or attempt.started_at
        standing.attempts += 1
        now_ns = self._clock.monotonic_ns()
        quiet = standing.said_ns is not None and now_ns - standing.said_ns < QUIET_SECONDS * NS
        if standing.said or quiet or attempt.failure is None:
            return
        more = {"short_outages_not_said": standing.unsaid} if standing.unsaid else {}
        standing.said, standing.said_ns, standing.unsaid = True, now_ns, 0
        log.warning(
            "a series fails",
            **_names(attempt),
            kind=str(attempt.failure.kind),
            phase=str(attempt.failure.phase),
            cause=attempt.failure.text,
            since=standing.failing_since.isoformat(timespec="seconds"),
            **more,
        )

    def _recovers(self, attempt: Attempt, standing: _Standing) -> None:
        assert standing.failing_since is not None
        lasted = (attempt.started_at - standing.failing_since).total_seconds()
        if standing.said:
            log.info("a series answers again", **_names(attempt), after_seconds=round(lasted), failed=standing.attempts)
        else:
            standing.unsaid += 1
        standing.failing_since, standing.attempts, standing.said = None, 0, False


def _names(attempt: Attempt) -> dict[str, str]:
    return {"target": attempt.target, "vantage": attempt.vantage, "probe": attempt.probe}
