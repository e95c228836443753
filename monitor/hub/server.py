"""The web server: uvicorn in a thread of its own with a loop of its own, so that a page never delays a measurement.

Hides uvicorn, its signal handling and its limits: header block 16 KiB, so many connections at a time, ten seconds for
a request to be said, HTTP/1.1 only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from monitor.hub.listening import BACKLOG, ListenError, address_of, listen
from monitor.hub.patience import BoundedPatience

HEADER_BYTES = 16 * 1024
CONNECTIONS = 64
"""At a time, idle ones included; whoever comes beyond them is answered 503."""
FLEET_CONNECTIONS = 800
"""For a hub, whose agents keep theirs between two uploads; below the 1,024 files that a process may usually open."""
KEEP_ALIVE_SECONDS = 15
START_SECONDS = 10.0
GRACE_SECONDS = 1
TICK_SECONDS = 1.0


class WebServer:
    """Serves `app` on host:port (0: any free port) from `start` to `stop`. Also a context manager.

    `listener`: the socket of that address, where it was bound earlier; it is the server's from `start` on.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 8765,
        listener: socket.socket | None = None,
        *,
        connections: int = CONNECTIONS,
    ) -> None:
        self._host, self._port, self._listener = host, port, listener
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                http=BoundedPatience,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=connections,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
                h11_max_incomplete_event_size=HEADER_BYTES,
            )
        )
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen and return once requests are answered. Raises ListenError when the address cannot be had."""
        # uvicorn tells its start and end at INFO, once each, in words that mean nothing to our users
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        listener = self._listener or listen(self._host, self._port)
        self._port = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="web", daemon=True)
        self._thread.start()
        if not self._server.ready.wait(START_SECONDS):
            listener.close()
            raise ListenError(f"the web server did not start on {self.address} within {START_SECONDS:.0f} s")

    def stop(self) -> None:
        """Finish the requests that run (a second at most) and free the port. Harmless when not started."""
        if self._thread is None:
            return
        self._server.leave()
        self._thread.join(GRACE_SECONDS + 4.0)
        self._thread = None

    @property
    def port(self) -> int:
        """The port, known for certain after `start`."""
        return self._port

    @property
    def address(self) -> str:
        """host:port, an IPv6 host in brackets."""
        return address_of(self._host, self._port)

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104 (read, not bound)
        return f"http://{address_of(host, self._port)}/"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Uvicorn(uvicorn.Server):
    """Tells the starting thread when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self._leaving = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.ready.set()

    async def main_loop(self) -> None:
        """uvicorn's own wakes ten times a second to see whether it shall end; this one is told."""
        while not await self.on_tick(0):  # renews the Date header
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), TICK_SECONDS)

    def leave(self) -> None:
        """End, from another thread."""
        self.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leaving.set)
