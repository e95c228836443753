"""Gemini, Ollama, Cohere and Perplexity: what is a token, what ends the stream, what an error looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitor.agent.dialects import DIALECTS
from monitor.agent.endings import Ending, judge
from monitor.agent.events import EventKind, StreamEvent, TokenKind
from monitor.model import DialectName, FailureKind, Tokens

K = FailureKind
GEMINI, OLLAMA, COHERE = DialectName.GEMINI, DialectName.OLLAMA, DialectName.COHERE


def decoded(name: DialectName, body: bytes, content_type: str = "") -> tuple[list[StreamEvent], Ending]:
    decoder = DIALECTS[name].decoder()
    events = [event for i in range(len(body)) for event in decoder.feed(body[i : i + 1])] + decoder.finish()
    return events, Ending.of(decoder, content_type)


def sse(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in chunks)


def lines(*chunks: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(chunk).encode() + b"\n" for chunk in chunks)


def parts(*said: dict[str, Any], **candidate: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(said)}, **candidate}]}


def tokens(events: list[StreamEvent]) -> list[tuple[TokenKind, str]]:
    return [(event.token, event.text) for event in events if event.token is not None]


def test_gemini() -> None:
    """Thoughts are reasoning, signatures and empty parts nothing; thoughts count into the output; EOF is the end."""
    usage = {"promptTokenCount": 8, "candidatesTokenCount": 3, "thoughtsTokenCount": 20, "totalTokenCount": 31}
    body = sse(
        parts({"text": "hm", "thought": True}) | {"modelVersion": "gemini-x", "responseId": "r1"},
        parts({"text": "", "thoughtSignature": "abc"}),
        parts({"text": "Hi"}, {"functionCall": {"name": "f", "args": {"a": 1}}}),
        parts({"text": ""}, finishReason="STOP") | {"usageMetadata": {**usage, "trafficType": "ON_DEMAND"}},
    )
    events, ending = decoded(GEMINI, body)
    assert judge(ending) is None
    assert tokens(events) == [(TokenKind.REASONING, "hm"), (TokenKind.TEXT, "Hi"), (TokenKind.TOOL_CALL, '{"a": 1}')]
    assert events[-1].kind is EventKind.DONE
    assert ending.seen.tokens == Tokens(output=23, reasoning=20, visible=3, input=8)
    assert (ending.seen.model, ending.seen.facts) == ("gemini-x", {"response_id": "r1", "tier": "ON_DEMAND"})


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (sse(parts({"text": "Hi"})), K.TRUNCATED, "a finish reason"),
        (sse(parts({"text": "Hi"}, finishReason="STOP")) + b'data: {"cand', K.TRUNCATED, "its end marker"),
        (sse({"promptFeedback": {"blockReason": "SAFETY"}}), K.FILTERED, "SAFETY"),
        (sse({"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {}}), K.FILTERED, "blocked: OTHER"),
        (sse(parts(finishReason="SAFETY")), K.FILTERED, "SAFETY"),
        (sse(parts({"text": "It was the"}, finishReason="RECITATION")), K.FILTERED, "RECITATION"),
        (sse(parts(finishReason="STOP")), K.EMPTY_ANSWER, "STOP"),
        (sse(parts(finishReason="MALFORMED_FUNCTION_CALL")), K.STREAM_ERROR, "MALFORMED"),
        (
            sse(parts(finishReason="MAX_TOKENS") | {"usageMetadata": {"thoughtsTokenCount": 16}}),
            K.REASONING_ONLY,
            "MAX_TOKENS",
        ),
        (
            sse(parts({"text": "Hi"})) + b'{\n  "error": {\n    "code": 503,\n    "message": "overloaded"\n  }\n}\n',
            K.STREAM_ERROR,
            "overloaded",
        ),
        (sse(parts({"text": "Hi"}), {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}), K.STREAM_ERROR, "rate"),
        (json.dumps([parts({"text": "Hi"})]).encode(), K.NOT_A_STREAM, "one JSON answer"),
    ],
)
def test_gemini_endings(body: bytes, kind: FailureKind, words: str) -> None:
    """Blocks, empty answers, errors in mid-stream as bare JSON, and the array that comes without alt=sse."""
    verdict = judge(decoded(GEMINI, body)[1])
    assert verdict is not None
    assert verdict[0] is kind
    assert words in verdict[1]


def test_gemini_counts_are_zero_where_the_server_leaves_zeros_out() -> None:
    """No candidate tokens beside a total that leaves none over: 0, not unknown."""
    usage = {"promptTokenCount": 8, "totalTokenCount": 28, "thoughtsTokenCount": 20}
    _, ending = decoded(GEMINI, sse(parts({"text": "x", "thought": True}), {"usageMetadata": usage}))
    assert ending.seen.tokens == Tokens(output=20, reasoning=20, visible=0, input=8)


OLLAMA_END = {
    "model": "smollm2",
    "done": True,
    "done_reason": "stop",
    "total_duration": 3_722_000_000,
    "load_duration": 1_534_000_000,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 180_000_000,
    "eval_count": 4,
    "eval_duration": 2_006_000_000,
}


def test_ollama() -> None:
    """Thinking, text, tool calls; the load time of a cold start; counts; `done` is the end."""
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    body = lines(
        {"model": "smollm2", "message": {"role": "assistant", "content": ""}, "done": False},
        {"message": {"content": "", "thinking": "hm"}, "done": False},
        {"message": {"content": "Grüße"}, "done": False},
        {"message": {"content": "", "tool_calls": [call]}, "done": False},
        OLLAMA_END | {"message": {"content": ""}},
        {"trailing": True},
    )
    events, ending = decoded(OLLAMA, body)
    assert judge(ending) is None
    assert tokens(events) == [(TokenKind.REASONING, "hm"), (TokenKind.TEXT, "Grüße"), (TokenKind.TOOL_CALL, '{"a": 1}')]
    assert (ending.seen.finish_reason, ending.seen.model) == ("stop", "smollm2")
    assert ending.seen.tokens == Tokens(output=4, input=11)
    assert ending.seen.server == pytest.approx({"load": 1.534, "prefill": 0.18, "decode": 2.006, "total": 3.722})


@pytest.mark.parametrize(
    ("body", "content_type", "kind", "words"),
    [
        (lines({"message": {"content": "Hi"}, "done": False}), "", K.TRUNCATED, "a finish reason"),
        (lines({"message": {"content": "Hi"}}, {"error": "runner died"}), "", K.STREAM_ERROR, "runner died"),
        (lines({"error": "model is loading"}), "", K.STREAM_ERROR, "loading"),
        (lines({"message": {"content": "Hi"}, **OLLAMA_END}), "application/json; charset=utf-8", K.NOT_A_STREAM, ""),
        (lines({"message": {"content": "Hi"}}) + b'{"mess', "", K.TRUNCATED, ""),
        (lines({"message": {"content": "Hi"}}) + b"garbage\n", "", K.PROTOCOL_ERROR, "garbage"),
        (b'{\n "error": {\n  "message": "no"\n }\n}\n', "", K.STREAM_ERROR, "no"),
        (lines(OLLAMA_END), "", K.EMPTY_ANSWER, ""),
    ],
)
def test_ollama_endings(body: bytes, content_type: str, kind: FailureKind, words: str) -> None:
    """Lines that stop, errors as the last line, a whole answer under its own content type."""
    verdict = judge(decoded(OLLAMA, body, content_type)[1])
    assert verdict is not None
    assert verdict[0] is kind
    assert words in verdict[1]


def test_ollama_generate_and_a_single_line() -> None:
    """/api/generate has its text elsewhere; one line that calls itself NDJSON is a stream."""
    one = decoded(OLLAMA, lines({"response": "Hi", "thinking": "", **OLLAMA_END}), "application/x-ndjson")
    assert judge(one[1]) is None
    assert tokens(one[0]) == [(TokenKind.TEXT, "Hi")]


def test_an_endless_line_is_bounded() -> None:
    """Ollama's lines have the bound of all lines."""
    decoder = DIALECTS[OLLAMA].decoder()
    events = [event for _ in range(70) for event in decoder.feed(b"x" * 2**18)]
    assert [event.failure and event.failure[0] for event in events] == [K.TOO_LARGE]


