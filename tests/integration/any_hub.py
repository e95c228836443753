"""A server that answers an agent with whatever a test wants: statuses, bytes that trickle, encodings, nothing."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str  # behind /api/v1/agent/
    headers: Mapping[str, str]  # small letters
    body: bytes


Answer = Callable[[Asked], bytes | tuple[bytes, float]]
"""What to write; with seconds: so long between two bytes."""


def answer(status: int, told: object, **headers: str) -> bytes:
    """A whole answer in JSON."""
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    head = {"content-type": "application/json", "content-length": str(len(body))}
    head |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def receipt(**changes: object) -> bytes:
    """All is taken."""
    told = {"stored": 0, "duplicates": 0, "conflicts": [], "rejected": [], "deferred": []}
    return answer(200, {**told, "notes_rejected": [], "sightings_rejected": [], "now": now(), **changes})


def now() -> str:
    return datetime.now(UTC).isoformat()


def beaten(**changes: object) -> bytes:
    """The answer to a heartbeat."""
    return answer(200, {"received_at": now(), "now": now(), "config_digest": None, **changes})


@dataclass
class AnyHub:
    """`answers` by path; every request is remembered. What has no answer gets a 500."""

    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    connections: int = 0

    def count(self, path: str) -> int:
        return sum(one.path == path for one in self.asked)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                asked = await _read(reader)
                self.asked.append(asked)
                said = self.answers.get(asked.path, lambda _: answer(500, {"error": "no answer"}))(asked)
                data, pause = said if isinstance(said, tuple) else (said, 0.0)
                for place in range(len(data)) if pause else ():
                    writer.write(data[place : place + 1])
                    await writer.drain()
                    await asyncio.sleep(pause)
                writer.write(b"" if pause else data)
                await writer.drain()
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path.removeprefix("/api/v1/agent/"), headers, body)


@asynccontextmanager
async def any_hub(answers: dict[str, Answer] | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[AnyHub]:
    """Serves on a free port of 127.0.0.1."""
    hub = AnyHub(answers or {})
    open_now: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        task.add_done_callback(open_now.discard)
        with suppress(asyncio.CancelledError):
            await hub.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    hub.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield hub
    finally:
        server.close()
        for task in list(open_now):
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)


async def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Wait for a fact."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  # a fact of the product, not an event of ours
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"in vain for {what}") from None
