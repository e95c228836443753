"""Clocks: exact conversions, and a manual one that moves only when told."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from monitor.clock import Clock, ManualClock, instant, wall_ns


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_instants_survive_the_way_to_nanoseconds_and_back(moment):
    """No microsecond is lost to floating point."""
    assert instant(wall_ns(moment)) == moment


def test_the_offset_takes_monotonic_time_to_the_wall():
    """Wall minus monotonic, near enough to convert a kernel stamp."""
    clock = Clock()
    before = clock.wall_ns()
    assert before - 50_000_000 <= clock.monotonic_ns() + clock.offset_ns() <= clock.wall_ns() + 50_000_000


def test_a_manual_clock_moves_only_when_told():
    """Time passes on both clocks; a step moves the wall alone."""
    clock = ManualClock()
    monotonic, wall = clock.monotonic_ns(), clock.wall_ns()
    clock.advance(1.5)
    assert (clock.monotonic_ns() - monotonic, clock.wall_ns() - wall) == (1_500_000_000,) * 2
    clock.step_wall(-7200)
    assert clock.monotonic_ns() - monotonic == 1_500_000_000
    assert clock.wall_ns() - wall == 1_500_000_000 - 7200 * 1_000_000_000
    assert clock.now() == instant(clock.wall_ns())
