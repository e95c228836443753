"""Server-sent events, from bytes: an incremental parser that gives the same frames however the bytes are cut.

Hides the line discipline of the wire: three line endings (CRLF cut in two included), byte order mark, fields,
comments, multi-line data, UTF-8 halves, an unterminated last event. Beyond the standard it keeps what real servers
send instead of it: `error:` lines and lines without a known field (bare JSON, HTML). Everything is bounded; what
grows beyond its bound ends the parse with one `too_large` frame.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_EVENT_BYTES = 16 * 1024 * 1024
_LINE_COST_BYTES = 48  # what keeping a line costs beside its bytes: a million empty lines are no small event

_BOM = b"\xef\xbb\xbf"
_NOT_BLANK = re.compile(rb"[^\n]")
_WHOLE_EVENT = re.compile(rb"(?:event: ?([^\n]*)\n)?data: ?([^\n]*)\n\n")
"""An event as nearly all servers write it; what else lines may hold is read line by line."""


class Frame(NamedTuple):
    """One event of the stream, one comment, or the notice that a bound was passed.

    `data` is None when the event had no `data:` line at all, which is not the same as an empty one. `error` holds
    non-standard `error:` lines, `bare` the lines without a known field name. `unterminated`: the body ended
    before the blank line that ends an event, so the frame may be cut short.
    """

    data: str | None = None
    event: str = ""
    error: str | None = None
    bare: str | None = None
    last_id: str | None = None
    comment: bool = False
    unterminated: bool = False
    too_large: str | None = None  # says which bound


class SSEParser:
    """Feed it bytes in any pieces; it returns the frames that they complete, in order.

    A lone CR ends a line at once (an LF that follows belongs to it), so no event waits for the byte after it.
    After a `too_large` frame the parser is dead and swallows everything.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_line = max_line_bytes
        self._max_event = max_event_bytes
        self._plain_bytes = min(max_line_bytes, max_event_bytes - 2 * _LINE_COST_BYTES)  # within which no bound matters
        self._tail = bytearray()  # the line that has not ended yet
        self._skip_lf = False  # the last byte was a CR
        self._at_start = True
        self._dead = False
        self._frames: list[Frame] = []
        self._reset()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Never raises."""
        if self._dead or not data:
            return []
        if self._skip_lf and data.startswith(b"\n"):
            data = data[1:]
            if not data:
                self._skip_lf = False
                return []
        self._skip_lf = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._split(data)
        return self._taken()

    def finish(self) -> list[Frame]:
        """The end of the body: an event without its blank line is flushed and flagged `unterminated`."""
        if not self._dead:
            if self._tail:
                line, self._tail = bytes(self._tail), bytearray()
                self._line(line)
            self._dispatch(unterminated=True)
            self._dead = True
        return self._taken()

    def _taken(self) -> list[Frame]:
        frames, self._frames = self._frames, []
        return frames

    def _reset(self) -> None:
        self._event = b""
        self._data: list[bytes] = []
        self._error: list[bytes] = []
        self._bare: list[bytes] = []
        self._id: bytes | None = None
        self._size = 0
        self._began = False

    def _whole_events(self, data: bytes) -> int:
        """Take the events that lie whole at the beginning of `data`; where the rest begins."""
        at = 0
        if not (self._tail or self._began or self._at_start) and len(data) <= self._plain_bytes:
            while event := _WHOLE_EVENT.match(data, at):
                name, said = event.groups()
                kind = name.decode("utf-8", "replace") if name else ""
                self._frames.append(Frame(said.decode("utf-8", "replace"), kind))
                at = event.end()
        return at

    def _split(self, data: bytes) -> None:
        begin = self._whole_events(data)
        while not self._dead and (end := data.find(b"\n", begin)) >= 0:
            if self._tail:
                self._tail += data[begin:end]
                line, self._tail = bytes(self._tail), bytearray()
            else:
                line = data[begin:end]
            self._line(line)
            begin = end + 1
            if data.startswith(b"\n", begin) and not self._began:  # a flood of blank lines costs next to nothing
                rest = _NOT_BLANK.search(data, begin)
                begin = rest.start() if rest else len(data)
        if not self._dead and begin < len(data):
            self._tail += data[begin:]
            if len(self._tail) > self._max_line:
                self._die(f"a line of more than {self._max_line} bytes")

    def _line(self, line: bytes) -> None:
        if len(line) > self._max_line:
            self._die(f"a line of more than {self._max_line} bytes")
            return
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch()
        elif line.startswith(b":"):
            self._frames.append(Frame(comment=True))
        else:
            self._field(line)

    def _field(self, line: bytes) -> None:
        self._began = True
        self._size += len(line) + _LINE_COST_BYTES
        if self._size > self._max_event:
            self._die(f"an event of more than {self._max_event} bytes")
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        else:
            self._rare_field(line)

    def _rare_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._event = value
        elif name == b"id":
            self._id = value
        elif name == b"error":
            self._error.append(value)
        elif name == b"data":
            self._data.append(b"")
        elif name != b"retry":
            self._bare.append(line)

    def _dispatch(self, unterminated: bool = False) -> None:
        if not self._began:
            return
        self._frames.append(
            Frame(
                data=_text(self._data) if self._data else None,
                event=_text([self._event]) if self._event else "",
                error=_text(self._error) if self._error else None,
                bare=_text(self._bare) if self._bare else None,
                last_id=None if self._id is None else _text([self._id]),
                unterminated=unterminated,
            )
        )
        self._reset()

    def _die(self, bound: str) -> None:
        self._dead = True
        self._tail = bytearray()
        self._reset()
        self._frames.append(Frame(too_large=bound))


def _text(lines: list[bytes]) -> str:
    return b"\n".join(lines).decode("utf-8", "replace")
