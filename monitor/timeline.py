"""Marks, phases and every definition of a duration: the one file that says what `ttft` means.

A mark is a named instant in integer nanoseconds since the attempt's start. Durations are derived here, never
stored beside the marks they come from, and each is guarded by "did we get there": a phase that did not happen
is None, never 0. Phases plus `remainder` equal `total` exactly, in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

NS = 1_000_000_000
ARRIVAL_RESOLUTION_NS = 500_000
"""Tokens that arrive within half a millisecond of each other came in one arrival: a gap that short is a buffer's."""
STALL_NS = 1_000_000_000
"""A pause between tokens that a reader notices: one second."""


class Mark(StrEnum):
    """The instants of an attempt, in the order in which a good one passes them. START is 0 by definition."""

    RESOLVE_START = "resolve_start"
    RESOLVE_END = "resolve_end"
    CONNECT_START = "connect_start"
    CONNECT_END = "connect_end"
    TLS_START = "tls_start"
    TLS_END = "tls_end"
    SEND_START = "send_start"
    SEND_END = "send_end"  # the write that ended this request goes into the kernel
    HEADERS = "headers"  # arrival of the read that yields the first bytes of this response's headers
    FIRST_BYTE = "first_byte"  # arrival of the first byte of the body
    FIRST_EVENT = "first_event"  # first parsed event of any kind that carries data
    FIRST_TOKEN = "first_token"  # first generated token of any kind: text, reasoning, tool call, refusal
    FIRST_REASONING = "first_reasoning"
    FIRST_VISIBLE = "first_visible"  # first visible output token: text or refusal
    FIRST_TOOL = "first_tool"
    LAST_TOKEN = "last_token"
    FINISH = "finish"  # the finish reason
    DONE = "done"  # the dialect's terminal marker
    END = "end"  # end of stream: the terminal marker or, without one, the end of the body
    GAVE_UP = "gave_up"  # a failed attempt ended here, by error or by deadline
    CONTROL_START = "control_start"  # the control request, after the prompt and outside its timeline
    CONTROL_SENT = "control_sent"
    CONTROL_HEADERS = "control_headers"


class Phase(StrEnum):
    """The intervals of an attempt; also where a failed one died."""

    RESOLVE = "resolve"
    CONNECT = "connect"
    TLS = "tls"
    SEND = "send"
    WAIT = "wait"
    GENERATE = "generate"


PHASES: Mapping[Phase, tuple[Mark, Mark]] = {
    Phase.RESOLVE: (Mark.RESOLVE_START, Mark.RESOLVE_END),
    Phase.CONNECT: (Mark.CONNECT_START, Mark.CONNECT_END),
    Phase.TLS: (Mark.TLS_START, Mark.TLS_END),
    Phase.SEND: (Mark.SEND_START, Mark.SEND_END),
    Phase.WAIT: (Mark.SEND_END, Mark.HEADERS),
    Phase.GENERATE: (Mark.HEADERS, Mark.END),
}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The marks of one attempt, nanoseconds since its start. All properties are seconds, None where not reached."""

    marks: Mapping[Mark, int] = field(default_factory=dict)

    def between_ns(self, begin: Mark, end: Mark) -> int | None:
        """Nanoseconds from one mark to another; None unless both were passed. Never negative."""
        if begin not in self.marks or end not in self.marks:
            return None
        return max(0, self.marks[end] - self.marks[begin])

    def phase_ns(self, phase: Phase) -> int | None:
        """How long a phase took, None when it did not happen or was not survived."""
        return self.between_ns(*PHASES[phase])

    def phase(self, phase: Phase) -> float | None:
        """`phase_ns` in seconds."""
        return seconds(self.phase_ns(phase))

    @property
    def ttft(self) -> float | None:
        """First generated token of any kind minus start."""
        return seconds(self.marks.get(Mark.FIRST_TOKEN))

    @property
    def ttfo(self) -> float | None:
        """First visible output token minus start."""
        return seconds(self.marks.get(Mark.FIRST_VISIBLE))

    @property
    def total_ns(self) -> int | None:
        """End of stream minus start."""
        return self.marks.get(Mark.END)

    @property
    def total(self) -> float | None:
        """End of stream minus start, seconds."""
        return seconds(self.total_ns)

    @property
    def lasted_ns(self) -> int:
        """How long the attempt took, ended well or not: `total`, or the moment it was given up."""
        return self.marks.get(Mark.END, self.marks.get(Mark.GAVE_UP, 0))

    @property
    def remainder_ns(self) -> int | None:
        """Total minus the phases that happened: our own time between steps."""
        if self.total_ns is None:
            return None
        return self.total_ns - sum(self.phase_ns(p) or 0 for p in Phase)

    @property
    def control(self) -> float | None:
        """Wait of the control request: its first header bytes minus the write that ended it."""
        return seconds(self.between_ns(Mark.CONTROL_SENT, Mark.CONTROL_HEADERS))

    def reached(self) -> Phase:
        """The last phase that was begun: where a failure died."""
        begun = [p for p, (begin, _) in PHASES.items() if begin in self.marks]
        return begun[-1] if begun else Phase.RESOLVE


@dataclass(frozen=True, slots=True)
class Gaps:
    """Inter-token gaps in seconds, from arrival times."""

    p50: float | None
    p95: float | None
    max: float | None
    stalls: int
    burst_share: float | None  # share of the steps from token to token that arrived together: 0 smooth, 1 all at once


def gaps(arrivals_ns: Sequence[int], stall_ns: int = STALL_NS) -> Gaps | None:
    """Gaps between the arrivals of tokens (one entry a token, ascending, ns since start); None under two tokens.

    Tokens within `ARRIVAL_RESOLUTION_NS` of the first of their group are one arrival: their steps are no gaps
    but count into `burst_share`. Percentiles are nearest-rank.
    """
    if len(arrivals_ns) < 2:
        return None
    distinct = [arrivals_ns[0]]
    for at in arrivals_ns[1:]:
        if at - distinct[-1] >= ARRIVAL_RESOLUTION_NS:
            distinct.append(at)
    steps = sorted(b - a for a, b in pairwise(distinct))
    burst = (len(arrivals_ns) - len(distinct)) / (len(arrivals_ns) - 1)
    if not steps:
        return Gaps(None, None, None, 0, burst)
    return Gaps(
        p50=nearest_rank(steps, 0.50) / NS,
        p95=nearest_rank(steps, 0.95) / NS,
        max=steps[-1] / NS,
        stalls=sum(step >= stall_ns for step in steps),
        burst_share=burst,
    )


def nearest_rank(ordered: Sequence[int], share: float) -> int:
    """The nearest-rank percentile of an ascending sequence: the smallest value with at least `share` at or below it."""
    rank = -(-len(ordered) * round(share * 1000) // 1000)
    return ordered[max(0, min(len(ordered), rank) - 1)]


def seconds(nanoseconds: int | None) -> float | None:
    """Nanoseconds -> seconds, None stays None."""
    return None if nanoseconds is None else nanoseconds / NS
