"""HTTP/1.1 on one connection: h11 reads requests and frames responses; one request at a time, then the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import h11

from monitor.simulator.channel import Channel, Sent
from monitor.simulator.exchange import MAX_BODY_BYTES, MAX_HEADER_BYTES, Exchange, Head
from monitor.simulator.question import Request

Handler = Callable[[Exchange], Coroutine[Any, Any, None]]
IDLE_SECONDS = 120.0  # a connection without a request is closed after this


class TooLargeError(Exception):
    """The request's body passes the bound."""


class Http1Exchange:
    """Answers one request with chunked framing."""

    def __init__(self, connection: h11.Connection, channel: Channel, request: Request) -> None:
        self.request = request
        self._connection, self._channel = connection, channel

    async def send(self, *, head: Head | None = None, data: bytes = b"", end: bool = False) -> Sent:
        out = b""
        if head is not None:
            out = self._framed(h11.Response(status_code=head.status, headers=list(head.headers)))
        if data:
            out += self._framed(h11.Data(data=data))
        if end:
            out += self._framed(h11.EndOfMessage())
        return await self._channel.send(out)

    def abort(self, *, reset: bool = False) -> None:
        self._channel.close(reset=reset)

    def _framed(self, event: h11.Event) -> bytes:
        return self._connection.send(event) or b""


class _Inbox:
    """Received bytes. A read that an answer outlives is kept for the next request, so that nothing is lost."""

    def __init__(self, channel: Channel, first: bytes) -> None:
        self._channel, self._first = channel, first
        self.reading: asyncio.Task[bytes] | None = None

    async def next(self) -> bytes:
        """The next bytes, empty at the end, however it came."""
        if self._first:
            first, self._first = self._first, b""
            return first
        try:
            return await self.begin()
        except OSError:
            return b""
        finally:
            self.reading = None

    def begin(self) -> asyncio.Task[bytes]:
        """A read under way."""
        if self.reading is None:
            self.reading = asyncio.create_task(self._channel.recv())
        return self.reading

    def close(self) -> None:
        if self.reading is not None:
            self.reading.cancel()


async def serve_http1(channel: Channel, first: bytes, new_id: Callable[[], str], handle: Handler) -> None:
    """Serve requests until the client goes, keeps silent for `IDLE_SECONDS` or breaks the protocol."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
    inbox = _Inbox(channel, first)
    try:
        while not channel.closed and (request := await _request(connection, channel, inbox, new_id)):
            await _attended(handle(Http1Exchange(connection, channel, request)), inbox, connection)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
    finally:
        inbox.close()


async def _request(
    connection: h11.Connection, channel: Channel, inbox: _Inbox, new_id: Callable[[], str]
) -> Request | None:
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            return await _read(connection, channel, inbox, new_id)
    except TimeoutError:
        return None
    except TooLargeError:
        await _complain(connection, channel, 413)
    except h11.RemoteProtocolError as wrong:
        await _complain(connection, channel, wrong.error_status_hint)
    return None


async def _read(
    connection: h11.Connection, channel: Channel, inbox: _Inbox, new_id: Callable[[], str]
) -> Request | None:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await inbox.next())
        elif isinstance(event, h11.Request):
            head = event
            if connection.they_are_waiting_for_100_continue:
                await channel.send(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise TooLargeError
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return _whole(head, bytes(body), new_id())
        else:  # the end of the connection
            return None


def _whole(head: h11.Request, body: bytes, request_id: str) -> Request:
    return Request(
        id=request_id,
        method=head.method.decode("ascii"),
        path=head.target.decode("ascii", "replace").partition("?")[0],
        headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        body=body,
    )


async def _complain(connection: h11.Connection, channel: Channel, status: int) -> None:
    """A short plain answer to a request that cannot be read; the connection is closed after it."""
    try:
        text = b"413: the body passes 1 MB\n" if status == 413 else b"%d: not an HTTP request we take\n" % status
        head = h11.Response(status_code=status, headers=[("content-length", str(len(text))), ("connection", "close")])
        await channel.send((connection.send(head) or b"") + (connection.send(h11.Data(data=text)) or b""))
    except (h11.LocalProtocolError, OSError):
        pass


async def _attended(work: Coroutine[Any, Any, None], inbox: _Inbox, connection: h11.Connection) -> None:
    """Run `work`, but stop it as soon as the client goes away; early bytes of a next request are kept."""
    answering = asyncio.create_task(work)
    try:
        while not answering.done():
            await asyncio.wait({answering, inbox.begin()}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done() or not inbox.begin().done():
                break
            early = await inbox.next()
            if not early or len(connection.trailing_data[0]) > MAX_HEADER_BYTES:
                break
            connection.receive_data(early)
        if answering.done():
            await answering
    finally:
        if not answering.done():
            answering.cancel()
            await asyncio.wait({answering})
