"""Runs every series at its slots: the only file that knows APScheduler.

Hides timers. Each series is a job whose trigger asks the series' cursor for its next planned instant; what runs is
decided by looking at our own clock, so that a timer that fires early, late or not at all cannot repeat or lose a
slot. APScheduler compares with the machine's wall clock: a tick once a second notices when that clock (or sleep) has
moved away from the loop's monotonic one, looks at every series and plans all jobs anew. No jitter, no catching up:
of the slots slept through, the newest may run, a few become attempts with outcome `missed`, the rest is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from apscheduler.executors.base import BaseExecutor
from apscheduler.job import Job
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from monitor.agent.admission import Admission
from monitor.agent.pace import Pace
from monitor.agent.schedule import Cursor, Due, Walked
from monitor.agent.unmeasured import broken, missed
from monitor.clock import Clock, instant
from monitor.grid import grid, microseconds
from monitor.model import Attempt, MissReason, Outcome, Series, SeriesKey, Slot
from monitor.notes import GapNote

TICK_SECONDS = 1.0
MOVED_NS = 20_000_000
"""Wall and loop clock apart by more than 20 ms since the last plan: plan anew (slewing reaches it in half a minute)."""
ABORT_SECONDS = 2.0

RunSlot = Callable[[Slot, Series], Awaitable[Attempt]]
Confirm = Callable[[Slot, Series, Attempt], Awaitable[Attempt | None]]
Record = Callable[[Attempt, Series], Awaitable[None]]
log = structlog.get_logger("firsttoken.schedule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlets:
    """Where the runner's results go. None of them may raise; the asynchronous ones are awaited by nobody's timer."""

    record: Record  # every attempt, missed ones included
    mark: Callable[[SeriesKey, Walked], None]  # how far a series has come, to be kept on disk
    skip: Callable[[str, GapNote], None]  # slots of a vantage point that were passed over without rows
    stepped: Callable[[], None] = lambda: None  # the wall clock moved by more than a second, or the machine slept
    owe: Callable[[Slot], None] = lambda slot: None  # a slot that `record` will have an attempt of
    lag: Callable[[float], None] = lambda seconds: None  # planned to started
    release: Callable[[Series], Awaitable[None]] | None = None  # the series is no longer probed, or in another form


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new plan changed, by number of series."""

    added: int
    removed: int
    changed: int
    kept: int


@dataclass(slots=True)
class _Lane:
    """One series under way."""

    series: Series
    cursor: Cursor
    job: Job | None = None
    attempt: asyncio.Task[None] | None = None
    retired: list[Series] = field(default_factory=list)  # earlier forms, to be released when the attempt is over


