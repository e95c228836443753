"""Every metric name, label and bucket, and what of an attempt goes into which; hides prometheus_client.

Conventions: prefix `firsttoken_`, seconds and bytes, an own registry, labels only from configuration and closed
lists (never an id, never a text), counters and histograms created at zero when a series is declared. Last-value
gauges appear with their first value: a duration of 0 s before anything was measured would be a lie.

Which attempts count where:

- one-off probes: nowhere;
- late ones (they tell of the past): `firsttoken_late_attempts_total` alone;
- missed slots: `firsttoken_missed_slots_total` alone;
- confirming ones (try 1): `firsttoken_confirming_attempts_total` and the tokens they cost, so that the second, warm
  request does not flatter the distributions;
- invalid ones (we do not trust our own measurement): all counters, but no histogram and no last value of a duration;
- failed ones: counters, and the line phases that were completed before the failure (`resolve`, `connect`, `tls`).
  One that ran into a deadline without a first token also counts in the TTFT histogram as "at least that long",
  so that a target that hangs does not look fast through its survivors.

Budget: one (vantage, target, probe) costs at most `SERIES_BUDGET` time series once everything has been seen, most
of them histogram buckets and failure kinds at zero; a test counts them. docs/metrics.md lists every metric.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from platform import python_version
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from monitor import __version__
from monitor.clock import Clock
from monitor.model import Attempt, Doubt, FailureKind, MissReason, Outcome, Purpose, Series
from monitor.timeline import Mark, Phase

Family = TypeVar("Family", bound=MetricWrapperBase)

SERIES_LABELS = ("vantage", "country", "provider", "target", "model", "probe")
SERIES_BUDGET = 230

FINE_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds, for what users feel (TTFT, TTFO): densest where the answers of hosted models lie."""
COARSE_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 120.0)
"""Seconds, for phases and totals, which come in many series."""
RATE_BUCKETS = (1.0, 5.0, 10.0, 20.0, 35.0, 50.0, 75.0, 100.0, 150.0, 250.0, 500.0, 1000.0)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)

LINE_PHASES = (Phase.RESOLVE, Phase.CONNECT, Phase.TLS)
CENSORED_KINDS = frozenset({FailureKind.FIRST_TOKEN_DEADLINE, FailureKind.TOTAL_DEADLINE, FailureKind.STALLED})
"""Failures that say "not within this time" rather than "not at all"."""
MINIMUM_STREAM_SECONDS = 0.001
"""A first and a last token closer than this came in one arrival: they tell nothing about the speed of generation."""

USUAL_PHASE: Mapping[FailureKind, Phase] = {
    FailureKind.DNS: Phase.RESOLVE,
    FailureKind.REFUSED: Phase.CONNECT,
    FailureKind.UNREACHABLE: Phase.CONNECT,
    FailureKind.CONNECT_TIMEOUT: Phase.CONNECT,
    FailureKind.PROXY: Phase.CONNECT,
    FailureKind.TLS: Phase.TLS,
    FailureKind.TLS_EXPIRED: Phase.TLS,
    FailureKind.TLS_SELF_SIGNED: Phase.TLS,
    FailureKind.TLS_WRONG_NAME: Phase.TLS,
    FailureKind.STREAM_ERROR: Phase.GENERATE,
    FailureKind.TRUNCATED: Phase.GENERATE,
    FailureKind.DISCONNECTED: Phase.GENERATE,
    FailureKind.EMPTY_ANSWER: Phase.GENERATE,
    FailureKind.REASONING_ONLY: Phase.GENERATE,
    FailureKind.FILTERED: Phase.GENERATE,
    FailureKind.STALLED: Phase.GENERATE,
    FailureKind.TOTAL_DEADLINE: Phase.GENERATE,
    FailureKind.TOO_LARGE: Phase.GENERATE,
    FailureKind.CHECK_FAILED: Phase.GENERATE,
}
"""Where a kind usually strikes: that pair is created at zero, others when they occur. Not listed: `wait`."""


