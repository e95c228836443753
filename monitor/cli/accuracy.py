"""How wrong this machine's measurements are: attempts against the simulator, compared with its send log.

The truth of an arrival lies between the instants just before and just after the simulator's socket send, on the
clock that all processes of a machine share; an error is the distance to that interval. Used by `firsttoken
selftest` and by benchmarks/accuracy.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monitor.agent.probe import Prober
from monitor.clock import Clock, wall_ns
from monitor.model import Attempt, Doubt, Outcome, Purpose, Series, Slot
from monitor.simulator.sendlog import Sending, SendKind
from monitor.timeline import NS, Gaps, gaps, nearest_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One stream, measured and true. Nanoseconds."""

    ttft_error_ns: int
    gap_error_ns: int | None  # the worst of p50, p95 and max; None where gaps were left out
    truth_width_ns: int  # how exactly the simulator knows when it sent the first token
    coalesced: bool
    ttft_doubted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Many comparisons in a few figures. Seconds."""

    streams: int
    ttft_p50: float
    ttft_p99: float
    ttft_worst: float
    sure_p99: float | None  # of the streams whose TTFT is not in doubt
    gaps_worst: float | None
    truth_width_p99: float
    coalesced_share: float
    ttft_doubted_share: float
    silently_wrong: int  # off by more than a millisecond without a doubt that says so


WRONG_NS = 1_000_000


def error_ns(measured_ns: int, sent: Sending) -> int:
    """How far a measured arrival lies outside the interval in which it was sent."""
    return max(0, sent.before_ns - measured_ns, measured_ns - sent.after_ns)


def compare(attempt: Attempt, sent: Sequence[Sending], clock: Clock) -> Comparison | None:
    """None when the attempt failed or the log does not hold its tokens."""
    tokens = [entry for entry in sent if entry.kind == SendKind.TOKEN]
    ttft = attempt.timeline.ttft
    if attempt.outcome is not Outcome.SUCCESS or ttft is None or not tokens:
        return None
    widest_ns = max(entry.after_ns - entry.before_ns for entry in tokens)
    start_ns = wall_ns(attempt.started_at) - clock.offset_ns()
    return Comparison(
        ttft_error_ns=error_ns(start_ns + round(ttft * NS), tokens[0]),
        gap_error_ns=_gap_error_ns(attempt.gaps, gaps([entry.after_ns for entry in tokens]), widest_ns),
        truth_width_ns=tokens[0].after_ns - tokens[0].before_ns,
        coalesced=Doubt.COALESCED in attempt.validity,
        ttft_doubted=Doubt.FIRST_TOKEN_COALESCED in attempt.validity,
    )


def _gap_error_ns(measured: Gaps | None, true: Gaps | None, known_to_ns: int) -> int | None:
    """The worst difference of three percentiles, beyond what the log itself knows them to."""
    if measured is None or true is None:
        return None
    pairs = [(measured.p50, true.p50), (measured.p95, true.p95), (measured.max, true.max)]
    worst = max((round(abs(a - b) * NS) for a, b in pairs if a is not None and b is not None), default=None)
    return None if worst is None else max(0, worst - known_to_ns)


def summarise(comparisons: Sequence[Comparison]) -> Summary:
    """The figures of a run; at least one comparison is needed."""
    errors = sorted(c.ttft_error_ns for c in comparisons)
    sure = sorted(c.ttft_error_ns for c in comparisons if not c.ttft_doubted)
    gap_errors = [c.gap_error_ns for c in comparisons if c.gap_error_ns is not None]
    wrong = sum(
        (c.ttft_error_ns > WRONG_NS and not c.ttft_doubted) or (c.gap_error_ns or 0) > WRONG_NS for c in comparisons
    )
    return Summary(
        streams=len(comparisons),
        ttft_p50=nearest_rank(errors, 0.50) / NS,
        ttft_p99=nearest_rank(errors, 0.99) / NS,
        ttft_worst=errors[-1] / NS,
        sure_p99=nearest_rank(sure, 0.99) / NS if sure else None,
        gaps_worst=max(gap_errors) / NS if gap_errors else None,
        truth_width_p99=nearest_rank(sorted(c.truth_width_ns for c in comparisons), 0.99) / NS,
        coalesced_share=sum(c.coalesced for c in comparisons) / len(comparisons),
        ttft_doubted_share=sum(c.ttft_doubted for c in comparisons) / len(comparisons),
        silently_wrong=wrong,
    )


async def measure(prober: Prober, series: Series, streams: int, spread_seconds: float) -> list[Attempt]:
    """Run `streams` attempts at once, their starts spread evenly."""

    async def one(number: int) -> Attempt:
        await asyncio.sleep(number * spread_seconds / streams)
        slot = Slot(
            vantage=series.vantage.name,
            target=series.target.name,
            probe=series.probe.name,
            scheduled_at=prober.now(),
            number=number,
        )
        return await prober.run(slot, series, purpose=Purpose.ONE_OFF)

    return list(await asyncio.gather(*(one(number) for number in range(streams))))


def compare_all(attempts: Sequence[Attempt], log: Mapping[str, Sequence[Sending]], clock: Clock) -> list[Comparison]:
    """Every attempt with the part of the log that its request id names."""
    found = (compare(a, log.get(a.http.request_id or "", ()), clock) for a in attempts)
    return [comparison for comparison in found if comparison is not None]
