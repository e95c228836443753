"""What dialects on newline-delimited JSON share: lines to objects, bounded, however the bytes are cut."""

from __future__ import annotations

import re
from typing import Any

from monitor.agent.dialects.contract import BodyMemory
from monitor.agent.dialects.sse_decoder import OTHER, PREAMBLE, error_event, protocol_error
from monitor.agent.error_bodies import has_error
from monitor.agent.events import EventKind, StreamEvent
from monitor.agent.foreign_json import NOT_JSON, parse
from monitor.agent.sse import MAX_LINE_BYTES
from monitor.model import FailureKind

_BLANK_LINES = re.compile(rb"\n{2,}")


class NDJSONDecoder(BodyMemory):
    """The decoder minus the dialect: a child says what one JSON object means (`read`). Blank lines mean nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._tail = bytearray()  # the line that has not ended yet
        self._dead = False

    def feed(self, data: bytes) -> list[StreamEvent]:
        self.remember(data)
        events: list[StreamEvent] = []
        *lines, rest = _BLANK_LINES.sub(b"\n", data).split(b"\n")  # a flood of blank lines costs next to nothing
        for line in lines:
            whole, self._tail = bytes(self._tail) + line, bytearray()
            events += self._line(whole)
        self._tail += b"" if self._over else rest
        if len(self._tail) > MAX_LINE_BYTES:
            self._tail.clear()
            events += self._taken([_too_long()])
        return events

    def finish(self) -> list[StreamEvent]:
        line, self._tail = bytes(self._tail), bytearray()
        events = self._line(line, unterminated=True)
        if (
            not self._dead
            and not self.seen.frames
            and has_error(whole := parse(self.opening.decode("utf-8", "replace")))
        ):
            events += self._taken([error_event(whole)])  # an error printed over many lines
        self._dead = True
        return events

    def read(self, chunk: dict[str, Any]) -> list[StreamEvent]:
        """The events in one JSON object; [] when it means nothing."""
        raise NotImplementedError

    def idle(self) -> StreamEvent:
        """A line that says nothing: preamble before the first token, of no matter afterwards."""
        return OTHER if self.seen.token_events else PREAMBLE

    @property
    def _over(self) -> bool:
        return self._dead or self.seen.done

    def _taken(self, events: list[StreamEvent]) -> list[StreamEvent]:
        for event in events:
            self.seen.add(event)
            self._dead = self._dead or (event.failure is not None and event.failure[0] is FailureKind.TOO_LARGE)
        return events

    def _line(self, line: bytes, unterminated: bool = False) -> list[StreamEvent]:
        if self._over or not line or line.isspace():
            return []
        if len(line) > MAX_LINE_BYTES:
            return self._taken([_too_long()])
        text = line.decode("utf-8", "replace").removeprefix("\ufeff")
        chunk = parse(text)
        if isinstance(chunk, dict):
            return self._taken(self.read(chunk) or [self.idle()])
        if has_error(chunk):
            return self._taken([error_event(chunk)])
        if not self.seen.understood or unterminated:  # no stream at all, or cut in the middle: told by the ending
            return self._taken([OTHER] if self.seen.understood else [])
        what = "broken JSON" if chunk is NOT_JSON else "JSON that is no object"
        return self._taken([protocol_error(f"{what} in the stream: {text[:80]!r}")])


def _too_long() -> StreamEvent:
    verdict = (FailureKind.TOO_LARGE, f"the stream holds a line of more than {MAX_LINE_BYTES} bytes")
    return StreamEvent(EventKind.ERROR, failure=verdict)
