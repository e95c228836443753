"""A second attempt straight after one that looks cold: the control that tells a sleeping model from a busy one.

Hides what the agent remembers for it: a few recent samples of each series, and when each target was last asked from
here. Whether it *was* a cold start is decided by the hub, on the evidence of all vantage points; here is only decided
whether to look again, once, within the same slot and before the series' next one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from monitor.clock import Clock
from monitor.detect.coldstart import ENOUGH, HISTORY, Sample, is_loading, looks_cold, sample
from monitor.model import Attempt, Series, SeriesKey, Slot
from monitor.timeline import NS, Mark

MAX_SERIES = 5_000
LONG_IDLE_INTERVALS = 2.0
"""A target that was not asked for two of the series' intervals was left alone for longer than planned."""
LEAST_SHARE_OF_DEADLINE = 0.25
"""A second attempt that would have to be cut shorter than this is not made."""


class Run(Protocol):
    """`Prober.run`."""

    def __call__(self, slot: Slot, series: Series, *, try_number: int = 0) -> Awaitable[Attempt]:
        """Make one attempt."""


@dataclass(slots=True)
class _Memory:
    version: str  # of the probe; another question has other times
    recent: deque[Sample] = field(default_factory=lambda: deque(maxlen=HISTORY))


class Confirmer:
    """Decides after each planned attempt whether to confirm it, and does. For one event loop."""

    def __init__(self, run: Run, clock: Clock | None = None) -> None:
        self._run = run
        self._clock = clock or Clock()
        self._memories: OrderedDict[SeriesKey, _Memory] = OrderedDict()
        self._asked_until_ns: dict[str, int] = {}  # target -> monotonic end of the last attempt that reached it

    async def second(self, slot: Slot, series: Series, attempt: Attempt) -> Attempt | None:
        """The confirming attempt of a planned one that has just ended, None when there is no need or no room.

        Call it within the place that the planned attempt holds, so that caps count it. Raises what `run` raises.
        """
        idle_seconds = self._idle(attempt)
        self._note_asked(attempt)
        memory = self._memory(series, attempt)
        wanted = is_suspect(attempt, memory.recent, idle_seconds, series)
        room = self._room(slot, series) if wanted else 0.0
        if room < LEAST_SHARE_OF_DEADLINE * series.probe.deadline_seconds or not wanted:
            self._learn(memory, attempt)
            return None
        confirming = await self._run(slot, _shortened(series, room), try_number=1)
        self._note_asked(confirming)
        self._learn(memory, confirming)
        return confirming

    def _idle(self, attempt: Attempt) -> float | None:
        """Seconds for which this agent had left the target alone before an attempt; None before its first one."""
        until = self._asked_until_ns.get(attempt.target)
        return None if until is None else (self._clock.monotonic_ns() - attempt.timeline.lasted_ns - until) / NS

    def _note_asked(self, attempt: Attempt) -> None:
        if Mark.SEND_START in attempt.timeline.marks:
            if len(self._asked_until_ns) >= MAX_SERIES and attempt.target not in self._asked_until_ns:
                self._asked_until_ns.clear()
            self._asked_until_ns[attempt.target] = self._clock.monotonic_ns()

    def _memory(self, series: Series, attempt: Attempt) -> _Memory:
        key, version = (attempt.vantage, attempt.target, attempt.probe), series.probe.version
        known = self._memories.pop(key, None)
        memory = known if known is not None and known.version == version else _Memory(version)
        self._memories[key] = memory
        if len(self._memories) > MAX_SERIES:
            self._memories.popitem(last=False)
        return memory

    @staticmethod
    def _learn(memory: _Memory, attempt: Attempt) -> None:
        """Remember what was not suspected, and confirming attempts: so a slow-down that stays becomes the usual."""
        seen = sample(attempt)
        if seen is not None:
            memory.recent.append(seen)

    def _room(self, slot: Slot, series: Series) -> float:
        """Seconds until the series' next slot at the earliest (see `schedule.grid`), so that none is lost to this."""
        probe = series.probe
        spacing = (probe.interval_seconds + probe.deadline_seconds) / 2
        return _seconds(slot.scheduled_at + timedelta(seconds=spacing), self._clock.now())


def is_suspect(attempt: Attempt, recent: deque[Sample], idle_seconds: float | None, series: Series) -> bool:
    """Whether a planned attempt deserves a second one.

    It looks cold by the agent's own recent samples; or it was answered "loading"; or there is nothing to compare it
    with, as at the agent's start; or there is little, and it was the first after a long idleness of the target.
    """
    if attempt.try_number:
        return False
    if is_loading(attempt) or looks_cold(attempt, recent, series.target.cold_start):
        return True
    if len(recent) >= ENOUGH or sample(attempt) is None:
        return False
    return not recent or idle_seconds is None or idle_seconds > LONG_IDLE_INTERVALS * series.probe.interval_seconds


def _shortened(series: Series, seconds: float) -> Series:
    """The same question with a deadline that leaves the next slot alone; the probe's version does not change.

    The road without a model was asked about a moment ago: `control` would only take of that room.
    """
    deadline = min(seconds, series.probe.deadline_seconds)
    if deadline == series.probe.deadline_seconds and not series.probe.control:
        return series
    return replace(series, probe=replace(series.probe, deadline_seconds=deadline, control=False))


def _seconds(later: datetime, earlier: datetime) -> float:
    return (later - earlier).total_seconds()
