"""When each series is owed a measurement: a fixed grid in UTC, computed alike by agents and hub.

Hides the arithmetic of slots. Time is cut into windows of one interval, shifted by a hash of (target, probe) so
that targets spread evenly. Every vantage owns one lane in each window, and each window moves every vantage one
lane forward (the first becomes the last): within as many windows as there are vantages each goes first once, so
that no vantage always meets the sleeping model.

All times are integer microseconds since the Unix epoch, or aware UTC datetimes at the edges. Nothing here reads a
clock; the agent walks a grid (`agent/schedule.py`), coverage counts on it (`detect/coverage.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from monitor.clock import instant, wall_ns
from monitor.model import Series, Slot, stable_id

US = 1_000_000
SHORTEST_INTERVAL_US = 1_000
LATEST_GRACE_US = 10 * US
"""A slot that could not start within ten seconds of its instant (or half of a short interval) is missed."""


def microseconds(moment: datetime) -> int:
    """Aware datetime -> microseconds since the epoch, exactly."""
    return wall_ns(moment) // 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The slots of one series: strictly ascending instants, one for every integer number."""

    vantage: str
    target: str
    probe: str
    interval_us: int
    offset_us: int
    step_us: int  # from lane to lane
    lanes: int
    turn: int  # this vantage's lane in window 0

    def instant_us(self, number: int) -> int:
        """The planned instant of slot `number`."""
        lane = (self.turn - number) % self.lanes
        return number * self.interval_us + self.offset_us + lane * self.step_us

    def first_after(self, moment_us: int) -> int:
        """Number of the first slot strictly after `moment_us`."""
        number = self.window_of(moment_us)
        while self.instant_us(number) <= moment_us:
            number += 1
        return number

    def numbers(self, from_us: int, until_us: int) -> range:
        """Numbers of the slots whose instants lie in the half-open window [from_us, until_us); costs no walk."""
        first = self.first_after(from_us - 1)
        return range(first, max(first, self.first_after(until_us - 1)))

    def count(self, from_us: int, until_us: int) -> int:
        """How many slots lie in the half-open window [from_us, until_us)."""
        return len(self.numbers(from_us, until_us))

    def total_us(self, numbers: range) -> int:
        """The sum of the instants of consecutive slots; costs a step for each lane, not for each slot."""
        count, lanes = len(numbers), self.lanes
        rest = sum((self.turn - number) % lanes for number in numbers[: count % lanes])
        steps = count // lanes * (lanes * (lanes - 1) // 2) + rest
        windows = (numbers.start + numbers.stop - 1) * count // 2
        return windows * self.interval_us + count * self.offset_us + steps * self.step_us

    def window_of(self, moment_us: int) -> int:
        """Number of the slot in whose window `moment_us` lies, before or behind the slot's own instant."""
        return (moment_us - self.offset_us) // self.interval_us

    def slot(self, number: int, shift_us: int = 0) -> Slot:
        """Slot `number` as a record; `shift_us` marks a repetition (see `Cursor`)."""
        at = instant((self.instant_us(number) + shift_us) * 1_000)
        return Slot(vantage=self.vantage, target=self.target, probe=self.probe, scheduled_at=at, number=number)

    @property
    def spacing_us(self) -> int:
        """No two slots of the series are closer than this: the interval less one lane, and above the deadline."""
        return self.interval_us - (self.step_us if self.lanes > 1 else 0)

    @property
    def grace_us(self) -> int:
        """How late a slot may still start."""
        return min(LATEST_GRACE_US, self.interval_us // 2)


def grid(series: Series, vantage_names: Sequence[str]) -> Grid:
    """The grid of `series` among all vantages of the installation, of which the probe's own list selects.

    Lanes lie an interval/n apart, closer where the deadline needs the room: `spacing_us` is at least half-way
    between deadline and interval, so that an attempt that uses its whole deadline never meets its successor.
    """
    probe, vantage, target = series.probe, series.vantage.name, series.target.name
    chosen = {name for name in vantage_names if not probe.vantages or name in probe.vantages}
    names = sorted(chosen | {vantage})
    interval_us = max(SHORTEST_INTERVAL_US, round(probe.interval_seconds * US))
    room_us = max(0, interval_us - round(probe.deadline_seconds * US))
    seed = stable_id("grid", target, probe.name)
    return Grid(
        vantage=vantage,
        target=target,
        probe=probe.name,
        interval_us=interval_us,
        offset_us=seed % interval_us,
        step_us=min(interval_us // len(names), room_us // 2),
        lanes=len(names),
        turn=(names.index(vantage) + seed // interval_us) % len(names),
    )


def next_slot(series: Series, vantage_names: Sequence[str], after: datetime) -> Slot:
    """The first slot of `series` strictly after `after`."""
    lattice = grid(series, vantage_names)
    return lattice.slot(lattice.first_after(microseconds(after)))
