"""Every metric with its name, help text, labels and buckets, in a registry of its own. Hides prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from platform import python_version
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.metrics import MetricWrapperBase

from monitor import __version__
from monitor.model import FailureKind, MissReason, Outcome, Series, VerdictKind
from monitor.timeline import Phase

Family = TypeVar("Family", bound=MetricWrapperBase)

SERIES_LABELS = ("vantage", "country", "provider", "target", "model", "probe")
SERIES_BUDGET = 62
"""Time series of one (vantage, target, probe), without failures, misses and doubts of a rare kind.

Ten vantage points with fifty targets then make a scrape of 5 MB (benchmarks/scrape.py). So only TTFT, what alerts and
live panels need percentiles of, has buckets; everything else is a sum and a count, whose means add up. Its percentiles
come from Postgres, with finer bins than Prometheus could afford.
"""

TTFT_BUCKETS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 120.0)
"""Seconds, densest where the answers of hosted models lie."""
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

FREQUENT_FAILURES: Mapping[FailureKind, Phase] = {
    FailureKind.RATE_LIMITED: Phase.WAIT,
    FailureKind.OVERLOADED: Phase.WAIT,
    FailureKind.SERVER_ERROR: Phase.WAIT,
    FailureKind.FIRST_TOKEN_DEADLINE: Phase.WAIT,
}
"""The kinds that providers cause every week, where each usually strikes: these exist at zero, others when they
occur. That anything failed at all is in `attempts_total`, from zero on."""
FREQUENT_MISSES = (MissReason.LATE, MissReason.CAPACITY)


class Families:
    """The instruments, as attributes, and the registry that holds them."""

    def __init__(self, oldest_age: Callable[[], float], *, store: bool = True) -> None:
        # `_created` doubles the series for what Prometheus 2 does not use
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._of_series: list[MetricWrapperBase] = []
        self._create_distributions()
        self._create_counters()
        self._create_last_values()
        self._create_self_metrics(oldest_age, store)

    def declare(self, series: Series) -> None:
        """Create the counters and histograms of a series at zero."""
        values = label_values(series)
        for family, *more in self._zeroes():
            family.labels(*values, *more)
        self.series_info.labels(*values, "true" if series.simulated else "false").set(1)
        if series.target.price is not None:
            self.spend.labels(*values, series.target.price.currency)
        self.interval.labels(*values).set(series.probe.interval_seconds)

    def forget(self, series: Series) -> None:
        """Remove every time series of (vantage, target, probe), whatever its other labels."""
        labels = {"vantage": series.vantage.name, "target": series.target.name, "probe": series.probe.name}
        for family in self._of_series:
            family.remove_by_labels(labels)

    def forget_last(self) -> None:
        """Remove the gauges of last values of every series."""
        for family in (
            self.last_ttft, self.last_attempt, self.last_attempt_success, self.last_success, self.certificate_expiry,
            self.min_rtt, self.control,
        ):  # fmt: skip
            family.clear()

    def _zeroes(self) -> Iterator[tuple[MetricWrapperBase, *tuple[str, ...]]]:
        for family in (self.ttft, self.ttfo, self.total, self.speed, self.invalid):
            yield (family,)
        for family in (self.cold_starts, self.penalty, self.stalls):
            yield (family,)
        for verdict in (VerdictKind.COLD, VerdictKind.WARM):
            yield self.verdicts, verdict
        for phase in Phase:
            yield self.phase, phase
        for outcome in (Outcome.SUCCESS, Outcome.FAILED):
            yield self.attempts, outcome
        for kind, phase in FREQUENT_FAILURES.items():
            yield self.failures, kind, phase
        for reason in FREQUENT_MISSES:
            yield self.missed, reason
        for direction in ("input", "output"):
            yield self.tokens, direction

    def _create_distributions(self) -> None:
        self.ttft = self._histogram("ttft_seconds", "Start to first generated token of any kind.", TTFT_BUCKETS)
        self.ttfo = self._summary("ttfo_seconds", "Start to first visible output token.")
        self.total = self._summary("total_seconds", "Start to end of the answer's stream.")
        self.phase = self._summary("phase_seconds", "Duration of one phase of an attempt.", "phase")
        self.speed = self._summary("output_tokens_per_second", "Speed of generation between first and last token.")
        self.penalty = self._summary(
            "cold_start_penalty_seconds", "Server's part of a cold first token over the warm median."
        )

    def _create_counters(self) -> None:
        self.attempts = self._counter("attempts", "Attempts made, by outcome; missed slots count apart.", "outcome")
        self.failures = self._counter("failures", "Failed attempts, by kind and by phase of death.", "kind", "phase")
        self.missed = self._counter("missed_slots", "Planned slots that were not measured.", "reason")
        self.doubts = self._counter("doubts", "Reasons to doubt a measurement; one attempt may have several.", "reason")
        self.invalid = self._counter("invalid_attempts", "Attempts kept out of histograms: measurement in doubt.")
        self.late = self._counter("late_attempts", "Attempts that arrived too late to tell of now.")
        self.confirming = self._counter("confirming_attempts", "Second tries sent at once after a slow first token.")
        self.cold_starts = self._counter("cold_starts", "Attempts that waited for the model to be loaded.")
        self.verdicts = self._counter("verdicts", "Attempts judged cold, warm or unclear.", "verdict")
        self.tokens = self._counter("tokens", "Tokens paid for, as the provider reports them.", "direction")
        self.spend = self._counter("spend", "Money for tokens, by the price table.", "currency")
        self.stalls = self._counter("stalls", "Pauses of a second or more between tokens of successful answers.")
        self.retransmits = self._counter("tcp_retransmits", "TCP segments that we sent again on fresh connections.")

    def _create_last_values(self) -> None:
        self.last_ttft = self._gauge("last_ttft_seconds", "Time to first token of the last valid success.")
        self.last_attempt = self._gauge("last_attempt_timestamp_seconds", "When the last attempt started.")
        self.last_attempt_success = self._gauge("last_attempt_success", "Whether the last attempt succeeded.")
        self.last_success = self._gauge("last_success_timestamp_seconds", "When the last success started.")
        self.certificate_expiry = self._gauge(
            "certificate_expiry_timestamp_seconds", "When the endpoint's certificate expires."
        )
        self.min_rtt = self._gauge("tcp_min_rtt_seconds", "Smallest round trip on the last attempt's connection.")
        self.control = self._gauge("control_seconds", "Wait of the last control request: the road without a GPU.")
        self.interval = self._gauge("interval_seconds", "Configured time between two slots.")
        self.series_info = self._gauge("series_info", "1; whether its distance or provider is simulated.", "simulated")

    def _create_self_metrics(self, oldest_age: Callable[[], float], store: bool) -> None:
        make = self._plain_gauge
        make("build_info", "1; versions.", version=__version__, python=python_version()).set(1)
        self.spool_depth = make("spool_attempts", "Attempts that wait in the spool.")
        self.spool_size = make("spool_size_bytes", "Size of the spool's files.")
        make("spool_oldest_age_seconds", "Age of the oldest attempt in the spool.").set_function(oldest_age)
        cap = ("scope", "target", "unit")
        self.budget_limit = self._gauge_of("budget_limit", "This process's share of a daily cap (UTC).", *cap)
        self.budget_remaining = self._gauge_of(
            "budget_remaining", "What is left of it today, bookings taken off.", *cap
        )
        slots = ("vantage", "target")
        self.owed = self._gauge_of("coverage_owed_slots", "Slots owed in the last whole hour.", *slots)
        self.measured = self._gauge_of("coverage_measured_slots", "Of them: measured.", *slots)
        self.unmeasured = self._gauge_of("coverage_missed_slots", "Of them: missed, by cause.", *slots, "reason")
        looked = ("vantage", "endpoint")
        self.witness_up = self._gauge_of("witness_up", "Whether the endpoint was reached at the last look.", *looked)
        self.witness_seconds = self._gauge_of(
            "witness_seconds", "Time of one phase of the last look that passed it.", *looked, "phase"
        )
        if store:
            self.store_up = make("store_up", "Whether the last use of Postgres succeeded.")
        self.config_success = make("config_last_reload_successful", "Whether the last configuration read was good.")
        self.config_timestamp = make("config_last_reload_success_timestamp_seconds", "When a good one was last read.")
        count = self._plain_counter
        self.spool_lost = count("spool_lost_attempts", "Attempts lost because the spool was full or too old.")
        self.delivered = count("delivered_attempts", "Attempts acknowledged by the store.")
        self.uplink_failures = count("uplink_failures", "Deliveries that failed; their attempts stay in the spool.")
        self.rejected = count("rejected_attempts", "Attempts that the store will never take; the log says why.")
        self.conflicts = count("conflicting_attempts", "Slots measured twice with other results: a cloned agent.")
        self.skipped = count("skipped_slots", "Planned slots passed over without a row: sleep, clock step.")
        self.undeclared = count("undeclared_attempts", "Attempts of series that are no longer configured.")
        self.scheduler_lag = self._lag("scheduler_lag_seconds", "Start of an attempt minus its planned instant.")
        self.loop_lag = self._lag("loop_lag_seconds", "Delay with which the measuring loop came round.")
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *more: str) -> Histogram:
        return self._keep(
            Histogram(f"firsttoken_{name}", text, (*SERIES_LABELS, *more), buckets=buckets, registry=self.registry)
        )

    def _summary(self, name: str, text: str, *more: str) -> Summary:
        return self._keep(Summary(f"firsttoken_{name}", text, (*SERIES_LABELS, *more), registry=self.registry))

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return self._keep(Counter(f"firsttoken_{name}", text, (*SERIES_LABELS, *more), registry=self.registry))

    def _gauge(self, name: str, text: str, *more: str) -> Gauge:
        return self._keep(Gauge(f"firsttoken_{name}", text, (*SERIES_LABELS, *more), registry=self.registry))

    def _keep(self, family: Family) -> Family:
        self._of_series.append(family)
        return family

    def _plain_gauge(self, name: str, text: str, **labels: str) -> Gauge:
        gauge = Gauge(f"firsttoken_{name}", text, tuple(labels), registry=self.registry)
        return gauge.labels(**labels) if labels else gauge

    def _gauge_of(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"firsttoken_{name}", text, labels, registry=self.registry)

    def _plain_counter(self, name: str, text: str) -> Counter:
        return Counter(f"firsttoken_{name}", text, registry=self.registry)

    def _lag(self, name: str, text: str) -> Histogram:
        return Histogram(f"firsttoken_{name}", text, buckets=LAG_BUCKETS, registry=self.registry)


def label_values(series: Series) -> tuple[str, ...]:
    """The values of `SERIES_LABELS`."""
    return tuple(series.labels[name] for name in SERIES_LABELS)
