"""What an attempt costs: before it is made, at most; afterwards, by the tokens that the provider reports.

Pure. What is not known counts at its worst, so that a budget built on these numbers errs towards stopping.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.config.plan import prompt_tokens
from monitor.model import Attempt, Outcome, Price, Series
from monitor.timeline import Mark

MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Tokens to be paid for."""

    input: int = 0  # cached ones included
    cached: int = 0
    output: int = 0  # reasoning included

    @property
    def tokens(self) -> int:
        """All of them, which is what a cap in tokens counts."""
        return self.input + self.output

    def money(self, price: Price | None) -> float | None:
        """What they cost in the price's currency; None without a price."""
        if price is None:
            return None
        cached_price = price.input if price.cached is None else price.cached
        cached = min(self.cached, self.input)
        return ((self.input - cached) * price.input + cached * cached_price + self.output * price.output) / MILLION


NOTHING = Use()


def worst_case(series: Series) -> Use:
    """The most that an attempt of `series` is expected to use: its prompt by its length, and its whole output cap."""
    return Use(input=prompt_tokens(series.probe), output=series.probe.max_output_tokens)


def used(attempt: Attempt, series: Series) -> Use:
    """What an attempt has used.

    Nothing, where no request went out or the provider refused it (a status other than 2xx is not billed). Where the
    answer came to its end, the reported counts; where it broke off, at least the worst case: it was generated and may
    be billed, whatever had been reported until then. What is not reported counts at its worst.
    """
    if Mark.SEND_START not in attempt.timeline.marks or _refused(attempt.http.status):
        return NOTHING
    told, worst = attempt.tokens, worst_case(series)
    given = worst.input if told.input is None else told.input
    output = worst.output if told.output is None else told.output
    if not (attempt.outcome is Outcome.SUCCESS or Mark.DONE in attempt.timeline.marks):
        given, output = max(given, worst.input), max(output, worst.output)
    return Use(input=given, cached=told.cached or 0, output=output)


def priced(attempt: Attempt, series: Series) -> Attempt:
    """The attempt with its cost, where the target has a price."""
    return replace(attempt, cost=used(attempt, series).money(series.target.price))


def _refused(status: int | None) -> bool:
    return status is not None and not 200 <= status < 300
