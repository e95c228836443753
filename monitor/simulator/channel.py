"""One accepted connection: bytes in and out of a non-blocking socket, plain or TLS, every send stamped.

TLS runs over memory (`ssl.MemoryBIO`), so that the stamps are of the real socket send and not of a buffer's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from typing import NamedTuple

_READ_BYTES = 65536
MAX_BACKLOG_BYTES = 8_000_000  # kept for a peer that does not read


class Sent(NamedTuple):
    """Monotonic nanoseconds just before the send began and just after the kernel had taken the last byte."""

    before_ns: int
    after_ns: int


class Channel:
    """A plain connection. `write` never waits; `drained` does, so a peer that stops reading stops us too."""

    alpn: str | None = None

    def __init__(self, sock: socket.socket, now_ns: Callable[[], int]) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._now_ns = now_ns
        self._loop = asyncio.get_running_loop()
        self._backlog = bytearray()
        self._drained: asyncio.Future[None] | None = None
        self._broken: OSError | None = None
        self.closed = False

    async def recv(self) -> bytes:
        """The next bytes, empty at the end; ConnectionError when the peer reset."""
        return await self._loop.sock_recv(self._sock, _READ_BYTES)

    def write(self, data: bytes) -> Sent:
        """Hand `data` to the kernel, now as far as it takes it and the rest as soon as it can. Raises OSError."""
        if self._broken is not None or self.closed:
            raise self._broken or ConnectionAbortedError("the connection is closed")
        before = self._now_ns()
        if self._backlog:
            self._pile(data)
            return Sent(before, self._now_ns())
        try:
            taken = self._sock.send(data)
        except BlockingIOError:
            taken = 0
        after = self._now_ns()
        if taken < len(data):
            self._backlog += data[taken:]
            self._loop.add_writer(self._sock, self._pour)
        return Sent(before, after)

    async def send(self, data: bytes) -> Sent:
        """`write`, and return when the kernel has taken everything."""
        sent = self.write(data)
        return await self.drained(sent)

    async def drained(self, sent: Sent) -> Sent:
        """Wait until nothing is left over; `sent` with its end corrected when that took time."""
        if not self._backlog:
            return sent
        if self._drained is None:
            self._drained = self._loop.create_future()
        await asyncio.shield(self._drained)
        return Sent(sent.before_ns, self._now_ns())

    def end_writing(self) -> None:
        """Half-close: the peer sees the end, and may go on sending."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        """Close the connection; with `reset` the peer gets a TCP RST. What is in the backlog is dropped."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._end_wait(ConnectionAbortedError("the connection is closed"))
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def _pile(self, data: bytes) -> None:
        """Keep bytes for later; a peer that goes on asking without reading answers is cut off."""
        if len(self._backlog) + len(data) > MAX_BACKLOG_BYTES:
            raise ConnectionAbortedError("the peer does not read")
        self._backlog += data

    def _pour(self) -> None:
        try:
            taken = self._sock.send(self._backlog)
        except BlockingIOError:
            return
        except OSError as broken:
            self._broken = broken
            taken = len(self._backlog)
        del self._backlog[:taken]
        if not self._backlog:
            self._loop.remove_writer(self._sock)
            self._end_wait(self._broken)

    def _end_wait(self, broken: OSError | None) -> None:
        waiter, self._drained = self._drained, None
        if waiter is None or waiter.done():
            return
        if broken is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(broken)
            waiter.exception()  # nobody may be left to ask for it


class TlsChannel(Channel):
    """The same over TLS; `handshake` first."""

    def __init__(self, sock: socket.socket, now_ns: Callable[[], int], context: ssl.SSLContext) -> None:
        super().__init__(sock, now_ns)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        """Raises ssl.SSLError or ConnectionError when the client does not go along."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._push()
                await self._pull()
        self._push()
        self.alpn = self._tls.selected_alpn_protocol()

    async def recv(self) -> bytes:
        while True:
            try:
                data = self._tls.read(_READ_BYTES)
                self._push()  # a key update asks for an answer
                return data
            except ssl.SSLWantReadError:
                self._push()
                if not await self._pull():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    def write(self, data: bytes) -> Sent:
        self._tls.write(data)
        return super().write(self._outgoing.read())

    def _push(self) -> None:
        if self._outgoing.pending:
            super().write(self._outgoing.read())

    async def _pull(self) -> bytes:
        data = await super().recv()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return data
