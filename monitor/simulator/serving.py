"""Keeping a simulator up in the foreground of a process, until somebody ends it."""

from __future__ import annotations

import asyncio
import signal

from monitor.simulator.server import Simulator

FLUSH_SECONDS = 0.5  # how old a line of the send log may be before it reaches the file


async def serve_until_told(simulator: Simulator, ending: asyncio.Event) -> None:
    """Keep an entered simulator going until `ending` is set or SIGINT or SIGTERM comes, its log never far behind."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    try:
        while not ending.is_set():
            simulator.log.flush()
            try:
                await asyncio.wait_for(ending.wait(), FLUSH_SECONDS)
            except TimeoutError:
                continue
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
