"""Delivering one answer: every frame at its instant on an absolute grid, evenly or as badly as the behaviour says."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import takewhile
from typing import Any

from monitor.model import DialectName
from monitor.simulator.answer import Answer, Frame
from monitor.simulator.behaviour import Behaviour, Fault
from monitor.simulator.channel import Sent
from monitor.simulator.dialects import WORDINGS
from monitor.simulator.exchange import Exchange, Head
from monitor.simulator.pacer import NS, Pacer
from monitor.simulator.sendlog import SendKind, SendLog

HOLD_SECONDS = 3600.0  # "for ever": how long a silent response is held at most
_ENDLESS_BYTES = 64_000_000
_BREAKS = {Fault.TRUNCATED, Fault.DISCONNECTED, Fault.RESET, Fault.ERROR_EVENT, Fault.ENDLESS_LINE}


class Delivery:
    """Plays one answer into one exchange and logs every send."""

    def __init__(
        self, exchange: Exchange, behaviour: Behaviour, pacer: Pacer, log: SendLog, head: Callable[[], Head]
    ) -> None:
        self._exchange, self._behaviour = exchange, behaviour
        self._pacer, self._log = pacer, log
        self._make_head: Callable[[], Head] | None = head  # None: the headers have gone out
        self._gzip = zlib.compressobj(wbits=31) if behaviour.gzip else None
        self._held: list[Frame] = []
        self._comments: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether the headers have gone out."""
        return self._make_head is None

    @asynccontextmanager
    async def commenting(self) -> AsyncIterator[None]:
        """While waiting inside: headers at once and comments, when the behaviour asks for them."""
        if self._behaviour.comments_seconds is not None:
            await self._send_head()
            self._comments = asyncio.create_task(self._comment_along(self._behaviour.comments_seconds))
        try:
            yield
        finally:
            self._stop_comments()

    async def play(self, answer: Answer, headers_ns: int, first_ns: int) -> None:
        """Send the whole answer: headers due at `headers_ns`, the first token at `first_ns`."""
        await self._open(headers_ns)
        for frame in self._frames(answer):
            await self._reach(headers_ns if frame.step < 0 else self._due_ns(frame.step, first_ns))
            if frame.step >= 0:
                self._stop_comments()
            self._held.append(frame)
            if self._releases(frame, answer.tokens):
                await self._flush()
        await self._close()

    async def play_error(self, error: dict[str, Any], answer: Answer) -> None:
        """End a stream that has begun with an error event."""
        self._held = list(WORDINGS[answer.question.dialect].error_frames(answer, error, 0, 0))
        await self._flush()
        await self._end()

    async def comments_for_ever(self) -> None:
        """200 and nothing but comments."""
        await self._send_head()
        async with asyncio.timeout(HOLD_SECONDS):
            await self._comment(self._behaviour.keep_alive_seconds)

    # -- time

    def _due_ns(self, step: int, first_ns: int) -> int:
        """Step k is due k / rate after the first token; what comes after a stall is late by its length."""
        behaviour = self._behaviour
        due = first_ns + round(step * NS / behaviour.tokens_per_second)
        if behaviour.stall_after_tokens is not None and step >= behaviour.stall_after_tokens:
            due = -1 if math.isinf(behaviour.stall_seconds) else due + round(behaviour.stall_seconds * NS)
        return due

    async def _reach(self, due_ns: int) -> None:
        if due_ns < 0:
            await self._flush()
            await asyncio.sleep(HOLD_SECONDS)
        await self._pacer.until(due_ns)

    # -- what is sent together

    def _frames(self, answer: Answer) -> Iterator[Frame]:
        wording, fault = WORDINGS[answer.question.dialect], self._behaviour.fault
        frames = wording.frames(answer)
        if fault is Fault.UNMARKED:
            return (frame for frame in frames if frame.kind is not SendKind.DONE)
        if fault not in _BREAKS:
            return frames
        at = min(self._behaviour.fault_after_tokens, answer.tokens)
        whole_part = takewhile(lambda frame: frame.step < at, frames)
        return self._with_error(answer, whole_part, at) if fault is Fault.ERROR_EVENT else whole_part

    def _with_error(self, answer: Answer, whole_part: Iterator[Frame], at: int) -> Iterator[Frame]:
        sent = 0
        if at > 0 or answer.question.dialect is DialectName.OPENAI_RESPONSES:  # which always tells that it began
            for sent, frame in enumerate(whole_part, 1):  # noqa: B007 - how many is what matters afterwards
                yield frame
        error = answer.error(self._behaviour.error)
        yield from WORDINGS[answer.question.dialect].error_frames(answer, error, at, sent)

    def _releases(self, frame: Frame, tokens: int) -> bool:
        """Whether what is held goes out now."""
        behaviour = self._behaviour
        if behaviour.buffered:
            return False
        if behaviour.burst_bytes is not None:
            return sum(len(held.data) for held in self._held) >= behaviour.burst_bytes
        if behaviour.burst_tokens is not None and 0 <= frame.step < tokens:
            return sum(held.token is not None for held in self._held) >= behaviour.burst_tokens
        return True

    async def _open(self, headers_ns: int) -> None:
        holds_headers = self._behaviour.buffered or self._behaviour.burst_bytes is not None
        if self.begun or holds_headers:
            return
        await self._pacer.until(headers_ns)
        await self._send_head()

    async def _close(self) -> None:
        fault = self._behaviour.fault
        together = self._behaviour.buffered and fault not in _BREAKS | {Fault.LEFT_OPEN}
        await self._flush(end=together)
        if together:
            return
        if fault is Fault.ENDLESS_LINE:
            await self._endless()
        elif fault is Fault.LEFT_OPEN:
            await asyncio.sleep(HOLD_SECONDS)
        elif fault in (Fault.DISCONNECTED, Fault.RESET):
            self._exchange.abort(reset=fault is Fault.RESET)
        else:
            await self._end()

    # -- sends

    async def _send_head(self) -> None:
        head = self._take_head()
        if head is not None:
            sent = await self._exchange.send(head=head)
            self._note_head(head, sent)

    def _take_head(self) -> Head | None:
        make, self._make_head = self._make_head, None
        return make() if make is not None else None

    async def _flush(self, end: bool = False) -> None:
        held, self._held = self._held, []
        if not held and not end:
            return
        head = self._take_head()
        data = self._encoded(b"".join(frame.data for frame in held), end)
        sent = await self._in_pieces(head, data, end)
        if head is not None:
            self._note_head(head, sent)
        for frame in held:
            self._log.add(self._exchange.request.id, frame.kind, frame.token, *sent, len(frame.data))
        if end:
            self._log.add(self._exchange.request.id, SendKind.END, None, *sent, 0)

    async def _in_pieces(self, head: Head | None, data: bytes, end: bool) -> Sent:
        size = self._behaviour.split_bytes
        if size is None or len(data) <= size:
            return await self._exchange.send(head=head, data=data, end=end)
        for begin in range(0, len(data), size):
            last = begin + size >= len(data)
            sent = await self._exchange.send(head=head, data=data[begin : begin + size], end=end and last)
            head = None
            if not last:
                await self._pacer.until(sent.after_ns + round(self._behaviour.split_pause_seconds * NS))
        return sent

    async def _end(self) -> None:
        sent = await self._exchange.send(head=self._take_head(), data=self._encoded(b"", True), end=True)
        self._log.add(self._exchange.request.id, SendKind.END, None, *sent, 0)

    async def _comment_along(self, every_seconds: float) -> None:
        with suppress(OSError):  # the client has gone: whoever serves it sees that too
            await self._comment(every_seconds)

    async def _comment(self, every_seconds: float) -> None:
        text = b": keep-alive\n\n"
        while True:
            sent = await self._exchange.send(data=self._encoded(text, False))
            self._log.add(self._exchange.request.id, SendKind.COMMENT, None, *sent, len(text))
            await self._pacer.until(sent.before_ns + round(max(every_seconds, 0.001) * NS))

    async def _endless(self) -> None:
        block = b"x" * 65536
        await self._exchange.send(data=self._encoded(b'data: {"id":"', False))
        for _ in range(_ENDLESS_BYTES // len(block)):
            sent = await self._exchange.send(data=self._encoded(block, False))
            await self._pacer.until(sent.after_ns + NS // 1000)
        self._exchange.abort()

    def _stop_comments(self) -> None:
        if self._comments is not None:
            self._comments.cancel()
            self._comments = None

    def _encoded(self, data: bytes, end: bool) -> bytes:
        if self._gzip is None:
            return data
        packed = self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH) if data else b""
        return packed + (self._gzip.flush(zlib.Z_FINISH) if end else b"")

    def _note_head(self, head: Head, sent: Sent) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in head.headers)
        self._log.add(self._exchange.request.id, SendKind.HEADERS, None, *sent, size)
