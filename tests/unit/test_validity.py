"""What the machine did to a measurement is told from the kernel's own files; without them nothing is claimed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from monitor.agent.connection import Tape
from monitor.agent.validity import STEAL_NS, Conditions, CpuSteal, CpuThrottling, Machine, judge
from monitor.clock import ManualClock
from monitor.model import Doubt

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
SECOND = 1_000_000_000


def stat(path: Path, steal: int) -> Path:
    """A /proc/stat after `steal` stolen ticks."""
    path.write_text(f"cpu  100 2 30 4000 5 0 6 {steal} 0 0\ncpu0 50 1 15 2000 2 0 3 {steal} 0 0\nintr 12 0 0\n")
    return path


def test_steal_is_the_eighth_column_in_ticks(tmp_path: Path) -> None:
    """The first line counts all processors, in ticks of the kernel's own length."""
    assert CpuSteal(stat(tmp_path / "stat", 7)).stolen_ns() == 7 * TICK_NS


@pytest.mark.parametrize("content", [None, "", "cpu 1 2 3\n", "intr 1 2 3 4 5 6 7 8 9\n", "cpu a b c d e f g h i j\n"])
def test_without_a_usable_file_nothing_is_claimed(tmp_path: Path, content: str | None) -> None:
    """macOS, old kernels and odd containers: steal is unknown, and no attempt is doubted for it."""
    if content is not None:
        (tmp_path / "stat").write_text(content)
    steal = CpuSteal(tmp_path / "stat")
    assert steal.stolen_ns() is None
    assert not steal.is_much(None, SECOND)
    assert not steal.is_much(0, SECOND)


@pytest.mark.parametrize(
    ("ticks", "elapsed_ns", "processors", "much"),
    [
        (STEAL_NS // TICK_NS, SECOND // 10, 1, False),  # at the bound
        (STEAL_NS // TICK_NS + 1, SECOND // 10, 1, True),
        (STEAL_NS // TICK_NS + 1, 10 * SECOND, 1, False),  # half a percent of a long attempt: an ordinary machine
        (60 * SECOND // 100 // TICK_NS, 10 * SECOND, 1, True),
        (60 * SECOND // 100 // TICK_NS, 10 * SECOND, 2, False),  # 3 % of two processors
    ],
)
def test_how_much_is_much(tmp_path: Path, ticks: int, elapsed_ns: int, processors: int, much: bool) -> None:
    """More than 50 ms, and more than a twentieth of the processors' time."""
    steal = CpuSteal(stat(tmp_path / "stat", 1000), processors)
    before = steal.stolen_ns()
    stat(tmp_path / "stat", 1000 + ticks)
    assert steal.is_much(before, elapsed_ns) is much


def test_a_stolen_attempt_is_not_valid(tmp_path: Path) -> None:
    """Steal during an attempt is a reason of its validity; steal before it is not."""
    clock = ManualClock()
    machine = Machine(CpuThrottling(tmp_path, tmp_path), CpuSteal(stat(tmp_path / "stat", 500), 2))

    def doubts() -> tuple[Doubt, ...]:
        quiet = {"coalesced": False, "first_token_coalesced": False, "warm": True, "reconnected": False}
        return judge(began, clock, machine, Tape(clock), **quiet).doubts

    async def during_an_attempt() -> None:
        clock.advance(1.0)
        assert doubts() == ()
        stat(tmp_path / "stat", 500 + SECOND // 4 // TICK_NS)
        assert doubts() == (Doubt.CPU_STEAL,)

    began = Conditions.now(clock, machine)
    asyncio.run(during_an_attempt())


@pytest.mark.parametrize(("waits", "tainted"), [((4, 5), False), ((4, 7), True), ((11,), True)])
def test_going_on_late_before_the_request_is_lag_of_ours(tmp_path: Path, waits: tuple[int, ...], tainted: bool) -> None:
    """Many short delays between connected, greeted and sending add up; over 10 ms in all they taint the attempt."""
    clock = ManualClock()
    machine = Machine(CpuThrottling(tmp_path, tmp_path), CpuSteal(tmp_path / "no stat"))
    began, tape = Conditions.now(clock, machine), Tape(clock)
    for milliseconds in waits:
        possible_ns = clock.monotonic_ns()
        clock.advance(milliseconds / 1000)
        tape.went_on(possible_ns)

    async def judged() -> tuple[Doubt, ...]:
        quiet = {"coalesced": False, "first_token_coalesced": False, "warm": True, "reconnected": False}
        return judge(began, clock, machine, tape, **quiet).doubts

    assert asyncio.run(judged()) == ((Doubt.LOOP_LAG,) if tainted else ())
