"""The hub's door for agents: uploads, their configuration, heartbeats. What a stranger may send is bounded here.

Hides HTTP: who may come in (a bearer token, looked up at every request), how much may be sent (packed and unpacked, in
how long a time, how many at once), and which answer means what to an agent: 4xx "this never works", 503 "later".
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from monitor.clock import Clock
from monitor.config.handout import digest
from monitor.hub.ingest import NotYet
from monitor.metrics.fleet import FleetMetrics
from monitor.model import StoreUnavailable
from monitor.store.engine import RowRefused
from monitor.wire import ForeignVersion, WireError, dumps, rfc3339
from monitor.wire.fleet import (
    MAX_HEARTBEAT_BYTES,
    MAX_PACKED_BYTES,
    MAX_UPLOAD_BYTES,
    Heartbeat,
    Receipt,
    Upload,
    decode_heartbeat,
    decode_upload,
    encode_receipt,
)

PREFIX = "/api/v1/agent/"
BODY_SECONDS = 30.0
"""For a whole body: a slow client holds a connection no longer."""
READING_AT_ONCE = 16
"""Uploads that are held in memory, packed, while they come in and until they are stored: 64 MB at most."""
TAKING_AT_ONCE = 2
"""Uploads that are unpacked and stored at one time; the database and one process gain nothing from more."""
WAITING_SECONDS = 20.0
"""For a place among either."""
RETRY_SECONDS = 5
PATIENCE_BYTES = 4_000_000
"""Of a body that is too large, so much more is read and thrown away."""

Authorization = Annotated[str | None, Header(max_length=300)]


class Desk(Protocol):
    """What requests are answered from; every method may block on the database and raise StoreUnavailable."""

    def whose(self, token: str) -> str | None:
        """The vantage point that a token speaks for."""

    def take(self, vantage: str, upload: Upload) -> Receipt:
        """Store an upload."""

    def beat(self, vantage: str, heartbeat: Heartbeat) -> None:
        """Remember how an agent is."""

    def handout(self, vantage: str) -> bytes | None:
        """Its configuration; None when the fleet's configuration does not have it."""


def agents_router(desk: Desk, metrics: FleetMetrics, clock: Clock) -> APIRouter:
    """The endpoints, for one event loop."""
    router = APIRouter(prefix=PREFIX.rstrip("/"), tags=["agents"])
    door = Door(desk, metrics, clock)

    @router.post("/attempts", responses=_RESPONSES)
    async def attempts(request: Request, authorization: Authorization = None) -> Response:
        """Take in a batch of attempts and notes: gzip JSON, at most 500 rows; answered row by row."""
        return await door.enter(authorization, lambda vantage: door.upload(request, vantage))

    @router.get("/config", responses=_RESPONSES)
    async def config(
        authorization: Authorization = None,
        if_none_match: Annotated[str | None, Header(max_length=300)] = None,
    ) -> Response:
        """The configuration of the token's vantage point; 304 when the agent has it already."""
        return await door.enter(authorization, lambda vantage: door.config(vantage, if_none_match or ""))

    @router.post("/heartbeat", responses=_RESPONSES)
    async def heartbeat(request: Request, authorization: Authorization = None) -> Response:
        """How an agent is; answered with the hub's time and the digest of the newest configuration."""
        return await door.enter(authorization, lambda vantage: door.heartbeat(request, vantage))

    return router


class Refused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


