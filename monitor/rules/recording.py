"""Recording rules: votes, medians against their usual, and what of attempts failed. Sums over copies and processes.

Probes come every minute or every hour, so a fixed window is empty for some and full for others. Hence state is read
from last-value gauges and measured in intervals of the probe; only what has to be counted is counted in windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.rules.promql import (
    ATTEMPT,
    DOWN,
    FAILING,
    INTERVAL,
    LATEST,
    LINE_DOWN,
    PAIR,
    PROCESS,
    SERIES,
    SUCCESS,
    TARGET,
    VANTAGE,
    events,
    expression,
)
from monitor.rules.thresholds import DAY, HOUR, MINUTE, Thresholds, duration

LINE_PHASES = "resolve|connect|tls"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recording rule."""

    name: str
    expr: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BurnPair:
    """One burn rate alert: `factor` times too fast over both windows (Google's SRE workbook, chapter 5)."""

    long: float
    short: float
    factor: float
    severity: str


BURN_PAIRS = (
    BurnPair(HOUR, 15 * MINUTE, 14.4, "critical"),
    BurnPair(6 * HOUR, 30 * MINUTE, 6, "critical"),
    BurnPair(DAY, 2 * HOUR, 3, "warning"),
    BurnPair(3 * DAY, 6 * HOUR, 1, "warning"),
)
"""The workbook's, with 15 minutes in place of 5: a probe of five minutes has one attempt in those, or none."""


def votes(t: Thresholds) -> list[Recorded]:
    """Who says that a target does not answer, whose line is down, and how many agree."""
    cast, yes = "target:firsttoken_votes:cast", "target:firsttoken_votes:down"
    return [
        # of several hubs, or a process and its successor, the last word counts
        Recorded(ATTEMPT, f"max by ({SERIES}) (firsttoken_last_attempt_timestamp_seconds)"),
        Recorded(SUCCESS, f"max by ({SERIES}) (firsttoken_last_success_timestamp_seconds)"),
        Recorded(INTERVAL, f"max by ({SERIES}) (firsttoken_interval_seconds)"),
        Recorded(FAILING, _failing(t)),
        Recorded(DOWN, _down(t)),
        Recorded("pair:firsttoken_target:recently_down", _recently_down(t)),
        Recorded("vantage:firsttoken_line:dies_early", _dies_early(t)),
        Recorded(LINE_DOWN, _line_down(t)),
        Recorded(cast, f"count by ({TARGET}) ({_counted(DOWN)})"),
        Recorded(yes, f"sum by ({TARGET}) ({_counted(DOWN)})"),
        Recorded("target:firsttoken_target:down", _agreed(t, yes, cast)),
    ]


def _failing(t: Thresholds) -> str:
    """1 where the last attempt failed and no success is near before it, 0 otherwise; nothing when that is long ago."""
    never = f'sum by ({SERIES}) (firsttoken_attempts_total{{outcome="failed"}}) >= bool 2'
    return expression(
        f"""
        (
        (max by ({SERIES}) (firsttoken_last_attempt_success and on ({SERIES}, {PROCESS}) {LATEST}) == bool 0)
        * on ({SERIES}) (
        ({ATTEMPT} - {SUCCESS} > bool {t.down_intervals:g} * {INTERVAL})
        or on ({SERIES}) ({never})
        )
        )
        and on ({SERIES}) (time() - {ATTEMPT} <= {t.vote_intervals:g} * {INTERVAL} + {t.vote_grace:g})
        """
    )


def _down(t: Thresholds) -> str:
    """1 where a pair's votes say down and none of its probes succeeds. A 429 to our own key is an answer, too."""
    span = duration(t.limited_window)
    limited = f'sum by ({PAIR}) (increase(firsttoken_failures_total{{kind="rate_limited"}}[{span}]))'
    failed = f'sum by ({PAIR}) (increase(firsttoken_attempts_total{{outcome="failed"}}[{span}]))'
    return expression(
        f"""
        (
        max by ({PAIR}) ({FAILING})
        unless on ({PAIR}) (time() - {SUCCESS} < clamp_max(2 * {INTERVAL}, {t.alive:g}))
        unless on ({PAIR}) ({limited} / ({failed} > 0) > 0.5)
        )
        or
        max by ({PAIR}) ({FAILING}) * 0
        """
    )


