"""The simulator in one event loop: its listeners, their connections, and the order in which all of it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monitor.clock import Clock
from monitor.model import ConfigError, MonitorError
from monitor.simulator.behaviour import Behaviour
from monitor.simulator.certificates import Authority
from monitor.simulator.channel import Channel, TlsChannel
from monitor.simulator.delivery import HOLD_SECONDS
from monitor.simulator.distance import DistanceProxy
from monitor.simulator.http1 import IDLE_SECONDS, serve_http1
from monitor.simulator.http2 import PREFACE, Http2Connection
from monitor.simulator.pacer import NS, Pacer
from monitor.simulator.provider import Provider, Surroundings
from monitor.simulator.scenario import ANY_MODEL, Change, Distance, Listener, Scenario, behaviour_at
from monitor.simulator.sendlog import SendLog

MAX_CONNECTIONS = 2048
MAX_CHANGES = 1000
_HANDSHAKE_SECONDS = 30.0


class PortTakenError(MonitorError):
    """A listener's port cannot be had; the sentence says which and why."""


class Simulator:
    """`async with Simulator([Listener(...)]) as sim:` serves in the running loop until the block ends.

    Raises ConfigError on a scenario that makes no sense, PortTakenError when a port cannot be had.
    """

    def __init__(
        self,
        listeners: Iterable[Listener] = (),
        *,
        distances: Mapping[str, Distance] | None = None,
        timeline: Iterable[Change] = (),
        seed: int = 0,
        send_log: str | Path | None = None,
        keep_sends: int = 200_000,
        clock: Clock | None = None,
    ) -> None:
        self.scenario = Scenario(
            listeners=tuple(listeners) or (Listener(),),
            distances=dict(distances or {}),
            timeline=tuple(timeline),
            seed=seed,
        )
        self.log = SendLog(send_log, keep=keep_sends)
        self.proxies: dict[str, DistanceProxy] = {}  # by the distance's name
        self._clock = clock or Clock()
        self._models = {listener.name: dict(listener.models) for listener in self.scenario.listeners}
        self._changes: list[tuple[int, Change]] = []  # with the instant its timeline began
        self._sockets: dict[str, socket.socket] = {}
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._ids = count(1)
        self._prefix = os.urandom(6).hex()
        self._directory: Path | None = None
        self._authority: Authority | None = None

    @classmethod
    def of(cls, scenario: Scenario, *, send_log: str | Path | None = None, keep_sends: int = 200_000) -> Simulator:
        """The simulator of a scenario."""
        return cls(
            scenario.listeners,
            distances=scenario.distances,
            timeline=scenario.timeline,
            seed=scenario.seed,
            send_log=send_log,
            keep_sends=keep_sends,
        )

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as undo:  # half a simulator is taken down again
            undo.push_async_callback(self._end)
            self._pacer = Pacer()
            around = self._surroundings()
            for listener in self.scenario.listeners:
                self._open(listener, around)
            for name, distance in self.scenario.distances.items():
                proxy = DistanceProxy.over(distance, self.scenario.seed)
                self.proxies[name] = await self._entered(name, proxy)
            self.add(*self.scenario.timeline)
            undo.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    # -- where it is

    def port(self, listener: str = "main") -> int:
        """The port a listener got."""
        return int(self._sockets[listener].getsockname()[1])

    def url(self, listener: str = "main") -> str:
        """The base URL as SDKs take it, with `/v1`."""
        item = self._listener(listener)
        host = f"[{item.host}]" if ":" in item.host else item.host
        return f"{'https' if item.tls else 'http'}://{host}:{self.port(listener)}/v1"

    @property
    def ca_file(self) -> str | None:
        """What clients must trust, None when nothing listens with TLS. Removed when the simulator ends."""
        return str(self._authority.ca_file) if self._authority else None

    def description(self) -> dict[str, Any]:
        """Everything a client needs to know, ready for JSON."""
        return {
            "ready": True,
            "pid": os.getpid(),
            "listeners": {listener.name: self._described(listener) for listener in self.scenario.listeners},
            "proxies": {
                name: {"url": proxy.url, "port": proxy.port, "rtt_ms": proxy.distance.rtt_ms}
                for name, proxy in self.proxies.items()
            },
            "ca_file": self.ca_file,
        }

    # -- how it behaves

    def behaviour_now(self, listener: str, model: str) -> Behaviour | None:
        """How a model behaves for a request that comes now; None when the listener has no such model."""
        models = self._models[listener]
        base = models.get(model, models.get(ANY_MODEL))
        if base is None:
            return None
        now_ns = self._clock.monotonic_ns()
        changes = [((now_ns - began_ns) / NS, c) for began_ns, c in self._changes if c.concerns(listener, model)]
        return behaviour_at(base, changes) if changes else base

    def become(self, model: str, behaviour: Behaviour | None, listener: str = "main") -> None:
        """From the next request on, `model` behaves so; None: it is gone (404)."""
        if behaviour is None:
            self._models[listener].pop(model, None)
        else:
            self._models[listener][model] = behaviour

    def add(self, *changes: Change) -> None:
        """Let changes come; their seconds count from now. Raises ConfigError when there are too many."""
        if len(self._changes) + len(changes) > MAX_CHANGES:
            raise ConfigError(f"more than {MAX_CHANGES} changes; use `every_seconds`, or `forget_changes` first")
        now_ns = self._clock.monotonic_ns()
        self._changes += [(now_ns, change) for change in changes]

    def forget_changes(self) -> None:
        """Back to the behaviours as they are without any change."""
        self._changes.clear()

    # -- inside

    def _listener(self, name: str) -> Listener:
        return next(item for item in self.scenario.listeners if item.name == name)

    def _described(self, listener: Listener) -> dict[str, Any]:
        return {
            "url": self.url(listener.name),
            "port": self.port(listener.name),
            "tls": str(listener.tls) if listener.tls else None,
            "http": list(listener.http),
            "models": list(self._models[listener.name]),
        }

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            clock=self._clock,
            pacer=self._pacer,
            log=self.log,
            seed=self.scenario.seed,
            behaviour_now=self.behaviour_now,
            models_now=lambda listener: self._models[listener],
        )

    async def _entered(self, name: str, proxy: DistanceProxy) -> DistanceProxy:
        try:
            return await proxy.__aenter__()
        except OSError as taken:
            raise _taken(f"distance {name}", proxy.distance.host, proxy.distance.port, taken) from taken

    def _open(self, listener: Listener, around: Surroundings) -> None:
        context = self._context(listener)
        try:
            family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
            sock = socket.create_server((listener.host, listener.port), family=family, backlog=1024)
        except OSError as taken:
            raise _taken(f"listener {listener.name}", listener.host, listener.port, taken) from taken
        sock.setblocking(False)
        self._sockets[listener.name] = sock
        provider = Provider(
            listener.name,
            around,
            api_key=listener.api_key,
            echo_key=listener.echo_key,
            control_seconds=listener.control_seconds,
        )
        provider.watch_over(self._models[listener.name])
        self._accepting.append(asyncio.create_task(self._accept(listener, sock, provider, context)))

    def _context(self, listener: Listener) -> ssl.SSLContext | None:
        if listener.tls is None:
            return None
        if self._authority is None:
            self._directory = Path(tempfile.mkdtemp(prefix="firsttoken-simulator-"))
            self._authority = Authority(self._directory, self._clock.now())
        alpn = tuple({"2": "h2", "1.1": "http/1.1"}[version] for version in listener.http)
        return self._authority.context(listener.tls, alpn)

    async def _accept(
        self, listener: Listener, sock: socket.socket, provider: Provider, context: ssl.SSLContext | None
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(sock)
            except OSError:  # out of file descriptors: those who wait are served when some are free
                await asyncio.sleep(0.1)
                continue
            if len(self._connections) >= MAX_CONNECTIONS:
                accepted.close()
                continue
            task = asyncio.create_task(self._connection(listener, accepted, provider, context))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _connection(
        self, listener: Listener, accepted: socket.socket, provider: Provider, context: ssl.SSLContext | None
    ) -> None:
        channel = TlsChannel(accepted, time.monotonic_ns, context) if context else Channel(accepted, time.monotonic_ns)
        try:
            if listener.silent:
                await _ignore(channel)
            else:
                await self._serve(listener, channel, provider)
        except (OSError, TimeoutError):
            pass  # the client has gone, or did not go along with TLS
        finally:
            channel.close()

    async def _serve(self, listener: Listener, channel: Channel, provider: Provider) -> None:
        if isinstance(channel, TlsChannel):
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                await channel.handshake()
        first = b""
        if channel.alpn is None:
            first = await _first_bytes(channel)
        if channel.alpn == "h2" or ("2" in listener.http and first.startswith(PREFACE)):
            await Http2Connection(channel, self._new_id, provider.handle).serve(first)
        elif "1.1" in listener.http:
            await serve_http1(channel, first, self._new_id, provider.handle)

    async def _end(self) -> None:
        for proxy in self.proxies.values():
            await proxy.__aexit__(None, None, None)
        tasks = (*self._accepting, *self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sock in self._sockets.values():
            sock.close()
        self._pacer.close()
        self.log.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _new_id(self) -> str:
        return f"req_{self._prefix}{next(self._ids):012x}"


async def _first_bytes(channel: Channel) -> bytes:
    """Enough bytes to tell HTTP/2 with prior knowledge from HTTP/1.1."""
    data = b""
    async with asyncio.timeout(IDLE_SECONDS):
        while len(data) < len(PREFACE) and PREFACE.startswith(data):
            more = await channel.recv()
            if not more:
                break
            data += more
    return data


async def _ignore(channel: Channel) -> None:
    """Take whatever comes and say nothing, until the client goes; the bytes are not even looked at."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HOLD_SECONDS):
            while await Channel.recv(channel):
                pass


def _taken(what: str, host: str, port: int, why: OSError) -> PortTakenError:
    reason = why.strerror or str(why)
    return PortTakenError(f"{what} cannot listen on {host}:{port}: {reason}; choose another port, or 0 for a free one")
