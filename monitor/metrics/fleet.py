"""What a hub says about its agents and about what it takes in, beside the series themselves.

Two kinds. What this copy took in is counted by this copy alone: sums over copies are right. What the database knows
about agents is the same for every copy, so only the one that holds the lease says it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from monitor.model import StoreUnavailable

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
        self._of_agent: list[Gauge] = []

        def gauge(name: str, text: str, *more: str) -> Gauge:
            made = Gauge(f"firsttoken_agent_{name}", text, ["vantage", "country", *more], registry=registry)
            self._of_agent.append(made)
            return made

        self._last_seen = gauge("last_seen_timestamp_seconds", "When the hub last heard of the agent.")
        self._info = gauge("info", "1; version and configuration of the agent.", "version", "config_digest")
        self._up_to_date = gauge("up_to_date", "Whether it has the hub's version and newest configuration.")
        self._depth = gauge("spool_attempts", "Attempts that wait in its spool.")
        self._size = gauge("spool_size_bytes", "Size of its spool.")
        self._limit = gauge("spool_limit_bytes", "Most that its spool may take.")
        self._unsent = gauge("oldest_unsent_seconds", "Age of the oldest attempt that waits there.")
        self._losses: Mapping[tuple[str, str], int] = {}
        registry.register(self)
        self._offset = gauge("clock_offset_seconds", "Its clock minus the hub's.")
        self._starved = gauge("starved", "Share of its attempts of the last hour that lacked a processor.")

    @contextmanager
    def ingesting(self) -> Iterator[Batch]:
        """Time one upload and count what becomes of it; errors pass through."""
        began = time.perf_counter()
        try:
            yield Batch(self._attempts)
        except BaseException as error:
            ours = isinstance(error, StoreUnavailable) or getattr(error, "status", 500) >= 500
            self._batches.labels("failed" if ours else "refused").inc()
            raise
        else:
            self._batches.labels("stored").inc()
        finally:
            self._seconds.observe(time.perf_counter() - began)

    def set_holder(self, holds: bool) -> None:
        """Whether this copy holds the lease; without it, it says nothing about agents."""
        self._holder.set(holds)
        if not holds:
            self._clear()

    def set_agents(self, agents: Iterable[AgentState], now: datetime) -> None:
        """Replace what is said about agents."""
        self._clear()
        losses: dict[tuple[str, str], int] = {}
        for agent in agents:
            labels = (agent.vantage, agent.country)
            waits = agent.oldest_unsent_at
            self._last_seen.labels(*labels).set(agent.heard_at.timestamp())
            self._info.labels(*labels, agent.version, agent.config_digest).set(1)
            self._up_to_date.labels(*labels).set(agent.up_to_date)
            self._depth.labels(*labels).set(agent.spool_attempts)
            self._size.labels(*labels).set(agent.spool_bytes)
            self._limit.labels(*labels).set(agent.spool_limit_bytes)
            self._unsent.labels(*labels).set(0.0 if waits is None else max(0.0, (now - waits).total_seconds()))
            losses[labels] = agent.spool_lost
            if agent.clock_offset_seconds is not None:
                self._offset.labels(*labels).set(agent.clock_offset_seconds)
            if agent.starved is not None:
                self._starved.labels(*labels).set(agent.starved)
        self._losses = losses

    def collect(self) -> Iterator[Metric]:
        """For the registry: a counter that the agents count, not we."""
        text = "Attempts that the agent's spool has lost, ever."
        family = CounterMetricFamily("firsttoken_agent_spool_lost_attempts", text, labels=["vantage", "country"])
        for labels, lost in self._losses.items():
            family.add_metric(labels, lost)
        yield family

    def _clear(self) -> None:
        self._losses = {}
        for gauge in self._of_agent:
            gauge.clear()


@dataclass(frozen=True, slots=True)
class Batch:
    """One upload that is being counted."""

    attempts: Counter

    def stored(self, vantage: str, rows: Mapping[str, int]) -> None:
        """Count its rows, by what became of them: new, duplicate, conflict, rejected, deferred."""
        for result, count in rows.items():
            self.attempts.labels(vantage, result).inc(count)
