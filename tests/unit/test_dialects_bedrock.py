"""Bedrock: the binary event stream, Converse and InvokeModel, exceptions, damage, and any cut."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.agent.dialects import DIALECTS
from monitor.agent.endings import Ending, judge
from monitor.agent.events import StreamEvent, TokenKind
from monitor.agent.eventstream import EventStreamParser
from monitor.model import DialectName, FailureKind, Tokens

K = FailureKind


def message(payload: bytes, **headers: str) -> bytes:
    """One message; header names are given with _ for - and get the leading colon."""
    head = b"".join(_header(f":{name.replace('_', '-')}", value) for name, value in headers.items())
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    prelude += struct.pack(">I", zlib.crc32(prelude))
    body = prelude + head + payload
    return body + struct.pack(">I", zlib.crc32(body))


def _header(name: str, value: str) -> bytes:
    return bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()


def said(name: str, what: dict[str, Any]) -> bytes:
    """An ordinary event."""
    return message(json.dumps(what).encode(), message_type="event", event_type=name, content_type="application/json")


def fault(name: str, what: dict[str, Any]) -> bytes:
    """An exception inside the stream."""
    return message(json.dumps(what).encode(), message_type="exception", exception_type=name)


ANSWER = [
    said("messageStart", {"role": "assistant", "p": "abc"}),
    said("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "hm"}}}),
    said("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "xx"}}}),
    said("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": ""}}),
    said("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "größer"}}),
    said("contentBlockStop", {"contentBlockIndex": 1}),
    said("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"name": "now"}}}),
    said("contentBlockStop", {"contentBlockIndex": 2}),
    said("messageStop", {"stopReason": "tool_use"}),
    said(
        "metadata",
        {
            "usage": {"inputTokens": 5, "outputTokens": 9, "cacheReadInputTokens": 3, "cacheWriteInputTokens": 2},
            "metrics": {"latencyMs": 250},
            "serviceTier": {"type": "priority"},
        },
    ),
]


def decoded(body: bytes, cuts: tuple[int, ...] = ()) -> tuple[list[StreamEvent], Ending]:
    decoder = DIALECTS[DialectName.BEDROCK].decoder()
    marks = sorted(min(cut, len(body)) for cut in cuts)
    pieces = [body[a:b] for a, b in zip([0, *marks], [*marks, len(body)], strict=True)]
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish()
    return events, Ending.of(decoder, "application/vnd.amazon.eventstream")


def chunk(model_said: dict[str, Any]) -> bytes:
    return said("chunk", {"bytes": base64.b64encode(json.dumps(model_said).encode()).decode(), "p": "abcd"})


def test_converse() -> None:
    """Tokens, the silent tool, the finish reason, all input tokens, the total, the tier; marks nothing that is none."""
    events, ending = decoded(b"".join(ANSWER))
    assert judge(ending) is None
    assert [(event.token, event.text) for event in events if event.token] == [
        (TokenKind.REASONING, "hm"),
        (TokenKind.TEXT, "größer"),
        (TokenKind.TOOL_CALL, ""),
    ]
    seen = ending.seen
    assert (seen.finish_reason, seen.server, seen.facts) == ("tool_use", {"total": 0.25}, {"tier": "priority"})
    assert seen.tokens == Tokens(output=9, input=10, cached=3)


@given(cuts=st.lists(st.integers(0, 2000), max_size=12).map(tuple))
@settings(max_examples=100, deadline=None)
def test_cuts_mean_nothing(cuts: tuple[int, ...]) -> None:
    """The same bytes in any pieces give the same events."""
    body = b"".join(ANSWER)
    assert decoded(body, cuts)[0] == decoded(body)[0]


def test_one_byte_at_a_time() -> None:
    """The finest cut."""
    body = b"".join(ANSWER)
    assert decoded(body, tuple(range(len(body))))[0] == decoded(body)[0]


@given(
    body=st.binary(max_size=200), at=st.integers(0, 1500), cuts=st.lists(st.integers(0, 1700), max_size=5).map(tuple)
)
@settings(max_examples=100, deadline=None)
def test_damage_never_raises_and_is_never_a_success(body: bytes, at: int, cuts: tuple[int, ...]) -> None:
    """Bytes put into the middle are noticed by the checksums, whatever they are and however they are cut."""
    good = b"".join(ANSWER[:-1])
    damaged = good[: min(at, len(good) - 1)] + b"\x00\x01" + body + good[min(at, len(good) - 1) :]
    events, ending = decoded(damaged, cuts)
    assert repr(events) == repr(decoded(damaged)[0])
    assert judge(ending) is not None


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"".join(ANSWER[:5]), K.TRUNCATED, "a finish reason and its end marker"),
        (b"".join(ANSWER[:5]) + ANSWER[5][:20], K.TRUNCATED, "a finish reason and its end marker"),
        (ANSWER[0][:14], K.TRUNCATED, ""),
        (b"".join(ANSWER[:9]), K.TRUNCATED, "its end marker"),
        (b"".join(ANSWER[:5]) + ANSWER[5][:-1] + b"!", K.PROTOCOL_ERROR, "checksum is wrong"),
        (ANSWER[0] + b"\x00\x00\x00\x20" + b"x" * 30, K.PROTOCOL_ERROR, "no event-stream message"),
        (message(b"[]", message_type="event", event_type="chunk"), K.PROTOCOL_ERROR, "no JSON object"),
        (said("chunk", {"bytes": "!"}), K.PROTOCOL_ERROR, "no JSON object"),
        (ANSWER[0] + fault("throttlingException", {"message": "slow"}), K.STREAM_ERROR, "rate_limited"),
        (fault("modelStreamErrorException", {"originalMessage": "x"}), K.STREAM_ERROR, "modelStream"),
        (fault("internalServerException", {}), K.STREAM_ERROR, "server_error"),
        (message(b"", message_type="error", error_code="InternalError", error_message="x"), K.STREAM_ERROR, "x"),
        (b'{"message": "The model is not ready", "__type": "ModelNotReadyException"}', K.STREAM_ERROR, "not ready"),
        (b"<html>a gateway's page</html>", K.NOT_A_STREAM, "HTML"),
        (ANSWER[0] + said("messageStop", {"stopReason": "guardrail_intervened"}) + ANSWER[-1], K.FILTERED, ""),
        (ANSWER[0] + said("messageStop", {"stopReason": "end_turn"}) + ANSWER[-1], K.EMPTY_ANSWER, ""),
    ],
)
def test_endings(body: bytes, kind: FailureKind, words: str) -> None:
    """Each way to end badly has its kind, and a sentence that says why."""
    verdict = judge(decoded(body)[1])
    assert verdict is not None
    assert verdict[0] is kind
    assert words in verdict[1]


KEYS = [
    *["delta", "text", "reasoningContent", "toolUse", "input", "start", "name", "stopReason", "usage", "inputTokens"],
    *["outputTokens", "metrics", "latencyMs", "serviceTier", "type", "bytes", "choices", "completion", "outputText"],
    *[
        "generation",
        "outputs",
        "stop_reason",
        "finish_reason",
        "content_block",
        "error",
        "message",
        "amazon-bedrock-invocationMetrics",
    ],
    *["outputTokenCount", "firstByteLatency", "contentBlockDelta", "messageStop", "metadata"],
]
NAMES = [
    "chunk",
    "messageStart",
    "contentBlockStart",
    "contentBlockDelta",
    "contentBlockStop",
    "messageStop",
    "metadata",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=15,
)
OBJECTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5)


@given(messages=st.lists(st.tuples(st.sampled_from(NAMES), OBJECTS, st.booleans()), max_size=5))
@settings(max_examples=100, deadline=None)
def test_foreign_objects_in_good_frames_never_raise(messages: list[tuple[str, dict[str, Any], bool]]) -> None:
    """Known keys with values of every type, as Converse events and inside chunks, one byte at a time or at once."""
    body = b"".join(chunk(what) if inside else said(name, what) for name, what, inside in messages)
    events, ending = decoded(body)
    judge(ending)
    assert repr(decoded(body, tuple(range(0, len(body), 7)))[0]) == repr(events)


def test_a_message_beyond_its_bound_is_refused_before_it_is_read() -> None:
    """The length in a valid beginning is believed only up to the bound."""
    parser = EventStreamParser(max_message_bytes=100)
    assert parser.feed(said("chunk", {"bytes": "x" * 200})[:12]) == []
    assert "message of" in str(parser.broken)
    assert parser.feed(b"x" * 1000) == []


METRICS = {
    "amazon-bedrock-invocationMetrics": {
        "inputTokenCount": 4,
        "outputTokenCount": 7,
        "firstByteLatency": 80,
        "invocationLatency": 300,
    }
}


@pytest.mark.parametrize(
    ("chunks", "finish"),
    [
        ([{"generation": "Hi", "stop_reason": None}, {"generation": "", "stop_reason": "length", **METRICS}], "length"),
        ([{"outputText": "Hi", "completionReason": "FINISH", **METRICS}], "FINISH"),
        ([{"completion": "Hi"}, {"completion": "", "stop_reason": "stop_sequence", **METRICS}], "stop_sequence"),
        (
            [{"outputs": [{"text": "Hi", "stop_reason": None}]}, {"outputs": [{"stop_reason": "stop"}], **METRICS}],
            "stop",
        ),
        (
            [
                {"choices": [{"delta": {"content": "Hi"}}]},
                {"choices": [{"delta": {}, "finish_reason": "stop"}], **METRICS},
            ],
            "stop",
        ),
        (
            [
                {"type": "message_start", "message": {"model": "c", "usage": {"input_tokens": 4}}},
                {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
                {"type": "message_stop", **METRICS},
            ],
            "end_turn",
        ),
        (
            [
                {"messageStart": {"role": "assistant"}},
                {"contentBlockDelta": {"delta": {"text": "Hi"}}},
                {"messageStop": {"stopReason": "end_turn"}},
                {"metadata": {"usage": {"inputTokens": 4, "outputTokens": 7}}, **METRICS},
            ],
            "end_turn",
        ),
    ],
)
def test_invoke_model_in_every_familys_words(chunks: list[dict[str, Any]], finish: str) -> None:
    """Text, finish reason, counts and the server's own time to first token, whoever made the model."""
    events, ending = decoded(b"".join(map(chunk, chunks)))
    assert judge(ending) is None
    assert "".join(event.text for event in events if event.token is TokenKind.TEXT) == "Hi"
    assert ending.seen.finish_reason == finish
    assert ending.seen.server == pytest.approx({"ttft": 0.08, "total": 0.3})
    assert (ending.seen.tokens.output, ending.seen.tokens.input) == (7, 4)
