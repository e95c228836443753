"""The runner with real timers and, where time must jump, the manual clock: once each, never a burst, never stalled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from monitor.agent.pace import Pace
from monitor.agent.runner import Outlets, Runner
from monitor.agent.schedule import LATE_ROWS, Walked
from monitor.agent.unmeasured import missed
from monitor.clock import Clock, ManualClock
from monitor.grid import grid, microseconds
from monitor.model import Attempt, DialectName, FailureKind, MissReason, Outcome, Probe, Series, Slot, Target, Vantage
from monitor.notes import GapNote

pytestmark = pytest.mark.anyio
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def series(target: str = "t", interval: float = 0.2, provider: str = "p", deadline: float = 0.05) -> Series:
    return Series(
        vantage=Vantage(name="lagos"),
        target=Target(name=target, provider=provider, model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
        probe=Probe(name="q", prompt="hi", interval_seconds=interval, deadline_seconds=deadline),
    )


def success(slot: Slot, one: Series, clock: Clock) -> Attempt:
    return Attempt(
        vantage=slot.vantage,
        target=slot.target,
        probe=slot.probe,
        probe_version=one.probe.version,
        scheduled_at=slot.scheduled_at,
        started_at=clock.now(),
        outcome=Outcome.SUCCESS,
    )


class Ledger:
    """Everything that a runner handed out."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        self.clock, self.seconds = clock, seconds
        self.attempts: list[Attempt] = []
        self.gaps: list[GapNote] = []
        self.marks: dict[tuple[str, str, str], Walked] = {}
        self.lags: list[float] = []
        self.released: list[Series] = []
        self.at_once = self.most_at_once = 0

    async def run(self, slot: Slot, one: Series) -> Attempt:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.at_once -= 1
        return success(slot, one, self.clock)

    async def record(self, attempt: Attempt, one: Series) -> None:
        self.attempts.append(attempt)

    def mark(self, key: tuple[str, str, str], walked: Walked) -> None:
        self.marks[key] = walked

    def skip(self, vantage: str, gap: GapNote) -> None:
        self.gaps.append(gap)

    async def release(self, one: Series) -> None:
        self.released.append(one)

    @property
    def outlets(self) -> Outlets:
        return Outlets(record=self.record, mark=self.mark, skip=self.skip, lag=self.lags.append, release=self.release)

    def of(self, outcome: Outcome, reason: MissReason | None = None) -> list[Attempt]:
        return [a for a in self.attempts if a.outcome is outcome and (reason is None or a.missed is reason)]

    def slots(self) -> list[datetime]:
        return [a.scheduled_at for a in self.attempts]


@asynccontextmanager
async def running(
    ledger: Ledger,
    *many: Series,
    run: Callable[[Slot, Series], Awaitable[Attempt]] | None = None,
    walked: dict[tuple[str, str, str], Walked] | None = None,
    **limits: object,
) -> AsyncIterator[Runner]:
    runner = Runner(run or ledger.run, ledger.outlets, clock=ledger.clock, **limits)
    runner.replace(many, ["lagos"])
    await runner.start(walked)
    try:
        yield runner
    finally:
        await runner.stop(1.0)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # the condition is a fact of the product, not an event of ours
            await asyncio.sleep(0.005)


