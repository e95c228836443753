"""The rule what a body that ended means, where the dialects' own tests do not reach: bodies that are no stream."""

from __future__ import annotations

import pytest

from monitor.agent.dialects import DIALECTS
from monitor.agent.dialects.sse_decoder import SSEDecoder
from monitor.agent.events import Seen, TokenKind
from monitor.agent.failures import Ending, judge
from monitor.model import DialectName, FailureKind, Tokens

K = FailureKind


@pytest.mark.parametrize("name", list(DialectName))
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"id": "1", "choices": [{"message": {"content": "Hi"}}]}', K.NOT_A_STREAM),
        (b'\n\n {\n  "type": "message",\n  "content": []\n}\n', K.NOT_A_STREAM),
        (b'\xef\xbb\xbf[{"a": 1}]', K.NOT_A_STREAM),
        (b"<!DOCTYPE html>\n<html><title>Login</title>\n\n<body>: hello\n\ndata: x</body>", K.NOT_A_STREAM),
        (b"It works!\n", K.NOT_A_STREAM),
        ("größer".encode()[:4], K.NOT_A_STREAM),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\xff", K.PROTOCOL_ERROR),
        (b'{"error": {"message": "no"}}', K.STREAM_ERROR),
        (b'{"error": "no"}\n', K.STREAM_ERROR),
        (b"", K.TRUNCATED),
        (b"\n\n\n", K.TRUNCATED),
    ],
)
def test_bodies_that_are_no_stream(name: DialectName, body: bytes, kind: FailureKind) -> None:
    """Whole JSON answers, pages, text and binary in answer to a streaming request, in every dialect."""
    decoder = DIALECTS[name].decoder()
    decoder.feed(body)
    decoder.finish()
    verdict = judge(Ending.of(decoder, "text/event-stream"))
    assert verdict is not None
    assert verdict[0] is kind
    assert 0 < len(verdict[1]) <= 500


@pytest.mark.parametrize("name", [name for name in DialectName if isinstance(DIALECTS[name].decoder(), SSEDecoder)])
@pytest.mark.parametrize("body", [b": keep-alive\n\n: keep-alive\n\n", b"event: x\n\n"])
def test_event_streams_without_an_event_are_cut_short(name: DialectName, body: bytes) -> None:
    """Signs of life alone are the beginning of a stream."""
    decoder = DIALECTS[name].decoder()
    decoder.feed(body)
    decoder.finish()
    verdict = judge(Ending.of(decoder, "text/event-stream"))
    assert verdict is not None
    assert verdict[0] is K.TRUNCATED


def ending(finish: str | None = "stop", done: bool = True, tokens: Tokens | None = None, **counts: int) -> Ending:
    seen = Seen(frames=1, finish_reason=finish, done=done, tokens=tokens or Tokens(), understood=True)
    seen.counts.update({TokenKind(kind): n for kind, n in counts.items()})
    return Ending(opening=b"data: x", body_bytes=7, seen=seen)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (ending(text=1), None),
        (ending("max_tokens", text=1, reasoning=5), None),
        (ending("tool_calls", tool_call=1), None),
        (ending(text=1, refusal=1), None),
        (ending(None, text=1), K.TRUNCATED),
        (ending(done=False, text=1), K.TRUNCATED),
        (ending(None, done=False, reasoning=3), K.TRUNCATED),
        (ending(), K.EMPTY_ANSWER),
        (ending(tokens=Tokens(output=0, reasoning=0)), K.EMPTY_ANSWER),
        (ending("length", tokens=Tokens(output=50, reasoning=50)), K.REASONING_ONLY),
        (ending("length", reasoning=9), K.REASONING_ONLY),
        (ending(refusal=1), K.FILTERED),
        (ending("content_filter", text=4), K.FILTERED),
        (ending("SAFETY"), K.FILTERED),
        (ending("refusal"), K.FILTERED),
        (ending("error", text=4), K.STREAM_ERROR),
        (ending("abort", done=False), K.STREAM_ERROR),
    ],
)
def test_the_rule(case: Ending, kind: FailureKind | None) -> None:
    """Success is a finish reason, the marker, no error object and something visible or a tool call."""
    verdict = judge(case)
    assert (verdict[0] if verdict else None) is kind
