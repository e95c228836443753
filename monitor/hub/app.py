"""The web application: the live page, its JSON, metrics and the two health answers. Reads only, keeps no session."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from monitor import __version__
from monitor.clock import NS, Clock
from monitor.hub import pages
from monitor.hub.answering import refuse_in_words
from monitor.hub.coverage import CoverageQueries, routes
from monitor.hub.live import REFRESH_SECONDS, Lines, LiveQueries, LiveView
from monitor.hub.pages import Choice
from monitor.hub.reading import ReadQueries, reading_routes
from monitor.metrics import Metrics
from monitor.model import Series

Name = Annotated[str | None, Query(max_length=200)]
CONTENT_SECURITY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
GZIP_FROM_BYTES = 1024
HEADER_BYTES = 16 * 1024
CHOICES = 64
"""Readers' choices whose JSON is kept for a second."""
SECURITY_HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

Health = Callable[[], Mapping[str, str | None]]
"""Names of the parts that must work, each with None, or with the sentence that says what is wrong. Must not block."""


def create_app(
    metrics: Metrics,
    queries: LiveQueries,
    health: Health,
    *,
    series: Callable[[], Sequence[Series]],
    next_slot: Callable[[Series], datetime | None] = lambda _: None,
    advice: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    notices: Callable[[], Sequence[str]] = tuple,
    coverage: CoverageQueries | None = None,
    read: ReadQueries | None = None,
    lines: Lines = dict,
    routers: Sequence[APIRouter] = (),
    bodies_under: str | None = None,
) -> FastAPI:
    """The application for one event loop. `routers` are the further doors of a hub, documented in its OpenAPI.

    `queries` is asked in a worker thread; `health`, `series` (what is configured now) and `next_slot` are called in
    the loop and must return at once. `advice` gives a sentence for each failure kind; `notices`, called there too,
    what readers must know now, without secrets. `coverage` (None: there is none) and `lines`, of vantage points, are
    asked like `queries`. Request bodies are read under `bodies_under` alone.
    """
    app = FastAPI(
        title="First Token",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json" if routers or read is not None else None,
    )
    clock = clock or Clock()
    view = LiveView(queries, series, next_slot, clock, notices, lines)
    _add_page(app, LiveBodies(view, dict(advice or {}), clock))
    if coverage is not None:
        app.include_router(routes(coverage, clock, _cached))
    if read is not None:
        app.include_router(reading_routes(read, clock, _cached))
    refuse_in_words(app)
    _add_operations(app, metrics, health)
    for router in routers:
        app.include_router(router)
    app.add_middleware(Guard, bodies_under=bodies_under)
    return app


def _add_page(app: FastAPI, bodies: LiveBodies) -> None:
    for path, asset in pages.ASSETS.items():
        app.add_api_route(path, _static(asset), methods=["GET", "HEAD"], include_in_schema=False)

    @app.get("/api/live", include_in_schema=False)
    async def live(
        request: Request,
        vantage: Name = None,
        target: Name = None,
        probe: Name = None,
        trouble: bool = False,
    ) -> Response:
        series = (vantage, target, probe) if vantage and target and probe else None
        return _cached(request, await bodies.get(Choice(series, trouble)), "application/json")


def _add_operations(app: FastAPI, metrics: Metrics, health: Health) -> None:
    one_at_a_time = asyncio.Lock()

    @app.get("/metrics", include_in_schema=False)
    async def exposition(request: Request) -> Response:
        async with one_at_a_time:
            content_type, body = await asyncio.to_thread(metrics.negotiate, request.headers.get("accept", ""))
        return _compressed(request, body, {"content-type": content_type})

    @app.get("/healthz", include_in_schema=False)
    async def healthy() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    async def ready() -> Response:
        checks = dict(health())
        good = all(trouble is None for trouble in checks.values())
        said = {part: trouble or "ok" for part, trouble in checks.items()}
        return JSONResponse({"ready": good, "checks": said}, status_code=200 if good else 503)


class LiveBodies:
    """The JSON of the live page, made at most once a second however many pages are open. For one event loop."""

    def __init__(self, view: LiveView, advice: Mapping[str, str], clock: Clock) -> None:
        self._view, self._advice, self._clock = view, advice, clock
        self._made: dict[Choice, tuple[int, bytes]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def get(self, choice: Choice) -> bytes:
        """`pages.live` for a choice, at most a second old."""
        async with self._one_at_a_time:
            made_ns, body = self._made.get(choice, (None, b""))
            if made_ns is None or self._clock.monotonic_ns() - made_ns >= REFRESH_SECONDS * NS:
                body = await asyncio.to_thread(pages.live, await self._view.now(), self._advice, choice)
                if len(self._made) >= CHOICES:
                    self._made.clear()
                self._made[choice] = (self._clock.monotonic_ns(), body)
            return body


def _static(asset: pages.Asset) -> Callable[[Request], Response]:
    async def serve(request: Request) -> Response:
        return _cached(request, asset.body, asset.content_type)

    return serve  # type: ignore[return-value]


def _cached(request: Request, body: bytes, content_type: str) -> Response:
    """The body, or 304 when the client has it."""
    headers = {"content-type": content_type, "etag": pages.etag(body), "cache-control": "no-cache"}
    if headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return _compressed(request, body, headers)


def _compressed(request: Request, body: bytes, headers: dict[str, str]) -> Response:
    if len(body) >= GZIP_FROM_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, 1)
        headers = {**headers, "content-encoding": "gzip"}
    return Response(body, headers={**headers, "vary": "accept-encoding"})


class Guard:
    """Outermost: refuses large headers, and bodies where none belong; adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, bodies_under: str | None = None) -> None:
        self._app = app
        self._bodies_under = bodies_under

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *SECURITY_HEADERS]
            await send(message)

        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        if has_body and not (self._bodies_under and scope["path"].startswith(self._bodies_under)):
            return _refuse(413, "this server reads no request bodies here\n")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            return _refuse(431, f"the request's headers are larger than {HEADER_BYTES} bytes\n")
        return None


def _refuse(status: int, sentence: str) -> Response:
    return PlainTextResponse(sentence, status_code=status, headers={"connection": "close"})
