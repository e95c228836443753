"""What tests of the measuring core share: attempts made in a watched loop, and tiny servers that say exact bytes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.clock import Clock
from monitor.model import Attempt, DialectName, Outcome, Probe, Purpose, Series, Slot, Target, Vantage
from monitor.timeline import Phase

T = TypeVar("T")
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

SLACK_SECONDS = 2.5
"""What an attempt may take beyond its deadline on a busy machine."""
CHUNK = b'data: {"choices":[{"delta":{"content":"ok"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
GOOD_BODY = CHUNK + FINISH + DONE
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def in_loop(body: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function in a watched loop."""
    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(body())


@asynccontextmanager
async def prober(**options: Any) -> AsyncIterator[Prober]:
    """A started prober."""
    made = Prober(options.pop("clock", None) or Clock(), max_concurrent=8, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def series(url: str, *, proxy: str | None = None, probe: dict[str, Any] | None = None, **target: Any) -> Series:
    """A series that asks `url`, impatiently; `probe` and further keywords change the probe and the target."""
    asked = Target(name="t", provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url=url)
    asking = Probe(name="q", prompt="hello", deadline_seconds=3.0, connect_timeout_seconds=2.0)
    return Series(
        vantage=Vantage(name="here", proxy=proxy), target=replace(asked, **target), probe=replace(asking, **probe or {})
    )


async def attempt(one: Prober, asked: Series, number: int = 0) -> Attempt:
    """One attempt, which must not outlast its deadline."""
    slot = Slot(vantage="here", target="t", probe="q", scheduled_at=one.now(), number=number)
    began = time.monotonic()
    made = await one.run(slot, asked, purpose=Purpose.ONE_OFF)
    took = time.monotonic() - began
    assert took <= asked.probe.deadline_seconds + SLACK_SECONDS, f"the attempt took {took:.1f} s"
    return made


async def ask(url: str, **options: Any) -> Attempt:
    """One attempt by a prober of its own."""
    async with prober() as one:
        return await attempt(one, series(url, **options))


def quickest(made: Callable[[], Attempt], seconds: Callable[[Attempt], float | None]) -> Attempt:
    """Of three attempts the one with the fewest seconds: what is asked of a time is asked of a machine at rest."""
    return min((made() for _ in range(3)), key=lambda one: (seconds(one) is None, seconds(one)))


# Servers.


@asynccontextmanager
async def served(talk: Talk, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server that does `talk` with everyone; its port. What is still talking at the end is cancelled."""
    talking: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talking.add(task)
        try:
            await talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            talking.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(talking):
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)


async def request(reader: asyncio.StreamReader) -> bytes:
    """Read one request whole; b"" when the client has gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    return head + await reader.readexactly(int(lines.get(b"content-length", b"0")))


def says(*pieces: bytes | float, then: str = "close") -> Talk:
    """Answers each request with `pieces` (numbers are pauses in seconds), then: close, reset, hold, again."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await request(reader):
            for piece in pieces:
                if isinstance(piece, bytes):
                    writer.write(piece)
                    await writer.drain()
                else:
                    await asyncio.sleep(piece)
            if then == "hold":
                await asyncio.sleep(60)
            if then == "reset":
                reset(writer)
            if then != "again":
                return

    return talk


def reset(writer: asyncio.StreamWriter) -> None:
    """Send RST instead of FIN when the connection closes."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def chunked(*pieces: bytes, last: bool = True) -> bytes:
    """A body in chunks."""
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + (b"0\r\n\r\n" if last else b"")


def whole(body: bytes = GOOD_BODY, head: bytes = STREAM_HEAD) -> bytes:
    """A response whose length is told, so that the connection can be used again."""
    return head + b"content-length: %d\r\n\r\n%s" % (len(body), body)


@dataclass
class H2Peer:
    """The server's side of an HTTP/2 connection, to be driven by hand."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __post_init__(self) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False))
        self.h2.initiate_connection()
        self.h2.config.validate_outbound_headers = False

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def events(self) -> AsyncIterator[Event]:
        """What the client sends, until it goes."""
        await self.flush()
        while data := await self.reader.read(65536):
            for event in self.h2.receive_data(data):
                yield event
            await self.flush()

    async def answer(self, stream: int, body: bytes = GOOD_BODY, *, end: bool = True) -> None:
        """A whole good answer."""
        self.h2.send_headers(stream, [(":status", "200"), ("content-type", "text/event-stream")])
        self.h2.send_data(stream, body, end_stream=end)
        await self.flush()


# Judgements.


def failed(made: Attempt, kind: str, phase: str) -> None:
    """It failed so, there, and says so in one sentence; what did not happen has no duration."""
    assert made.outcome is Outcome.FAILED, made
    assert made.failure is not None
    assert (made.failure.kind.value, made.failure.phase.value) == (kind, phase), made.failure
    text = made.failure.text
    assert 10 <= len(text) <= 500, text
    assert "\n" not in text
    signs = ("Traceback", "object at 0x", "Error(", "ssl.c:", "b'", "request line")
    assert not any(sign in text for sign in signs), text
    order = list(Phase)
    later = order[order.index(made.failure.phase) + 1 :]
    assert all(made.timeline.phase(p) is None for p in later), made.timeline
    adds_up(made)


def succeeded(made: Attempt) -> None:
    """It succeeded, and its phases and the remainder are the total to the nanosecond."""
    assert made.outcome is Outcome.SUCCESS, made.failure
    assert made.failure is None
    line = made.timeline
    assert line.total_ns is not None
    assert None not in (line.ttft, line.phase(Phase.SEND), line.phase(Phase.WAIT), line.phase(Phase.GENERATE))
    adds_up(made)


def adds_up(made: Attempt) -> None:
    """Phases plus remainder are the total; no time is counted twice (a remainder below zero)."""
    line = made.timeline
    if line.total_ns is None:
        assert line.remainder_ns is None
        return
    assert line.remainder_ns is not None
    assert sum(line.phase_ns(p) or 0 for p in Phase) + line.remainder_ns == line.total_ns
    assert line.remainder_ns >= -200_000, line


async def gathered(pairs: Iterable[tuple[str, Awaitable[Attempt]]]) -> dict[str, Attempt]:
    """Attempts made at once, by the name of their way."""
    named = list(pairs)
    made = await asyncio.gather(*(one for _, one in named))
    return {name: result for (name, _), result in zip(named, made, strict=True)}
