"""Prometheus metrics: every name, label and bucket (`families`), and what of an attempt goes into which (`counting`).

Conventions: prefix `firsttoken_`, seconds and bytes, an own registry, labels only from configuration and closed
lists (never an id, never a text), counters and durations created at zero when a series is declared, rare kinds of
failures, misses and doubts when they occur. Last-value gauges appear with their first value: a duration of 0 s before
anything was measured would be a lie.

Which attempts count where:

- one-off probes: nowhere;
- late ones (they tell of the past): `firsttoken_late_attempts_total`, and what they cost, which was spent all the same;
- missed slots: `firsttoken_missed_slots_total` alone;
- confirming ones (try 1): `firsttoken_confirming_attempts_total` and the tokens they cost, so that the second, warm
  request does not flatter the distributions;
- invalid ones (we do not trust our own measurement): all counters, but no histogram and no last value of a duration;
- failed ones: counters, and the line phases that were completed before the failure (`resolve`, `connect`, `tls`).
  One that ran into a deadline without a first token also counts in the TTFT histogram as "at least that long",
  so that a target that hangs does not look fast through its survivors;
- answers that came whole and failed a check: counted as failed, with all their times as if they had succeeded.

Cold-start verdicts come later than their attempts, each counted once when it is settled: `firsttoken_verdicts_total`.

Budget: one (vantage, target, probe) costs at most `SERIES_BUDGET` time series, rare kinds apart; a test counts them and
benchmarks/scrape.py measures a scrape. docs/metrics.md lists every metric.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from monitor.clock import Clock
from monitor.metrics.counting import count, count_cost, note_last, tokens_per_second
from monitor.metrics.exposition import expose
from monitor.metrics.families import SERIES_BUDGET, SERIES_LABELS, Families, label_values
from monitor.model import Attempt, MissReason, Outcome, Purpose, Series, SeriesKey, VerdictKind
from monitor.witness import Sighting

__all__ = ["SERIES_BUDGET", "SERIES_LABELS", "Metrics", "tokens_per_second"]


class Metrics:
    """The process's metrics. Safe to use from several threads; nothing here blocks or raises for a target's fault."""

    def __init__(self, clock: Clock | None = None, *, last_values: bool = True, store: bool = True) -> None:
        """`last_values` False: of what `observe` counts none is the last; several hubs share that (`note_last`).

        `store` False: this process has no Postgres, so that nothing is said of one.
        """
        self._clock = clock or Clock()
        self._last_values = last_values
        self._last_started: dict[SeriesKey, datetime] = {}
        self._families = Families(self._oldest_age, store=store)
        self._declared: dict[SeriesKey, tuple[str, ...]] = {}
        self._lock = threading.Lock()  # a series is not forgotten between finding its labels and counting
        self._oldest_unsent: datetime | None = None
        self._lost_before: int | None = None
        self._shown: dict[Gauge, set[tuple[str, ...]]] = {}

    @property
    def registry(self) -> CollectorRegistry:
        """Where all of it is registered."""
        return self._families.registry

    # -- series ------------------------------------------------------------------------------------------------

    def declare(self, series: Series) -> None:
        """Create every counter and histogram of a configured series at zero. Declaring again changes nothing,
        unless its labels changed (another model behind the same target): then the old ones are removed.
        """
        key, values = series.key, label_values(series)
        with self._lock:
            known = self._declared.get(key)
            if known is not None:
                self._families.series_info.remove_by_labels(dict(zip(SERIES_LABELS, known, strict=True)))
            if known not in (None, values):
                self._families.forget(series)
            self._families.declare(series)
            self._declared[key] = values

    def forget(self, series: Series) -> None:
        """Remove every time series of (vantage, target, probe); what is still under way of it counts as undeclared."""
        with self._lock:
            self._declared.pop(series.key, None)
            self._last_started.pop(series.key, None)
            self._families.forget(series)

    def declared(self) -> set[SeriesKey]:
        """(vantage, target, probe) of all declared series, for a reload to compare with."""
        with self._lock:
            return set(self._declared)

    # -- attempts ----------------------------------------------------------------------------------------------

    def observe(self, attempt: Attempt, series: Series, late: bool) -> None:
        """Count one stored attempt of `series`; `late`: it tells of the past, not of now. See the module's rules.

        An attempt of a series that is not declared (removed by a reload meanwhile) adds one to
        `firsttoken_undeclared_attempts_total` and creates nothing.
        """
        if attempt.purpose is Purpose.ONE_OFF:
            return
        families = self._families
        with self._lock:
            values = self._declared.get(series.key)
            if values is None:
                families.undeclared.inc()
            elif late:
                families.late.labels(*values).inc()
                count_cost(families, attempt, values, series.target.price)
            elif attempt.outcome is Outcome.MISSED:
                families.missed.labels(*values, attempt.missed or MissReason.LATE).inc()
            else:
                count(families, attempt, values, series.target.price)
                if self._last_values:
                    note_last(families, attempt, values)

    def note_last(self, attempts: Iterable[Attempt]) -> None:
        """Gauges of last values from the record, oldest attempt first; what is older than the last is left out."""
        with self._lock:
            for attempt in attempts:
                key = (attempt.vantage, attempt.target, attempt.probe)
                values, last = self._declared.get(key), self._last_started.get(key)
                if values is not None and (last is None or attempt.started_at > last):
                    self._last_started[key] = attempt.started_at
                    note_last(self._families, attempt, values)

    def forget_last(self) -> None:
        """Say nothing of last values any more: another copy of the hub does."""
        with self._lock:
            self._last_started.clear()
            self._families.forget_last()

    def observe_verdict(self, series: Series, kind: VerdictKind, penalty_seconds: float | None) -> None:
        """Count the settled verdict about one planned attempt; nothing when the series is not declared any more."""
        families = self._families
        with self._lock:
            values = self._declared.get(series.key)
            if values is None:
                return
            families.verdicts.labels(*values, kind).inc()
            if kind is VerdictKind.COLD:
                families.cold_starts.labels(*values).inc()
            if penalty_seconds is not None:
                families.penalty.labels(*values).observe(penalty_seconds)

    def count_undeclared(self) -> None:
        """One attempt was stored whose series is not configured here, so that nobody has its labels."""
        self._families.undeclared.inc()

    # -- the process itself --------------------------------------------------------------------------------------

    def set_spool(self, depth: int, size_bytes: int, oldest: datetime | None, lost: int) -> None:
        """State of the spool: attempts waiting, file size, when the oldest of them started, losses ever counted."""
        self._families.spool_depth.set(depth)
        self._families.spool_size.set(size_bytes)
        self._oldest_unsent = oldest
        if self._lost_before is not None:  # losses of earlier processes are no increase of this one's counter
            self._families.spool_lost.inc(max(0, lost - self._lost_before))
        self._lost_before = lost

    def set_budget(self, caps: Iterable[tuple[str | None, str, float, float]]) -> None:
        """This process's daily caps: (target, None for all together; unit; limit; remaining)."""
        families, limits, remains = self._families, dict[Any, float](), dict[Any, float]()
        for target, unit, limit, remaining in caps:
            labels = ("overall" if target is None else "target", target or "", unit)
            limits[labels], remains[labels] = limit, remaining
        with self._lock:
            self._show(families.budget_limit, limits)
            self._show(families.budget_remaining, remains)

    def set_coverage(self, hour: Iterable[tuple[tuple[str, str], int, int, Mapping[str, int]]]) -> None:
        """What became of the last whole hour's slots: (vantage, target), owed, measured, missed by cause.

        Without any, the gauges go: it is not this process's to say.
        """
        families, told = self._families, list(hour)
        with self._lock:
            self._show(families.owed, {names: owed for names, owed, _, _ in told})
            self._show(families.measured, {names: measured for names, _, measured, _ in told})
            unmeasured = {(*names, why): slots for names, _, _, missed in told for why, slots in missed.items()}
            self._show(families.unmeasured, unmeasured)

    def set_witness(self, newest: Iterable[Sighting]) -> None:
        """The last look of each vantage point at each endpoint; all others go."""
        looks = {(one.vantage, one.endpoint): one for one in newest}
        up = {names: float(one.up) for names, one in looks.items()}
        took = {(*names, str(phase)): seconds for names, one in looks.items() for phase, seconds in one.seconds.items()}
        with self._lock:
            self._show(self._families.witness_up, up)
            self._show(self._families.witness_seconds, took)

    def count_delivered(self, attempts: int) -> None:
        """So many attempts were acknowledged by the store or the hub."""
        self._families.delivered.inc(attempts)

    def count_rejected(self, attempts: int) -> None:
        """So many attempts were refused by the store for good."""
        self._families.rejected.inc(attempts)

    def count_conflicts(self, attempts: int) -> None:
        """So many attempts had the key of a stored one, but other content."""
        self._families.conflicts.inc(attempts)

    def count_skipped(self, slots: int) -> None:
        """So many planned slots were passed over without a row of their own, after a long sleep or a clock step."""
        self._families.skipped.inc(slots)

    def count_uplink_failure(self) -> None:
        """One delivery failed; its attempts stay in the spool."""
        self._families.uplink_failures.inc()

    def set_store_up(self, reachable: bool) -> None:
        """Whether the last use of Postgres succeeded; only where there is one (`store`)."""
        self._families.store_up.set(reachable)

    def observe_scheduler_lag(self, seconds: float) -> None:
        """Start of an attempt minus its planned instant."""
        self._families.scheduler_lag.observe(max(0.0, seconds))

    def observe_loop_lag(self, seconds: float) -> None:
        """How much later than asked the measuring loop came round."""
        self._families.loop_lag.observe(max(0.0, seconds))

    def config_reloaded(self, success: bool) -> None:
        """A configuration was read at start or anew: taken over, or refused and the old one kept."""
        self._families.config_success.set(success)
        if success:
            self._families.config_timestamp.set(self._clock.now().timestamp())

    # -- exposition ----------------------------------------------------------------------------------------------

    def render(self) -> bytes:
        """Everything in Prometheus's text format 0.0.4."""
        return self.negotiate("")[1]

    def negotiate(self, accept: str) -> tuple[str, bytes]:
        """(content type, body) in the best format that an `Accept` header allows, OpenMetrics included."""
        return expose(self.registry, accept)

    def _show(self, family: Gauge, values: Mapping[Any, float]) -> None:
        """Show these values and no others. What stays is never away: a scrape between would take half for the whole."""
        for labels in self._shown.get(family, set()) - values.keys():
            family.remove(*labels)
        for labels, value in values.items():
            family.labels(*labels).set(value)
        self._shown[family] = set(values)

    def _oldest_age(self) -> float:
        oldest = self._oldest_unsent
        return 0.0 if oldest is None else max(0.0, (self._clock.now() - oldest).total_seconds())
