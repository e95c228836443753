"""What is put into percentiles, as SQL over `attempts`, made from the definitions in `timeline.py`.

Hides the censoring rule. An attempt that a deadline ended before the measure's end was reached is a censored value: it
counts as "at least as long as it had lasted". Other failures (refused, 500, cut off) say nothing about how long it
would have taken and are left to the failure counts; so are doubtful attempts, which may show our own slowness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monitor.model import HARMLESS_DOUBTS, FailureKind
from monitor.store.tables import MARK_COLUMNS
from monitor.timeline import PHASES, Mark

MEASURES: Mapping[str, tuple[Mark | None, Mark]] = {
    "ttft": (None, Mark.FIRST_TOKEN),
    "ttfo": (None, Mark.FIRST_VISIBLE),
    "total": (None, Mark.END),
    **{phase.value: marks for phase, marks in PHASES.items()},
    "control": (Mark.CONTROL_SENT, Mark.CONTROL_HEADERS),
}
"""Name -> the marks that it lies between; None is the start."""

_STREAMED = "(a.output_tokens - CASE WHEN a.first_reasoning_ns IS NULL THEN coalesce(a.reasoning_tokens, 0) ELSE 0 END)"
_TOOK = "(a.last_token_ns - a.first_token_ns)"
FACTS: Mapping[str, str] = {
    "rtt": "CAST(a.tcp_min_rtt_seconds * 1e9 AS bigint)",  # the smallest on the attempt's connection
    "gap": "CASE WHEN a.outcome = 'success' THEN CAST(a.gap_max_seconds * 1e9 AS bigint) END",  # the longest pause
    # from token to token, as `metrics.tokens_per_second` counts them: its inverse
    "token": f"CASE WHEN a.outcome = 'success' AND {_STREAMED} >= 2 AND {_TOOK} >= 1000000 "
    f"THEN {_TOOK} / ({_STREAMED} - 1) END",
}
"""Name -> SQL for nanoseconds of what lies between no two marks; never censored."""
NAMES = (*MEASURES, *FACTS)

DEADLINES = (
    FailureKind.CONNECT_TIMEOUT,
    FailureKind.FIRST_TOKEN_DEADLINE,
    FailureKind.TOTAL_DEADLINE,
    FailureKind.STALLED,
)
"""Failures that only say "it would have taken longer"."""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


VALID = f"a.validity <@ CAST(ARRAY[{_quoted(HARMLESS_DOUBTS)}] AS text[])"
"""`Attempt.valid` in SQL."""

COUNTED = f"a.try = 0 AND a.outcome <> 'missed' AND {VALID}"
"""Which attempts enter percentiles: planned ones (a confirming try follows a slow one, which would weigh double)."""

_ENDED_BY_DEADLINE = f"a.failure_kind IN ({_quoted(DEADLINES)})"


def value_ns(measure: str) -> str:
    """SQL: nanoseconds, for a censored attempt how long it lasted at least; null when the attempt says nothing."""
    if measure in FACTS:
        return FACTS[measure]
    begin, end = MEASURES[measure]
    start = "0" if begin is None else f"a.{MARK_COLUMNS[begin]}"
    reached, gave_up = f"a.{MARK_COLUMNS[end]}", f"a.{MARK_COLUMNS[Mark.GAVE_UP]}"
    until = f"CASE WHEN {reached} IS NULL AND {_ENDED_BY_DEADLINE} THEN {gave_up} ELSE {reached} END"
    return f"CASE WHEN {until} < {start} THEN 0 ELSE {until} - {start} END"


def is_censored(measure: str) -> str:
    """SQL: whether `value_ns` is only a lower bound."""
    return "false" if measure in FACTS else f"a.{MARK_COLUMNS[MEASURES[measure][1]]} IS NULL"