class Metrics:
    """The process's metrics. Safe to use from several threads; nothing here blocks or raises for a target's fault."""

    def __init__(self, clock: Clock | None = None) -> None:
        # `_created` doubles the series for what Prometheus 2 does not use
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._clock = clock or Clock()
        self.registry = CollectorRegistry()
        self._families: list[MetricWrapperBase] = []
        self._declared: dict[tuple[str, str, str], tuple[str, ...]] = {}
        self._lock = threading.Lock()
        self._oldest_unsent: datetime | None = None
        self._lost_before: int | None = None
        self._create_distributions()
        self._create_counters()
        self._create_last_values()
        self._create_self_metrics()

    # -- series ------------------------------------------------------------------------------------------------

    def declare(self, series: Series) -> None:
        """Create every counter and histogram of a configured series at zero. Declaring again changes nothing,
        unless its labels changed (another model behind the same target): then the old ones are removed.
        """
        key, values = _key(series), tuple(series.labels[name] for name in SERIES_LABELS)
        with self._lock:
            known = self._declared.get(key)
        if known is not None and known != values:
            self.forget(series)
        for family, *more in self._zeroes():
            family.labels(*values, *more)
        self.series_info.remove_by_labels(_match(key))
        self.series_info.labels(*values, "true" if series.simulated else "false").set(1)
        self.interval.labels(*values).set(series.probe.interval_seconds)
        with self._lock:
            self._declared[key] = values

    def forget(self, series: Series) -> None:
        """Remove every time series of (vantage, target, probe); what is still under way of it counts as undeclared."""
        key = _key(series)
        with self._lock:
            self._declared.pop(key, None)
        for family in self._families:
            family.remove_by_labels(_match(key))

    def declared(self) -> set[tuple[str, str, str]]:
        """(vantage, target, probe) of all declared series, for a reload to compare with."""
        with self._lock:
            return set(self._declared)

    def _zeroes(self) -> Iterator[tuple[MetricWrapperBase, *tuple[str, ...]]]:
        for family in (self.ttft, self.ttfo, self.total, self.speed, self.late, self.confirming, self.invalid):
            yield (family,)
        yield (self.stalls,)
        yield (self.retransmits,)
        for phase in Phase:
            yield self.phase, phase
        for outcome in (Outcome.SUCCESS, Outcome.FAILED):
            yield self.attempts, outcome
        for kind in FailureKind:
            yield self.failures, kind, USUAL_PHASE.get(kind, Phase.WAIT)
        for reason in MissReason:
            yield self.missed, reason
        for doubt in Doubt:
            yield self.doubts, doubt
        for direction in ("input", "output"):
            yield self.tokens, direction

    # -- attempts ----------------------------------------------------------------------------------------------

    def observe(self, attempt: Attempt, series: Series, late: bool) -> None:
        """Count one stored attempt of `series`; `late`: it tells of the past, not of now. See the module's rules.

        An attempt of a series that is not declared (removed by a reload meanwhile) adds one to
        `firsttoken_undeclared_attempts_total` and creates nothing.
        """
        if attempt.purpose is Purpose.ONE_OFF:
            return
        with self._lock:
            values = self._declared.get(_key(series))
        if values is None:
            self.undeclared.inc()
        elif late:
            self.late.labels(*values).inc()
        elif attempt.outcome is Outcome.MISSED:
            self.missed.labels(*values, attempt.missed or MissReason.LATE).inc()
        else:
            self._count(attempt, values)

    def _count(self, attempt: Attempt, values: tuple[str, ...]) -> None:
        self._count_tokens(attempt, values)
        if attempt.try_number:
            self.confirming.labels(*values).inc()
            return
        self.attempts.labels(*values, attempt.outcome).inc()
        if attempt.failure is not None:
            self.failures.labels(*values, attempt.failure.kind, attempt.failure.phase).inc()
        for doubt in attempt.validity:
            self.doubts.labels(*values, doubt).inc()
        self._note_last(attempt, values)
        if attempt.valid:
            self._note_last_durations(attempt, values)
            self._distribute(attempt, values)
        else:
            self.invalid.labels(*values).inc()

    def _count_tokens(self, attempt: Attempt, values: tuple[str, ...]) -> None:
        self.tokens.labels(*values, "input").inc(attempt.tokens.input or 0)
        self.tokens.labels(*values, "output").inc(attempt.tokens.output or 0)

    def _note_last(self, attempt: Attempt, values: tuple[str, ...]) -> None:
        success = attempt.outcome is Outcome.SUCCESS
        began = attempt.started_at.timestamp()
        self.last_attempt.labels(*values).set(began)
        self.last_attempt_success.labels(*values).set(success)
        if success:
            self.last_success.labels(*values).set(began)
        if attempt.http.certificate_expires_at is not None:
            self.certificate_expiry.labels(*values).set(attempt.http.certificate_expires_at.timestamp())
        # the counter of a kept connection's socket covers its earlier attempts too
        if not attempt.http.reused:
            self.retransmits.labels(*values).inc(attempt.tcp.retransmits or 0)

    def _note_last_durations(self, attempt: Attempt, values: tuple[str, ...]) -> None:
        if attempt.outcome is Outcome.SUCCESS and attempt.timeline.ttft is not None:
            self.last_ttft.labels(*values).set(attempt.timeline.ttft)
        if attempt.tcp.min_rtt is not None:
            self.min_rtt.labels(*values).set(attempt.tcp.min_rtt)
        if attempt.timeline.control is not None:
            self.control.labels(*values).set(attempt.timeline.control)

    def _distribute(self, attempt: Attempt, values: tuple[str, ...]) -> None:
        line, success = attempt.timeline, attempt.outcome is Outcome.SUCCESS
        for phase in Phase if success else LINE_PHASES:
            _observe(self.phase.labels(*values, phase), line.phase(phase))
        _observe(self.ttft.labels(*values), line.ttft if success else _at_least(attempt))
        if success:
            _observe(self.ttfo.labels(*values), line.ttfo)
            _observe(self.total.labels(*values), line.total)
            _observe(self.speed.labels(*values), tokens_per_second(attempt))
            self.stalls.labels(*values).inc(attempt.gaps.stalls if attempt.gaps else 0)

    # -- the process itself --------------------------------------------------------------------------------------

    def set_spool(self, depth: int, size_bytes: int, oldest: datetime | None, lost: int) -> None:
        """State of the spool: attempts waiting, file size, when the oldest of them started, losses ever counted."""
        self.spool_depth.set(depth)
        self.spool_size.set(size_bytes)
        self._oldest_unsent = oldest
        if self._lost_before is not None:  # losses of earlier processes are no increase of this one's counter
            self.spool_lost.inc(max(0, lost - self._lost_before))
        self._lost_before = lost

    def count_delivered(self, attempts: int) -> None:
        """So many attempts were acknowledged by the store or the hub."""
        self.delivered.inc(attempts)

    def count_uplink_failure(self) -> None:
        """One delivery failed; its attempts stay in the spool."""
        self.uplink_failures.inc()

    def set_store_up(self, reachable: bool) -> None:
        """Whether the last use of Postgres succeeded."""
        self.store_up.set(reachable)

    def observe_scheduler_lag(self, seconds: float) -> None:
        """Start of an attempt minus its planned instant."""
        self.scheduler_lag.observe(max(0.0, seconds))

    def observe_loop_lag(self, seconds: float) -> None:
        """How much later than asked the measuring loop came round."""
        self.loop_lag.observe(max(0.0, seconds))

    def config_reloaded(self, success: bool) -> None:
        """A configuration was read at start or anew: taken over, or refused and the old one kept."""
        self.config_success.set(success)
        if success:
            self.config_timestamp.set(self._clock.now().timestamp())

    # -- exposition ----------------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """Everything in Prometheus's text format 0.0.4."""
        return generate_latest(self.registry)

    def negotiate(self, accept: str) -> tuple[str, bytes]:
        """(content type, body) in the best format that an `Accept` header allows, OpenMetrics included."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self.registry)

    # -- definitions ---------------------------------------------------------------------------------------------

    def _create_distributions(self) -> None:
        self.ttft = self._histogram("ttft_seconds", "Start to first generated token of any kind.", FINE_BUCKETS)
        self.ttfo = self._histogram("ttfo_seconds", "Start to first visible output token.", FINE_BUCKETS)
        self.total = self._histogram("total_seconds", "Start to end of the answer's stream.", COARSE_BUCKETS)
        self.phase = self._histogram("phase_seconds", "Duration of one phase of an attempt.", COARSE_BUCKETS, "phase")
        self.speed = self._histogram(
            "output_tokens_per_second", "Speed of generation between first and last token.", RATE_BUCKETS
        )

    def _create_counters(self) -> None:
        self.attempts = self._counter("attempts", "Attempts made, by outcome; missed slots count apart.", "outcome")
        self.failures = self._counter("failures", "Failed attempts, by kind and by phase of death.", "kind", "phase")
        self.missed = self._counter("missed_slots", "Planned slots that were not measured.", "reason")
        self.doubts = self._counter("doubts", "Reasons to doubt a measurement; one attempt may have several.", "reason")
        self.invalid = self._counter("invalid_attempts", "Attempts kept out of histograms: measurement in doubt.")
        self.late = self._counter("late_attempts", "Attempts that arrived too late to tell of now.")
        self.confirming = self._counter("confirming_attempts", "Second tries sent at once after a slow first token.")
        self.tokens = self._counter("tokens", "Tokens paid for, as the provider reports them.", "direction")
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

    def _create_self_metrics(self) -> None:
        make = self._plain_gauge
        make("build_info", "1; versions.", version=__version__, python=python_version()).set(1)
        self.spool_depth = make("spool_attempts", "Attempts that wait in the spool.")
        self.spool_size = make("spool_size_bytes", "Size of the spool's files.")
        make("spool_oldest_age_seconds", "Age of the oldest attempt in the spool.").set_function(self._oldest_age)
        self.store_up = make("store_up", "Whether the last use of Postgres succeeded.")
        self.config_success = make("config_last_reload_successful", "Whether the last configuration read was good.")
        self.config_timestamp = make("config_last_reload_success_timestamp_seconds", "When a good one was last read.")
        count = self._plain_counter
        self.spool_lost = count("spool_lost_attempts", "Attempts lost because the spool was full or too old.")
        self.delivered = count("delivered_attempts", "Attempts acknowledged by the store.")
        self.uplink_failures = count("uplink_failures", "Deliveries that failed; their attempts stay in the spool.")
        self.undeclared = count("undeclared_attempts", "Attempts of series that are no longer configured.")
        self.scheduler_lag = self._lag("scheduler_lag_seconds", "Start of an attempt minus its planned instant.")
        self.loop_lag = self._lag("loop_lag_seconds", "Delay with which the measuring loop came round.")
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def _oldest_age(self) -> float:
        oldest = self._oldest_unsent
        return 0.0 if oldest is None else max(0.0, (self._clock.now() - oldest).total_seconds())

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *more: str) -> Histogram:
        return self._keep(
            Histogram(f"firsttoken_{name}", text, (*SERIES_LABELS, *more), buckets=buckets, registry=self.registry)
        )

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return self._keep(Counter(f"firsttoken_{name}", text, (*SERIES_LABELS, *more), registry=self.registry))

    def _gauge(self, name: str, text: str, *more: str) -> Gauge:
        return self._keep(Gauge(f"firsttoken_{name}", text, (*SERIES_LABELS, *more), registry=self.registry))

    def _keep(self, family: Family) -> Family:
        self._families.append(family)
        return family

    def _plain_gauge(self, name: str, text: str, **labels: str) -> Gauge:
        gauge = Gauge(f"firsttoken_{name}", text, tuple(labels), registry=self.registry)
        return gauge.labels(**labels) if labels else gauge

    def _plain_counter(self, name: str, text: str) -> Counter:
        return Counter(f"firsttoken_{name}", text, registry=self.registry)

    def _lag(self, name: str, text: str) -> Histogram:
        return Histogram(f"firsttoken_{name}", text, buckets=LAG_BUCKETS, registry=self.registry)


def tokens_per_second(attempt: Attempt) -> float | None:
    """Speed of generation: (streamed tokens - 1) / (last token - first token), None where it cannot be told.

    Tokens are counted as the provider reports them, less reasoning that was generated before anything was streamed.
    None without such a count, under two tokens, or when they all came in one arrival.
    """
    streamed, took = _streamed_tokens(attempt), attempt.timeline.between_ns(Mark.FIRST_TOKEN, Mark.LAST_TOKEN)
    if streamed is None or streamed < 2 or took is None or took < MINIMUM_STREAM_SECONDS * 1e9:
        return None
    return (streamed - 1) / (took / 1e9)


def _streamed_tokens(attempt: Attempt) -> int | None:
    tokens = attempt.tokens
    if tokens.output is None or Mark.FIRST_REASONING in attempt.timeline.marks:
        return tokens.output
    return tokens.output - (tokens.reasoning or 0)


def _at_least(attempt: Attempt) -> float | None:
    """The lower bound of TTFT that a deadline proves."""
    failure = attempt.failure
    if failure is None or failure.kind not in CENSORED_KINDS or attempt.timeline.ttft is not None:
        return None
    return attempt.timeline.lasted_ns / 1e9


def _observe(histogram: Histogram, seconds: float | None) -> None:
    if seconds is not None:
        histogram.observe(seconds)


def _key(series: Series) -> tuple[str, str, str]:
    return (series.vantage.name, series.target.name, series.probe.name)


def _match(key: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("vantage", "target", "probe"), key, strict=True))
