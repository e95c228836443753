"""Keeping a simulator up in the foreground of a process, until somebody ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from monitor.simulator.server import Simulator

FLUSH_SECONDS = 0.5  # how old a line of the send log may be before it reaches the file


@contextmanager
def told_to_end() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set; enter it before the simulator, so that an early signal ends it well too."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, ending.set)
    try:
        yield ending
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def serve_until(ending: asyncio.Event, simulator: Simulator) -> None:
    """Return when `ending` is set; until then the log's file is never far behind."""
    while not ending.is_set():
        simulator.log.flush()
        try:
            await asyncio.wait_for(ending.wait(), FLUSH_SECONDS)
        except TimeoutError:
            continue
