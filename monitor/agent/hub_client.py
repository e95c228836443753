"""The agent's line to its hub: attempts and notes up, configuration down, and the time. Outbound HTTPS only.

Hides HTTP and its statuses: whatever keeps the hub from taking something now is StoreUnavailable, and StoreRefuses when
somebody has to act; what it will never take is told row by row. Answers are bounded, redirects are not followed, and
the machine's proxy settings do not count.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx

from monitor import __version__
from monitor.agent.spoolrows import SpooledNote
from monitor.agent.transport import no_cookies, trusting
from monitor.agent.uplink import PutOff, Refusal
from monitor.clock import Clock
from monitor.model import Attempt, Secret, StoreRefuses, StoreUnavailable
from monitor.wire import WireError, encode, encode_note, encode_sighting
from monitor.wire.fleet import (
    MAX_ANSWER_BYTES,
    MAX_PACKED_BYTES,
    MAX_UPLOAD_BYTES,
    Heartbeat,
    Receipt,
    decode_receipt,
    encode_heartbeat,
    encode_upload,
)
from monitor.witness import Sighting

MAX_CONFIG_BYTES = 4_000_000
TIMEOUT = httpx.Timeout(30.0, connect=15.0)
EXCHANGE_SECONDS = 60.0
"""For a question and its whole answer: one that comes byte by byte holds nothing up for longer."""
LONGEST_RETRY_AFTER_SECONDS = 300.0
KEEP_ALIVE_SECONDS = 60.0
_PATH = "/api/v1/agent/"
_DIGEST = re.compile(r"[0-9A-Za-z]{1,64}")


class TooLarge(Exception):
    """More than the hub takes at once: fewer attempts may pass."""


class NotForUs(StoreRefuses):
    """The hub knows the token, but its configuration does not have this vantage point (any more)."""


@dataclass(frozen=True, slots=True)
class Handout:
    """A configuration as the hub tells it."""

    vantage: str
    digest: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Beat:
    """What the hub answered to a heartbeat."""

    config_digest: str | None  # of the newest configuration
    offset_seconds: float  # this machine's wall clock minus the hub's
    error_seconds: float  # the offset is right to within this: half the time of the question


class HubClient:
    """One hub, for one event loop. `close` it."""

    def __init__(
        self,
        url: str,
        token: Secret,
        agent: Callable[[], str],
        clock: Clock,
        *,
        ca_file: str | None = None,
        proxy: str | None = None,
        exchange_seconds: float = EXCHANGE_SECONDS,
    ) -> None:
        """Raises StoreRefuses for a CA file that cannot be used."""
        self._url = url.rstrip("/")
        self._token = token
        self._agent = agent
        self._clock = clock
        self._exchange_seconds = exchange_seconds
        self._client = httpx.AsyncClient(
            verify=_trust(self._url, ca_file),
            proxy=proxy,
            trust_env=False,
            cookies=no_cookies(),
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=4, keepalive_expiry=KEEP_ALIVE_SECONDS),
            headers={
                "user-agent": f"firsttoken-agent/{__version__}",
                "accept": "application/json",
                "accept-encoding": "identity",  # small answers; and nothing that unpacks to more than was read
            },
        )

    async def close(self) -> None:
        """Let the connections go."""
        await self._client.aclose()

    # ------------------------------------------------------------------------------------------------ up

    async def deliver(self, attempts: Sequence[Attempt]) -> tuple[Sequence[Refusal], Receipt]:
        """Attempts that the hub will not take, with reasons, and its receipt. Raises StoreUnavailable, TooLarge."""
        receipt = await self._upload([encode(attempt) for attempt in attempts], ())
        reasons = dict(receipt.rejected) | {index: PutOff(reason) for index, reason in receipt.deferred.items()}
        return [(attempts[index], reason) for index, reason in reasons.items() if index < len(attempts)], receipt

    async def say(self, notes: Sequence[SpooledNote]) -> Sequence[tuple[int, str]]:
        """Notes that the hub will never take: (id, reason). Raises StoreUnavailable."""
        receipt = await self._upload((), [encode_note(one.note) for one in notes])
        refused = receipt.notes_rejected.items()
        return [(notes[index].note.id, reason) for index, reason in refused if index < len(notes)]

    async def sight(self, sightings: Sequence[Sighting]) -> Sequence[tuple[Sighting, str]]:
        """Sightings that the hub will never take, with reasons. Raises StoreUnavailable."""
        receipt = await self._upload((), (), [encode_sighting(one) for one in sightings])
        refused = receipt.sightings_rejected.items()
        return [(sightings[index], reason) for index, reason in refused if index < len(sightings)]

    async def _upload(
        self, attempts: Sequence[bytes], notes: Sequence[object], sightings: Sequence[object] = ()
    ) -> Receipt:
        body = encode_upload(self._agent(), attempts, notes, sightings)
        packed = gzip.compress(body, 6)
        if len(packed) > MAX_PACKED_BYTES or len(body) > MAX_UPLOAD_BYTES:
            raise TooLarge
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        _, _, answer = await self._ask("POST", "attempts", MAX_ANSWER_BYTES, content=packed, headers=headers)
        try:
            return decode_receipt(answer)
        except WireError as error:
            raise StoreUnavailable(f"{self._url} answers what no hub would: {error}") from error

    # ------------------------------------------------------------------------------------------------ down

    async def config(self, known_digest: str | None) -> Handout | None:
        """The configuration, None when it is the known one. Raises NotForUs, StoreUnavailable."""
        headers = {"if-none-match": f'"{known_digest}"'} if known_digest else {}
        status, _, answer = await self._ask("GET", "config", MAX_CONFIG_BYTES, headers=headers)
        if status == 304:
            return None
        try:
            told = json.loads(answer)
            content = json.dumps(told["config"], ensure_ascii=False, separators=(",", ":")).encode()
            vantage, digest = str(told["vantage"]), str(told["digest"])
            if not _DIGEST.fullmatch(digest):
                raise ValueError
            return Handout(vantage, digest, content)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreUnavailable(f"{self._url} hands out no configuration ({type(error).__name__})") from error

    async def beat(self, heartbeat: Heartbeat) -> Beat:
        """Say how this agent is; learn the time and whether there is a newer configuration. Raises StoreUnavailable."""
        began_ns, wall_ns = self._clock.monotonic_ns(), self._machine_ns()
        _, _, answer = await self._ask("POST", "heartbeat", MAX_ANSWER_BYTES, content=encode_heartbeat(heartbeat))
        lasted_ns = self._clock.monotonic_ns() - began_ns
        try:
            told = json.loads(answer)
            middle = (_instant(told["received_at"]) + _instant(told["now"])) / 2
            digest = told["config_digest"]
            return Beat(
                config_digest=None if digest is None else str(digest)[:64],
                offset_seconds=(wall_ns + lasted_ns / 2) / 1e9 - middle,
                error_seconds=lasted_ns / 2e9,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise StoreUnavailable(f"{self._url} answers no time ({type(error).__name__})") from error

    def _machine_ns(self) -> int:
        """The machine's own wall clock, whatever corrections are in force."""
        return self._clock.monotonic_ns() + self._clock.offset_ns()

    # ------------------------------------------------------------------------------------------------ HTTP

    async def _ask(
        self,
        method: str,
        path: str,
        limit: int,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, httpx.Headers, bytes]:
        said = {"authorization": f"Bearer {self._token.reveal()}", **(headers or {})}
        url = self._url + _PATH + path
        try:
            async with (
                asyncio.timeout(self._exchange_seconds),
                self._client.stream(method, url, content=content, headers=said) as answer,
            ):
                body = await self._read(answer, limit)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self._url} gives no whole answer in {self._exchange_seconds:.0f} s") from error
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            raise StoreUnavailable(f"{self._url} cannot be reached: {_words(error)}") from error
        if answer.status_code not in (200, 304):
            raise self._refusal(path, answer.status_code, answer.headers, body)
        return answer.status_code, answer.headers, body

    async def _read(self, answer: httpx.Response, limit: int) -> bytes:
        parts, size = [], 0
        if answer.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise StoreUnavailable(f"{self._url} answers in an encoding that nobody asked for")
        async for part in answer.aiter_raw():
            size += len(part)
            if size > limit:
                raise StoreUnavailable(f"{self._url} answers more than {limit} bytes")
            parts.append(part)
        return b"".join(parts)

    def _refusal(self, path: str, status: int, headers: httpx.Headers, body: bytes) -> Exception:
        told = _sentence(body)
        if status in (401, 403):
            return StoreRefuses(
                f"{self._url} does not know this agent's token ({status}): make a new one with `firsttoken vantage "
                "rotate NAME` on the hub and put it into the token's file here (where systemd hands that over: restart "
                "the agent); probing goes on, and all waits on disk"
            )
        if status == 404 and path == "config" and told:
            return NotForUs(f"{self._url}: {told}")
        if status == 413 and path == "attempts":
            return TooLarge()
        if status == 422:
            return StoreRefuses(f"{self._url} speaks another version: {told}")
        if status == 400 and told and path == "attempts":
            return ValueError(told)
        if status in (400, 429) or status >= 500 or status == 408:
            away = StoreUnavailable(f"{self._url} answers {status}: {told or 'no reason given'}")
            away.retry_after_seconds = _retry_after(headers)
            return away
        return StoreUnavailable(f"{self._url} answers {status}, as no hub would: is the URL right?")


