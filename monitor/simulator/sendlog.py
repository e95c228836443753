"""The truth about sending: for every event the instants just before and just after its socket send.

Cheap enough for ten thousand events a second: plain tuples in memory, buffered lines on disk, no fsync. Instants
are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TextIO


class SendKind(StrEnum):
    """What was sent (closed list)."""

    REQUEST = "request"  # not a send: the whole request had been read
    HEADERS = "headers"
    PREAMBLE = "preamble"  # role chunk, response.created, message_start, ping
    STRUCTURE = "structure"  # parts and blocks that begin or end
    TOKEN = "token"  # `token` counts all generated tokens from 0, reasoning included
    FINISH = "finish"
    USAGE = "usage"
    DONE = "done"  # the dialect's terminal marker
    ERROR = "error"
    COMMENT = "comment"
    BODY = "body"  # an answer that is no stream
    END = "end"  # end of the body


class Sending(NamedTuple):
    """One event. The truth lies between `before_ns` and `after_ns`; events of one write share them."""

    stream: str  # the `x-request-id` of the response
    kind: str
    token: int | None  # its number from 0, of `token` events only
    before_ns: int
    after_ns: int
    size: int  # bytes of the event, before HTTP framing, compression and TLS


class SendLog:
    """Keeps the newest streams in memory (about `keep` events) and, with a path, writes every event as a JSON line."""

    def __init__(self, path: str | Path | None = None, *, keep: int = 200_000) -> None:
        self.forgotten = 0  # events dropped from memory
        self._streams: dict[str, list[Sending]] = {}
        self._kept, self._keep = 0, keep
        self._file: TextIO | None = None
        if path is not None:
            self._file = Path(path).open("w", buffering=1 << 16)  # noqa: SIM115 - `close` closes it

    def add(self, stream: str, kind: SendKind, token: int | None, before_ns: int, after_ns: int, size: int) -> None:
        """Record one event."""
        if self._keep:
            entry = Sending(stream, kind, token, before_ns, after_ns, size)
            self._streams.setdefault(stream, []).append(entry)
            self._kept += 1
            if self._kept > self._keep:
                self._forget()
        if self._file is not None:
            number = "null" if token is None else token
            self._file.write(
                f'{{"stream":"{stream}","kind":"{kind.value}","token":{number},'
                f'"before_ns":{before_ns},"after_ns":{after_ns},"size":{size}}}\n'
            )

    def of(self, stream: str) -> list[Sending]:
        """The events of one stream in the order they were sent; empty when unknown or forgotten."""
        return list(self._streams.get(stream, ()))

    def token(self, stream: str, number: int = 0) -> Sending | None:
        """The send of the stream's token `number`, None when it was never sent."""
        return next((s for s in self._streams.get(stream, ()) if s.kind == SendKind.TOKEN and s.token == number), None)

    @property
    def streams(self) -> list[str]:
        """The request ids in memory, oldest first."""
        return list(self._streams)

    def __iter__(self) -> Iterator[Sending]:
        for entries in list(self._streams.values()):
            yield from entries

    def flush(self) -> None:
        """Hand buffered lines to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Flush and close the file; what is in memory stays readable."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forget(self) -> None:
        oldest = next(iter(self._streams))
        dropped = len(self._streams.pop(oldest))
        self._kept -= dropped
        self.forgotten += dropped


def read_log(path: str | Path) -> dict[str, list[Sending]]:
    """The events of a send log file by stream; a last line cut short by a kill is left out."""
    streams: dict[str, list[Sending]] = {}
    with Path(path).open() as lines:
        for line in lines:
            if line.endswith("}\n"):
                entry = Sending(**json.loads(line))
                streams.setdefault(entry.stream, []).append(entry)
    return streams