async def turn() -> None:
    """Let everything that is ready happen."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_slots_run_on_the_grid_once_each_and_lag_is_told():
    """On real time each attempt carries its planned instant, none twice, none left out, with its lag handed on."""
    ledger = Ledger(Clock())
    async with running(ledger, series(), series("u")):
        await until(lambda: len(ledger.attempts) >= 10)
    for target in ("t", "u"):
        lattice = grid(series(target), ["lagos"])
        planned = [microseconds(a.scheduled_at) for a in ledger.attempts if a.target == target]
        assert planned == [lattice.instant_us(lattice.first_after(planned[0]) - 1 + n) for n in range(len(planned))]
    assert len(ledger.lags) == len(ledger.of(Outcome.SUCCESS))
    assert all(lag >= 0 for lag in ledger.lags)


async def test_what_ran_is_marked():
    """How far the series has come is handed out to be kept, no later than the attempt itself."""
    ledger = Ledger(Clock())
    async with running(ledger, series()):
        await until(lambda: len(ledger.attempts) >= 2)
        newest = max(ledger.slots())
        assert ledger.marks[series().key].handled_us >= microseconds(newest)


async def test_a_long_attempt_makes_its_successors_missed_not_queued():
    """While an attempt of a series runs, its further slots are missed for overlap; nothing runs beside it or later."""
    ledger = Ledger(Clock(), seconds=0.5)
    async with running(ledger, series(interval=0.1)):
        await until(lambda: len(ledger.of(Outcome.SUCCESS)) >= 2)
    assert ledger.most_at_once == 1
    assert len(ledger.of(Outcome.MISSED, MissReason.OVERLAP)) >= 4
    assert len(set(ledger.slots())) == len(ledger.slots())


async def test_the_overall_cap_holds_and_what_finds_no_place_is_missed():
    """Never more than the cap at once; a slot that gets no place within its grace is missed for capacity."""
    ledger = Ledger(Clock(), seconds=0.3)
    many = [series(f"t{n}") for n in range(12)]
    async with running(ledger, *many, max_concurrent=2):
        await until(lambda: len(ledger.of(Outcome.MISSED, MissReason.CAPACITY)) >= 3)
    assert ledger.most_at_once == 2


async def test_a_provider_has_a_cap_of_its_own():
    """A provider's cap binds its own targets only."""
    ledger = Ledger(Clock(), seconds=0.3)
    busy: dict[str, int] = {"a": 0, "b": 0}
    most = dict(busy)

    async def run(slot: Slot, one: Series) -> Attempt:
        busy[one.target.provider] += 1
        most[one.target.provider] = max(most[one.target.provider], busy[one.target.provider])
        attempt = await ledger.run(slot, one)
        busy[one.target.provider] -= 1
        return attempt

    many = [series(f"{p}{n}", provider=p) for n in range(6) for p in "ab"]
    async with running(ledger, *many, run=run, per_provider={"a": 1}):
        await until(lambda: len(ledger.attempts) >= 20)
    assert most["a"] == 1
    assert most["b"] > 1


async def test_while_paused_slots_are_missed():
    """Paused is told apart from late; after resuming probes come again."""
    ledger = Ledger(Clock())
    async with running(ledger, series()) as runner:
        runner.pause()
        await until(lambda: len(ledger.of(Outcome.MISSED, MissReason.PAUSED)) >= 2)
        assert ledger.of(Outcome.SUCCESS) == []
        runner.resume()
        await until(lambda: ledger.of(Outcome.SUCCESS))


async def test_a_defect_of_ours_is_a_failed_attempt():
    """An attempt that raises takes no series down and names no secret: one failed attempt of kind internal."""

    async def broken(slot: Slot, one: Series) -> Attempt:
        raise RuntimeError("sk-planted")

    ledger = Ledger(Clock())
    async with running(ledger, series(), run=broken):
        await until(lambda: len(ledger.attempts) >= 2)
    assert {a.failure.kind for a in ledger.of(Outcome.FAILED)} == {FailureKind.INTERNAL}
    assert "sk-planted" not in repr(ledger.attempts)


# ---------------------------------------------------------------------------------------- the clock jumps


async def test_after_a_week_asleep_there_is_no_burst():
    """One slot at most runs, a handful are rows, the rest is one counted gap with its range."""
    ledger = Ledger(ManualClock(START))
    one = series(interval=60)
    async with running(ledger, one) as runner:
        ledger.clock.advance(7 * 86_400)
        runner.reconsider()
        await turn()
        late = ledger.of(Outcome.MISSED, MissReason.LATE)
        ran = ledger.of(Outcome.SUCCESS)
        assert len(late) <= LATE_ROWS
        assert len(ran) <= 1
        assert len(late) + len(ran) + sum(gap.slots for gap in ledger.gaps) == 7 * 24 * 60
        assert [(gap.target, gap.probe, gap.reason) for gap in ledger.gaps] == [(*one.key[1:], "late")]


