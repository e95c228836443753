"""Simulated distance without root: an HTTP CONNECT proxy on loopback that delays what passes by half a round trip.

The delay is that of a long line, not of a narrow one: bytes that follow each other keep their spacing and their
order. Ends of stream and resets travel at the same pace. TCP's own handshake to the proxy stays short, so the answer
to CONNECT comes one round trip late: a client's time to connect shows the distance.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import deque
from contextlib import suppress
from ipaddress import ip_address
from types import TracebackType
from typing import Self

from monitor.simulator.channel import Channel
from monitor.simulator.pacer import Pacer
from monitor.simulator.scenario import Distance

MAX_IN_FLIGHT_BYTES = 1_000_000  # on the way in one direction of one tunnel; the sender waits when it is reached
MAX_TUNNELS = 1024
_MAX_HEAD_BYTES = 65_536
_PATIENCE_SECONDS = 10.0  # for the CONNECT request, and for the far side to answer
_SEGMENT_BYTES = 1448
_REFUSALS = {400: "Bad Request", 403: "Forbidden", 405: "Method Not Allowed", 502: "Bad Gateway"}


class DistanceProxy:
    """`async with DistanceProxy(rtt_ms=110) as far:` then send requests through the proxy `far.url`.

    Tunnels lead to this machine only. Delays are drawn from `seed`.
    """

    def __init__(
        self,
        rtt_ms: float,
        jitter_ms: float = 0.0,
        loss: float = 0.0,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int = 0,
    ) -> None:
        self.distance = Distance(rtt_ms=rtt_ms, jitter_ms=jitter_ms, loss=loss, host=host, port=port)
        self._random = random.Random(seed)
        self._tunnels: set[asyncio.Task[None]] = set()

    @classmethod
    def over(cls, distance: Distance, seed: int = 0) -> DistanceProxy:
        """The proxy of a scenario's distance."""
        d = distance
        return cls(d.rtt_ms, d.jitter_ms, d.loss, host=d.host, port=d.port, seed=seed)

    async def __aenter__(self) -> Self:
        self._socket = socket.create_server((self.distance.host, self.distance.port), backlog=256)
        self._socket.setblocking(False)
        self._pacer = Pacer()
        self._accepting = asyncio.create_task(self._accept())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [self._accepting, *self._tunnels]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()
        self._pacer.close()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """What a client takes as its proxy."""
        return f"http://{self.distance.host}:{self.port}"

    def one_way_ns(self, size: int = 0) -> int:
        """One draw of the delay of `size` bytes in one direction."""
        distance = self.distance
        delay_ms = distance.rtt_ms / 2 + self._random.uniform(-distance.jitter_ms, distance.jitter_ms)
        segments = max(1, -(-size // _SEGMENT_BYTES))
        if distance.loss and self._random.random() > (1 - distance.loss) ** segments:
            delay_ms += distance.rtt_ms
        return max(0, round(delay_ms * 1e6))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except OSError:  # out of file descriptors: those who wait are served when some are free
                await asyncio.sleep(0.1)
                continue
            if len(self._tunnels) >= MAX_TUNNELS:
                accepted.close()
                continue
            task = asyncio.create_task(self._tunnel(Channel(accepted, time.monotonic_ns)))
            self._tunnels.add(task)
            task.add_done_callback(self._tunnels.discard)

    async def _tunnel(self, near: Channel) -> None:
        far: Channel | None = None
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                head, early = await _head(near)
            due_ns = time.monotonic_ns() + self.one_way_ns() + self.one_way_ns()
            status, far = await self._dial(head)
            await self._pacer.until(due_ns)
            if far is None:
                await near.send(_refusal(status))
                return
            await near.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._carry(near, far, early)
        except (OSError, TimeoutError):
            pass  # either side has gone before anything was carried
        finally:
            near.close()
            if far is not None:
                far.close()

    async def _dial(self, head: bytes) -> tuple[int, Channel | None]:
        """Open the far side of a CONNECT request: (200, channel), or the refusing status and None."""
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        if method != b"CONNECT":
            return (405 if rest else 400), None
        host, _, port = rest.partition(b" ")[0].decode("latin-1").rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            return 400, None
        if not _here(host):
            return 403, None
        try:
            return 200, await _connected(host.strip("[]"), int(port))
        except (OSError, TimeoutError):
            return 502, None

    async def _carry(self, near: Channel, far: Channel, early: bytes) -> None:
        out, back = _Line(near, far, self), _Line(far, near, self)
        out.other, back.other = back, out
        if early:
            out.put(early)
        async with asyncio.TaskGroup() as both:
            both.create_task(out.run())
            both.create_task(back.run())


class _Line:
    """One direction of a tunnel: bytes that are under way, with the instant at which each arrives."""

    other: _Line

    def __init__(self, source: Channel, sink: Channel, proxy: DistanceProxy) -> None:
        self._source, self._sink, self._proxy = source, sink, proxy
        self._way: deque[tuple[int, bytes | None]] = deque()  # None: the end, a clean one or a reset
        self._in_flight = 0
        self._last_ns = 0
        self._reset = self._ended = False
        self._moved = asyncio.Event()

    def put(self, data: bytes | None) -> None:
        """Set bytes (None: the end) on their way, never to overtake what went before."""
        self._last_ns = max(self._last_ns, time.monotonic_ns() + self._proxy.one_way_ns(len(data or b"")))
        self._way.append((self._last_ns, data))
        self._in_flight += len(data or b"")
        self._moved.set()

    def end(self, *, reset: bool) -> None:
        """The source will send no more; with `reset` it broke the connection."""
        if not self._ended:
            self._ended, self._reset = True, reset
            self.put(None)

    async def run(self) -> None:
        """Carry until the end has been passed on."""
        reading = asyncio.create_task(self._take_in())
        try:
            await self._give_out()
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    async def _take_in(self) -> None:
        """Read the source until its end."""
        while not self._ended:
            if self._in_flight >= MAX_IN_FLIGHT_BYTES:
                await self._movement()
                continue
            try:
                data = await self._source.recv()
            except OSError:
                self.end(reset=True)
                return
            if data:
                self.put(data)
            else:
                self.end(reset=False)

    async def _give_out(self) -> None:
        """Hand everything to the sink at its instant, the end included."""
        while True:
            while not self._way:
                await self._movement()
            due_ns, data = self._way[0]
            await self._proxy._pacer.until(due_ns)
            if data is None:
                self._pass_end()
                return
            try:
                await self._sink.send(data)
            except OSError:  # the sink broke: its side learns nothing new, the other does
                self.other.end(reset=True)
                self._ended = True
                return
            self._way.popleft()
            self._in_flight -= len(data)
            self._moved.set()

    def _pass_end(self) -> None:
        if self._reset:
            self._sink.close(reset=True)
            self.other.end(reset=True)
        else:
            with suppress(OSError):
                self._sink.end_writing()

    async def _movement(self) -> None:
        self._moved.clear()
        await self._moved.wait()


async def _head(channel: Channel) -> tuple[bytes, bytes]:
    """A request's head, and what came behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await channel.recv()
        data += more
        if not more or len(data) > _MAX_HEAD_BYTES:
            raise ConnectionAbortedError("no whole request")
    head, _, early = data.partition(b"\r\n\r\n")
    return head, early


def _here(host: str) -> bool:
    """Whether a name means this machine."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


async def _connected(host: str, port: int) -> Channel:
    loop = asyncio.get_running_loop()
    addresses = ["127.0.0.1", "::1"] if host == "localhost" else [host]
    for address in addresses:
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await loop.sock_connect(sock, (address, port))
            return Channel(sock, time.monotonic_ns)
        except (OSError, TimeoutError):
            sock.close()
            if address == addresses[-1]:
                raise
    raise ConnectionRefusedError(host)


def _refusal(status: int) -> bytes:
    text = f"{status} {_REFUSALS[status]}: this proxy only simulates distance to servers on this machine\n".encode()
    allow = "allow: CONNECT\r\n" if status == 405 else ""
    head = f"HTTP/1.1 {status} {_REFUSALS[status]}\r\ncontent-length: {len(text)}\r\n{allow}connection: close\r\n\r\n"
    return head.encode() + text