def _recently_down(t: Thresholds) -> str:
    """The same for pairs that were asked lately: what a line was like hours ago says nothing about it now."""
    return f"{DOWN} and on ({PAIR}) (time() - {ATTEMPT} < {t.line_window:g})"


def _dies_early(t: Thresholds) -> str:
    """Share of a vantage point's failures that died in the line's phases."""
    line = events("firsttoken_failures_total", f'phase=~"{LINE_PHASES}"', t.line_window)
    failed = f'increase(firsttoken_attempts_total{{outcome="failed"}}[{duration(t.line_window)}])'
    return expression(f"sum by ({VANTAGE}) {line}\n/ (sum by ({VANTAGE}) ({failed}) > 0)")


def _line_down(t: Thresholds) -> str:
    """1 where a vantage point reaches nothing and the line is to blame, 0 at the others.

    To blame by the witness, whom it cannot reach either; without one, when attempts die before TLS is up and another
    place reaches one of the same targets (or there is no other place, and several providers are away at once).
    """
    down = "pair:firsttoken_target:recently_down"
    return expression(
        f"""
        min by ({VANTAGE}) ({down}) == 1
        and on (vantage) (
        (
        count by (vantage) ({down}) >= 2
        and on (vantage) vantage:firsttoken_line:dies_early > {t.line_share:g}
        and on (vantage) (
        count by (vantage) ({down} == 1 and on (target) {down} == 0)
        or
        (
        count by (vantage) (count by (vantage, provider) ({down})) >= 2
        and on () count(count by (vantage) ({down})) == 1
        )
        )
        )
        or max by (vantage) (firsttoken_witness_up) == 0
        )
        or group by ({VANTAGE}) ({DOWN}) * 0
        """
    )


def _counted(votes_of: str) -> str:
    """Without those whose line is down: they know nothing about targets."""
    return f"{votes_of} unless on (vantage) {LINE_DOWN} == 1"


def _agreed(t: Thresholds, yes: str, cast: str) -> str:
    """1 where N of M agree, 0 where they do not; a single voter decides alone."""
    agree = f"({yes} >= bool {t.quorum:g}) * ({yes} / {cast} >= bool {t.quorum_share:g})"
    return agree if t.quorum <= 1 else f"{agree}\n+ ({yes} == bool 1) * ({cast} == bool 1)"


def latency(t: Thresholds) -> list[Recorded]:
    """Each series' median TTFT, what is usual for it, and who is slower than that."""
    window = duration(t.latency_window)
    median, usual = "series:firsttoken_ttft_seconds:median", "series:firsttoken_ttft_seconds:usual"
    samples = f"sum by ({SERIES}) (increase(firsttoken_ttft_seconds_count[{window}]))"
    pair = "pair:firsttoken_ttft_seconds:slow"
    cast, yes = "target:firsttoken_slow_votes:cast", "target:firsttoken_slow_votes:slow"
    quorum = f"({yes} >= bool {t.quorum:g}) * ({yes} / {cast} >= bool {t.quorum_share:g})"
    return [
        Recorded(median, _median(window)),
        Recorded(usual, _usual(t, median)),
        Recorded(
            "series:firsttoken_ttft_seconds:slowdown",
            # a count of 4 may be extrapolated to 3.9, as the window's edges are not a scrape's
            f"({median} / {usual}) and on ({SERIES}) ({samples} > {t.latency_samples - 0.5:g})",
        ),
        Recorded(
            pair,
            expression(
                f"""
                max by ({PAIR}) (
                  (series:firsttoken_ttft_seconds:slowdown >= bool {t.latency_ratio:g})
                  * on ({SERIES}) ({median} - {usual} >= bool {t.latency_seconds:g})
                )
                """
            ),
        ),
        Recorded(cast, f"count by ({TARGET}) (pair:firsttoken_ttft_seconds:slow)"),
        Recorded(yes, f"sum by ({TARGET}) (pair:firsttoken_ttft_seconds:slow)"),
        Recorded("target:firsttoken_target:slow", quorum),
        Recorded(
            "pair:firsttoken_ttft_seconds:slow_here_alone",
            f"({pair} unless on (target) target:firsttoken_target:slow == 1) or {pair} * 0",
        ),
    ]


