"""Who measures the simulator's streams, and what a measured arrival is compared with: for every benchmark alike.

Hides how First Token's prober and a plain httpx loop are driven over one load. The plain loop is written as a
careful user would write it: monotonic clock, parsed events, first non-empty content.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from monitor.agent.probe import Prober
from monitor.cli.accuracy import error_ns, measure
from monitor.clock import Clock
from monitor.model import Attempt, DialectName, Probe, Series, Target, Vantage
from monitor.simulator.process import SimulatorProcess
from monitor.simulator.sendlog import Sending, SendKind


@dataclass(frozen=True)
class Cell:
    """One load: `streams` of them, their starts spread evenly over `spread_seconds`."""

    listener: str  # of the simulator
    http: str
    streams: int
    rate: int  # tokens per second and stream; the simulator's model is called `rate-RATE`
    busy: bool  # the event loop is kept occupied meanwhile
    spread_seconds: float = 0.2

    @property
    def name(self) -> str:
        road = ("TLS" if self.listener.startswith("tls") else "plain") + f" HTTP/{self.http}"
        return f"{self.streams} x {self.rate}/s {road} {'busy' if self.busy else 'idle'}"


class Reading(NamedTuple):
    """One stream as somebody measured it; instants of the monotonic clock."""

    stream: str  # the server's name for it
    started_ns: int
    first_ns: int  # of the first token; 0 when none came
    in_doubt: bool = False  # whoever measured it says so


@asynccontextmanager
async def occupied(busy: bool) -> AsyncIterator[None]:
    """Keep the running loop busy 5 ms in every 10 meanwhile."""

    async def spin() -> None:
        while True:
            until = time.perf_counter() + 0.005
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0.005)

    task = asyncio.create_task(spin()) if busy else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


async def first_token(cell: Cell, sim: SimulatorProcess, clock: Clock) -> list[Attempt]:
    """The cell's streams as First Token measures them, each on a fresh connection. Wants a WatchedLoop."""
    prober = Prober(clock, max_concurrent=cell.streams)
    await prober.start()
    target = Target(
        name="simulated",
        provider="simulator",
        model=f"rate-{cell.rate}",
        dialect=DialectName.OPENAI_CHAT,
        url=sim.url(cell.listener),
        http_version=cell.http,
        ca_file=sim.ca_file,
    )
    probe = Probe(name="accuracy", prompt="hello", max_output_tokens=1000, deadline_seconds=60.0)
    series = Series(vantage=Vantage(name="here"), target=target, probe=probe)
    try:
        async with occupied(cell.busy):
            return await measure(prober, series, cell.streams, cell.spread_seconds)
    finally:
        await prober.close()


async def plain_httpx(cell: Cell, sim: SimulatorProcess, trust: ssl.SSLContext) -> list[Reading]:
    """The cell's streams as a plain httpx loop measures them; every stream on a fresh connection of its own."""
    body = {
        "model": f"rate-{cell.rate}",
        "stream": True,
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "hello"}],
    }

    async def one(number: int) -> Reading:
        await asyncio.sleep(number * cell.spread_seconds / cell.streams)
        started, first = time.monotonic_ns(), 0
        async with (
            httpx.AsyncClient(verify=trust, http2=cell.http == "2", http1=cell.http != "2", timeout=60) as client,
            client.stream("POST", sim.url(cell.listener) + "/chat/completions", json=body) as response,
        ):
            async for line in response.aiter_lines():
                if not first and line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    if choices and choices[0]["delta"].get("content"):
                        first = time.monotonic_ns()
        return Reading(response.headers["x-request-id"], started, first)

    async with occupied(cell.busy):
        return list(await asyncio.gather(*(one(number) for number in range(cell.streams))))


def errors_ns(readings: Sequence[Reading], log: Mapping[str, Sequence[Sending]]) -> list[int]:
    """How far each first token's arrival lies outside the interval of its send, ascending."""
    errors = []
    for reading in readings:
        sent = next((s for s in log.get(reading.stream, ()) if s.kind == SendKind.TOKEN), None)
        if sent is not None and reading.first_ns:
            errors.append(error_ns(reading.first_ns, sent))
    return sorted(errors)


def in_loop(loop: Callable[[], asyncio.AbstractEventLoop] | None, work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work` to its end in a new loop."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)
