"""llmock, a server of others' making, read in every format that it serves; the faults it injects get their kinds."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.clock import Clock
from monitor.model import (
    Attempt,
    DialectName,
    FailureKind,
    Outcome,
    Probe,
    Purpose,
    Secret,
    Series,
    Slot,
    Target,
    Vantage,
)
from monitor.timeline import Mark, Phase
from tests.ports import free_port

pytestmark = pytest.mark.skipif(find_spec("llmock") is None, reason="llmock (judges group) is not installed")

K, D = FailureKind, DialectName

FORMATS = {
    "openai": (D.OPENAI_CHAT, "/v1"),
    "responses": (D.OPENAI_RESPONSES, "/v1"),
    "anthropic": (D.ANTHROPIC, "/anthropic"),
    "gemini": (D.GEMINI, "/gemini/v1beta"),
    "cohere": (D.COHERE, "/cohere"),
    "mistral": (D.OPENAI_CHAT, "/mistral/v1"),
    "groq": (D.OPENAI_CHAT, "/groq/openai/v1"),
    "together": (D.OPENAI_CHAT, "/together/v1"),
    "perplexity": (D.OPENAI_CHAT, "/perplexity/v1"),
    "ai21": (D.OPENAI_CHAT, "/ai21/v1"),
    "xai": (D.OPENAI_CHAT, "/xai/v1"),
}
TEXT = "One two three four five six"


class LLMock:
    """A running server; `script` says what the next requests get."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def post(self, path: str, said: Any) -> None:
        request = urllib.request.Request(
            self.url + path, json.dumps(said).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            answer.read()

    def script(self, *behaviours: dict[str, Any]) -> None:
        self.post("/_llmock/reset", {})
        self.post("/_llmock/scenario", {"behaviors": [{"type": "reply", "text": TEXT}, *behaviours]})


@pytest.fixture(scope="module")
def server() -> Iterator[LLMock]:
    port = free_port()
    program = [str(Path(sys.executable).with_name("llmock")), "serve", "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen([*program, "--stream-chunk-delay-ms", "15"], stdout=subprocess.DEVNULL)
    try:
        for _ in range(150):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.2):
                break
            assert process.poll() is None
            time.sleep(0.1)
        yield LLMock(port)
    finally:
        process.terminate()
        process.wait(timeout=10)


def ask(server: LLMock, name: str, **probe: Any) -> Attempt:
    dialect, path = FORMATS[name]
    target = Target(
        name=name, provider=name, model="m", dialect=dialect, url=server.url + path, api_key=Secret("sk-llmock-0123456")
    )
    series = Series(
        vantage=Vantage(name="here"),
        target=target,
        probe=Probe(name="p", prompt="Hi", **{"deadline_seconds": 8.0, **probe}),
    )

    async def once() -> Attempt:
        prober = Prober(Clock(), max_concurrent=2)
        await prober.start()
        try:
            slot = Slot(vantage="here", target=name, probe="p", scheduled_at=prober.now(), number=0)
            return await prober.run(slot, series, purpose=Purpose.ONE_OFF)
        finally:
            await prober.close()

    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(once())


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read(server: LLMock, name: str) -> None:
    """A success with one token event a word, a finish reason, usage, and marks in their order."""
    server.script()
    attempt = ask(server, name)
    assert attempt.failure is None
    assert attempt.outcome is Outcome.SUCCESS
    assert attempt.token_events == len(TEXT.split())
    assert attempt.finish_reason is not None
    assert attempt.tokens.output is not None
    marks = attempt.timeline.marks
    assert (
        marks[Mark.HEADERS] <= marks[Mark.FIRST_TOKEN] < marks[Mark.LAST_TOKEN] <= marks[Mark.FINISH] <= marks[Mark.END]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_call_is_read(server: LLMock, name: str) -> None:
    """A call of a tool is an answer too, with its own first mark."""
    server.script()
    server.post("/_llmock/reset", {})
    call = {"name": "get_weather", "arguments": {"city": "Lagos", "unit": "celsius"}}
    server.post("/_llmock/scenario", {"behaviors": [{"type": "reply", "tool_calls": [call]}]})
    attempt = ask(server, name)
    assert attempt.failure is None
    assert Mark.FIRST_TOOL in attempt.timeline.marks
    assert Mark.FIRST_VISIBLE not in attempt.timeline.marks


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("truncate", K.TRUNCATED),
        ("disconnect", K.DISCONNECTED),
        ("malformed", K.PROTOCOL_ERROR),
        ("stall", K.STALLED),
    ],
)
def test_stream_faults_get_their_kinds(server: LLMock, name: str, fault: str, kind: FailureKind) -> None:
    """Cut cleanly, cut hard, garbage, silence: each between two tokens."""
    after = 7 if name == "responses" else 4  # four of its events come before the first token
    server.script({"type": "stream_fault", "kind": fault, "after_chunks": after, "stall_seconds": 3.0})
    attempt = ask(server, name, stall_seconds=0.4)
    assert attempt.failure is not None
    assert attempt.failure.kind is kind
    assert attempt.failure.phase is Phase.GENERATE


STATUSES = {
    400: {K.BAD_REQUEST},
    401: {K.UNAUTHORIZED},
    403: {K.FORBIDDEN},
    404: {K.NOT_FOUND, K.MODEL_GONE},
    429: {K.RATE_LIMITED},
    500: {K.SERVER_ERROR},
    503: {K.OVERLOADED},
}


@pytest.mark.parametrize("name", ["openai", "responses", "anthropic", "gemini", "cohere", "mistral"])
@pytest.mark.parametrize("status", STATUSES)
def test_refusals_get_their_kinds(server: LLMock, name: str, status: int) -> None:
    """Each vendor's error envelope for each status."""
    server.post("/_llmock/reset", {})
    server.post("/_llmock/scenario", {"behaviors": [{"type": "fail", "status": status, "retry_after": 7}]})
    attempt = ask(server, name)
    assert attempt.failure is not None
    assert attempt.failure.kind in STATUSES[status]
    assert attempt.failure.phase is Phase.WAIT
    assert attempt.http.status == status


def test_a_slow_first_token_and_a_late_one(server: LLMock) -> None:
    """Waiting shows in the first token's time, and passes its deadline where there is one."""
    server.script({"type": "slow_first_token", "seconds": 0.6})
    slow = ask(server, "anthropic")
    assert slow.failure is None
    assert slow.timeline.marks[Mark.FIRST_TOKEN] - slow.timeline.marks[Mark.SEND_END] > 550_000_000
    server.script({"type": "slow_first_token", "seconds": 3.0})
    late = ask(server, "openai", first_token_deadline_seconds=0.5)
    assert late.failure is not None
    assert late.failure.kind is K.FIRST_TOKEN_DEADLINE
