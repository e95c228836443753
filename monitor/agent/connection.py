"""One connection of an attempt: a non-blocking socket, plain or TLS, whose reads are stamped.

A socket is read the moment the loop sees it readable; what was read waits, stamped, until its attempt comes round.
A few attempts go on in each turn of the loop, so that no amount of decoding keeps other sockets waiting.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpcore

from monitor.agent.arrivals import READ_BYTES, Arrival, ArrivalReader, Caught, Segments
from monitor.agent.framing import GOAWAY, HEADERS, FrameWalker, HeadWalker
from monitor.agent.turnstile import Turnstile, writable
from monitor.clock import Clock
from monitor.model import TcpFacts
from monitor.timeline import Mark

MAX_WAITING_BYTES = 4 * 1024 * 1024
"""What a socket may hold read but not yet decoded; beyond it the peer waits, as TCP intends."""
COALESCED_ABOVE_NS = 1_000_000
"""A read may hold segments older than its stamp by this much before its tokens, but for the last, are in doubt."""


@dataclass(slots=True)
class Tape:
    """What the road of one attempt leaves behind: marks (absolute monotonic ns), reads, and the connection's facts."""

    clock: Clock
    on_mark: Callable[[Mark], None] | None = None
    marks: dict[Mark, int] = field(default_factory=dict)
    reads: int = 0
    worst_lag_ns: int = 0
    worst_step_ns: int = 0
    unstamped: int = 0
    late_ns: int = 0  # between being able to go on and going on, up to the request: our own delay inside the journey
    connection: Connection | None = None
    last_write_ns: int | None = None  # the last piece went into the kernel; returning may take long on a busy machine
    h2_stream: int | None = None
    head: HeadWalker = field(default_factory=HeadWalker)
    offset_ns: int = field(init=False)  # wall minus monotonic when the attempt began
    head_began_ns: int | None = None  # arrival of the read in which the newest response head begins

    def __post_init__(self) -> None:
        self.offset_ns = self.clock.offset_ns()

    def mark(self, mark: Mark, at_ns: int | None = None) -> None:
        """Set a mark once; later calls for it change nothing."""
        if mark not in self.marks:
            self.marks[mark] = self.clock.monotonic_ns() if at_ns is None else at_ns
            if self.on_mark is not None:
                self.on_mark(mark)

    def answered(self) -> None:
        """The response's head is complete: HEADERS is when it began, interim responses (1xx) left aside.

        A server may answer before it has the whole request: sending then ends with its answer, and `wait` is 0.
        """
        if self.head_began_ns is not None and Mark.SEND_END in self.marks:
            self.marks[Mark.SEND_END] = min(self.marks[Mark.SEND_END], self.head_began_ns)
            self.mark(Mark.HEADERS, self.head_began_ns)

    def went_on(self, possible_since_ns: int) -> None:
        """A step before the request goes on only now, though it could since then."""
        self.late_ns += max(0, self.clock.monotonic_ns() - possible_since_ns)

    def starts_over(self) -> None:
        """The request is sent again, over a new connection: its server had announced not to take it up."""
        for mark in (Mark.SEND_START, Mark.SEND_END):
            self.marks.pop(mark, None)
        self.h2_stream = self.head_began_ns = None

    def saw(self, arrival: Arrival) -> None:
        """Count one read of the response; what comes before it, a TLS handshake, has no tokens to merge."""
        if Mark.SEND_END not in self.marks:
            self.went_on(arrival.at_ns)
            return
        self.reads += 1
        self.worst_lag_ns = max(self.worst_lag_ns, arrival.lag_ns)
        self.worst_step_ns = max(self.worst_step_ns, abs(arrival.offset_ns - self.offset_ns))
        self.unstamped += not arrival.stamped


current_tape: contextvars.ContextVar[Tape] = contextvars.ContextVar("current_tape")


