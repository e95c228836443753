"""Where responses begin in the bytes of a connection: HTTP/1 heads and HTTP/2 frames, followed but not parsed.

httpcore does the HTTP; it does not say which read held the first byte of a response. This does, and nothing more.
"""

from __future__ import annotations

import re

HEADERS, GOAWAY = 0x1, 0x7
"""Types of HTTP/2 frames (RFC 9113, 6)."""
_BLANK_LINE = re.compile(rb"\n\r?\n")
_INTERIM = re.compile(rb"HTTP/\d\.\d 1(?!01)")
"""1xx, but for 101: that one is final."""


class HeadWalker:
    """Follows HTTP/1 response heads from the first byte of a response, only to tell where the final one begins.

    Interim responses (100 Continue, 103 Early Hints) may come before it, in the same read or in pieces.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._final = False

    def begins(self, data: bytes) -> bool:
        """Whether a response head begins in this piece of the stream; the last that does is the response's own."""
        begins = False
        while data and not self._final:
            begins = begins or not self._head
            searched = max(0, len(self._head) - 3)
            self._head += data
            end = _BLANK_LINE.search(self._head, searched)
            if end is None:
                break
            self._final = _INTERIM.match(self._head) is None
            data = bytes(self._head[end.end() :])
            self._head.clear()
        return begins


class FrameWalker:
    """Follows the frames of an HTTP/2 connection from its first byte (RFC 9113, 4.1), only to see responses begin."""

    def __init__(self) -> None:
        self._head = b""
        self._payload_left = 0
        self._first = True
        self.is_http1 = False  # the peer answered in HTTP/1

    def frames(self, data: bytes) -> list[tuple[int, int]]:
        """Type and stream of each frame that begins in this piece of the stream."""
        begun, at = [], 0
        while at < len(data):
            skipped = min(self._payload_left, len(data) - at)
            self._payload_left -= skipped
            at += skipped
            if at == len(data):
                break
            taken = data[at : at + 9 - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) == 9:
                self.is_http1 = self.is_http1 or (self._first and self._head.startswith(b"HTTP/1"))
                self._first = False
                self._payload_left = int.from_bytes(self._head[:3])
                begun.append((self._head[3], int.from_bytes(self._head[5:9]) & 0x7FFFFFFF))
                self._head = b""
        return begun
