"""HTTP/2 on one connection: many requests at a time, flow control obeyed, frames by the h2 library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error, ProtocolError

from monitor.simulator.channel import Channel, Sent
from monitor.simulator.exchange import MAX_BODY_BYTES, MAX_HEADER_BYTES, Head
from monitor.simulator.http1 import IDLE_SECONDS, Handler
from monitor.simulator.question import Request

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass(slots=True)
class _Asking:
    """A request that arrives, and the task that answers it."""

    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)
    answering: asyncio.Task[None] | None = None


class Http2Exchange:
    """Answers one stream."""

    def __init__(self, connection: Http2Connection, stream: int, request: Request) -> None:
        self.request = request
        self._connection, self._stream = connection, stream

    async def send(self, *, head: Head | None = None, data: bytes = b"", end: bool = False) -> Sent:
        return await self._connection.send(self._stream, head, data, end)

    def abort(self, *, reset: bool = False) -> None:
        self._connection.abort(self._stream, reset=reset)


class Http2Connection:
    """Serves one client until it goes, keeps silent, or breaks the protocol."""

    def __init__(self, channel: Channel, new_id: Callable[[], str], handle: Handler) -> None:
        self._channel, self._new_id, self._handle = channel, new_id, handle
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._asking: dict[int, _Asking] = {}
        self._room = asyncio.Event()  # set whenever a window may have grown

    async def serve(self, first: bytes) -> None:
        """`first` is what was read to recognise the protocol."""
        self._h2.initiate_connection()
        self._h2.decoder.max_header_list_size = MAX_HEADER_BYTES
        self._flush()
        try:
            data = first or await self._recv()
            while data and self._take(data):
                data = await self._recv()
        finally:
            await self._stop()

    async def send(self, stream: int, head: Head | None, data: bytes, end: bool) -> Sent:
        """One write, or several where the client's windows are smaller than `data`; the stamps span them all."""
        try:
            return await self._send(stream, head, data, end)
        except H2Error as gone:
            raise ConnectionAbortedError(f"the stream is closed: {gone}") from gone

    def abort(self, stream: int, *, reset: bool) -> None:
        """RST_STREAM with INTERNAL_ERROR, or the whole connection by a TCP reset."""
        if reset:
            self._channel.close(reset=True)
            return
        with suppress(H2Error, OSError):
            self._h2.reset_stream(stream, ErrorCodes.INTERNAL_ERROR)
            self._flush()

    async def _send(self, stream: int, head: Head | None, data: bytes, end: bool) -> Sent:
        if head is not None:
            self._h2.send_headers(stream, [(":status", str(head.status)), *head.headers])
        began: Sent | None = None
        while data:
            size = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(data))
            if size > 0:
                self._h2.send_data(stream, data[:size])
                data = data[size:]
            else:
                sent = self._flush()
                began = began or sent
                self._room.clear()
                await self._room.wait()
        if end:
            self._h2.end_stream(stream)
        sent = await self._channel.drained(self._flush())
        return Sent(began.before_ns, sent.after_ns) if began else sent

    def _flush(self) -> Sent:
        return self._channel.write(self._h2.data_to_send())

    async def _recv(self) -> bytes:
        try:
            async with asyncio.timeout(None if self._asking else IDLE_SECONDS):
                return await self._channel.recv()
        except (TimeoutError, OSError):
            return b""

    def _take(self, data: bytes) -> bool:
        """Handle received bytes; False when the connection is over."""
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            with suppress(OSError):
                self._flush()  # h2 has put a GOAWAY there
            return False
        over = False
        for event in events:
            over = self._event(event) or over
        with suppress(OSError):
            self._flush()
        return not over

    def _event(self, event: Event) -> bool:
        """Handle one event; True when it ends the connection."""
        if isinstance(event, RequestReceived):
            headers = [(str(name), str(value)) for name, value in event.headers]
            self._asking[event.stream_id] = _Asking(headers)
        elif isinstance(event, DataReceived):
            self._body(event)
        elif isinstance(event, StreamEnded):
            self._answer(event.stream_id)
        elif isinstance(event, StreamReset):
            self._forget(event.stream_id)
        elif isinstance(event, WindowUpdated | RemoteSettingsChanged):
            self._room.set()
        return isinstance(event, ConnectionTerminated)

    def _body(self, event: DataReceived) -> None:
        self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        asking = self._asking.get(event.stream_id)
        if asking is None:
            return
        asking.body += event.data
        if len(asking.body) > MAX_BODY_BYTES:
            self._h2.send_headers(event.stream_id, [(":status", "413")], end_stream=True)
            self._h2.reset_stream(event.stream_id, ErrorCodes.NO_ERROR)
            del self._asking[event.stream_id]

    def _answer(self, stream: int) -> None:
        asking = self._asking.get(stream)
        if asking is None:
            return
        exchange = Http2Exchange(self, stream, _request(asking, self._new_id()))
        asking.answering = asyncio.create_task(self._handle(exchange))
        asking.answering.add_done_callback(lambda _: self._asking.pop(stream, None))

    def _forget(self, stream: int) -> None:
        asking = self._asking.pop(stream, None)
        if asking is not None and asking.answering is not None:
            asking.answering.cancel()
        self._room.set()

    async def _stop(self) -> None:
        """End what is still being answered."""
        tasks = [asking.answering for asking in self._asking.values() if asking.answering is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _request(asking: _Asking, request_id: str) -> Request:
    headers = dict(asking.headers)
    return Request(
        id=request_id,
        method=headers.get(":method", ""),
        path=headers.get(":path", "").partition("?")[0],
        headers={name: value for name, value in headers.items() if not name.startswith(":")},
        body=bytes(asking.body),
    )