class Door:
    """One event loop's bounds, and what each endpoint does."""

    def __init__(self, desk: Desk, metrics: FleetMetrics, clock: Clock) -> None:
        self._desk = desk
        self._metrics = metrics
        self._clock = clock
        self._reading = asyncio.Semaphore(READING_AT_ONCE)
        self._taking = asyncio.Semaphore(TAKING_AT_ONCE)

    async def enter(self, authorization: str | None, then: Callable[[str], Awaitable[Response]]) -> Response:
        """Let in who has a token; every refusal is JSON with one sentence."""
        try:
            return await then(await self._vantage(authorization))
        except Refused as error:
            return JSONResponse({"error": error.sentence}, status_code=error.status, headers=error.headers)
        except NotYet as error:
            return _later(503, str(error))
        except StoreUnavailable:
            return _later(503, "the database is away; keep what you have and come again")

    async def _vantage(self, authorization: str | None) -> str:
        scheme, _, token = (authorization or "").partition(" ")
        vantage = None
        if scheme.lower() == "bearer" and token.strip():
            vantage = await asyncio.to_thread(self._desk.whose, token.strip())
        if vantage is None:
            sentence = "no such token, or it was revoked: `firsttoken vantage rotate` makes a new one"
            raise Refused(401, sentence, **{"www-authenticate": "Bearer"})
        return vantage

    # ------------------------------------------------------------------------------------------------ endpoints

    async def upload(self, request: Request, vantage: str) -> Response:
        """Read, unpack, store."""
        with self._metrics.ingesting() as batch:
            unpack = _unpacker(request.headers.get("content-encoding", ""))
            async with _Place(self._reading):
                packed = await self._body(request, MAX_PACKED_BYTES)
                with batch.timed():
                    async with _Place(self._taking):
                        receipt = await asyncio.to_thread(self._take, vantage, packed, unpack)
            batch.stored(vantage, _counts(receipt))
        return Response(encode_receipt(receipt, self._clock.now()), media_type="application/json")

    def _take(self, vantage: str, packed: bytearray, unpack: Callable[[bytearray], bytes]) -> Receipt:
        try:
            return self._desk.take(vantage, decode_upload(unpack(packed)))
        except ForeignVersion as error:
            raise Refused(422, str(error)) from None
        except WireError as error:
            raise Refused(400, str(error)) from None
        except RowRefused as error:
            raise Refused(400, f"Postgres refused it: {error}") from None

    async def config(self, vantage: str, known: str) -> Response:
        """The handout, or 304."""
        handout = await asyncio.to_thread(self._desk.handout, vantage)
        if handout is None:
            raise Refused(404, f"the fleet's configuration has no vantage point {vantage!r}")
        tag = f'"{digest(handout)}"'
        if tag in known:
            return Response(status_code=304, headers={"etag": tag})
        body = b'{"vantage":%s,"digest":%s,"config":%s}' % (dumps(vantage), dumps(tag.strip('"')), handout)
        return Response(body, media_type="application/json", headers={"etag": tag, "cache-control": "no-store"})

    async def heartbeat(self, request: Request, vantage: str) -> Response:
        """Remember it, and say what the time is here."""
        arrived = self._clock.now()
        try:
            beat = decode_heartbeat(bytes(await self._body(request, MAX_HEARTBEAT_BYTES)))
        except WireError as error:
            raise Refused(400, str(error)) from None
        await asyncio.to_thread(self._desk.beat, vantage, beat)
        handout = await asyncio.to_thread(self._desk.handout, vantage)
        return JSONResponse(
            {
                "received_at": rfc3339(arrived),
                "now": rfc3339(self._clock.now()),
                "config_digest": None if handout is None else digest(handout),
            }
        )

    # ------------------------------------------------------------------------------------------------ bounds

    async def _body(self, request: Request, limit: int) -> bytearray:
        """The whole body. One that is too large is read a little further and thrown away, so that its sender, who
        listens only when all is sent, hears why; then the connection is closed.
        """
        body, size = bytearray(), 0  # not a list of parts, which would be held twice when it is joined
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size <= limit:
                        body += part
                    else:
                        body.clear()
                    if size > limit + PATIENCE_BYTES:
                        break
        except TimeoutError:
            raise Refused(408, f"the body did not come within {BODY_SECONDS:.0f} s", connection="close") from None
        except ClientDisconnect:
            raise Refused(400, "the body broke off", connection="close") from None
        if size > limit:
            sentence = f"the body is larger than {limit} bytes: send fewer attempts at a time"
            raise Refused(413, sentence, connection="close")
        return body


class _Place:
    """A place among so many; who waits too long for one is told to come again."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places

    async def __aenter__(self) -> None:
        try:
            await asyncio.wait_for(self._places.acquire(), WAITING_SECONDS)
        except TimeoutError:
            raise Refused(
                503, "too many agents upload at this moment; come again", **{"retry-after": str(RETRY_SECONDS)}
            ) from None

    async def __aexit__(self, *_: object) -> None:
        self._places.release()


def _unpacker(encoding: str) -> Callable[[bytearray], bytes]:
    match encoding.strip().lower():
        case "gzip":
            return gunzip
        case "" | "identity":
            return bytes
        case _:
            raise Refused(415, "the body must be gzip or plain JSON")


def gunzip(packed: bytes | bytearray, limit: int = MAX_UPLOAD_BYTES) -> bytes:
    """The unpacked bytes; raises WireError for what is no gzip or unpacks to more than `limit`; holds no more of it."""
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        data = unpacking.decompress(packed, limit + 1)
    except zlib.error as error:
        raise WireError(f"the body is no gzip: {error}") from None
    if len(data) > limit:
        raise WireError(f"the body unpacks to more than {limit} bytes")
    if not unpacking.eof:
        raise WireError("the body ends in the middle of its gzip stream")
    if unpacking.unused_data:
        raise WireError("the body goes on behind the end of its gzip stream")
    return data


def _counts(receipt: Receipt) -> dict[str, int]:
    return {
        "new": receipt.stored,
        "duplicate": receipt.duplicates,
        "conflict": len(receipt.conflicts),
        "rejected": len(receipt.rejected),
        "deferred": len(receipt.deferred),
    }


def _later(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status_code=status, headers={"retry-after": str(RETRY_SECONDS)})


_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"description": "Taken in, or told."},
    304: {"description": "The agent has this configuration."},
    400: {"description": "Malformed; never to be sent again."},
    401: {"description": "No token, or one that was revoked."},
    404: {"description": "The configuration does not have this vantage point."},
    408: {"description": "The body came too slowly."},
    413: {"description": "Too large: send fewer attempts at a time."},
    415: {"description": "Neither gzip nor plain JSON."},
    422: {"description": "A foreign version of the format."},
    503: {"description": "The database is away, or too many upload at once; see Retry-After."},
}
