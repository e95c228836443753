"""How an agent walks its grids: a cursor that hands out each slot once, whatever the clock does.

The cursor knows which slots were decided on. It never hands out one twice, turns what was slept through into a
bounded list of late slots plus a count, and survives steps of the wall clock: a step forward skips, a step back by
more than an interval walks the same grid again as its n-th repetition, whose instants stand n microseconds
behind the first walk's, so that no two slots ever share an instant. The grids are `monitor/grid.py`'s. Nothing here
reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from monitor.grid import Grid
from monitor.model import Slot

LATE_ROWS = 5
"""How many slots of one series become rows after a pause; older ones are only counted."""


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
