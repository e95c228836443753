"""Whose turn it is: a few attempts go on per turn of the event loop, so that sockets are read in between."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

from monitor.agent.arrivals import running_polls
from monitor.clock import Clock

WAKES_PER_TURN = 2


class Turnstile:
    """Lets a few waiting attempts go on per turn of the loop; between turns, sockets are drained."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._polls = running_polls()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turn_number = -1
        self._released = 0

    async def turn(self) -> None:
        """Wait for a turn: before work that nothing arrived for, such as beginning an attempt."""
        mine: asyncio.Future[None] = self._loop.create_future()
        self.wake(mine)
        await mine

    def wake(self, reader: asyncio.Future[None], *, urgent: bool = False) -> None:
        """Let the reader go on now, or when its turn comes.

        Urgent ones, whose request is still to be sent, go first: their waiting would be measured as the journey's.
        """
        if self._polls is not None and self._polls.turns != self._turn_number:
            self._turn_number, self._released = self._polls.turns, 0
        if self._released < WAKES_PER_TURN and not self._waiting:
            self._release(reader)
            return
        if not self._waiting:
            self._loop.call_soon(self._next_turn)
        if urgent:
            self._waiting.appendleft(reader)
        else:
            self._waiting.append(reader)

    def _next_turn(self) -> None:
        self._released = 0
        while self._waiting and self._released < WAKES_PER_TURN:
            self._release(self._waiting.popleft())
        if self._waiting:
            self._loop.call_soon(self._next_turn)

    def _release(self, reader: asyncio.Future[None]) -> None:
        if not reader.done():
            reader.set_result(None)
            self._released += self._polls is not None  # in a loop that is not watched, turns cannot be told apart


async def writable(sock: socket.socket, clock: Clock, turnstile: Turnstile) -> int:
    """Wait until the socket can be written to; when the loop saw that it can (monotonic ns)."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    seen_ns = 0

    def on_writable() -> None:
        nonlocal seen_ns
        seen_ns = clock.monotonic_ns()
        loop.remove_writer(sock.fileno())
        turnstile.wake(ready, urgent=True)

    loop.add_writer(sock.fileno(), on_writable)
    try:
        await ready
    finally:
        if sock.fileno() >= 0:
            loop.remove_writer(sock.fileno())
    return seen_ns
