"""When the agent looks a second time, and that it never does so twice, too late, or at the next slot's expense."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from monitor.agent.confirm import Confirmer
from monitor.clock import ManualClock
from monitor.detect.coldstart import ENOUGH, HISTORY
from monitor.model import (
    Attempt,
    DialectName,
    Failure,
    FailureKind,
    Outcome,
    Probe,
    Series,
    Slot,
    Target,
    Vantage,
)
from monitor.timeline import Mark, Phase, Timeline

MS = 1_000_000
SERIES = Series(
    vantage=Vantage(name="lagos"),
    target=Target(name="chat", provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
    probe=Probe(name="short", prompt="hi", interval_seconds=60.0, deadline_seconds=30.0),
)


class Agent:
    """A confirmer on a manual clock whose second attempts take as long as told."""

    def __init__(self, second_ms: float = 200) -> None:
        self.clock = ManualClock()
        self.second_ms = second_ms
        self.seconds: list[tuple[Series, int]] = []
        self.confirmer = Confirmer(self.run, self.clock)
        self.number = 0

    async def run(self, slot: Slot, series: Series, *, try_number: int = 0) -> Attempt:
        self.seconds.append((series, try_number))
        return self.attempt(slot, series, self.second_ms, try_number=try_number)

    def attempt(self, slot: Slot, series: Series, ttft_ms: float | None, **changes: Any) -> Attempt:
        """One that took so long: the clock stands at its end."""
        began = self.clock.now()
        self.clock.advance((ttft_ms or 20) / 1000)
        marks = {Mark.SEND_START: 0, Mark.SEND_END: 0}
        marks |= {} if ttft_ms is None else {Mark.FIRST_TOKEN: round(ttft_ms * MS), Mark.END: round(ttft_ms * MS)}
        failure = None if ttft_ms is not None else Failure(kind=FailureKind.LOADING, phase=Phase.WAIT, text="so")
        made = Attempt(
            vantage=slot.vantage,
            target=slot.target,
            probe=slot.probe,
            probe_version=series.probe.version,
            scheduled_at=slot.scheduled_at,
            started_at=began,
            outcome=Outcome.SUCCESS if failure is None else Outcome.FAILED,
            failure=failure,
            timeline=Timeline(marks),
        )
        return replace(made, **changes)

    def probe(self, ttft_ms: float | None, series: Series = SERIES, after_seconds: float = 60.0) -> Attempt | None:
        """A planned attempt at the next slot, and what the confirmer made of it."""
        self.clock.advance(after_seconds)
        self.number += 1
        slot = Slot(
            vantage=series.vantage.name,
            target=series.target.name,
            probe=series.probe.name,
            scheduled_at=self.clock.now(),
            number=self.number,
        )
        planned = self.attempt(slot, series, ttft_ms)
        return asyncio.run(self.confirmer.second(slot, series, planned))

    def settled(self) -> Agent:
        """With a history of ordinary attempts, and nothing confirmed since."""
        for _ in range(ENOUGH):
            self.probe(200)
        self.seconds.clear()
        return self


def test_an_ordinary_attempt_is_not_confirmed() -> None:
    """Twice the usual is noise."""
    agent = Agent().settled()
    assert agent.probe(220) is None
    assert agent.probe(400) is None
    assert agent.seconds == []


def test_what_looks_cold_is_confirmed_once_in_the_same_slot() -> None:
    """The second attempt has the slot of the first, the number 1, and the same question."""
    agent = Agent().settled()
    second = agent.probe(1500)
    assert second is not None
    assert [number for _, number in agent.seconds] == [1]
    assert second.key[:4] == ("lagos", second.scheduled_at, "chat", "short")
    assert agent.seconds[0][0].probe.version == SERIES.probe.version


def test_a_loading_answer_is_confirmed_without_history() -> None:
    """It says itself what it is; the second attempt shows whether waking takes long."""
    assert Agent().probe(None) is not None
    agent = Agent().settled()
    assert agent.probe(None) is not None


def test_the_first_attempt_is_confirmed_because_there_is_nothing_to_compare_it_with() -> None:
    """Once for each series and start of the agent; and after a long pause, as long as there is little to compare."""
    agent = Agent()
    other = replace(SERIES, probe=Probe(name="other", prompt="hey", interval_seconds=60.0, deadline_seconds=30.0))
    assert agent.probe(200) is not None
    assert agent.probe(200, other, after_seconds=5) is not None
    assert agent.probe(200, after_seconds=55) is None
    assert agent.probe(200, after_seconds=600) is not None


def test_a_long_pause_with_a_history_needs_no_control() -> None:
    """What is in band is warm by its history; only what is not deserves a second attempt."""
    agent = Agent().settled()
    assert agent.probe(210, after_seconds=86400) is None


def test_the_second_attempt_ends_before_the_next_slot() -> None:
    """It is cut shorter where the first one took long, and not made where it would be cut too short."""
    agent = Agent().settled()
    assert agent.probe(25_000) is not None
    (series, _) = agent.seconds[0]
    assert series.probe.deadline_seconds == (60 + 30) / 2 - 25
    agent = Agent().settled()
    assert agent.probe(40_000) is None


def test_the_second_attempt_asks_for_no_road() -> None:
    """`control` would come after it, and reach into the next slot; the planned attempt has asked already."""
    agent = Agent()
    agent.probe(200, replace(SERIES, probe=replace(SERIES.probe, control=True)))
    ((series, _),) = agent.seconds
    assert (series.probe.control, series.probe.deadline_seconds) == (False, 30.0)


def test_a_second_attempt_is_never_confirmed() -> None:
    """However slow it is."""
    agent = Agent(second_ms=9000).settled()
    agent.probe(9000)
    assert len(agent.seconds) == 1


def test_a_model_that_is_cold_each_time_is_confirmed_each_time() -> None:
    """Cold attempts do not become the usual: what is remembered of a confirmed slot is its second attempt."""
    agent = Agent()
    assert all(agent.probe(3000) is not None for _ in range(2 * HISTORY))


def test_a_lasting_slow_down_becomes_the_usual() -> None:
    """After about half the memory the second attempts stop: they cost money and tell nothing new."""
    agent = Agent(second_ms=2000).settled()
    confirmed = [agent.probe(2000) is not None for _ in range(2 * HISTORY)]
    assert confirmed[0]
    assert not any(confirmed[HISTORY:])


def test_another_question_has_another_history() -> None:
    """A longer prompt is the first of its kind again: confirmed once, and then compared with itself."""
    agent = Agent(second_ms=2000).settled()
    longer = replace(SERIES, probe=replace(SERIES.probe, prompt="a much longer one"))
    assert agent.probe(2000, longer) is not None
    assert agent.probe(2000, longer) is None


def test_memory_is_bounded() -> None:
    """Many series and many targets in the life of an agent cost what the bound says."""
    agent = Agent()
    for number in range(20):
        target = replace(SERIES.target, name=f"t{number}")
        for _ in range(3):
            agent.probe(200, replace(SERIES, target=target), after_seconds=timedelta(seconds=1).total_seconds())
    assert len(agent.confirmer._memories) == 20
    assert all(memory.recent.maxlen == HISTORY for memory in agent.confirmer._memories.values())
