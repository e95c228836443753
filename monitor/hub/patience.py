"""How long a client may take to say what it wants: half a request must not hold a connection for ever.

uvicorn bounds the idle time between requests, not the time that a request's head takes; this does.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0


class BoundedPatience(H11Protocol):
    """An HTTP/1.1 connection that is closed when no whole request comes within `HEAD_SECONDS` of its beginning."""

    _giving_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new client: its time begins."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """More of a request, or all of it."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        if self._giving_up is not None:
            self._giving_up.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if not self._waits_for_a_request():
            if self._giving_up is not None:
                self._giving_up.cancel()
                self._giving_up = None
        elif self._giving_up is None:
            self._giving_up = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._give_up)

    def _waits_for_a_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _give_up(self) -> None:
        self._giving_up = None
        if self._waits_for_a_request():
            self.transport.close()