class SlotTrigger(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Gives APScheduler the next planned instant of a lane, in the machine's wall time."""

    def __init__(self, lane: _Lane, clock: Clock) -> None:
        self._lane = lane
        self._clock = clock

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The first slot that is neither past nor decided on; always after `now`, so that nothing is caught up."""
        ours = self._clock.now()
        planned = instant(self._lane.cursor.next_us(microseconds(ours)) * 1_000)
        apart = timedelta(milliseconds=round((now - ours) / timedelta(milliseconds=1)))  # 0 but for a clock handed in
        return max(planned + apart, now + timedelta(microseconds=1))


class LookExecutor(BaseExecutor):  # type: ignore[misc]
    """Calls the job at once in the loop: it only looks at the clock and starts a task of our own."""

    def submit_job(self, job: Job, run_times: list[datetime]) -> None:
        """Look now; the planned instant comes from the cursor, not from the timer that fired."""
        job.func(*job.args)

    def _do_submit_job(self, job: Job, run_times: list[datetime]) -> None:
        self.submit_job(job, run_times)


class Runner:
    """Probes each series at its slots, from `start` to `stop`, in the running loop.

    At most one attempt of a series at a time (`overlap`), `max_concurrent` in all and `per_provider` for each provider
    named there (`capacity`, when none becomes free within the slot's grace). An attempt that raises is a defect of
    ours and becomes a failed one of kind `internal`. `confirm` is asked after each attempt, in the attempt's own place,
    and may make a second one.
    """

    def __init__(
        self,
        run_slot: RunSlot,
        outlets: Outlets,
        *,
        clock: Clock | None = None,
        max_concurrent: int = 50,
        per_provider: Mapping[str, int] | None = None,
        confirm: Confirm | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._run_slot = run_slot
        self._confirm = confirm
        self._out = outlets
        self._clock = clock or Clock()
        self._lanes: dict[SeriesKey, _Lane] = {}
        self._walked: dict[SeriesKey, Walked] = {}
        self._admission = Admission(max_concurrent, per_provider or {}, pace)
        self._attempts: set[asyncio.Task[None]] = set()
        self._errands: set[asyncio.Task[None]] = set()  # recording, releasing
        self._scheduler = AsyncIOScheduler(timezone="UTC", executors={"default": LookExecutor()})
        self._tick: asyncio.Task[None] | None = None
        self._apart_ns = 0
        self._paused = False
        self._stopping = False
        self.missed: Counter[MissReason] = Counter()
        self.started = 0

    # ------------------------------------------------------------------------------------------------ life

    async def start(self, walked: Mapping[SeriesKey, Walked] | None = None) -> None:
        """Begin, with what earlier processes decided on. Series come by `replace`, before or after."""
        self._walked = dict(walked or {})
        for lane in self._lanes.values():
            lane.cursor = Cursor.resume(lane.cursor.grid, self._walked.get(lane.series.key), self._now_us())
        self._apart_ns = self._apart()
        self._scheduler.start()
        for lane in self._lanes.values():
            self._plan(lane)
        self._tick = asyncio.create_task(self._keep_ticking(), name="scheduler tick")

    def replace(self, series: Iterable[Series], vantage_names: Sequence[str]) -> Changes:
        """Take over a new set of series. Those whose grid is the same lose and repeat no slot; others start anew."""
        wanted = {one.key: one for one in series}
        gone = [key for key in self._lanes if key not in wanted]
        counts: Counter[str] = Counter(removed=len(gone))
        for key in gone:
            self._drop(self._lanes.pop(key))
        for key, one in wanted.items():
            counts[self._adopt(key, one, vantage_names)] += 1
        return Changes(counts["added"], counts["removed"], counts["changed"], counts["kept"])

    def limit(self, max_concurrent: int, per_provider: Mapping[str, int]) -> None:
        """New concurrency caps, for attempts that begin from now on."""
        self._admission.limit(max_concurrent, per_provider)

    def pause(self) -> None:
        """Until `resume`, slots become `missed` with the reason `paused`."""
        self._paused = True

    def resume(self) -> None:
        """Probe again."""
        self._paused = False

    async def stop(self, drain_seconds: float = 10.0) -> None:
        """No new attempts; those under way get `drain_seconds`, then are aborted.

        What was owed meanwhile, or was cut off, is `missed` with the reason `shutdown`. May be called again.
        """
        self._stopping = True
        if self._tick is not None:
            self._tick.cancel()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        self._admission.turn_away()
        await self._settle(self._attempts, drain_seconds)
        for task in list(self._attempts):
            task.cancel()
        await self._settle(self._attempts, ABORT_SECONDS)
        for lane in self._lanes.values():
            self.look(lane)
        await self._settle(self._errands, drain_seconds)

    @staticmethod
    async def _settle(tasks: set[asyncio.Task[None]], seconds: float) -> None:
        """Wait until a set of tasks that empties itself is empty, but no longer than `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while tasks:
                    await asyncio.wait(list(tasks))

    # ------------------------------------------------------------------------------------------------ facts

    @property
    def running(self) -> int:
        """Attempts under way or waiting for a free place."""
        return sum(lane.attempt is not None for lane in self._lanes.values())

    @property
    def series(self) -> list[Series]:
        """What is probed now."""
        return [lane.series for lane in list(self._lanes.values())]

    def next_slot(self, series: Series) -> datetime | None:
        """When a series is due next; None when it is not probed. May be called from any thread."""
        lane = self._lanes.get(series.key)
        return None if lane is None else instant(lane.cursor.next_us(self._now_us()) * 1_000)

    # ------------------------------------------------------------------------------------------------ planning

    def _adopt(self, key: SeriesKey, series: Series, vantage_names: Sequence[str]) -> str:
        lattice, lane = grid(series, vantage_names), self._lanes.get(key)
        if lane is None:
            cursor = Cursor.resume(lattice, self._walked.get(key), self._now_us())
            lane = self._lanes[key] = _Lane(series, cursor)
            self._plan(lane)
            return "added"
        if lane.series == series and lane.cursor.grid == lattice:
            return "kept"
        if lane.series != series:
            self._retire(lane, lane.series)
            lane.series = series
        if lane.cursor.grid != lattice:
            lane.cursor = Cursor.resume(lattice, lane.cursor.walked, self._now_us())
            self._plan(lane)
        return "changed"

    def _drop(self, lane: _Lane) -> None:
        self._walked[lane.series.key] = lane.cursor.walked
        if lane.job is not None:
            lane.job.remove()
        self._retire(lane, lane.series)

    def _retire(self, lane: _Lane, series: Series) -> None:
        """Release what is kept for a series, once no attempt uses it."""
        lane.retired.append(series)
        if lane.attempt is None:
            self._spawn(self._release(lane), self._errands)

    def _plan(self, lane: _Lane) -> None:
        if not self._scheduler.running:
            return
        if lane.job is not None:
            lane.job.reschedule(SlotTrigger(lane, self._clock))
            return
        lane.job = self._scheduler.add_job(
            self.look, SlotTrigger(lane, self._clock), (lane,), coalesce=True, misfire_grace_time=None
        )

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self.reconsider()
            except Exception:
                log.exception("the schedule could not be planned anew; this is a defect of First Token")

    def reconsider(self) -> None:
        """Plan everything anew if the clocks have moved apart: after sleep, a step, or half a minute of slewing."""
        apart = self._apart()
        moved_ns = apart - self._apart_ns
        if abs(moved_ns) <= MOVED_NS:
            return
        self._apart_ns = apart
        before = sum(self.missed.values())
        for lane in list(self._lanes.values()):
            self.look(lane)
            self._plan(lane)
        if abs(moved_ns) > 1_000_000_000:
            self._out.stepped()
            passed_over = sum(self.missed.values()) - before
            log.warning(
                "the clock stepped or the machine slept", seconds=round(moved_ns / 1e9, 3), missed_slots=passed_over
            )

    def _apart(self) -> int:
        """Wall clock minus the loop's clock; only its changes mean anything."""
        return self._clock.wall_ns() - round(asyncio.get_running_loop().time() * 1e9)

    # ------------------------------------------------------------------------------------------------ slots

    def look(self, lane: _Lane) -> None:
        """Decide on all slots of a lane up to now, and start the one that runs."""
        before = lane.cursor
        lane.cursor, due = before.look(self._now_us())
        if lane.cursor == before:
            return
        self._out.mark(lane.series.key, lane.cursor.walked)
        for slot in (*due.late, *((due.run,) if due.run is not None else ())):
            self._out.owe(slot)
        self._note_late(lane, due)
        if due.run is not None:
            self._begin(lane, due.run)

    def _note_late(self, lane: _Lane, due: Due) -> None:
        reason = MissReason.SHUTDOWN if self._stopping else MissReason.LATE
        for slot in due.late:
            self._miss(lane.series, slot, reason)
        if due.skipped and due.skipped_from and due.skipped_to:
            self.missed[reason] += due.skipped
            vantage, target, probe = lane.series.key
            gap = GapNote(
                id=0,
                target=target,
                probe=probe,
                first_at=due.skipped_from,
                last_at=due.skipped_to,
                slots=due.skipped,
                reason=reason,
            )
            self._out.skip(vantage, gap)

    def _begin(self, lane: _Lane, slot: Slot) -> None:
        if self._stopping:
            self._miss(lane.series, slot, MissReason.SHUTDOWN)
        elif self._paused:
            self._miss(lane.series, slot, MissReason.PAUSED)
        elif lane.attempt is not None:
            self._miss(lane.series, slot, MissReason.OVERLAP)
        else:
            lane.attempt = self._spawn(self._perform(lane, slot, lane.series), self._attempts)

    async def _perform(self, lane: _Lane, slot: Slot, series: Series) -> None:
        attempt: Attempt | None = None
        try:
            async with self._admission.place(series.target.provider, lane.cursor.grid.grace_us / 1e6) as admitted:
                attempt = await self._attempt(slot, series, admitted)
                self._spawn(self._out.record(attempt, series), self._errands)
                await self._look_again(slot, series, attempt)
        except asyncio.CancelledError:
            if attempt is None:
                self._miss(series, slot, MissReason.SHUTDOWN)
            raise
        finally:
            lane.attempt = None
            self._spawn(self._release(lane), self._errands)

    async def _attempt(self, slot: Slot, series: Series, admitted: bool) -> Attempt:
        if not admitted or self._stopping:
            reason = MissReason.SHUTDOWN if self._stopping else MissReason.CAPACITY
            self.missed[reason] += 1
            return missed(slot, series, reason, self._clock.now())
        self.started += 1
        self._out.lag((self._clock.now() - slot.scheduled_at).total_seconds())
        try:
            attempt = await self._run_slot(slot, series)
            if attempt.missed is not None:
                self.missed[attempt.missed] += 1
                self._admission.give_back(series.target.provider)
            return attempt
        except Exception as error:
            log.exception("an attempt broke; this is a defect of First Token", target=series.target.name)
            return broken(slot, series, error, self._clock.now())

    async def _look_again(self, slot: Slot, series: Series, attempt: Attempt) -> None:
        """Let the attempt be confirmed, if it deserves it; the slot has its row already, whatever happens here."""
        if self._confirm is None or self._stopping or attempt.outcome is Outcome.MISSED:
            return
        try:
            confirming = await self._confirm(slot, series, attempt)
        except Exception:
            log.exception("a confirming attempt broke; this is a defect of First Token", target=series.target.name)
            return
        if confirming is not None and confirming.outcome is not Outcome.MISSED:
            self._spawn(self._out.record(confirming, series), self._errands)

    async def _release(self, lane: _Lane) -> None:
        retired, lane.retired = lane.retired, []
        for series in retired:
            if self._out.release is not None:
                with suppress(Exception):
                    await self._out.release(series)

    def _miss(self, series: Series, slot: Slot, reason: MissReason) -> None:
        self.missed[reason] += 1
        self._spawn(self._out.record(missed(slot, series, reason, self._clock.now()), series), self._errands)

    @staticmethod
    def _spawn(work: Awaitable[None], group: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        """A task that its group keeps alive until it is done, and whose defects are logged."""
        task = asyncio.ensure_future(_guarded(work))
        group.add(task)
        task.add_done_callback(group.discard)
        return task

    def _now_us(self) -> int:
        return self._clock.wall_ns() // 1_000


async def _guarded(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:
        log.exception("an attempt could not be recorded; this is a defect of First Token")
