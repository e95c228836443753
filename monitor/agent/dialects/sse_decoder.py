"""What all dialects on server-sent events share: frames to JSON objects, and errors in every spelling."""

from __future__ import annotations

from typing import Any

from monitor.agent.dialects.contract import BodyMemory
from monitor.agent.error_bodies import classify_error_object, has_error
from monitor.agent.events import EventKind, StreamEvent
from monitor.agent.foreign_json import NOT_JSON, obj, parse
from monitor.agent.sse import Frame, SSEParser
from monitor.model import FailureKind

KEEPALIVE = StreamEvent(EventKind.KEEPALIVE)
PREAMBLE = StreamEvent(EventKind.PREAMBLE)
OTHER = StreamEvent(EventKind.OTHER)
DONE = StreamEvent(EventKind.DONE)


def protocol_error(text: str) -> StreamEvent:
    return StreamEvent(EventKind.ERROR, failure=(FailureKind.PROTOCOL_ERROR, text))


def error_event(said: Any) -> StreamEvent:
    """An ERROR event for an error object of any shape."""
    return StreamEvent(EventKind.ERROR, failure=classify_error_object(said))


class SSEDecoder(BodyMemory):
    """The decoder minus the dialect: a child says what one JSON object means (`read`) and what ends a stream."""

    done_text: str | None = None  # data that is the terminal marker instead of JSON

    def __init__(self) -> None:
        super().__init__()
        self._parser = SSEParser()

    def feed(self, data: bytes) -> list[StreamEvent]:
        self.remember(data)
        return self._decoded(self._parser.feed(data))

    def finish(self) -> list[StreamEvent]:
        return self._decoded(self._parser.finish())

    def read(self, event: str, chunk: dict[str, Any]) -> list[StreamEvent]:
        """The events in one JSON object; [] when it means nothing. `event` is the frame's `event:` field."""
        raise NotImplementedError

    def recognises(self, event: str, chunk: dict[str, Any]) -> bool:
        """Whether one JSON object belongs to this dialect, whatever it says."""
        raise NotImplementedError

    def news(self, **facts: Any) -> dict[str, str]:
        """Those facts that are texts and not known yet."""
        told = ((name, value[:200]) for name, value in facts.items() if isinstance(value, str) and value)
        return {name: value for name, value in told if self.seen.facts.get(name) != value}

    def idle(self) -> StreamEvent:
        """A frame that says nothing: preamble before the first token, of no matter afterwards."""
        return OTHER if self.seen.token_events else PREAMBLE

    def _decoded(self, frames: list[Frame]) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        for frame in frames:
            if self.seen.done:  # what trails after the end marker is not part of the answer
                break
            for event in self._frame(frame):
                self.seen.add(event)
                events.append(event)
        return events

    def _frame(self, frame: Frame) -> list[StreamEvent]:
        if frame.comment:
            return [KEEPALIVE]
        if frame.data is None or frame.bare is not None or frame.error is not None:
            return self._odd(frame)
        return self._data(frame)

    def _data(self, frame: Frame) -> list[StreamEvent]:
        data = frame.data or ""
        if not data or data.isspace():
            return [KEEPALIVE]
        if data.strip() == "[DONE]":
            return [DONE if self.done_text == "[DONE]" else OTHER]
        chunk = parse(data)
        if frame.event == "error":
            return [error_event(data if chunk is NOT_JSON else chunk)]
        if isinstance(chunk, dict):
            if not self.seen.understood:
                self.seen.understood = self.recognises(frame.event, chunk)
            return self.read(frame.event, chunk) or [self.idle()]
        return [self._unreadable(frame, data, chunk)]

    def _unreadable(self, frame: Frame, data: str, chunk: Any) -> StreamEvent:
        if has_error(chunk):
            return error_event(chunk)
        if frame.unterminated:  # cut in the middle: what is missing will be told by the missing end
            return OTHER
        what = "broken JSON" if chunk is NOT_JSON else "JSON that is no object"
        return protocol_error(f"{what} in the stream: {data[:80]!r}")

    def _odd(self, frame: Frame) -> list[StreamEvent]:
        """What the standard does not know: `error:` lines, bare JSON, events without data, bounds passed."""
        if frame.too_large is not None:
            verdict = (FailureKind.TOO_LARGE, f"the stream holds {frame.too_large}")
            return [StreamEvent(EventKind.ERROR, failure=verdict)]
        events: list[StreamEvent] = self._data(frame) if frame.data is not None else []
        if frame.error is not None:
            chunk = parse(frame.error)
            events.append(error_event(frame.error if chunk is NOT_JSON else chunk))
        if frame.bare is not None and frame.bare.lstrip()[:1] in ("{", "["):
            events += self._bare(frame.bare)
        if not events and frame.event:
            events.append(error_event("an error event without data") if frame.event == "error" else KEEPALIVE)
        return events  # [] for unknown fields alone

    def _bare(self, bare: str) -> list[StreamEvent]:
        chunk = parse(bare)
        return [error_event(chunk)] if has_error(chunk) else [self.idle()]


def model_of(chunk: dict[str, Any], known: str | None) -> str | None:
    """The served model when it is named and not known yet; at most 200 characters."""
    name = obj(chunk).get("model")
    return name[:200] if isinstance(name, str) and name and name[:200] != known else None
