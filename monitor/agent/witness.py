"""Looks at neutral endpoints, each at its own regular moment, with the same steps and clocks as attempts.

Hides when and how: every endpoint has a grid of its own, so that nothing goes out at once; a few looks run at a time,
name lookups in threads of their own, so that no look ever makes an attempt wait. Nothing is sent but a handshake, and
every connection is closed with a goodbye. A look that a stop interrupts is forgotten; none is made up for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import structlog

from monitor.agent import validity
from monitor.agent.connection import Tape, current_tape
from monitor.agent.failures import classify_exception
from monitor.agent.transport import Backend, trusting
from monitor.agent.turnstile import Turnstile
from monitor.agent.validity import Conditions, Machine
from monitor.clock import Clock
from monitor.config import Config, Witness
from monitor.grid import US, Grid, microseconds
from monitor.model import Failure, Vantage, stable_id
from monitor.timeline import NS, PHASES, Phase, Timeline
from monitor.witness import Endpoint, Reach, Sighting

AT_ONCE = 4
"""Looks that run at one time; further ones wait, which delays nothing but themselves."""
GOODBYE_SECONDS = 2.0
PHASES_OF_A_LOOK = (Phase.RESOLVE, Phase.CONNECT, Phase.TLS)

Record = Callable[[Sighting], Awaitable[None]]
log = structlog.get_logger("firsttoken.witness")


class Looker:
    """Looks once at an endpoint. For one event loop; `close` it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._resolver = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="witness")
        self._turnstile = Turnstile(asyncio.get_running_loop())
        self._machine = Machine.here()
        self._trust: ssl.SSLContext | None = None

    def close(self) -> None:
        """Let the threads end."""
        self._resolver.shutdown(wait=False, cancel_futures=True)

    async def look(self, vantage: Vantage, endpoint: Endpoint, timeout_seconds: float) -> Sighting:
        """What was seen within `timeout_seconds`. Raises nothing for the endpoint's or the line's fault."""
        trust = await self._trusted() if endpoint.reach is Reach.TLS else None
        await self._turnstile.turn()
        backend = Backend(self._clock, self._resolver, self._turnstile, proxy=vantage.proxy)
        tape, began, failure = Tape(self._clock), Conditions.now(self._clock, self._machine), None
        started_at = self._clock.now()
        current_tape.set(tape)
        try:
            async with asyncio.timeout(timeout_seconds):
                await _reach(backend, tape, endpoint, trust, timeout_seconds)
        except asyncio.CancelledError:
            if backend.connection is not None:
                await backend.connection.aclose()
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what was seen
            phase = Timeline(tape.marks).reached()
            ours = isinstance(error, TimeoutError) and error.errno is None  # its chain tells what was waited for
            kind, text = classify_exception(TimeoutError() if ours else error, phase)
            failure = Failure(kind=kind, phase=phase, text=text[:500])
        doubts = validity.judge(
            began,
            self._clock,
            self._machine,
            tape,
            coalesced=False,
            first_token_coalesced=False,
            warm=True,
            reconnected=False,
        ).doubts
        if backend.connection is not None:
            await backend.connection.part(GOODBYE_SECONDS)
        return Sighting(
            vantage=vantage.name,
            endpoint=endpoint.name,
            address=endpoint.address,
            started_at=started_at,
            seconds=_seconds(tape),
            failure=failure,
            validity=doubts,
        )

    async def _trusted(self) -> ssl.SSLContext:
        """The system's certificates, read in a thread: it takes some hundredths of a second."""
        if self._trust is None:
            self._trust = await asyncio.to_thread(trusting, None)
        return self._trust


async def _reach(
    backend: Backend, tape: Tape, endpoint: Endpoint, trust: ssl.SSLContext | None, timeout_seconds: float
) -> None:
    if endpoint.port is None:
        await backend.resolve(tape, endpoint.host, 0)
        return
    connection = await backend.connect_tcp(endpoint.host, endpoint.port, timeout_seconds)
    if trust is not None:
        await connection.start_tls(trust, endpoint.host)


def _seconds(tape: Tape) -> dict[Phase, float]:
    line = Timeline(tape.marks)
    passed = {phase: line.phase_ns(phase) for phase in PHASES_OF_A_LOOK if PHASES[phase][1] in tape.marks}
    return {phase: ns / NS for phase, ns in passed.items() if ns is not None}


def moments(vantage: str, endpoint: Endpoint, interval_seconds: float) -> Grid:
    """When a vantage point looks at an endpoint: a grid that nobody else shares, but by chance."""
    interval_us = round(interval_seconds * US)
    return Grid(
        vantage=vantage,
        target=endpoint.name,
        probe="witness",
        interval_us=interval_us,
        offset_us=stable_id("witness", vantage, endpoint.name) % interval_us,
        step_us=0,
        lanes=1,
        turn=0,
    )


class Watch:
    """Looks regularly, in the running loop, from the first `take` to `stop`. `record` gets every look's result."""

    def __init__(self, clock: Clock, record: Record, looker: Looker | None = None) -> None:
        self._clock = clock
        self._record = record
        self._looker = looker or Looker(clock)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._watching: dict[tuple[Vantage, Endpoint, float, float], asyncio.Task[None]] = {}

    def take(self, config: Config, vantages: Iterable[Vantage]) -> None:
        """Look at what a configuration says from these vantage points; what is watched already goes on undisturbed.

        Behind a proxy nobody asks for names, so no name alone is looked at there.
        """
        rules: Witness = config.witness
        wanted = {
            (vantage, endpoint, rules.interval_seconds, rules.timeout_seconds)
            for vantage in vantages
            for endpoint in rules.seen_from(vantage.name)
            if vantage.proxy is None or endpoint.reach is not Reach.DNS
        }
        for key in set(self._watching) - wanted:
            self._watching.pop(key).cancel()
        for key in wanted - set(self._watching):
            self._watching[key] = asyncio.create_task(self._keep_looking(*key))

    async def stop(self) -> None:
        """Look no more. May be called twice."""
        tasks = list(self._watching.values())
        self._watching.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._looker.close()

    async def _keep_looking(
        self, vantage: Vantage, endpoint: Endpoint, interval_seconds: float, timeout_seconds: float
    ) -> None:
        grid = moments(vantage.name, endpoint, interval_seconds)
        while True:
            await asyncio.sleep(self._until_next(grid))
            try:
                async with self._places:
                    sighting = await self._looker.look(vantage, endpoint, timeout_seconds)
                await self._record(sighting)
            except Exception:
                log.exception("a look could not be kept; this is a defect of First Token", endpoint=endpoint.name)

    def _until_next(self, grid: Grid) -> float:
        """Seconds; a timer that went off a little early must not make two looks of one."""
        now_us = microseconds(self._clock.now())
        return (grid.instant_us(grid.first_after(now_us + grid.interval_us // 8)) - now_us) / US
