"""An agent's own /metrics, /healthz and /readyz, for those who scrape agents: bounded, without a framework.

Hides the standard library's server: eight requests at a time, five seconds each however they trickle in, GET only.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from monitor.model import MonitorError

REQUEST_SECONDS = 5.0
AT_ONCE = 8

Exposition = Callable[[str], tuple[str, bytes]]
"""`Accept` header -> content type and body."""
Health = Callable[[], Mapping[str, str | None]]


class OwnPageError(MonitorError):
    """The address cannot be used."""


class OwnPage:
    """Serves in threads of its own from `start` to `stop`; `metrics` and `health` are called there."""

    def __init__(self, host: str, port: int, metrics: Exposition, health: Health) -> None:
        """Take the address. Raises OwnPageError when it cannot be had."""
        handler = type("Handler", (_Handler,), {"metrics": staticmethod(metrics), "health": staticmethod(health)})
        try:
            self._server = _Server((host, port), handler)
        except OSError as error:
            raise OwnPageError(f"metrics cannot be served on {host}:{port}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port that was taken."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(2.0)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._until: dict[socket.socket, float] = {}  # when each open connection has had its time
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Refuse what comes beyond the places there are, by hanging up."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection and give its place back."""
        self._until[request] = time.monotonic() + REQUEST_SECONDS
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._until[request]
            self._places.release()

    def service_actions(self) -> None:
        """End what takes too long; the standard library calls this twice a second."""
        for request, until in list(self._until.items()):
            if time.monotonic() > until:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nobody's error."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server_version = "firsttoken"
    sys_version = ""
    metrics: Exposition
    health: Health

    def do_GET(self) -> None:  # the standard library's name
        """One of three pages."""
        match self.path.partition("?")[0]:
            case "/metrics":
                content_type, body = self.metrics(self.headers.get("accept", ""))
                self._answer(200, content_type, body)
            case "/healthz":
                self._answer(200, "text/plain", b"ok\n")
            case "/readyz":
                checks = dict(self.health())
                good = all(trouble is None for trouble in checks.values())
                said = {part: trouble or "ok" for part, trouble in checks.items()}
                body = json.dumps({"ready": good, "checks": said}).encode()
                self._answer(200 if good else 503, "application/json", body)
            case _:
                self._answer(404, "text/plain", b"there are /metrics, /healthz and /readyz\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""
