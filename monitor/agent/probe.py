"""One attempt, from the first mark to the record: the measuring core.

`Prober.run` asks a target once and returns what happened as an `Attempt`; a target's fault is data, never an
exception. It keeps one lane per series that reuses its connection, and opens a fresh one for every other attempt.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from datetime import datetime

from monitor.agent import validity
from monitor.agent.arrivals import settle, stamping
from monitor.agent.checks import judged
from monitor.agent.exchange import Exchange, unaskable
from monitor.agent.pricing import priced
from monitor.agent.question import Question, Rehearsal, rehearse, secrets_of
from monitor.agent.transport import Lane, Roads
from monitor.clock import Clock
from monitor.model import (
    Attempt,
    ConnectionPolicy,
    DialectName,
    Outcome,
    Probe,
    Purpose,
    Series,
    Slot,
    Target,
    Vantage,
)
from monitor.timeline import Mark


class Prober:
    """Sends attempts and records them. Make it in the loop that it is used in; `start` before, `close` after."""

    def __init__(self, clock: Clock, *, max_concurrent: int = 64, kernel_stamps: bool = True) -> None:
        self._clock = clock
        self._roads = Roads(clock, max_concurrent=max_concurrent, kernel_stamps=kernel_stamps)
        self._kept: dict[tuple[object, ...], Lane] = {}
        self._machine = validity.Machine.here()
        self._open = ExitStack()
        self._warm = False

    async def start(self) -> None:
        """Switch kernel stamps on and run the whole path once against ourselves: no real attempt shall pay for it."""
        self._open.enter_context(stamping())
        self._roads.trust()
        with suppress(Exception):  # without it the first attempt is marked as the warm-up, which is the truth then
            self._warm = (await _warm_up(self)).outcome is Outcome.SUCCESS
        settle()

    def now(self) -> datetime:
        """The prober's wall clock, UTC."""
        return self._clock.now()

    async def run(
        self, slot: Slot, series: Series, *, try_number: int = 0, purpose: Purpose = Purpose.SCHEDULED
    ) -> Attempt:
        """Make one attempt at a slot. Raises nothing for a target's fault; cancellation passes through."""
        await self._roads.turn()
        try:  # before the clock starts: certificates are read, the request is written and signed
            lane = await self._lane(series)
            question = Question.to(series, self._clock)
        except Exception as error:  # noqa: BLE001  # whatever it is, the slot gets its record
            run = Exchange(self._clock, series, self._machine, None)
            run.fail(*unaskable(error))
            return run.record(slot, try_number, purpose, warm=self._warm)
        run = Exchange(self._clock, series, self._machine, question)
        try:
            await run.exchange(self._roads, lane)
        finally:
            if series.probe.connection is ConnectionPolicy.FRESH or not run.reusable:
                await self._drop(series, lane)
        attempt = run.record(slot, try_number, purpose, warm=self._warm)
        self._warm = self._warm or Mark.HEADERS in attempt.timeline.marks  # before an answer little of the path is run
        return priced(await judged(attempt, series.probe.checks, run.words, secrets_of(series)), series)

    def rehearse(self, series: Series) -> Rehearsal:
        """The request that an attempt would send, with every secret masked. Sends nothing."""
        return rehearse(series, self._clock, self._roads.headers)

    async def _lane(self, series: Series) -> Lane:
        if series.probe.connection is ConnectionPolicy.FRESH:
            return self._open_lane(series)
        key = _key(series)
        if key in self._kept and self._kept[key].is_over:
            await self.release(series)
        if key not in self._kept:
            self._kept[key] = self._open_lane(series)
        return self._kept[key]

    def _open_lane(self, series: Series) -> Lane:
        target = series.target
        return self._roads.lane(
            target.url,
            http_version=target.http_version,
            family=target.address_family,
            proxy=series.vantage.proxy,
            ca_file=target.ca_file,
        )

    async def _drop(self, series: Series, lane: Lane) -> None:
        if self._kept.get(_key(series)) is lane:
            del self._kept[_key(series)]
        await lane.aclose()

    async def release(self, series: Series) -> None:
        """Close the connection that a reusing series keeps, if any: it is no longer probed."""
        lane = self._kept.pop(_key(series), None)
        if lane is not None:
            await lane.aclose()

    async def close(self) -> None:
        """Close every kept connection and end the resolver's threads."""
        for lane in self._kept.values():
            await lane.aclose()
        self._kept.clear()
        await self._roads.aclose()
        self._open.close()


def _key(series: Series) -> tuple[object, ...]:
    """What a kept connection belongs to: after a change of the configuration another one is needed."""
    vantage, target = series.vantage, series.target
    road = (target.url, target.http_version, target.address_family, target.ca_file, vantage.proxy)
    return (vantage.name, target.name, series.probe.name, *road)


async def _warm_up(prober: Prober) -> Attempt:
    """Ask a server of our own, on loopback, so that imports, caches and code paths are warm."""
    chunk = b'data: {"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + chunk)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        series = Series(
            vantage=Vantage(name="warm-up"),
            target=Target(
                name="warm-up",
                provider="self",
                model="none",
                dialect=DialectName.OPENAI_CHAT,
                url=f"http://{host}:{port}/v1",
            ),
            probe=Probe(name="warm-up", prompt="ok", deadline_seconds=2.0),
        )
        slot = Slot(vantage="warm-up", target="warm-up", probe="warm-up", scheduled_at=prober.now(), number=0)
        return await prober.run(slot, series, purpose=Purpose.ONE_OFF)
