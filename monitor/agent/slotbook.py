"""What is said about slots that become no rows: the plan they are owed by, outages, losses, and how far all is on disk.

Hides how an outage is known after the fact. A mark on disk, renewed every few seconds, says up to which instant every
slot has its row or note; at the next start the time between that mark and now is an outage, and the boot's identity
tells a power cut from a process that was off. Slots that still run hold the mark back, so that a `kill -9` hides none.
What a full disk does not take is kept in memory, and written in its order when there is room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from monitor.agent.spool import Spool
from monitor.agent.spoolrows import SlotKey
from monitor.clock import Clock, boot_id, instant
from monitor.grid import grid, microseconds
from monitor.model import Attempt, Series, Slot, SpoolFull
from monitor.notes import LossReason, LostNote, Note, OutageNote, OutageReason, PlannedSeries, PlanNote

ALIVE_SECONDS = 10.0
"""How exactly the beginning of an outage is known: each mark costs one write to the disk."""
OUTAGE_MARGIN = timedelta(seconds=1)
"""An outage is said to be that much longer at both ends: a slot between the mark and the end, or between the start and
the first look at the schedule, is explained by it. One that was measured has its row, which goes before any note."""
MOST_IN_MEMORY = 1_000
"""Notes that wait for room on a full disk; the oldest give way."""
MICROSECOND = timedelta(microseconds=1)


class SlotBook:
    """Writes notes into the spool of one process, in the running loop; `wake` is called when one waits there."""

    def __init__(self, spool: Spool, clock: Clock, wake: Callable[[], None]) -> None:
        self._spool = spool
        self._clock = clock
        self._wake = wake
        self._owed: dict[SlotKey, datetime] = {}  # decided on, and not on disk yet
        self._planned: dict[str, tuple[PlannedSeries, ...]] = {}
        self._born = clock.now()
        self._began = self._born  # walking, in this life
        self._unwritten: deque[tuple[str, Note]] = deque(maxlen=MOST_IN_MEMORY)
        self._one_writer = asyncio.Lock()
        self._writing: set[asyncio.Task[None]] = set()

    def plan(self, series: Iterable[Series], names: Sequence[str], played: Iterable[str]) -> None:
        """Say which grids are walked from now on; nothing where that is what was said before.

        Call it right before the walking begins: `names` are all vantage points, `played` those of this process.
        """
        at = self._clock.now()
        self._began = self._began if self._planned else at
        planned: dict[str, list[PlannedSeries]] = {vantage: [] for vantage in (*self._planned, *played)}
        for one in series:
            walked = PlannedSeries(grid=grid(one, names), probe_version=one.probe.version)
            planned[one.vantage.name].append(walked)
        for vantage, walks in planned.items():
            if vantage not in self._planned:  # in this life
                self._outage(vantage, at)
            if self._planned.get(vantage) != tuple(walks):
                self._planned[vantage] = tuple(walks)
                self.note(vantage, PlanNote(id=0, at=at, series=tuple(walks)))

    def stepped(self) -> None:
        """The wall clock moved: say the plan again, for slots that now lie before the instant of the last one."""
        at = self._clock.now()
        for vantage, walks in self._planned.items():
            self.note(vantage, PlanNote(id=0, at=at, series=walks))

    @property
    def unsaid_since(self) -> datetime | None:
        """While notes wait: the instant from which on slots may still be explained by one of them."""
        if not self._spool.notes_waiting:
            return None
        alive_us, _ = self._spool.alive_before
        return self._born if alive_us is None else min(self._born, instant(alive_us * 1_000))

    def note(self, vantage: str, note: Note) -> None:
        """Keep a note on disk, soon, and behind those that were given before it."""
        self._unwritten.append((vantage, note))
        task = asyncio.create_task(self._write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self) -> None:
        async with self._one_writer:
            while self._unwritten:
                first = self._unwritten[0]
                try:
                    await self._spool.note(*first)
                except SpoolFull:  # said by the spool itself
                    return
                if self._unwritten and self._unwritten[0] is first:  # it has not given way meanwhile
                    self._unwritten.popleft()
                self._wake()

    def _outage(self, vantage: str, until: datetime) -> None:
        """Say for how long nobody walked the slots of a vantage point, and whether the machine was off."""
        alive_us, boot = self._spool.alive_before
        if alive_us is None or alive_us >= microseconds(until):
            return
        reason = OutageReason.AGENT_OFF if boot == boot_id() else OutageReason.POWER
        begin = instant(alive_us * 1_000) - OUTAGE_MARGIN
        self.note(vantage, OutageNote(id=0, begin=begin, until=until + OUTAGE_MARGIN, reason=reason))

    def losses(self) -> None:
        """Say which spool files had to be set aside: nobody knows whose attempts they held."""
        for broken in self._spool.take_broken() if self._planned else ():
            for vantage in self._planned:
                note = LostNote(
                    id=0,
                    target=None,
                    probe=None,
                    first_at=broken.first_at,
                    last_at=max(broken.last_at, self._began) + OUTAGE_MARGIN,
                    slots=broken.rows,
                    reason=LossReason.SPOOL_CORRUPT,
                )
                self.note(vantage, note)

    def owe(self, slot: Slot) -> None:
        """A slot was decided on; `settle` is called with its attempt once that is on disk, or lost and counted."""
        self._owed[slot.vantage, slot.target, slot.probe, slot.scheduled_at] = slot.scheduled_at

    def settle(self, attempt: Attempt) -> None:
        """The attempt of a slot is on disk."""
        self._owed.pop((attempt.vantage, attempt.target, attempt.probe, attempt.scheduled_at), None)

    async def mark(self) -> None:
        """Write down how far all is on disk; not while notes wait for room there."""
        await self._write()
        if self._unwritten:
            return
        until = min(self._owed.values(), default=self._clock.now() + MICROSECOND) - MICROSECOND
        with suppress(SpoolFull):
            await self._spool.mark_alive(until, boot_id())

    async def keep_marking(self) -> None:
        """`mark`, again and again."""
        while True:
            await self.mark()
            await asyncio.sleep(ALIVE_SECONDS)

    @property
    def planned(self) -> Mapping[str, tuple[PlannedSeries, ...]]:
        """What is walked now, by vantage point."""
        return self._planned
