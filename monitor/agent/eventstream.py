"""AWS event streams (`application/vnd.amazon.eventstream`), from bytes: the same messages however they are cut.

Hides the binary frame: total length, header length, CRC-32 of those, typed headers, payload, CRC-32 of everything
before. Both sums are checked. A frame that is wrong or beyond its bound ends the parse, as nothing after it can be
found again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 128 * 1024  # AWS's own bound
_PRELUDE = struct.Struct(">III")
_LEAST_BYTES = 16
_COMPACT_ABOVE_BYTES = 64 * 1024

_FIXED_BYTES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}  # true, false, byte ... long, timestamp, uuid
_STRING, _BYTES = 7, 6


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `headers` holds those whose value is a string (`:message-type`, `:event-type`, ...)."""

    headers: dict[str, str] = field(default_factory=dict)
    payload: bytes = b""


class BrokenFrame(Exception):
    """The bytes are no event stream, or no longer; the text says why."""


class TooLarge(BrokenFrame):
    """A frame beyond its bound."""


class EventStreamParser:
    """Feed it bytes in any pieces; it returns the messages that they complete. Once `broken` it swallows all."""

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max = max_message_bytes
        self._buffer = bytearray()
        self._at = 0  # where the next frame begins in the buffer
        self.broken: BrokenFrame | None = None

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. Never raises: what is wrong is in `broken`, after the good messages."""
        messages: list[Message] = []
        if self.broken is None:
            self._buffer += data
            try:
                while (message := self._next()) is not None:
                    messages.append(message)
            except BrokenFrame as error:
                self.broken = error
                self._buffer.clear()
            self._forget()
        return messages

    def finish(self) -> int:
        """End of the body: how many bytes of an incomplete frame are left over."""
        return 0 if self.broken else len(self._buffer) - self._at

    def _forget(self) -> None:
        if self._at > _COMPACT_ABOVE_BYTES or self._at >= len(self._buffer):
            del self._buffer[: self._at]
            self._at = 0

    def _next(self) -> Message | None:
        begin, have = self._at, len(self._buffer) - self._at
        if have < _PRELUDE.size:
            return None
        total, header_bytes, check = _PRELUDE.unpack_from(self._buffer, begin)
        self._check_prelude(total, header_bytes, check)
        if have < total:
            return None
        frame = bytes(self._buffer[begin : begin + total])
        if zlib.crc32(frame[:-4]) != int.from_bytes(frame[-4:]):
            raise BrokenFrame("a message whose checksum is wrong")
        self._at = begin + total
        end = _PRELUDE.size + header_bytes
        return Message(dict(_headers(frame[_PRELUDE.size : end])), frame[end:-4])

    def _check_prelude(self, total: int, header_bytes: int, check: int) -> None:
        if zlib.crc32(self._buffer[self._at : self._at + 8]) != check:
            raise BrokenFrame("bytes that are no event-stream message (the checksum of its beginning is wrong)")
        if total > self._max or header_bytes > MAX_HEADER_BYTES:
            raise TooLarge(f"a message of {total} bytes, {header_bytes} of them headers")
        if total < _LEAST_BYTES + header_bytes:
            raise BrokenFrame("a message shorter than its own headers")


def _headers(data: bytes) -> Iterator[tuple[str, str]]:
    """Name and value of the string headers; the others are passed over. Raises BrokenFrame when they do not add up."""
    at = 0
    try:
        while at < len(data):
            name_end = at + 1 + data[at]
            name, kind = data[at + 1 : name_end], data[name_end]
            at = name_end + 1
            if kind in (_STRING, _BYTES):
                size = int.from_bytes(data[at : at + 2])
                at += 2
            else:
                size = _FIXED_BYTES[kind]
            if at + size > len(data):
                raise BrokenFrame("headers that end in the middle of a value")
            if kind == _STRING:
                yield name.decode("utf-8", "replace"), data[at : at + size].decode("utf-8", "replace")
            at += size
    except (IndexError, KeyError):
        raise BrokenFrame("headers that cannot be read") from None
