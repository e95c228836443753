"""What an attempt costs: reported counts at their price, and the worst where nothing is reported."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from monitor.agent.pricing import NOTHING, Use, priced, used, worst_case
from monitor.agent.unmeasured import missed
from monitor.model import (
    Attempt,
    DialectName,
    Failure,
    FailureKind,
    HttpFacts,
    MissReason,
    Outcome,
    Price,
    Probe,
    Series,
    Slot,
    Target,
    Tokens,
    Vantage,
)
from monitor.timeline import Mark, Phase, Timeline

AT = datetime(2026, 3, 1, tzinfo=UTC)
PRICE = Price(input=2.0, output=10.0, cached=0.5, currency="EUR")
SERIES = Series(
    vantage=Vantage(name="lagos"),
    target=Target(name="t", provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1", price=PRICE),
    probe=Probe(name="q", prompt="x" * 400, max_output_tokens=50),
)
WORST = Use(input=140, output=50)
SENT = {Mark.SEND_START: 1, Mark.SEND_END: 2}
GOOD = Attempt(
    vantage="lagos",
    target="t",
    probe="q",
    probe_version="v",
    scheduled_at=AT,
    started_at=AT,
    outcome=Outcome.SUCCESS,
    timeline=Timeline({**SENT, Mark.DONE: 9, Mark.END: 9}),
    tokens=Tokens(input=100, cached=40, output=20, reasoning=5),
    http=HttpFacts(status=200),
)


def failed(kind: FailureKind, **changes: object) -> Attempt:
    failure = Failure(kind=kind, phase=Phase.GENERATE, text="it failed")
    return replace(GOOD, outcome=Outcome.FAILED, failure=failure, **changes)


def test_worst_case() -> None:
    """The prompt by its length with what surrounds it, and the whole output cap."""
    assert worst_case(SERIES) == WORST


def test_money() -> None:
    """Cached input has its own price; reasoning is part of the output; the sum is per million."""
    assert Use(input=100, cached=40, output=20).money(PRICE) == pytest.approx((60 * 2 + 40 * 0.5 + 20 * 10) / 1e6)
    assert Use(input=100, cached=40).money(replace(PRICE, cached=None)) == pytest.approx(200 / 1e6)
    assert Use(input=10, cached=40).money(PRICE) == pytest.approx(5 / 1e6)  # a provider that counts them apart
    assert Use(input=100).money(None) is None


@pytest.mark.parametrize(
    ("attempt", "use"),
    [
        (GOOD, Use(input=100, cached=40, output=20)),
        (replace(GOOD, tokens=Tokens()), WORST),
        (replace(GOOD, tokens=Tokens(output=7)), Use(input=140, output=7)),
        (replace(GOOD, tokens=Tokens(input=900, output=600)), Use(input=900, output=600)),  # more than we had allowed
        (failed(FailureKind.FILTERED), Use(input=100, cached=40, output=20)),
        (failed(FailureKind.CHECK_FAILED), Use(input=100, cached=40, output=20)),
        # broken off: what had been reported until then is a beginning
        (failed(FailureKind.TRUNCATED, timeline=Timeline(SENT), tokens=Tokens(input=100, output=1)), WORST),
        (failed(FailureKind.FIRST_TOKEN_DEADLINE, timeline=Timeline(SENT), http=HttpFacts(), tokens=Tokens()), WORST),
        # never asked, or refused
        (failed(FailureKind.DNS, timeline=Timeline({Mark.RESOLVE_START: 0}), http=HttpFacts()), NOTHING),
        (failed(FailureKind.RATE_LIMITED, timeline=Timeline(SENT), http=HttpFacts(status=429)), NOTHING),
        (failed(FailureKind.SERVER_ERROR, timeline=Timeline(SENT), http=HttpFacts(status=500)), NOTHING),
    ],
)
def test_what_was_used(attempt: Attempt, use: Use) -> None:
    """Reported counts where the answer ended, the worst case where it broke off, nothing where nothing was asked."""
    assert used(attempt, SERIES) == use
    assert priced(attempt, SERIES).cost == use.money(PRICE)


def test_without_a_price_there_is_no_cost() -> None:
    """Absent, not 0."""
    unpriced = replace(SERIES, target=replace(SERIES.target, price=None))
    assert priced(GOOD, unpriced).cost is None
    slot = Slot(vantage="lagos", target="t", probe="q", scheduled_at=AT, number=1)
    assert missed(slot, SERIES, MissReason.BUDGET, AT).cost is None