def _trust(url: str, ca_file: str | None) -> ssl.SSLContext | bool:
    if not url.startswith("https:"):
        return False
    try:
        return trusting(ca_file)
    except (ssl.SSLError, OSError) as error:
        raise StoreRefuses(f"ca_file {ca_file} cannot be used: {_words(error)}") from error


def _instant(text: str) -> float:
    """Seconds since the epoch. Raises ValueError for a time of nobody knows which zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return moment.timestamp()


def _words(error: Exception) -> str:
    cause = error.__cause__ or error.__context__
    text = str(error) or (str(cause) if cause is not None else "")
    return (text or type(error).__name__)[:300]


def _sentence(body: bytes) -> str:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(told.get("error", ""))[:300] if isinstance(told, dict) else ""


def _retry_after(headers: httpx.Headers) -> float:
    """Seconds, bounded; a date is taken against the answer's own, as either clock may be wrong."""
    text = headers.get("retry-after", "").strip()
    try:
        asked = parsedate_to_datetime(text) - parsedate_to_datetime(headers["date"])
        seconds = asked.total_seconds()
    except (ValueError, TypeError, KeyError, OverflowError):
        seconds = float(text) if text.isascii() and text.isdecimal() and len(text) < 8 else 0.0
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER_SECONDS)