def _median(window: str) -> str:
    """Over the copies that measured, weighted by how often: one that has only old news says nothing."""
    counted = f"(increase(firsttoken_ttft_seconds_count[{window}]) > 0)"
    own = f"quantile_over_time(0.5, firsttoken_last_ttft_seconds[{window}])"
    return expression(
        f"""
        sum by ({SERIES}) ({own} * on ({SERIES}, {PROCESS}) {counted})
        / sum by ({SERIES}) ({counted} and on ({SERIES}, {PROCESS}) {own})
        """
    )


def _usual(t: Thresholds, median: str) -> str:
    """The same hours of up to four weeks, or the last day; the label `week` only keeps the four apart."""
    around = duration(2 * t.latency_gap)
    ago = {n: duration(n * t.latency_week - t.latency_gap) for n in (1, 2, 3, 4)}
    weeks = "\nor ".join(
        f'label_replace(quantile_over_time(0.5, {median}[{around}] offset {span}), "week", "{n}", "", "")'
        for n, span in ago.items()
    )
    begun = duration(t.latency_gap + t.latency_history)
    return expression(
        f"""
        (
        quantile by ({SERIES}) (
        0.5,
        {weeks}
        )
        and on ({SERIES}) last_over_time({median}[{duration(t.latency_gap)}] offset {duration(t.latency_week)})
        )
        or
        (
        quantile_over_time(0.5, {median}[{duration(t.latency_baseline)}] offset {duration(t.latency_gap)})
        and on ({SERIES}) last_over_time({median}[{duration(t.latency_gap)}] offset {begun})
        )
        """
    )


def objective(t: Thresholds) -> list[Recorded]:
    """How fast each target burns its error budget, over every window that alerts look at."""
    window = duration(max(5 * t.evaluation, 4.0))
    rate = f"rate(firsttoken_attempts_total[{window}])"
    found = [
        Recorded(
            "target:firsttoken_attempts:rate",
            f"sum by ({TARGET}, outcome) ({rate} unless on (vantage) {LINE_DOWN} == 1)",
        )
    ]
    for seconds in sorted({span for pair in BURN_PAIRS for span in (pair.long, pair.short)}):
        span, attempts = duration(seconds), "target:firsttoken_attempts:rate"
        failed = f'sum by ({TARGET}) (sum_over_time({attempts}{{outcome="failed"}}[{span}]))'
        made = f"(sum by ({TARGET}) (sum_over_time({attempts}[{span}])) > 0)"
        burn = f"{failed} / {made} / {1 - t.objective:.6g}"
        found.append(Recorded("target:firsttoken_error_budget:burn", burn, {"window": span}))
        if seconds in {pair.long for pair in BURN_PAIRS}:
            found.append(
                Recorded("target:firsttoken_attempts:failed", f"{failed} * {t.evaluation:g}", {"window": span})
            )
    return found


def cold_starts(t: Thresholds) -> list[Recorded]:
    """How many verdicts of a target say cold, now and on the day before."""
    rate, hour = "target:firsttoken_verdicts:rate", duration(t.cold_window)
    window = duration(max(5 * t.evaluation, 4.0))
    name = "target:firsttoken_cold_starts"

    def share(span: str) -> str:
        cold = f'sum by ({TARGET}) (sum_over_time({rate}{{verdict="cold"}}{span}))'
        return f'{cold} / (sum by ({TARGET}) (sum_over_time({rate}{{verdict=~"cold|warm"}}{span})) > 0)'

    cold = f'sum by ({TARGET}) (sum_over_time({rate}{{verdict="cold"}}[{hour}]))'
    return [
        Recorded(rate, f"sum by ({TARGET}, verdict) (rate(firsttoken_verdicts_total[{window}]))"),
        Recorded(f"{name}:count", f"{cold} * {t.evaluation:g}"),
        Recorded(f"{name}:share", share(f"[{hour}]")),
        Recorded(f"{name}:share_before", share(f"[1d] offset {hour}")),
    ]
