"""Second attempts inside the runner: in the first one's place, recorded beside it, and never instead of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from monitor.agent.runner import Outlets, Runner
from monitor.agent.schedule import Walked
from monitor.clock import Clock
from monitor.model import Attempt, DialectName, MissReason, Outcome, Probe, Series, Slot, Target, Vantage
from monitor.notes import GapNote

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def series(target: str = "t", interval: float = 0.2) -> Series:
    return Series(
        vantage=Vantage(name="lagos"),
        target=Target(name=target, provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
        probe=Probe(name="q", prompt="hi", interval_seconds=interval, deadline_seconds=0.05),
    )


class Bench:
    """A runner whose attempts take a moment and are all confirmed."""

    def __init__(self, confirm_seconds: float = 0.0, error: Exception | None = None, **limits: int) -> None:
        self.attempts: list[Attempt] = []
        self.confirm_seconds, self.error = confirm_seconds, error
        self.at_once = self.most_at_once = self.confirming = 0
        outlets = Outlets(record=self.record, mark=self.mark, skip=self.skip)
        self.runner = Runner(self.run, outlets, clock=Clock(), confirm=self.confirm, **limits)

    async def run(self, slot: Slot, one: Series) -> Attempt:
        await self._busy(0.01)
        return Attempt(
            vantage=slot.vantage,
            target=slot.target,
            probe=slot.probe,
            probe_version="1",
            scheduled_at=slot.scheduled_at,
            started_at=slot.scheduled_at,
            outcome=Outcome.SUCCESS,
        )

    async def confirm(self, slot: Slot, one: Series, attempt: Attempt) -> Attempt | None:
        if self.error is not None:
            raise self.error
        self.confirming += 1
        await self._busy(self.confirm_seconds)
        return replace(attempt, try_number=1)

    async def _busy(self, seconds: float) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.at_once -= 1

    async def record(self, attempt: Attempt, one: Series) -> None:
        self.attempts.append(attempt)

    def mark(self, key: tuple[str, str, str], walked: Walked) -> None: ...

    def skip(self, vantage: str, gap: GapNote) -> None: ...

    def tries(self, number: int, outcome: Outcome = Outcome.SUCCESS) -> list[Attempt]:
        return [one for one in self.attempts if one.try_number == number and one.outcome is outcome]

    async def during(self, many: list[Series], happens: Callable[[], Awaitable[None]]) -> None:
        self.runner.replace(many, ["lagos"])
        await self.runner.start()
        try:
            await happens()
        finally:
            await self.runner.stop(1.0)


def until(condition: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110  # a fact of the product, not an event of ours
                await asyncio.sleep(0.005)

    return wait


async def test_both_tries_of_a_slot_are_recorded():
    """The confirming attempt has the slot of the planned one, which is recorded first."""
    bench = Bench()
    await bench.during([series()], until(lambda: len(bench.tries(1)) >= 2))
    assert [one.try_number for one in bench.attempts[:2]] == [0, 1]
    assert bench.attempts[0].scheduled_at == bench.attempts[1].scheduled_at


async def test_a_second_attempt_counts_within_the_caps():
    """It holds the place of the first one: never more at once than the cap."""
    bench = Bench(confirm_seconds=0.05, max_concurrent=2)
    await bench.during([series(f"t{n}") for n in range(8)], until(lambda: len(bench.tries(1)) >= 6))
    assert bench.most_at_once <= 2


async def test_other_series_do_not_wait_for_a_second_attempt():
    """While one series' second attempt hangs, the others keep their slots."""
    bench = Bench(confirm_seconds=60.0)
    await bench.during([series("a"), series("b")], until(lambda: bench.confirming >= 2))
    assert {one.target for one in bench.tries(0)} == {"a", "b"}
    assert bench.tries(1) == []


async def test_stopping_in_a_second_attempt_loses_nothing_of_the_first():
    """The slot was measured: it has its row, and is not missed for shutdown."""
    bench = Bench(confirm_seconds=60.0)

    async def stop_meanwhile() -> None:
        await until(lambda: bench.confirming)()
        await bench.runner.stop(0.1)

    await bench.during([series()], stop_meanwhile)
    measured = {one.scheduled_at for one in bench.tries(0)}
    missed = {one.scheduled_at for one in bench.tries(0, Outcome.MISSED) if one.missed is MissReason.SHUTDOWN}
    assert measured
    assert not measured & missed


async def test_a_defect_in_confirming_spoils_nothing():
    """The planned attempts go on being made and recorded."""
    bench = Bench(error=RuntimeError("broken"))
    await bench.during([series()], until(lambda: len(bench.tries(0)) >= 3))
    assert bench.tries(1) == []
