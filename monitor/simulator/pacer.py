"""Waiting for an instant to a fraction of a millisecond, for hundreds of waiters at once.

asyncio rounds every sleep up to a whole millisecond of epoll. On Linux one timerfd for all waiters avoids that;
elsewhere the loop's own timers serve.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
from contextlib import suppress
from itertools import count

NS = 1_000_000_000
_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1


class _Spec(ctypes.Structure):
    """struct itimerspec: interval, then value, each seconds and nanoseconds."""

    _fields_ = [(n, ctypes.c_long) for n in ("interval_s", "interval_ns", "value_s", "value_ns")]


class Pacer:
    """Wakes coroutines at absolute instants of CLOCK_MONOTONIC (nanoseconds). Lives in one running loop; `close` it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._armed_ns = 0  # the instant the timer is set to; 0: not set
        self._libc, self._fd = _timerfd()
        self._handle: asyncio.TimerHandle | None = None
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._expired)

    async def until(self, due_ns: int) -> None:
        """Return at `due_ns`, or at once when it has passed."""
        if due_ns <= self.now_ns():
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiting, (due_ns, next(self._order), waiter))
        if not self._armed_ns or due_ns < self._armed_ns:
            self._arm(due_ns)
        await waiter

    def close(self) -> None:
        """Give the timer back; nobody may be waiting any more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC as the loop reads it; its float is exact to well under a microsecond."""
        return int(self._loop.time() * NS)

    def _arm(self, due_ns: int) -> None:
        self._armed_ns = due_ns
        if self._fd is not None and self._libc is not None:
            spec = _Spec(0, 0, due_ns // NS, due_ns % NS)
            self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(due_ns / NS, self._expired)

    def _expired(self) -> None:
        if self._fd is not None:
            with suppress(BlockingIOError):
                os.read(self._fd, 8)
        now = self.now_ns()
        while self._waiting and self._waiting[0][0] <= now:
            waiter = heapq.heappop(self._waiting)[2]
            if not waiter.done():
                waiter.set_result(None)
        self._armed_ns = 0
        while self._waiting and self._waiting[0][2].done():  # cancelled ones need no wake-up
            heapq.heappop(self._waiting)
        if self._waiting:
            self._arm(self._waiting[0][0])


def _timerfd() -> tuple[ctypes.CDLL | None, int | None]:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
    except (OSError, AttributeError, TypeError):
        return None, None
    return (libc, fd) if fd >= 0 else (None, None)
