"""Log-spaced histograms that add up: what rollups store instead of percentiles.

Bin `i` holds durations in (GAMMA**(i-1), GAMMA**i] nanoseconds and answers with a value that is at most
`RELATIVE_ERROR` away from every duration in it (the DDSketch construction: Masson et al., VLDB 2019). Bin 0 also holds
everything up to one nanosecond. Ten minutes are bin 678, so a bin number fits a smallint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

RELATIVE_ERROR = 0.02
GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
LOG_GAMMA = math.log(GAMMA)
NS = 1_000_000_000


def bin_of(nanoseconds: int) -> int:
    """The number of the bin that holds a duration."""
    return max(0, math.ceil(math.log(nanoseconds) / LOG_GAMMA)) if nanoseconds > 1 else 0


def bin_sql(nanoseconds: str) -> str:
    """`bin_of` as SQL over an expression that is not null."""
    return f"CAST(ceil(ln(greatest({nanoseconds}, 1)::double precision) / {LOG_GAMMA!r}) AS smallint)"


def seconds_of(number: int) -> float:
    """The value that stands for a bin."""
    return 2 * GAMMA**number / (GAMMA + 1) / NS


@dataclass(frozen=True, slots=True)
class Percentile:
    """One percentile from a histogram."""

    seconds: float  # within RELATIVE_ERROR of the nearest-rank percentile of the same values
    at_least: bool  # a deadline cut values at or below it: the true one may be longer


@dataclass(slots=True)
class Histogram:
    """Counts by bin; `censored` are those of `counts` that a deadline ended."""

    counts: dict[int, int] = field(default_factory=dict)
    censored: dict[int, int] = field(default_factory=dict)

    def add(self, number: int, count: int, censored: int = 0) -> None:
        """Put `count` attempts into a bin, `censored` of them cut by a deadline."""
        self.counts[number] = self.counts.get(number, 0) + count
        if censored:
            self.censored[number] = self.censored.get(number, 0) + censored

    def merge(self, others: Iterable[Histogram]) -> Histogram:
        """Add `others` to this one, which is returned."""
        for other in others:
            for number, count in other.counts.items():
                self.add(number, count, other.censored.get(number, 0))
        return self

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def percentile(self, q: float) -> Percentile | None:
        """The nearest-rank percentile for `q` in 0..1; None when nothing was counted. See `percentile`."""
        return percentile(self.counts, q, self.censored)


def percentile(bins: Mapping[int, int], q: float, censored: Mapping[int, int] | None = None) -> Percentile | None:
    """The nearest-rank percentile of counts by bin number; None when they are empty.

    A censored value stands at its lower bound. From the lowest of them on the true order is unknown, so percentiles
    there say `at_least`.
    """
    total = sum(bins.values())
    if total == 0:
        return None
    rank, passed = max(1, math.ceil(q * total - 1e-9)), 0
    for number in sorted(bins):
        passed += bins[number]
        if passed >= rank:
            break
    lowest = min((n for n, count in (censored or {}).items() if count), default=None)
    return Percentile(seconds_of(number), lowest is not None and number >= lowest)
