"""Where responses begin in the bytes of a connection: HTTP/1 heads and HTTP/2 frames, followed but not parsed.

httpcore does the HTTP; it does not say which read held the first byte of a response, and takes an HTTP/2 response
without a status for a 200. This tells the one and the other, and nothing more.
"""

from __future__ import annotations

import re

HEADERS, GOAWAY = 0x1, 0x7
"""Types of HTTP/2 frames (RFC 9113, 6)."""
_GOAWAY_TYPE = bytes([GOAWAY])
_PADDED, _PRIORITY = 0x8, 0x20
_BLOCK_BYTES = 32
"""As much of a header block as is looked at: its first field's name."""
_STATUS_INDEXES = range(8, 15)
"""`:status` in the static table of HPACK (RFC 7541, appendix A); what is above 61 the peer has put there itself."""
_STATUS_NAMES = (b"\x07:status", b"\x85\xb8\x84\x8d\x36\xa3")
"""`:status` spelled out, and the same in Huffman's code (RFC 7541, 5.2)."""
_STREAM = 0x7FFFFFFF
_BLANK_LINE = re.compile(rb"\n\r?\n")
_VERSION = b"HTTP/"
_SHOWN_BYTES = 60
_INTERIM = re.compile(rb"HTTP/\d\.\d 1(?!01)")
"""1xx, but for 101: that one is final."""


class HeadWalker:
    """Follows HTTP/1 response heads from the first byte of a response, only to tell where the final one begins.

    Interim responses (100 Continue, 103 Early Hints) may come before it, in the same read or in pieces.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._final = False
        self.foreign = b""  # how what is no HTTP/1 answer begins: a peer may say a line, and then nothing, for ever
        self.behind = b""  # what follows the final head in the piece that completed it: the body's beginning

    def begins(self, data: bytes) -> bool:
        """Whether a response head begins in this piece of the stream; the last that does is the response's own."""
        begins, self.behind = False, b""
        while data and not self._final:
            begins = begins or not self._head
            searched = max(0, len(self._head) - 3)
            self._head += data
            if self._head[: len(_VERSION)] != _VERSION[: len(self._head)]:
                self.foreign = bytes(self._head[:_SHOWN_BYTES])
                break
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
        self._block: bytes | None = None  # what has come of the header block that is looked at
        self._flags = 0
        self._headed = 0  # the newest stream whose first header block was looked at
        self.is_http1 = False  # the peer answered in HTTP/1
        self.going_away = False  # the peer will take up no further request
        self.statusless = False  # a response head does not begin with its `:status`: httpcore would take it for a 200

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
                if self._block is not None:
                    self._look(piece)
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
        if head[3] == HEADERS:
            self._expect_status(head[4], int.from_bytes(head[5:9]) & _STREAM)
        if head[3] == GOAWAY:
            self.going_away = True
            last, error = int.from_bytes(head[9:13]) & _STREAM, int.from_bytes(head[13:17])
            self._keeping_back = len(head) == 17 and not error and last >= (stream or 0)
        return b"" if self._keeping_back else head

    def _expect_status(self, flags: int, stream: int) -> None:
        """The first header block of a stream is a response's head; later ones may be its trailers."""
        if stream > self._headed:
            self._headed, self._flags, self._block = stream, flags, b""
            if not self._payload_left:
                self._look(b"")

    def _look(self, piece: bytes) -> None:
        self._block = (self._block or b"") + piece[:_BLOCK_BYTES]
        if len(self._block) >= _BLOCK_BYTES or not self._payload_left:
            self.statusless = self.statusless or not _may_begin_with_status(self._block, self._flags)
            self._block = None


def _may_begin_with_status(block: bytes, flags: int) -> bool:
    """Whether the first field may be `:status`; False is certain. `block` is a HEADERS frame's payload, or its start.

    Pseudo-header fields come before all others (RFC 9113, 8.3), and a response has no other.
    """
    at = (1 if flags & _PADDED else 0) + (5 if flags & _PRIORITY else 0)
    while at < len(block) and block[at] >> 5 == 1:  # a size for the dynamic table comes before the fields
        _, at = _integer(block, at, 5)
    if at >= len(block):
        return False
    bits = 7 if block[at] & 0x80 else 6 if block[at] & 0x40 else 4
    index, at = _integer(block, at, bits)
    if not index:
        return block.startswith(_STATUS_NAMES, at)
    return index in _STATUS_INDEXES or index > 61


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """An integer of HPACK (RFC 7541, 5.1), and where it ends."""
    mask = (1 << bits) - 1
    value, shift, at = block[at] & mask, 0, at + 1
    more = value == mask
    while more and at < len(block):
        value += (block[at] & 0x7F) << shift
        more, shift, at = bool(block[at] & 0x80), shift + 7, at + 1
    return value, at