async def test_the_wall_clock_steps_forward():
    """Two hours forward: what lies between is missed, the next slot comes within an interval."""
    ledger = Ledger(ManualClock(START))
    async with running(ledger, series(interval=60)) as runner:
        ledger.clock.step_wall(7200)
        runner.reconsider()
        await turn()
        assert len(ledger.attempts) + sum(gap.slots for gap in ledger.gaps) == 120
        soon = runner.next_slot(series(interval=60))
        assert timedelta(0) < soon - ledger.clock.now() <= timedelta(seconds=60)


async def test_the_wall_clock_steps_back():
    """Two hours back: slots go on within an interval, and no instant comes twice in two hours of walking."""
    ledger = Ledger(ManualClock(START))
    one = series(interval=60)
    async with running(ledger, one) as runner:
        await minutes(ledger, runner, 150)
        ledger.clock.step_wall(-7200)
        runner.reconsider()
        assert runner.next_slot(one) - ledger.clock.now() <= timedelta(seconds=60)
        await minutes(ledger, runner, 150)
    assert len(ledger.of(Outcome.SUCCESS)) == pytest.approx(300, abs=2)
    assert len(set(ledger.slots())) == len(ledger.slots())


async def minutes(ledger: Ledger, runner: Runner, count: int) -> None:
    one = runner.series[0]
    for _ in range(count):
        ledger.clock.advance((runner.next_slot(one) - ledger.clock.now()).total_seconds() + 0.001)
        runner.reconsider()
        await turn()


async def test_timers_follow_a_clock_that_steps():
    """The runner's own tick notices a step: without any help the next slot runs within about a second."""
    ledger = Ledger(ManualClock(START))
    async with running(ledger, series(interval=3600)):
        await asyncio.sleep(0.05)
        assert ledger.attempts == []
        lattice = grid(series(interval=3600), ["lagos"])
        upcoming = lattice.instant_us(lattice.first_after(microseconds(ledger.clock.now())))
        ledger.clock.step_wall(upcoming / 1e6 - ledger.clock.wall_ns() / 1e9 + 0.001)
        await until(lambda: ledger.of(Outcome.SUCCESS), 30)


async def test_after_a_restart_nothing_runs_twice():
    """With the marks of the process before, a clock that went back a little repeats no slot."""
    first, one = Ledger(Clock()), series(interval=0.2)
    async with running(first, one):
        await until(lambda: len(first.attempts) >= 3)
    behind = ManualClock(max(first.slots()) - timedelta(seconds=0.15))
    second = Ledger(behind)
    async with running(second, one, walked=first.marks) as runner:
        for _ in range(40):
            behind.advance(0.02)
            runner.reconsider()
            await turn()
    assert second.of(Outcome.SUCCESS)
    assert set(first.slots()).isdisjoint(second.slots())


# ---------------------------------------------------------------------------------------- another plan


async def test_a_new_plan_keeps_the_slots_that_did_not_change():
    """A series that stays loses no slot when others come and go; a removed one ends and is released."""
    ledger = Ledger(Clock())
    stays, goes, comes = series("stays"), series("goes"), series("comes")
    async with running(ledger, stays, goes) as runner:
        await until(lambda: len(ledger.attempts) >= 4)
        changes = runner.replace([stays, comes], ["lagos"])
        assert (changes.added, changes.removed, changes.kept) == (1, 1, 1)
        await until(lambda: {a.target for a in ledger.attempts[-4:]} == {"stays", "comes"})
        assert ledger.released == [goes]
    lattice = grid(stays, ["lagos"])
    mine = [microseconds(a.scheduled_at) for a in ledger.attempts if a.target == "stays"]
    assert mine == [lattice.instant_us(lattice.first_after(mine[0]) - 1 + n) for n in range(len(mine))]


