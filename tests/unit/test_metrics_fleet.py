"""What a hub says of its agents: all of it at one moment, and rows counted from zero on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from monitor.metrics import Metrics
from monitor.metrics.fleet import RESULTS, AgentState, FleetMetrics

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LAGOS = AgentState(
    vantage="lagos",
    country="NG",
    version="0.1.0",
    config_digest="0123",
    up_to_date=True,
    heard_at=NOW,
    spool_attempts=3,
    spool_bytes=4_096,
    spool_limit_bytes=256_000_000,
    oldest_unsent_at=NOW - timedelta(seconds=5),
    spool_lost=2,
    clock_offset_seconds=0.02,
    starved=None,
)
LONDON = replace(LAGOS, vantage="london", country="GB")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def fleet(metrics: Metrics) -> FleetMetrics:
    return FleetMetrics(metrics.registry)


def lines(metrics: Metrics, name: str) -> list[str]:
    return [line for line in metrics.render().decode().splitlines() if line.startswith(f"firsttoken_{name}{{")]


def test_an_agent_is_told_of(metrics: Metrics, fleet: FleetMetrics) -> None:
    """Each number under its name; what is unknown is absent."""
    fleet.set_agents([LAGOS], NOW)
    labels = '{vantage="lagos",country="NG"}'
    for name, value in (
        ("last_seen_timestamp_seconds", "1767225600"),
        ("up_to_date", "1"),
        ("spool_attempts", "3"),
        ("spool_size_bytes", "4096"),
        ("spool_limit_bytes", "256000000"),
        ("oldest_unsent_seconds", "5"),
        ("spool_lost_attempts_total", "2"),
        ("clock_offset_seconds", "0.02"),
    ):
        assert lines(metrics, f"agent_{name}") == [f"firsttoken_agent_{name}{labels} {value}"]
    assert lines(metrics, "agent_starved") == []
    (info,) = lines(metrics, "agent_info")
    assert 'version="0.1.0",config_digest="0123"' in info


def test_a_scrape_in_between_misses_no_agent(metrics: Metrics, fleet: FleetMetrics) -> None:
    """While the list is written anew, a scrape sees the list before: every agent, and none in part."""
    fleet.set_agents([LAGOS, LONDON], NOW)
    before = metrics.render()
    seen: list[list[str]] = []

    def coming() -> Iterator[AgentState]:
        for agent in (LAGOS, LONDON):
            seen.append(lines(metrics, "agent_last_seen_timestamp_seconds"))
            yield agent

    fleet.set_agents(coming(), NOW)
    assert [len(found) for found in seen] == [2, 2]
    assert lines(metrics, "agent_info") == [
        line for line in before.decode().splitlines() if line.startswith("firsttoken_agent_info{")
    ]


def test_who_is_gone_goes(metrics: Metrics, fleet: FleetMetrics) -> None:
    """An agent that is not told of any more has no series; without the lease this copy tells of nobody."""
    fleet.set_agents([LAGOS, LONDON], NOW)
    fleet.set_agents([LONDON], NOW)
    assert [line for line in lines(metrics, "agent_up_to_date") if "lagos" in line] == []
    fleet.set_holder(False)
    for name in ("info", "up_to_date", "spool_lost_attempts_total"):
        assert lines(metrics, f"agent_{name}") == []


def test_rows_are_counted_from_zero_on(metrics: Metrics, fleet: FleetMetrics) -> None:
    """Each expected vantage point has every result at zero, so that no first increase is missed."""
    fleet.expect(["lagos", "london"])
    found = lines(metrics, "ingest_attempts_total")
    assert len(found) == 2 * len(RESULTS)
    assert all(line.endswith(" 0") for line in found)
    with fleet.ingesting() as batch:
        batch.stored("lagos", {"new": 7})
    fleet.expect(["lagos"])  # expected again: nothing is reset; the other is gone
    assert 'firsttoken_ingest_attempts_total{vantage="lagos",result="new"} 7' in lines(metrics, "ingest_attempts_total")
    assert not any("london" in line for line in lines(metrics, "ingest_attempts_total"))


def test_coverage_stays_while_it_is_written(metrics: Metrics) -> None:
    """The last hour's slots are replaced in place: a scrape in between misses none, and what is gone goes."""
    names = ("lagos", "chat")
    metrics.set_coverage([(names, 60, 58, {"overlap": 2}), (("lagos", "old"), 60, 60, {})])
    seen: list[list[str]] = []

    def coming() -> Iterator[tuple[tuple[str, str], int, int, dict[str, int]]]:
        seen.append(lines(metrics, "coverage_owed_slots"))
        yield names, 61, 60, {"budget": 1}

    metrics.set_coverage(coming())
    assert len(seen[0]) == 2
    labels = 'vantage="lagos",target="chat"'
    assert lines(metrics, "coverage_owed_slots") == [f"firsttoken_coverage_owed_slots{{{labels}}} 61"]
    assert lines(metrics, "coverage_missed_slots") == [
        f'firsttoken_coverage_missed_slots{{{labels},reason="budget"}} 1'
    ]