class Connection(httpcore.AsyncNetworkStream):
    """A connected socket, plain or TLS: reads carry the arrival they came with."""

    def __init__(
        self,
        sock: socket.socket,
        clock: Clock,
        turnstile: Turnstile,
        *,
        http2: bool,
        kernel_stamps: bool,
        proxied: bool,
    ) -> None:
        self._sock = sock
        self._clock = clock
        self._turnstile = turnstile
        self._http2 = http2
        self._loop = asyncio.get_running_loop()
        self._reader = ArrivalReader(sock, clock, kernel_stamps=kernel_stamps)
        self._caught: deque[Caught] = deque()
        self._waiting_bytes = 0
        self._error: OSError | None = None
        self._ended = False
        self._paused = False
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._batch_seconds = 0.0
        self._asked = False  # whether a request went out on it
        self._resting: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._peeked = b""
        self._frames = FrameWalker()
        self._facts_at_end = TcpFacts()
        self.tls_version: str | None = None
        self.alpn: str | None = None
        self.certificate_expires_at: datetime | None = None  # notAfter of the verified leaf certificate
        self.proxied = proxied
        self.last_arrival: Arrival | None = None
        self.remote = _address_text(sock)
        self.family = "ipv6" if sock.family == socket.AF_INET6 else "ipv4"
        self._loop.add_reader(sock.fileno(), self._on_readable)

    # Reading: drained at once, handed on in turn.

    def _on_readable(self) -> None:
        if self._closed or self._ended or self._error is not None:
            return
        try:
            caught = self._reader.catch()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._error = error
            self._stop_reading()
        else:
            if caught.data:
                self._waiting_bytes += len(caught.data)
                if self._waiting_bytes > MAX_WAITING_BYTES:
                    self._paused = True
                    self._loop.remove_reader(self._sock.fileno())
            else:
                self._ended = True
                self._stop_reading()
            self._caught.append(caught)
        if self._waiter is None:
            return
        if self._batch_seconds and not self._ended and self._error is None:
            if self._resting is None:
                self._resting = self._loop.call_at(self._next_round(), self._wake)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._waiter is not None:
            self._turnstile.wake(self._waiter, urgent=not self._asked)
            self._waiter = None

    def _next_round(self) -> float:
        """When arrivals are handed on next: at one moment for all connections, as each waking of the process costs."""
        return (self._loop.time() // self._batch_seconds + 1) * self._batch_seconds

    def batch(self, seconds: float) -> None:
        """From now on hand arrivals on only this often: their stamps are taken, decoding may wait."""
        self._batch_seconds = seconds

    def _stop_reading(self) -> None:
        if not self._closed:
            self._loop.remove_reader(self._sock.fileno())

    async def _next_arrival(self) -> bytes:
        """The next stamped piece of the raw stream; b"" at its end. Raises OSError when the connection broke."""
        while not self._caught:
            if self._error is not None:
                raise self._error
            if self._ended or self._closed:
                return b""
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    def _take(self) -> bytes:
        caught = self._caught.popleft()
        self._waiting_bytes -= len(caught.data)
        if self._paused and self._waiting_bytes < MAX_WAITING_BYTES // 2:
            self._paused = False
            if not self._closed:
                self._loop.add_reader(self._sock.fileno(), self._on_readable)
        if caught.data:
            self.last_arrival = self._reader.arrival(caught)
            tape = current_tape.get(None)
            if tape is not None:
                tape.saw(self.last_arrival)
        return caught.data

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Plaintext as it comes; `last_arrival` is the arrival that completed it. Deadlines are the attempt's own."""
        while data := await self._read(max_bytes):
            handed_on = self._follow(data)
            if handed_on:
                return handed_on
        return b""

    async def _read(self, max_bytes: int) -> bytes:
        if self._peeked:
            data, self._peeked = self._peeked[:max_bytes], self._peeked[max_bytes:]
            return data
        if self._tls is None:
            data = await self._next_arrival()
            if len(data) > max_bytes:
                self._peeked = data[max_bytes:]
            return data[:max_bytes]
        while True:
            plain = self._decrypt(max_bytes)
            if plain is not None:
                return plain
            await self._flush()
            self._feed(await self._next_arrival())

    def put_back(self, data: bytes) -> None:
        """Let the next read begin with bytes that were read and not used; they came with `last_arrival`."""
        self._peeked = data + self._peeked

    def _feed(self, raw: bytes) -> None:
        if raw:
            self._incoming.write(raw)
        else:
            self._incoming.write_eof()

    def _decrypt(self, max_bytes: int) -> bytes | None:
        """What TLS yields without waiting: None when it wants more, b"" at the end."""
        assert self._tls is not None
        try:
            return self._tls.read(max_bytes)
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def _follow(self, plain: bytes) -> bytes:
        """Note the read in which this response's head begins (its HEADERS frame); give what is httpcore's business.

        Of HTTP/1 that is the head alone: what follows it in the same read is put back, for whoever reads the body.
        """
        tape = current_tape.get(None)
        if tape is not None and Mark.CONNECT_START in tape.marks and Mark.CONNECT_END not in tape.marks:
            return plain  # a proxy's answer to CONNECT: neither frames nor this response
        waits, begins = tape is not None and Mark.HEADERS not in tape.marks, False
        if self._speaks_http2:
            stream = tape.h2_stream if tape is not None else None
            plain, frames = self._frames.follow(plain, stream)
            self._refuse_http1()
            if waits and self._frames.statusless:
                raise httpcore.RemoteProtocolError("it has no status")
            begins = (HEADERS, stream) in frames
        elif waits and tape is not None:
            begins = tape.head.begins(plain)
            if tape.head.foreign:
                raise httpcore.RemoteProtocolError(f"it begins with {tape.head.foreign.decode('latin-1')!r}")
            if tape.head.behind:
                plain = plain[: -len(tape.head.behind)]
                self.put_back(tape.head.behind)
        if begins and waits and tape is not None and self.last_arrival is not None:
            tape.head_began_ns = self.last_arrival.at_ns
        return plain

    def _refuse_http1(self) -> None:
        if self._frames.is_http1:
            raise httpcore.RemoteProtocolError("the server speaks HTTP/1, not HTTP/2")

    @property
    def _speaks_http2(self) -> bool:
        return self._http2 and (self._tls is None or self.alpn == "h2")

    # Writing.

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send everything; the tape keeps when the last piece was handed to the kernel."""
        self._asked = True
        if not buffer:
            return
        try:
            if self._tls is None:
                await self._send(buffer)
            else:
                self._tls.write(buffer)
                await self._flush()
        except OSError as error:
            broken = error
        else:
            return
        if self._speaks_http2 and self._tls is None:
            self._on_readable()
            self._frames.follow(b"".join(caught.data for caught in self._caught))
            self._refuse_http1()  # it has said so before it hung up
        raise httpcore.WriteError(broken) from broken

    async def _flush(self) -> None:
        pending = self._outgoing.read()
        if pending:
            await self._send(pending)

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            began_ns = self._clock.monotonic_ns()
            try:
                sent = self._sock.send(view)
            except (BlockingIOError, InterruptedError):
                await writable(self._sock, self._clock, self._turnstile)
                continue
            tape = current_tape.get(None)
            if tape is not None:
                tape.connection = self
                tape.last_write_ns = began_ns
            view = view[sent:]

    # TLS.

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Connection:
        """The handshake, marked; httpcore asks for it right after connecting."""
        tape = current_tape.get()
        tape.mark(Mark.TLS_START)
        try:
            if self._http2:
                ssl_context.set_alpn_protocols(["h2", "http/1.1"])
            self._tls = ssl_context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
            if self._peeked:
                self._feed(self._peeked)
                self._peeked = b""
            await self._handshake(self._tls)
        except BaseException:
            await self.aclose()
            raise
        tape.mark(Mark.TLS_END)
        self._keep_facts(self._tls)
        return self

    def _keep_facts(self, tls: ssl.SSLObject) -> None:
        """What the handshake settled; asked later, a broken connection would no longer say."""
        self.tls_version, self.alpn = tls.version(), tls.selected_alpn_protocol()
        until = (tls.getpeercert() or {}).get("notAfter")
        if until:
            self.certificate_expires_at = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(until)), UTC)

    async def _handshake(self, tls: ssl.SSLObject) -> None:
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                self._feed(await self._next_arrival())
            except ssl.SSLError:
                with suppress(OSError):
                    await self._flush()  # the alert tells the peer why
                raise
            else:
                await self._flush()
                return

    # Facts.

    def get_extra_info(self, info: str) -> Any:
        """What httpcore asks for: `ssl_object`, `is_readable`, addresses, `socket`."""
        if info == "ssl_object":
            return self._tls
        if info == "is_readable":
            return self._has_something()
        if info == "socket":
            return self._sock
        return None

    def _has_something(self) -> bool:
        """Whether an idle connection was closed or spoken on by the peer; TLS tickets do not count."""
        return self._fell_idle() or bool(self._peeked)

    def is_over(self) -> bool:
        """Whether the peer has ended an idle connection or said that it will; on HTTP/2 idle peers may speak."""
        if self._fell_idle() or self._frames.going_away:
            return True
        return self._speaks_http2 and GOAWAY in (kind for kind, _ in copy(self._frames).follow(self._peeked)[1])

    def _fell_idle(self) -> bool:
        """Take in what has come meanwhile, and say whether that was the end."""
        over = self._closed or self._ended or self._error is not None
        if not over and not self._paused:
            self._on_readable()  # the loop may not have looked since
        while not over and self._caught:
            raw = self._take()
            if self._tls is None:
                self._peeked += raw
            else:
                self._feed(raw)
            over = not raw
        if self._tls is not None and not over:
            try:
                while plain := self._decrypt(READ_BYTES):
                    self._peeked += plain
            except ssl.SSLError:
                return True
            over = plain is not None
        return over or self._ended or self._error is not None

    def tcp_facts(self) -> TcpFacts:
        """TCP_INFO, now or at the end; empty through a proxy (it would describe the road to it) or without one."""
        if self._closed:
            return self._facts_at_end
        segments = None if self.proxied else Segments.of(self._sock)
        return segments.facts if segments else TcpFacts()

    async def part(self, seconds: float) -> None:
        """Say goodbye, wait for the peer's own at most so long, and close: neither side is left with a reset."""
        if self._closed:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._end_in_order()
        except (OSError, ssl.SSLError):  # a timeout is one of the first
            return
        finally:
            await self.aclose()

    async def _end_in_order(self) -> None:
        if self._tls is not None:
            with suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            await self._flush()
        self._sock.shutdown(socket.SHUT_WR)
        while await self._next_arrival():
            pass

    async def aclose(self) -> None:
        """Close at once; no TLS goodbye, nobody waits for it."""
        if not self._closed:
            self._facts_at_end = self.tcp_facts()
            self._stop_reading()
            self._closed = True
            self._sock.close()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)


def _address_text(sock: socket.socket) -> str:
    host, port = sock.getpeername()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
