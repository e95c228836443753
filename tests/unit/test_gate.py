"""What may be asked now: pace, budget, and a provider's wish to be left alone after a 429."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from monitor.agent.gate import LONGEST_WAIT_SECONDS, Gate
from monitor.agent.pace import Pace
from monitor.agent.spending import Spending
from monitor.clock import ManualClock
from monitor.config.plan import TOKENS, Allowance
from monitor.model import (
    Attempt,
    DialectName,
    HttpFacts,
    MissReason,
    Outcome,
    Probe,
    Series,
    ServiceFacts,
    Slot,
    Target,
    Vantage,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SERIES = Series(
    vantage=Vantage(name="v"),
    target=Target(name="t", provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
    probe=Probe(name="q", prompt="hi", max_output_tokens=60),
)
SLOT = Slot(vantage="v", target="t", probe="q", scheduled_at=NOON, number=0)


class Provider:
    """Answers as told, and counts how often it was asked."""

    def __init__(self, tmp_path: Path, *caps: Allowance, per_minute: int | None = None) -> None:
        self.clock = ManualClock(NOON)
        self.asked = 0
        self.status: int | None = 200
        self.retry_after: float | None = None
        self.spending = Spending(tmp_path / "s", caps, self.clock)
        self.pace = Pace({"p": per_minute} if per_minute else {})
        self.gate = Gate(self.run, self.spending, self.pace, self.clock)

    async def run(self, slot: Slot, series: Series, *, try_number: int = 0) -> Attempt:
        self.asked += 1
        return Attempt(
            vantage="v",
            target="t",
            probe="q",
            probe_version="x",
            scheduled_at=NOON,
            started_at=NOON,
            try_number=try_number,
            outcome=Outcome.FAILED,
            http=HttpFacts(status=self.status),
            service=ServiceFacts(retry_after_seconds=self.retry_after),
        )

    async def reason(self, series: Series = SERIES, try_number: int = 0) -> MissReason | None:
        return (await self.gate.run(SLOT, series, try_number=try_number)).missed


def test_retry_after_is_honoured(tmp_path: Path) -> None:
    """After a 429 with a wait, the target alone is left alone for that long, then asked again."""

    async def life() -> None:
        provider = Provider(tmp_path)
        provider.status, provider.retry_after = 429, 30.0
        assert await provider.reason() is None
        provider.clock.advance(29.9)
        assert await provider.reason() is MissReason.RETRY_AFTER
        assert await provider.reason(try_number=1) is MissReason.RETRY_AFTER
        other = replace(SERIES, target=replace(SERIES.target, name="other"))
        assert await provider.reason(other) is None
        provider.clock.advance(0.2)
        provider.status, provider.retry_after = 200, None
        assert await provider.reason() is None
        assert await provider.reason() is None

    asyncio.run(life())


@pytest.mark.parametrize(("status", "wait"), [(503, 30.0), (429, None), (429, 0.0), (200, 30.0), (None, 30.0)])
def test_an_outage_is_shown(tmp_path: Path, status: int | None, wait: float | None) -> None:
    """Nothing but a 429 that names a wait keeps slots back."""

    async def life() -> None:
        provider = Provider(tmp_path)
        provider.status, provider.retry_after = status, wait
        assert [await provider.reason() for _ in range(3)] == [None] * 3
        assert provider.asked == 3

    asyncio.run(life())


def test_no_wait_is_endless(tmp_path: Path) -> None:
    """A provider that says "come back tomorrow" is asked again after a quarter of an hour."""

    async def life() -> None:
        provider = Provider(tmp_path)
        provider.status, provider.retry_after = 429, 86_400.0
        assert await provider.reason() is None
        provider.clock.advance(LONGEST_WAIT_SECONDS - 1)
        assert await provider.reason() is MissReason.RETRY_AFTER
        provider.clock.advance(1)
        assert await provider.reason() is None

    asyncio.run(life())


def test_budget_first_then_the_attempt(tmp_path: Path) -> None:
    """A slot that does not fit is missed with its try, and the provider hears nothing; confirming ones count too."""

    async def life() -> None:
        provider = Provider(tmp_path, Allowance(target=None, unit=TOKENS, limit=199))
        provider.status = None  # nothing went out: nothing was used
        assert await provider.reason() is None
        assert provider.spending.balances()[0].spent == 0
        booking = await provider.spending.book(SERIES)
        assert booking is not None
        made = await provider.gate.run(SLOT, SERIES, try_number=1)
        assert (made.missed, made.try_number) == (MissReason.BUDGET, 1)
        assert provider.asked == 1
        await provider.spending.close()

    asyncio.run(life())


def test_what_breaks_stays_booked(tmp_path: Path) -> None:
    """An attempt that was cut off or broke may have cost its worst case."""

    async def life() -> None:
        provider = Provider(tmp_path, Allowance(target=None, unit=TOKENS, limit=1000))

        async def breaks(slot: Slot, series: Series, *, try_number: int = 0) -> Attempt:
            raise RuntimeError("a defect")

        gate = Gate(breaks, provider.spending, provider.pace, provider.clock)
        with pytest.raises(RuntimeError):
            await gate.run(SLOT, SERIES)
        assert provider.spending.balances()[0].spent == 100
        await provider.spending.close()

    asyncio.run(life())


def test_confirming_attempts_keep_the_pace(tmp_path: Path) -> None:
    """They never wait: where no further attempt may begin now, there is none."""

    async def life() -> None:
        provider = Provider(tmp_path, per_minute=2)
        async with provider.pace.turn("p", 1.0):
            pass
        assert await provider.reason(try_number=1) is None
        assert await provider.reason(try_number=1) is MissReason.CAPACITY
        assert provider.asked == 1

    asyncio.run(life())


def test_pace_in_any_window() -> None:
    """At most so many begin in any window; who would wait too long is told at once; the order is that of asking."""

    async def life() -> None:
        loop, pace = asyncio.get_running_loop(), Pace({"p": 2}, window_seconds=0.2)
        began: list[tuple[int, float]] = []

        async def one(number: int, patience: float) -> None:
            async with pace.turn("p", patience):
                began.append((number, loop.time()))

        await asyncio.gather(*(one(number, 5.0) for number in range(5)))
        assert [number for number, _ in began] == [0, 1, 2, 3, 4]
        times = [at for _, at in began]
        assert all(later - earlier >= 0.19 for earlier, later in zip(times, times[2:], strict=False))
        await one(5, 5.0)
        asked = loop.time()
        with pytest.raises(TimeoutError):
            await one(6, 0.01)
        assert loop.time() - asked < 0.15
        async with pace.turn("another", 0.0):
            pass

    asyncio.run(life())


def test_what_was_not_asked_is_given_back() -> None:
    """A slot that its budget kept back does not use up the provider's pace."""

    async def life() -> None:
        pace = Pace({"p": 1})
        assert pace.take("p")
        pace.give_back("p")
        assert pace.take("p")
        assert not pace.take("p")
        pace.limit({"p": 2})
        assert pace.take("p")
        assert not pace.take("p")
        pace.give_back("unknown")

    asyncio.run(life())
