"""The simulated GPU behind one model: how many it serves at a time, who waits, when it sleeps and loads."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from monitor.simulator.behaviour import Behaviour, ErrorKind
from monitor.simulator.pacer import NS, Pacer


class RefusedError(Exception):
    """The machine does not take this request: why, and when to try again."""

    def __init__(self, kind: ErrorKind, retry_after_seconds: float) -> None:
        super().__init__(kind)
        self.kind = kind
        self.retry_after_seconds = retry_after_seconds


class Sleep:
    """Whether a model is loaded, as a pure function of instants (monotonic nanoseconds) handed in."""

    def __init__(self, started_ns: int) -> None:
        self._used_ns = started_ns
        self._ready_ns = started_ns
        self._ever_used = False

    def ready_ns(self, now_ns: int, behaviour: Behaviour) -> int:
        """When a request that arrives now can be served; wakes the model when it slept."""
        if now_ns >= self._ready_ns and self._asleep(now_ns, behaviour):
            self._ready_ns = now_ns + round(behaviour.load_seconds * NS)
        self._ever_used = True
        self.used(now_ns)
        return max(now_ns, self._ready_ns)

    def used(self, now_ns: int) -> None:
        """Idleness counts from now, or from the end of a load that is under way."""
        self._used_ns = max(now_ns, self._ready_ns, self._used_ns)

    def _asleep(self, now_ns: int, behaviour: Behaviour) -> bool:
        if not self._ever_used and behaviour.starts_asleep:
            return True
        idle = behaviour.sleeps_after_seconds
        return idle is not None and now_ns - self._used_ns >= idle * NS


class Machine:
    """Admits requests of one model: first come, first served, within its capacity (the newest one it was told)."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._sleep = Sleep(pacer.now_ns())
        self._capacity: float = math.inf
        self._serving = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def admitted(self, behaviour: Behaviour) -> AsyncIterator[None]:
        """Hold a place while inside; entering waits for the queue and the load. Raises RefusedError."""
        await self._enter(behaviour)
        try:
            await self._wake(behaviour)
            yield
        finally:
            self._leave()

    async def _wake(self, behaviour: Behaviour) -> None:
        now_ns = self._pacer.now_ns()
        ready_ns = self._sleep.ready_ns(now_ns, behaviour)
        if ready_ns > now_ns and behaviour.refuses_while_loading:
            raise RefusedError(ErrorKind.LOADING, (ready_ns - now_ns) / NS)
        await self._pacer.until(ready_ns)

    async def _enter(self, behaviour: Behaviour) -> None:
        self._capacity = behaviour.capacity or math.inf
        if self._serving < self._capacity and not self._queue:
            self._serving += 1
            return
        if len(self._queue) >= behaviour.queue_limit:
            raise RefusedError(behaviour.refusal, behaviour.retry_after_seconds)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._call_next()
        try:
            await place
        except asyncio.CancelledError:
            self._give_up(place)
            raise

    def _give_up(self, place: asyncio.Future[None]) -> None:
        if place in self._queue:
            self._queue.remove(place)
        elif not place.cancelled():  # the place was handed over in the same moment: pass it on
            self._leave()

    def _leave(self) -> None:
        self._serving -= 1
        self._sleep.used(self._pacer.now_ns())
        self._call_next()

    def _call_next(self) -> None:
        while self._queue and self._serving < self._capacity:
            place = self._queue.popleft()
            if not place.done():
                self._serving += 1
                place.set_result(None)
