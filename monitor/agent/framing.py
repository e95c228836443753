"""Where responses begin in the bytes of a connection: HTTP/1 heads and HTTP/2 frames, followed but not parsed.

httpcore does the HTTP; it does not say which read held the first byte of a response. This does, and nothing more.
"""

from __future__ import annotations

import re

HEADERS, GOAWAY = 0x1, 0x7
"""Types of HTTP/2 frames (RFC 9113, 6)."""
_GOAWAY_TYPE = bytes([GOAWAY])
_STREAM = 0x7FFFFFFF
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
        self.behind = b""  # what follows the final head in the piece that completed it: the body's beginning

    def begins(self, data: bytes) -> bool:
        """Whether a response head begins in this piece of the stream; the last that does is the response's own."""
        begins, self.behind = False, b""
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
            if self._final:
                self.behind = data
        return begins


class FrameWalker:
    """Follows the frames of an HTTP/2 connection from its first byte (RFC 9113, 4.1), to see responses begin.

    It also keeps back what httpcore would stumble over: a polite GOAWAY, with which servers that drain a connection
    announce that they will finish what they began and take up nothing more.
    """

    def __init__(self) -> None:
        self._head = b""
        self._payload_left = 0
        self._keeping_back = False
        self._first = True
        self.is_http1 = False  # the peer answered in HTTP/1
        self.going_away = False  # the peer will take up no further request

    def follow(self, data: bytes, stream: int | None = None) -> tuple[bytes, list[tuple[int, int]]]:
        """What of this piece to hand on (b"": nothing yet), and type and stream of each frame that begins in it.

        `stream` is the one that still awaits its answer: a GOAWAY that gives it up is handed on.
        """
        passed, begun, at = bytearray(), [], 0
        while at < len(data):
            if self._payload_left:
                piece = data[at : at + self._payload_left]
                self._payload_left -= len(piece)
                at += len(piece)
                passed += b"" if self._keeping_back else piece
                continue
            taken = data[at : at + self._wanted() - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) == self._wanted():
                begun.append((self._head[3], int.from_bytes(self._head[5:9]) & _STREAM))
                passed += self._begin(stream)
        return bytes(passed), begun

    def _wanted(self) -> int:
        """The bytes after which it is known what to do with a frame: its head, of a GOAWAY its reason too."""
        reasoned = self._head[3:4] == _GOAWAY_TYPE and int.from_bytes(self._head[:3]) >= 8
        return 17 if len(self._head) >= 9 and reasoned else 9

    def _begin(self, stream: int | None) -> bytes:
        head, self._head = self._head, b""
        self.is_http1 = self.is_http1 or (self._first and head.startswith(b"HTTP/1"))
        self._first = False
        self._payload_left = int.from_bytes(head[:3]) - (len(head) - 9)
        self._keeping_back = False
        if head[3] == GOAWAY:
            self.going_away = True
            last, error = int.from_bytes(head[9:13]) & _STREAM, int.from_bytes(head[13:17])
            self._keeping_back = len(head) == 17 and not error and last >= (stream or 0)
        return b"" if self._keeping_back else head
