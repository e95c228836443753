"""The live page's questions to the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from monitor.clock import ManualClock
from monitor.model import Attempt, Failure, FailureKind, Outcome
from monitor.store import attempts
from monitor.store.live import LiveQueries
from monitor.timeline import Mark, Phase, Timeline

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MS = 1_000_000


def one(minutes_ago: int, ttft_ms: int = 300, vantage: str = "lagos", **changes: object) -> Attempt:
    moment = NOW - timedelta(minutes=minutes_ago)
    made = Attempt(
        vantage=vantage,
        target="acme",
        probe="short",
        probe_version="v",
        scheduled_at=moment,
        started_at=moment,
        outcome=Outcome.SUCCESS,
        timeline=Timeline({Mark.FIRST_TOKEN: ttft_ms * MS}),
    )
    return replace(made, **changes)


@pytest.fixture
def live(store: Engine) -> LiveQueries:
    return LiveQueries(store, ManualClock(NOW))


def test_latest_gives_each_series_its_newest(store: Engine, live: LiveQueries) -> None:
    """A busy series does not crowd out a quiet one; each comes newest first."""
    busy, quiet = [one(n) for n in range(1, 40)], [one(60 * n, vantage="london") for n in range(1, 4)]
    attempts.insert(store, [], busy + quiet, NOW)
    assert live.latest(5) == busy[:5] + quiet


def test_received_since_includes_late_rows(store: Engine, live: LiveQueries) -> None:
    """What has just come in is found by when it came, not by when it was measured."""
    attempts.insert(store, [], [one(10)], NOW - timedelta(minutes=9))
    late = one(60 * 24 * 2)
    attempts.insert(store, [], [late], NOW)
    assert live.received_since(NOW - timedelta(seconds=30)) == [late]


def test_recent_is_over_all_series(store: Engine, live: LiveQueries) -> None:
    """The list of attempts is ordered by when they were due, across vantage points."""
    batch = [one(n, vantage="lagos" if n % 2 else "london") for n in range(1, 9)]
    attempts.insert(store, [], batch, NOW)
    assert live.recent(5) == batch[:5]


def test_last_hour(store: Engine, live: LiveQueries) -> None:
    """Counts and percentiles of the last hour; a timeout counts as at least what it lasted; older rows are left out."""
    cut = Timeline({Mark.GAVE_UP: 9000 * MS})
    failure = Failure(kind=FailureKind.TOTAL_DEADLINE, phase=Phase.WAIT, text="too long")
    batch = [one(n, 100 + n) for n in range(1, 10)] + [one(100, 5)]
    batch += [one(n, outcome=Outcome.FAILED, failure=failure, timeline=cut) for n in (20, 21)]
    attempts.insert(store, [], batch, NOW)
    found = live.last_hour()["lagos", "acme", "short"]
    assert (found.attempts, found.success, found.failed, found.missed) == (11, 9, 2, 0)
    assert (found.ttft_p50, found.ttft_p50_at_least) == (0.106, False)
    assert (found.ttft_p95, found.ttft_p95_at_least) == (9.0, True)


def test_an_empty_store_gives_empty_answers(live: LiveQueries) -> None:
    """Before the first attempt every answer is empty, none an error."""
    assert live.latest() == live.recent() == live.received_since(NOW) == []
    assert live.last_hour() == {}
