"""One request and the way to answer it, the same over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from monitor.simulator.channel import Sent
from monitor.simulator.question import Request

MAX_BODY_BYTES = 1_000_000
MAX_HEADER_BYTES = 65_536


class Head(NamedTuple):
    """Status and headers of a response; names in lower case."""

    status: int
    headers: list[tuple[str, str]]


class Exchange(Protocol):
    """Answers one request. `send` puts all it is given into one socket write (HTTP/2: as the windows allow)."""

    request: Request

    async def send(self, *, head: Head | None = None, data: bytes = b"", end: bool = False) -> Sent:
        """Send and return the stamps. Raises ConnectionError or OSError when the client has gone."""
        ...

    def abort(self, *, reset: bool = False) -> None:
        """Break the response off: HTTP/1.1 closes, HTTP/2 sends RST_STREAM; with `reset` both send a TCP RST."""
        ...
