"""What of an attempt goes into which metric; the rules stand in the package's docstring."""

from __future__ import annotations

from prometheus_client import Histogram, Summary

from monitor.metrics.families import Families
from monitor.model import Attempt, FailureKind, Outcome, Price
from monitor.timeline import NS, Mark, Phase

LINE_PHASES = (Phase.RESOLVE, Phase.CONNECT, Phase.TLS)
CENSORED_KINDS = frozenset({FailureKind.FIRST_TOKEN_DEADLINE, FailureKind.TOTAL_DEADLINE, FailureKind.STALLED})
"""Failures that say "not within this time" rather than "not at all"."""
MINIMUM_STREAM_SECONDS = 0.001
"""A first and a last token closer than this came in one arrival: they tell nothing about the speed of generation."""


def count(families: Families, attempt: Attempt, values: tuple[str, ...], price: Price | None = None) -> None:
    """Count an attempt that was made and tells of now; `values` are those of its series' labels. No last values."""
    _count_tokens(families, attempt, values)
    count_cost(families, attempt, values, price)
    if attempt.try_number:
        families.confirming.labels(*values).inc()
        return
    families.attempts.labels(*values, attempt.outcome).inc()
    if attempt.failure is not None:
        families.failures.labels(*values, attempt.failure.kind, attempt.failure.phase).inc()
    for doubt in attempt.validity:
        families.doubts.labels(*values, doubt).inc()
    # the counter of a kept connection's socket covers its earlier attempts too
    if not attempt.http.reused and attempt.tcp.retransmits:
        families.retransmits.labels(*values).inc(attempt.tcp.retransmits)
    if attempt.valid:
        _distribute(families, attempt, values)
    else:
        families.invalid.labels(*values).inc()


def count_cost(families: Families, attempt: Attempt, values: tuple[str, ...], price: Price | None) -> None:
    """Count the money that an attempt has cost, whenever it comes to light."""
    if attempt.cost is not None and price is not None:
        families.spend.labels(*values, price.currency).inc(attempt.cost)


def _count_tokens(families: Families, attempt: Attempt, values: tuple[str, ...]) -> None:
    families.tokens.labels(*values, "input").inc(attempt.tokens.input or 0)
    families.tokens.labels(*values, "output").inc(attempt.tokens.output or 0)


def note_last(families: Families, attempt: Attempt, values: tuple[str, ...]) -> None:
    """Make an attempt the last of its series; what it does not tell stays as an earlier one left it."""
    if attempt.try_number or attempt.outcome is Outcome.MISSED:
        return
    success = attempt.outcome is Outcome.SUCCESS
    began = attempt.started_at.timestamp()
    families.last_attempt.labels(*values).set(began)
    families.last_attempt_success.labels(*values).set(success)
    if success:
        families.last_success.labels(*values).set(began)
    if attempt.http.certificate_expires_at is not None:
        families.certificate_expiry.labels(*values).set(attempt.http.certificate_expires_at.timestamp())
    if attempt.valid:
        _note_last_durations(families, attempt, values)


def _note_last_durations(families: Families, attempt: Attempt, values: tuple[str, ...]) -> None:
    if _came_whole(attempt) and attempt.timeline.ttft is not None:
        families.last_ttft.labels(*values).set(attempt.timeline.ttft)
    if attempt.tcp.min_rtt is not None:
        families.min_rtt.labels(*values).set(attempt.tcp.min_rtt)
    if attempt.timeline.control is not None:
        families.control.labels(*values).set(attempt.timeline.control)


def _distribute(families: Families, attempt: Attempt, values: tuple[str, ...]) -> None:
    line, success = attempt.timeline, _came_whole(attempt)
    for phase in Phase if success else LINE_PHASES:
        _observe(families.phase.labels(*values, phase), line.phase(phase))
    _observe(families.ttft.labels(*values), line.ttft if success else _at_least(attempt))
    if success:
        _observe(families.ttfo.labels(*values), line.ttfo)
        _observe(families.total.labels(*values), line.total)
        _observe(families.speed.labels(*values), tokens_per_second(attempt))
        families.stalls.labels(*values).inc(attempt.gaps.stalls if attempt.gaps else 0)


def _came_whole(attempt: Attempt) -> bool:
    """Whether the answer came to its end, so that its times are times; a check says no more than that it was wrong."""
    failure = attempt.failure
    return attempt.outcome is Outcome.SUCCESS or (failure is not None and failure.kind is FailureKind.CHECK_FAILED)


def tokens_per_second(attempt: Attempt) -> float | None:
    """Speed of generation: (streamed tokens - 1) / (last token - first token), None where it cannot be told.

    Tokens are counted as the provider reports them, less reasoning that was generated before anything was streamed.
    None without such a count, under two tokens, or when they all came in one arrival.
    """
    streamed, took = _streamed_tokens(attempt), attempt.timeline.between_ns(Mark.FIRST_TOKEN, Mark.LAST_TOKEN)
    if streamed is None or streamed < 2 or took is None or took < MINIMUM_STREAM_SECONDS * NS:
        return None
    return (streamed - 1) / (took / NS)


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
    return attempt.timeline.lasted_ns / NS


def _observe(distribution: Histogram | Summary, seconds: float | None) -> None:
    if seconds is not None:
        distribution.observe(seconds)
