"""What a hub says about its agents and about what it takes in, beside the series themselves.

Two kinds. What this copy took in is counted by this copy alone: sums over copies are right. What the database knows
about agents is the same for every copy, so only the one that holds the lease says it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from monitor.model import StoreUnavailable

RESULTS = ("new", "duplicate", "conflict", "rejected", "deferred")
"""What becomes of a row of an upload."""
AGENT_LABELS = ("vantage", "country")
INGEST_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """How the agent of one vantage point is, as the database last heard."""

    vantage: str
    country: str
    version: str
    config_digest: str
    up_to_date: bool
    heard_at: datetime
    spool_attempts: int
    spool_bytes: int
    spool_limit_bytes: int
    oldest_unsent_at: datetime | None
    spool_lost: int
    clock_offset_seconds: float | None
    starved: float | None  # share of the last hour's attempts that lacked a processor; None: there were none


class FleetMetrics(Collector):
    """The instruments, in the registry of the process. Safe to use from several threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._batches = Counter(
            "firsttoken_ingest_batches", "Uploads of agents, by what became of them.", ["result"], registry=registry
        )
        for result in ("stored", "refused", "failed"):
            self._batches.labels(result)
        self._attempts = Counter(
            "firsttoken_ingest_attempts", "Rows of uploads, by what became of them.", ["vantage", "result"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "firsttoken_ingest_seconds", "Time to unpack and store one upload.", buckets=INGEST_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self._holder = Gauge(
            "firsttoken_lease_holder", "Whether this copy judges, tends and tells of agents.", registry=registry
        )
        self._expected: frozenset[str] = frozenset()
        self._agents: Sequence[Metric] = _of_agents((), None)  # replaced as a whole: a scrape sees all of it or none
        registry.register(self)

    @contextmanager
    def ingesting(self) -> Iterator[Batch]:
        """Count what becomes of one upload, from its first byte on; errors pass through."""
        try:
            yield Batch(self._attempts, self._seconds)
        except BaseException as error:
            ours = isinstance(error, StoreUnavailable) or getattr(error, "status", 500) >= 500
            self._batches.labels("failed" if ours else "refused").inc()
            raise
        else:
            self._batches.labels("stored").inc()

    def expect(self, vantages: Iterable[str]) -> None:
        """Count rows of these vantage points from zero on, and say nothing more of others."""
        expected = frozenset(vantages)
        for vantage in expected - self._expected:
            for result in RESULTS:
                self._attempts.labels(vantage, result)
        for vantage in self._expected - expected:
            self._attempts.remove_by_labels({"vantage": vantage})
        self._expected = expected

    def set_holder(self, holds: bool) -> None:
        """Whether this copy holds the lease; without it, it says nothing about agents."""
        self._holder.set(holds)
        if not holds:
            self._agents = _of_agents((), None)

    def set_agents(self, agents: Iterable[AgentState], now: datetime) -> None:
        """Replace what is said about agents, at once."""
        self._agents = _of_agents(agents, now)

    def collect(self) -> Iterator[Metric]:
        """For the registry: what is said about agents, all of one moment."""
        yield from self._agents


def _of_agents(agents: Iterable[AgentState], now: datetime | None) -> Sequence[Metric]:
    """Every family, filled with these agents; nobody changes it afterwards."""

    def gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"firsttoken_agent_{name}", text, labels=[*AGENT_LABELS, *more])

    last_seen = gauge("last_seen_timestamp_seconds", "When the hub last heard of the agent.")
    info = gauge("info", "1; version and configuration of the agent.", "version", "config_digest")
    up_to_date = gauge("up_to_date", "Whether it has the hub's version and newest configuration.")
    depth = gauge("spool_attempts", "Attempts that wait in its spool.")
    size = gauge("spool_size_bytes", "Size of its spool.")
    limit = gauge("spool_limit_bytes", "Most that its spool may take.")
    unsent = gauge("oldest_unsent_seconds", "Age of the oldest attempt that waits there.")
    lost = CounterMetricFamily(  # counted by the agents, not by us
        "firsttoken_agent_spool_lost_attempts", "Attempts that the agent's spool has lost, ever.", labels=AGENT_LABELS
    )
    offset = gauge("clock_offset_seconds", "Its clock minus the hub's.")
    starved = gauge("starved", "Share of its attempts of the last hour that lacked a processor.")
    for agent in agents:
        labels, waits = [agent.vantage, agent.country], agent.oldest_unsent_at
        last_seen.add_metric(labels, agent.heard_at.timestamp())
        info.add_metric([*labels, agent.version, agent.config_digest], 1)
        up_to_date.add_metric(labels, agent.up_to_date)
        depth.add_metric(labels, agent.spool_attempts)
        size.add_metric(labels, agent.spool_bytes)
        limit.add_metric(labels, agent.spool_limit_bytes)
        unsent.add_metric(labels, max(0.0, (now - waits).total_seconds()) if now and waits else 0.0)
        lost.add_metric(labels, agent.spool_lost)
        if agent.clock_offset_seconds is not None:
            offset.add_metric(labels, agent.clock_offset_seconds)
        if agent.starved is not None:
            starved.add_metric(labels, agent.starved)
    return (last_seen, info, up_to_date, depth, size, limit, unsent, lost, offset, starved)


@dataclass(frozen=True, slots=True)
class Batch:
    """One upload that is being counted."""

    attempts: Counter
    seconds: Histogram

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time what is done with it once it is there: its sender's line is not ours."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.observe(time.perf_counter() - began)

    def stored(self, vantage: str, rows: Mapping[str, int]) -> None:
        """Count its rows, by what became of them: each of `RESULTS`."""
        for result, count in rows.items():
            self.attempts.labels(vantage, result).inc(count)