def test_cohere() -> None:
    """Thinking, text, plan and arguments are tokens; a tool without arguments counts at its end; usage of `tokens`."""
    call = {"message": {"tool_calls": {"function": {"name": "f", "arguments": ""}}}}
    usage = {
        "billed_units": {"input_tokens": 2},
        "tokens": {"input_tokens": 500, "output_tokens": 9},
        "cached_tokens": 64,
    }
    body = sse(
        {"type": "message-start", "delta": {"message": {"role": "assistant", "content": []}}},
        {"type": "content-start", "delta": {"message": {"content": {"type": "text", "text": ""}}}},
        {"type": "content-delta", "delta": {"message": {"content": {"thinking": "hm"}}}},
        {"type": "content-delta", "delta": {"message": {"content": {"text": "Hi"}}}},
        {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": "I will"}}},
        {"type": "tool-call-start", "delta": call},
        {"type": "tool-call-end"},
        {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": usage}},
    )
    events, ending = decoded(COHERE, body + b"data: [DONE]\n\n")
    assert judge(ending) is None
    assert tokens(events) == [
        (TokenKind.REASONING, "hm"),
        (TokenKind.TEXT, "Hi"),
        (TokenKind.TEXT, "I will"),
        (TokenKind.TOOL_CALL, ""),
    ]
    assert ending.seen.tokens == Tokens(output=9, input=500, cached=64)
    assert judge(decoded(COHERE, body[: body.index(b"data: " + b'{"type": "message-end"')])[1]) is not None


@pytest.mark.parametrize("reason", ["ERROR", "TIMEOUT"])
def test_cohere_gives_up(reason: str) -> None:
    """A finish reason can mean that the server failed."""
    end = {"type": "message-end", "delta": {"finish_reason": reason, "error": "upstream"}}
    verdict = judge(decoded(COHERE, sse({"type": "content-delta"}, end))[1])
    assert verdict is not None
    assert verdict[0] is K.STREAM_ERROR


def test_perplexity_needs_no_marker() -> None:
    """Its older streams repeat the whole message in each chunk and end without [DONE]; others must have one."""
    choice = {"delta": {"content": "Hi"}, "message": {"content": "Hi"}, "finish_reason": "stop"}
    events, ending = decoded(DialectName.OPENAI_CHAT, sse({"choices": [choice], "usage": {"completion_tokens": 1}}))
    assert judge(ending) is None
    assert events[-1].kind is EventKind.DONE
    del choice["message"]
    verdict = judge(decoded(DialectName.OPENAI_CHAT, sse({"choices": [choice]}))[1])
    assert verdict is not None
    assert verdict[0] is K.TRUNCATED
