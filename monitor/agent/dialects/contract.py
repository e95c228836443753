"""What a dialect is: how to ask in it, and how to read its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from monitor.agent.events import Seen, StreamEvent
from monitor.model import DialectName, Probe, Secret, Target

OPENING_BYTES = 2048
"""How much of the beginning of a body a decoder keeps, for telling a page or a whole JSON answer from a stream."""


class Sign(Protocol):
    """Proof of who asks, for protocols where it depends on the request and the hour."""

    def __call__(self, method: str, url: str, body: bytes, at: datetime) -> Mapping[str, str | Secret]:
        """Headers to be sent over those of the request, for exactly these bytes at this instant (aware)."""


@dataclass(frozen=True, slots=True)
class RequestParts:
    """One POST. Header names are lower-case; a Secret among the values is revealed only when put on the wire.

    Where `sign` is given it is called for each request that goes out (the control request too), before any time counts.
    """

    url: str
    headers: Mapping[str, str | Secret]
    body: Mapping[str, object]  # to be sent as JSON
    sign: Sign | None = None


class Decoder(Protocol):
    """Reads one response body. Never raises, whatever the bytes: what cannot be read is an ERROR event."""

    opening: bytes  # the first bytes of the body, at most OPENING_BYTES
    body_bytes: int
    seen: Seen  # the sum of all events given out so far

    @property
    def finished(self) -> bool:
        """Whether a finish reason was seen."""

    @property
    def done(self) -> bool:
        """Whether the dialect's terminal marker was seen."""

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that these bytes complete, in order."""

    def finish(self) -> list[StreamEvent]:
        """End of the body: what an unterminated last event still says. A second call gives nothing."""


class BodyMemory:
    """What every decoder remembers of a body: how it begins, how long it is, what was seen in it."""

    def __init__(self) -> None:
        self.opening = b""
        self.body_bytes = 0
        self.seen = Seen()

    @property
    def finished(self) -> bool:
        """Whether a finish reason was seen."""
        return self.seen.finish_reason is not None

    @property
    def done(self) -> bool:
        """Whether the dialect's terminal marker was seen."""
        return self.seen.done

    def remember(self, data: bytes) -> None:
        """More of the body has come."""
        if len(self.opening) < OPENING_BYTES:
            self.opening += data[: OPENING_BYTES - len(self.opening)]
        self.body_bytes += len(data)


class Dialect(Protocol):
    """The wire protocol of a streaming API."""

    @property
    def name(self) -> DialectName: ...

    def request(self, target: Target, probe: Probe, prompt: str) -> RequestParts:
        """The streaming request for `prompt` (which already carries the nonce)."""

    def control_url(self, target: Target) -> str:
        """A cheap authenticated GET at the same origin: the list of models. Headers as those of `request`."""

    def decoder(self) -> Decoder:
        """A fresh decoder for one response body."""
