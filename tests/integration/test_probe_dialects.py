"""Bedrock and Ollama through the whole probe: what really goes on the wire, signed, and what the marks say.

The server is a few lines that answer with the bytes that they are given; botocore judges the signature that arrived.
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.clock import Clock
from monitor.model import (
    Attempt,
    AwsCredentials,
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
from monitor.timeline import Mark

AWS = AwsCredentials(
    access_key_id=Secret("AKIDPLANTED"),
    secret_access_key=Secret("planted/secret+key"),
    session_token=Secret("planted-session-token"),
    region="eu-west-1",
)
Asked = tuple[str, str, dict[str, str], bytes]  # method, path, headers, body


def frame(name: str, said: dict[str, Any]) -> bytes:
    """One event-stream message."""
    payload = json.dumps(said).encode()
    named = {":message-type": "event", ":event-type": name}
    head = b"".join(
        bytes([len(key)]) + key.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for key, value in named.items()
    )
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    prelude += struct.pack(">I", zlib.crc32(prelude))
    body = prelude + head + payload
    return body + struct.pack(">I", zlib.crc32(body))


CONVERSE = [
    frame("messageStart", {"role": "assistant"}),
    frame("contentBlockDelta", {"delta": {"text": "Hel"}}),
    frame("contentBlockDelta", {"delta": {"text": "lo"}}),
    frame("messageStop", {"stopReason": "end_turn"}),
    frame("metadata", {"usage": {"inputTokens": 3, "outputTokens": 2}, "metrics": {"latencyMs": 40}}),
]
OLLAMA = [
    b'{"model":"m","message":{"content":"Hel"},"done":false}\n',
    b'{"model":"m","message":{"content":"lo"},"done":false}\n',
    b'{"model":"m","message":{"content":""},"done":true,"done_reason":"stop","load_duration":1500000000,"eval_count":2}\n',
]


class Server:
    """Answers every POST with `pieces`, 20 ms apart, and every GET with {}; keeps what was asked."""

    def __init__(self, pieces: list[bytes], content_type: str, broken_off: bool = False) -> None:
        self.asked: list[Asked] = []
        self._pieces, self._type, self._broken_off = pieces, content_type, broken_off

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                method, path, _ = first.split(" ")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append((method, path, headers, body))
                await self._answer(writer, method)
                if self._broken_off:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str) -> None:
        if method == "GET":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            return
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {self._type}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for piece in self._pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.02)
        if not self._broken_off:
            writer.write(b"0\r\n\r\n")


def ask(server: Server, dialect: DialectName, **target: Any) -> Attempt:
    """One attempt at the server, with a control request."""

    async def run() -> Attempt:
        async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            asked = Target(
                name="t", provider="p", dialect=dialect, url=f"http://127.0.0.1:{port}", **{"model": "m", **target}
            )
            probe = Probe(name="q", prompt="hello", deadline_seconds=5.0, control=True)
            prober = Prober(Clock(), max_concurrent=2)
            await prober.start()
            try:
                slot = Slot(vantage="here", target="t", probe="q", scheduled_at=prober.now(), number=0)
                series = Series(vantage=Vantage(name="here"), target=asked, probe=probe)
                return await prober.run(slot, series, purpose=Purpose.ONE_OFF)
            finally:
                await prober.close()

    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(run())


def botocores_signature(asked: Asked) -> str:
    """The Authorization header that botocore gives the request that arrived, at the instant that it names."""
    auth = pytest.importorskip("botocore.auth", reason="the judges group is not installed")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    method, path, headers, body = asked
    assert AWS.session_token is not None
    credentials = Credentials("AKIDPLANTED", "planted/secret+key", AWS.session_token.reveal())
    request = AWSRequest(
        method,
        f"http://{headers['host']}{path}",
        {"X-Amz-Content-SHA256": headers["x-amz-content-sha256"], "X-Amz-Date": headers["x-amz-date"]},
        body,
    )
    request.headers["X-Amz-Security-Token"] = headers["x-amz-security-token"]
    request.context["timestamp"] = headers["x-amz-date"]
    signer = auth.SigV4Auth(credentials, "bedrock", "eu-west-1")
    canonical = signer.canonical_request(request)
    signer._inject_signature_to_request(request, signer.signature(signer.string_to_sign(request, canonical), request))
    found: str = request.headers["Authorization"]
    return found


def test_bedrock_signed_on_the_wire() -> None:
    """Both requests arrive with a signature that botocore gives too; text, counts, marks; no credential is kept."""
    server = Server(CONVERSE, "application/vnd.amazon.eventstream")
    attempt = ask(server, DialectName.BEDROCK, aws=AWS, model="eu.amazon.nova-micro-v1:0")
    assert attempt.failure is None
    assert attempt.outcome is Outcome.SUCCESS
    (method, path, headers, body), control = server.asked
    assert (method, path) == ("POST", "/model/eu.amazon.nova-micro-v1%3A0/converse-stream")
    assert json.loads(body)["inferenceConfig"] == {"maxTokens": 64}
    assert headers["authorization"] == botocores_signature(server.asked[0])
    assert control[:2] == ("GET", "/async-invoke")
    assert control[2]["authorization"] == botocores_signature(control)
    signed_at = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert -1 <= (signed_at - attempt.started_at).total_seconds() < 30  # whole seconds, and perhaps a busy machine
    marks = attempt.timeline.marks
    assert (attempt.token_events, attempt.tokens.output, attempt.server["total"]) == (2, 2, 0.04)
    assert marks[Mark.FIRST_TOKEN] < marks[Mark.LAST_TOKEN] < marks[Mark.FINISH] < marks[Mark.DONE] == marks[Mark.END]
    assert Mark.CONTROL_HEADERS in marks
    assert "planted" not in repr(attempt).lower()


def test_bedrock_with_a_bearer() -> None:
    """A Bedrock API key goes as it is."""
    server = Server(CONVERSE, "application/vnd.amazon.eventstream")
    attempt = ask(server, DialectName.BEDROCK, api_key=Secret("bedrock-api-key-1"))
    assert attempt.failure is None
    assert server.asked[0][2]["authorization"] == "Bearer bedrock-api-key-1"
    assert "x-amz-date" not in server.asked[0][2]


def test_ollama() -> None:
    """Lines of JSON: the load time of the last one, marks of the first and the last token, the end at `done`."""
    server = Server(OLLAMA, "application/x-ndjson")
    attempt = ask(server, DialectName.OLLAMA)
    assert attempt.failure is None
    assert [asked[:2] for asked in server.asked] == [("POST", "/api/chat"), ("GET", "/api/tags")]
    assert (attempt.token_events, attempt.server["load"], attempt.finish_reason) == (2, 1.5, "stop")
    marks = attempt.timeline.marks
    assert marks[Mark.FIRST_TOKEN] < marks[Mark.LAST_TOKEN] < marks[Mark.DONE] == marks[Mark.END]


@pytest.mark.parametrize(
    ("dialect", "pieces", "content_type"),
    [
        (DialectName.BEDROCK, CONVERSE[:3], "application/vnd.amazon.eventstream"),
        (DialectName.OLLAMA, OLLAMA[:2], "application/x-ndjson"),
        (
            DialectName.GEMINI,
            [b'data: {"candidates":[{"content":{"parts":[{"text":"a"}]}}]}\r\n\r\n'],
            "text/event-stream",
        ),
    ],
)
@pytest.mark.parametrize("broken_off", [False, True])
def test_what_ends_too_early(dialect: DialectName, pieces: list[bytes], content_type: str, broken_off: bool) -> None:
    """Without its end the answer is truncated; with the connection broken, disconnected."""
    attempt = ask(Server(pieces, content_type, broken_off), dialect)
    assert attempt.failure is not None
    assert attempt.failure.kind is (FailureKind.DISCONNECTED if broken_off else FailureKind.TRUNCATED)


def test_gemini_ends_with_its_body() -> None:
    """The end of the body after a finish reason is the end mark: there is no other."""
    chunk = {"candidates": [{"content": {"parts": [{"text": "Hello"}]}, "finishReason": "STOP"}]}
    pieces = [b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n"]
    attempt = ask(Server(pieces, "text/event-stream"), DialectName.GEMINI, api_key=Secret("AIza-key-0123456789"))
    assert attempt.failure is None
    marks = attempt.timeline.marks
    assert marks[Mark.FINISH] < marks[Mark.DONE] == marks[Mark.END]
