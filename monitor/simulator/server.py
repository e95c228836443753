"""The simulator in one event loop: its listeners, their connections, and the order in which all of it ends."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from monitor.clock import Clock
from monitor.simulator.behaviour import Behaviour
from monitor.simulator.channel import Channel
from monitor.simulator.http1 import serve_http1
from monitor.simulator.pacer import Pacer
from monitor.simulator.provider import Provider, Surroundings
from monitor.simulator.sendlog import SendLog

MAX_CONNECTIONS = 2048
ANY_MODEL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One port and what is behind it."""

    name: str = "main"
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    models: Mapping[str, Behaviour] = field(default_factory=lambda: {ANY_MODEL: Behaviour()})  # `*`: any other name
    api_key: str | None = None  # None: every key is good
    echo_key: bool = False  # repeat a wrong key in the error text, as careless gateways do
    control_seconds: float = 0.0  # what the model list takes
    silent: bool = False  # accept connections and never say a byte, not even TLS


class Simulator:
    """`async with Simulator([Listener(...)]) as sim:` serves in the running loop until the block ends."""

    def __init__(
        self,
        listeners: list[Listener] | None = None,
        *,
        seed: int = 0,
        send_log: str | Path | None = None,
        keep_sends: int = 200_000,
        clock: Clock | None = None,
    ) -> None:
        self.listeners = listeners or [Listener()]
        self.log = SendLog(send_log, keep=keep_sends)
        self._clock = clock or Clock()
        self._seed = seed
        self._models = {listener.name: dict(listener.models) for listener in self.listeners}
        self._sockets: dict[str, socket.socket] = {}
        self._accepting: list[asyncio.Task[None]] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._ids = count(1)
        self._prefix = os.urandom(6).hex()

    async def __aenter__(self) -> Self:
        self._pacer = Pacer()
        around = Surroundings(
            clock=self._clock,
            pacer=self._pacer,
            log=self.log,
            seed=self._seed,
            behaviour_now=self.behaviour_now,
            models_now=lambda listener: self._models[listener],
        )
        for listener in self.listeners:
            self._open(listener, around)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (*self._accepting, *self._connections):
            task.cancel()
        await asyncio.gather(*self._accepting, *self._connections, return_exceptions=True)
        for sock in self._sockets.values():
            sock.close()
        self._pacer.close()
        self.log.close()

    def port(self, listener: str = "main") -> int:
        """The port a listener got."""
        return int(self._sockets[listener].getsockname()[1])

    def url(self, listener: str = "main") -> str:
        """The base URL as SDKs take it, with `/v1`."""
        host = next(item.host for item in self.listeners if item.name == listener)
        return f"http://{host}:{self.port(listener)}/v1"

    def behaviour_now(self, listener: str, model: str) -> Behaviour | None:
        """How a model behaves for a request that comes now; None when the listener has no such model."""
        models = self._models[listener]
        return models.get(model, models.get(ANY_MODEL))

    def _open(self, listener: Listener, around: Surroundings) -> None:
        sock = socket.create_server((listener.host, listener.port), backlog=1024)
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
        self._accepting.append(asyncio.create_task(self._accept(listener, sock, provider)))

    async def _accept(self, listener: Listener, sock: socket.socket, provider: Provider) -> None:
        loop = asyncio.get_running_loop()
        while True:
            accepted, _ = await loop.sock_accept(sock)
            if len(self._connections) >= MAX_CONNECTIONS:
                accepted.close()
                continue
            task = asyncio.create_task(self._connection(listener, accepted, provider))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _connection(self, listener: Listener, accepted: socket.socket, provider: Provider) -> None:
        channel = Channel(accepted, time.monotonic_ns)
        try:
            if listener.silent:
                await asyncio.sleep(3600)
            await serve_http1(channel, b"", self._new_id, provider.handle)
        except OSError:
            pass  # the client has gone
        finally:
            channel.close()

    def _new_id(self) -> str:
        return f"req_{self._prefix}{next(self._ids):012x}"