async def test_a_changed_prompt_takes_effect_at_the_next_slot():
    """Attempts after the change carry the new probe's version, and the old form is released."""
    ledger = Ledger(Clock())
    old = series()
    new = Series(
        vantage=old.vantage,
        target=old.target,
        probe=Probe(name="q", prompt="other", interval_seconds=0.2, deadline_seconds=0.05),
    )
    async with running(ledger, old) as runner:
        await until(lambda: ledger.attempts)
        assert runner.replace([new], ["lagos"]).changed == 1
        await until(lambda: ledger.attempts[-1].probe_version == new.probe.version)
        assert ledger.released == [old]


# ---------------------------------------------------------------------------------------- the end


async def test_stopping_drains_what_runs():
    """An attempt under way is finished and recorded; no slot begins meanwhile, those owed are missed for shutdown."""
    ledger = Ledger(Clock(), seconds=0.3)
    async with running(ledger, series(interval=0.1)) as runner:
        await until(lambda: ledger.at_once)
        started = runner.started
        await runner.stop(5.0)
        assert runner.started == started
    assert len(ledger.of(Outcome.SUCCESS)) == started
    assert ledger.of(Outcome.MISSED, MissReason.SHUTDOWN)


async def test_what_waits_for_a_place_ends_at_once():
    """Stopping does not wait for those that have not begun: their slots are missed for shutdown."""
    ledger = Ledger(Clock(), seconds=0.4)
    many = [series(f"t{n}", interval=5.0) for n in range(40)]
    async with running(ledger, *many, max_concurrent=1) as runner:
        await until(lambda: runner.running >= 3)
        await runner.stop(5.0)
    assert ledger.of(Outcome.MISSED, MissReason.SHUTDOWN)
    assert len(ledger.of(Outcome.SUCCESS)) == runner.started


async def test_what_does_not_end_is_aborted_and_recorded():
    """Draining is bounded: an attempt that hangs is cut off and its slot is missed for shutdown."""
    ledger = Ledger(Clock(), seconds=60)
    async with running(ledger, series(interval=0.1)) as runner:
        await until(lambda: ledger.at_once)
        async with asyncio.timeout(20):
            await runner.stop(0.2)
    assert ledger.at_once == 0
    assert ledger.of(Outcome.SUCCESS) == []
    assert ledger.of(Outcome.MISSED, MissReason.SHUTDOWN)


async def test_what_may_not_be_asked_is_missed_with_its_reason():
    """A slot that a gate keeps back is a row and counted; a confirming attempt that it keeps back is nothing."""
    ledger = Ledger(Clock())

    async def kept_back(slot: Slot, one: Series) -> Attempt:
        return missed(slot, one, MissReason.BUDGET, ledger.clock.now())

    async with running(ledger, series(), run=kept_back) as runner:
        await until(lambda: len(ledger.of(Outcome.MISSED, MissReason.BUDGET)) >= 2)
        assert runner.missed[MissReason.BUDGET] >= 2

    other = Ledger(Clock())

    async def no_second(slot: Slot, one: Series, attempt: Attempt) -> Attempt:
        return missed(slot, one, MissReason.BUDGET, other.clock.now(), try_number=1)

    async with running(other, series(), confirm=no_second):
        await until(lambda: len(other.of(Outcome.SUCCESS)) >= 2)
    assert not other.of(Outcome.MISSED, MissReason.BUDGET)


async def test_the_pace_of_a_provider_is_for_all_its_series():
    """Two series of one provider share its pace; another provider is not held up; what waits too long is missed."""
    ledger = Ledger(Clock())
    many = [series("a"), series("b"), series("free", provider="other")]
    async with running(ledger, *many, pace=Pace({"p": 2})):
        await until(lambda: len([a for a in ledger.attempts if a.target == "free"]) >= 4)
        await until(lambda: len(ledger.of(Outcome.MISSED, MissReason.CAPACITY)) >= 2)
    assert len([a for a in ledger.of(Outcome.SUCCESS) if a.target in "ab"]) == 2
    assert {a.target for a in ledger.of(Outcome.MISSED, MissReason.CAPACITY)} <= {"a", "b"}
