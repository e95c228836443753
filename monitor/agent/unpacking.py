"""Content codings: what a server packed although identity was asked for, unpacked piece by piece and bounded.

Hides zlib's ways: deflate with and without its header, gzip in several members, output held back at a bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

PIECE_BYTES = 4 * 1024
"""Plain bytes come in pieces of at most this size: a flood can be left after each, and takes turns with others."""
_RAW = -zlib.MAX_WBITS


class UnknownEncoding(Exception):
    """The server compressed its answer in a way that was not asked for and is not known."""


def unpacker(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """What turns the pieces of a body into plain ones: identity, gzip, deflate. Raises UnknownEncoding.

    Calling it raises zlib.error on bytes that are not what `encoding` says.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return _sliced
    if name in ("gzip", "x-gzip"):
        return _Inflater(zlib.MAX_WBITS | 16).unpack
    if name == "deflate":
        return _Deflate().unpack
    raise UnknownEncoding(f"content-encoding {name[:40]!r}, though identity was asked for")


def _sliced(piece: bytes) -> Iterator[bytes]:
    if len(piece) <= PIECE_BYTES:
        return iter((piece,))
    return (piece[begin : begin + PIECE_BYTES] for begin in range(0, len(piece), PIECE_BYTES))


class _Inflater:
    """gzip or zlib; a new member may begin wherever one ends (RFC 1952, 2.2)."""

    def __init__(self, window_bits: int) -> None:
        self._window_bits = window_bits
        self._inflater = zlib.decompressobj(window_bits)

    def unpack(self, piece: bytes) -> Iterator[bytes]:
        while piece:
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(self._window_bits)
            plain = self._inflater.decompress(piece, PIECE_BYTES)
            piece = self._inflater.unconsumed_tail or self._inflater.unused_data
            if plain:
                yield plain


class _Deflate:
    """deflate, which by the letter has zlib's header and from some servers has none."""

    def __init__(self) -> None:
        self._inflater: _Inflater | None = None

    def unpack(self, piece: bytes) -> Iterator[bytes]:
        if self._inflater is None and piece:
            headed = piece[0] & 0x0F == 8 and piece[0] >> 4 <= 7  # CMF: method 8, window of at most 32 KiB
            self._inflater = _Inflater(zlib.MAX_WBITS if headed else _RAW)
        return self._inflater.unpack(piece) if self._inflater else iter(())
