"""When each series is probed: a fixed grid in UTC, computed alike on every machine, and a cursor that walks it.

Hides the arithmetic of slots. Time is cut into windows of one interval, shifted by a hash of (target, probe) so
that targets spread evenly. Every vantage owns one lane in each window, and each window moves every vantage one
lane forward (the first becomes the last): within as many windows as there are vantages each goes first once, so
that no vantage always meets the sleeping model.

The cursor knows which slots were decided on. It never hands out one twice, turns what was slept through into a
bounded list of late slots plus a count, and survives steps of the wall clock: a step forward skips, a step back by
more than an interval walks the same grid again as its n-th repetition, whose instants stand n microseconds
behind the first walk's, so that no two slots ever share an instant. All times are integer microseconds since the
Unix epoch, or aware UTC datetimes at the edges. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from monitor.clock import instant, wall_ns
from monitor.model import Series, Slot, stable_id

US = 1_000_000
SHORTEST_INTERVAL_US = 1_000
LATEST_GRACE_US = 10 * US
"""A slot that could not start within ten seconds of its instant (or half of a short interval) is missed."""
LATE_ROWS = 5
"""How many slots of one series become rows after a pause; older ones are only counted."""


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
        number = (moment_us - self.offset_us) // self.interval_us
        while self.instant_us(number) <= moment_us:
            number += 1
        return number

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """How far a series has come; what is kept across restarts."""

    handled_us: int  # grid instant of the last slot that was decided on
    ceiling_us: int  # the highest grid instant ever decided on
    repeats: int = 0  # how often the wall clock went back over slots already decided on


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a look at the clock found: at most one slot to run, those to record as late, those only counted."""

    run: Slot | None = None
    late: tuple[Slot, ...] = ()
    skipped: int = 0
    skipped_from: datetime | None = None
    skipped_to: datetime | None = None


NOTHING_DUE = Due()


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place on a grid. Immutable: every look at the clock gives the next cursor."""

    grid: Grid
    walked: Walked

    @classmethod
    def resume(cls, lattice: Grid, walked: Walked | None, now_us: int) -> Cursor:
        """Start at `now_us`, behind what was decided on before; slots of the time between are not ours to record."""
        if walked is None:
            return cls(lattice, Walked(handled_us=now_us, ceiling_us=now_us))
        cursor = cls(lattice, walked)._rewound(now_us)
        return cls(lattice, replace(cursor.walked, handled_us=max(cursor.walked.handled_us, now_us)))

    def next_us(self, now_us: int) -> int:
        """The instant of the next slot that is neither decided on nor past."""
        walked = self._rewound(now_us).walked
        return self.grid.instant_us(self.grid.first_after(max(walked.handled_us, now_us)))

    def look(self, now_us: int) -> tuple[Cursor, Due]:
        """Decide on every slot up to `now_us`: the newest runs if it is within its grace, all others are late."""
        here = self._rewound(now_us)
        first, last = self.grid.first_after(here.walked.handled_us), self.grid.first_after(now_us) - 1
        if last < first:
            return here, NOTHING_DUE
        newest_us = self.grid.instant_us(last)
        runs = now_us - newest_us <= self.grid.grace_us
        moved = replace(here.walked, handled_us=newest_us, ceiling_us=max(newest_us, here.walked.ceiling_us))
        return Cursor(self.grid, moved), here._due(first, last, runs=runs)

    def _due(self, first: int, last: int, *, runs: bool) -> Due:
        late_last = last - 1 if runs else last
        late_first = max(first, late_last - LATE_ROWS + 1)
        skipped = late_first - first
        return Due(
            run=self._slot(last) if runs else None,
            late=tuple(self._slot(number) for number in range(late_first, late_last + 1)),
            skipped=skipped,
            skipped_from=self._slot(first).scheduled_at if skipped else None,
            skipped_to=self._slot(late_first - 1).scheduled_at if skipped else None,
        )

    def _slot(self, number: int) -> Slot:
        walked_before = self.grid.instant_us(number) <= self.walked.ceiling_us
        return self.grid.slot(number, self.walked.repeats if walked_before else 0)

    def _rewound(self, now_us: int) -> Cursor:
        """After a step back by more than an interval: walk the grid again from now, as one repetition more."""
        if self.walked.handled_us - now_us <= self.grid.interval_us:
            return self
        again = replace(self.walked, handled_us=now_us, repeats=self.walked.repeats + 1)
        return Cursor(self.grid, again)
