"""Nothing outlasts its limit: refusals, what trails an answer, the control request, what comes too late in a batch."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from monitor.model import Attempt
from monitor.timeline import Mark
from tests.integration.probing import (
    CHUNK,
    DONE,
    FINISH,
    GOOD_BODY,
    STREAM_HEAD,
    Talk,
    attempt,
    failed,
    in_loop,
    prober,
    request,
    says,
    series,
    served,
    succeeded,
    whole,
)


def timed(talk: Talk, probe: dict[str, Any], tries: int = 3) -> tuple[Attempt, float]:
    """An attempt and the seconds that it kept its caller: the shortest of a few, as the machine may be busy."""

    async def ask_often() -> list[tuple[Attempt, float]]:
        made = []
        async with served(talk) as port, prober() as one:
            for _ in range(tries):
                began = time.monotonic()
                made.append((await attempt(one, series(f"http://127.0.0.1:{port}/v1", probe=probe)), began))
                made[-1] = (made[-1][0], time.monotonic() - began)
        return made

    return min(in_loop(ask_often), key=lambda pair: pair[1])


def test_the_body_of_a_refusal_is_read_inside_the_deadline() -> None:
    """A 401 whose body never ends is a 401 at the deadline, not two seconds after."""
    refusal = says(b'HTTP/1.1 401 No\r\ncontent-length: 999\r\n\r\n{"error":"no"', then="hold")
    made, took = timed(refusal, {"deadline_seconds": 0.4})
    failed(made, "unauthorized", "wait")
    assert took < 1.9


def test_what_trails_an_answer_is_read_inside_the_deadline() -> None:
    """A response that stays open after its end marker is a success, and its connection is left at the deadline."""
    left_open = says(STREAM_HEAD + b"content-length: 99999\r\n\r\n" + GOOD_BODY, then="hold")
    made, took = timed(left_open, {"deadline_seconds": 0.2})
    succeeded(made)
    assert took < 0.95


def _mute_for_get(answer: bytes) -> Talk:
    """Answers prompts, and never a control request."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await request(reader)).startswith(b"POST"):
            writer.write(answer)
            await writer.drain()
        await asyncio.sleep(60)

    return talk


def test_the_control_request_is_over_before_the_next_slot() -> None:
    """Slots are never closer than half-way between deadline and interval: it ends there, and spoils nothing."""
    made, took = timed(_mute_for_get(whole()), {"deadline_seconds": 0.8, "interval_seconds": 1.0, "control": True})
    succeeded(made)
    assert Mark.CONTROL_SENT in made.timeline.marks
    assert made.timeline.control is None
    assert took < 2


def test_an_answer_that_comes_after_its_deadline_is_late_though_its_batch_waited() -> None:
    """After the first token arrivals are handed on now and then: what came too late in the last batch is too late."""
    late = says(STREAM_HEAD + b"\r\n" + CHUNK, 0.55, FINISH + DONE)
    made, _ = timed(late, {"deadline_seconds": 0.5}, tries=1)
    failed(made, "total_deadline", "generate")


def test_of_a_refusal_64_kilobytes_are_read() -> None:
    """A server that sends 50 MB with its refusal is left at once: it gets rid of what buffers on the way hold."""
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request(reader)
        writer.write(b"HTTP/1.1 500 No\r\ncontent-length: 50000000\r\n\r\n")
        for _ in range(500):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    made, _ = timed(talk, {"deadline_seconds": 20.0}, tries=1)
    failed(made, "server_error", "wait")
    assert sent < 25_000_000
