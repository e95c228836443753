"""The chunks of an HTTP/1.1 body (RFC 9112, 7.1) as servers ordinarily write them: size, line end, data, line end.

Reading them costs a token more through a general HTTP parser than all else that is done with it. What is out of the
ordinary (an extension, a size of over eight digits, the last chunk with its trailers, the end of the connection) is not
judged here: reading stops at the boundary of a chunk, and whoever knows all of HTTP goes on from there.
"""

from __future__ import annotations

import re

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_BEGINNING = re.compile(rb"[0-9A-Fa-f]{1,8}\r?")
_LINE_END = b"\r\n"


class MalformedChunk(Exception):
    """Data is not followed by the line end that its size announced."""


class PlainChunks:
    """Feed it a body from its first byte, in any pieces; it returns the data in them until it hands over."""

    def __init__(self) -> None:
        self._left = 0  # of the data of the chunk under way
        self._line_end = b""  # what must come before the next size
        self._beginning = b""  # of a size line that has not ended
        self.handed_over: bytes | None = None
        """From the boundary at which reading stopped, what was not read; None while it goes on."""

    def feed(self, data: bytes) -> bytes:
        """The body's data in this piece; b"" as a piece is the connection's end. Raises MalformedChunk."""
        if not data:
            self.handed_over = self._beginning
            return b""
        if self._beginning:
            data, self._beginning = self._beginning + data, b""
        body, at = [], 0
        while at < len(data) and self.handed_over is None:
            if self._left:
                piece = data[at : at + self._left]
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
            elif self._line_end:
                at = self._end_line(data, at)
            else:
                at = self._begin(data, at)
        return body[0] if len(body) == 1 else b"".join(body)

    def _end_line(self, data: bytes, at: int) -> int:
        found = data[at : at + len(self._line_end)]
        if not self._line_end.startswith(found):
            raise MalformedChunk(f"malformed chunk footer: {found!r} (expected {self._line_end!r})")
        self._line_end = self._line_end[len(found) :]
        return at + len(found)

    def _begin(self, data: bytes, at: int) -> int:
        line = _CHUNK.match(data, at)
        if line is not None and (size := int(line[1], 16)):
            self._left, self._line_end = size, _LINE_END
            return line.end()
        if line is None and _BEGINNING.fullmatch(data, at):
            self._beginning = data[at:]
        else:
            self.handed_over = data[at:]
        return len(data)
