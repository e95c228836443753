"""The Responses API: events by type, terminal events, errors inside a 200, gateways that stream nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitor.agent.dialects import DIALECTS, Decoder
from monitor.agent.events import EventKind, StreamEvent
from monitor.agent.failures import Ending, judge
from monitor.model import DialectName, FailureKind, Tokens

K = FailureKind


def said(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def delta(kind: str, text: Any) -> bytes:
    return said(f"response.{kind}.delta", delta=text)


def ended(status: str = "completed", **fields: Any) -> bytes:
    return said(f"response.{status}", response={"status": status, "model": "m-1", "error": None, **fields})


START = said("response.created", response={"model": "m-1", "error": None}) + said("response.in_progress", response={})
HI = delta("output_text", "Hi")


def read(*pieces: bytes) -> tuple[list[StreamEvent], Decoder]:
    decoder = DIALECTS[DialectName.OPENAI_RESPONSES].decoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish(), decoder


def kinds(*pieces: bytes) -> list[str]:
    return [event.token.value if event.token else event.kind.value for event in read(*pieces)[0]]


def verdict(*pieces: bytes) -> FailureKind | None:
    found = judge(Ending.of(read(*pieces)[1]))
    return found[0] if found else None


def test_a_whole_stream() -> None:
    """Preamble, reasoning, text, terminal event: marks, model and usage."""
    usage = {
        "input_tokens": 20,
        "output_tokens": 12,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens_details": {"reasoning_tokens": 10},
    }
    item = said("response.output_item.added", item={"type": "reasoning"})
    body = START, item, delta("reasoning_summary_text", "Hm"), item, HI, ended(usage=usage)
    assert kinds(*body) == [
        *["preamble"] * 3,
        "reasoning",
        "other",
        "text",
        "finish",
        "usage",
        "done",
    ]
    seen = read(*body)[1].seen
    assert seen.tokens == Tokens(output=12, reasoning=10, visible=2, input=20, cached=8)
    assert (seen.model, seen.finish_reason) == ("m-1", "completed")
    assert verdict(*body) is None


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        ("output_text", "text"),
        ("refusal", "refusal"),
        ("reasoning_text", "reasoning"),
        ("reasoning_summary_text", "reasoning"),
        ("function_call_arguments", "tool_call"),
        ("custom_tool_call_input", "tool_call"),
        ("mcp_call_arguments", "tool_call"),
        ("code_interpreter_call_code", "tool_call"),
    ],
)
def test_deltas(kind: str, token: str) -> None:
    """Every delta of generated output is a token when it is not empty."""
    assert kinds(delta(kind, "x")) == [token]
    assert kinds(delta(kind, ""), delta(kind, None), delta(kind, {"a": 1})) == ["preamble"] * 3


@pytest.mark.parametrize("kind", ["keepalive", "ping"])
def test_keepalives(kind: str) -> None:
    """The undocumented keepalive proves liveness only."""
    assert kinds(said(kind)) == ["keepalive"]


def test_events_without_event_lines_are_read_by_type() -> None:
    """OpenRouter sends no `event:` lines, and a [DONE] that means nothing."""
    body = b"".join(line + b"\n\n" for line in (HI + ended()).split(b"\n") if line.startswith(b"data:"))
    assert verdict(body, b"data: [DONE]\n\n") is None
    assert kinds(HI, b"data: [DONE]\n\n", ended())[1] == "other"


def test_done_without_a_terminal_event_is_truncation() -> None:
    """[DONE] is not this dialect's marker."""
    assert verdict(HI, b"data: [DONE]\n\n") is K.TRUNCATED


def test_incomplete_tells_its_reason() -> None:
    """The cap is a normal end, the content filter is not."""
    cap = ended("incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert read(HI, cap)[1].seen.finish_reason == "max_output_tokens"
    assert verdict(HI, cap) is None
    assert verdict(HI, ended("incomplete", incomplete_details={"reason": "content_filter"})) is K.FILTERED
    assert verdict(cap) is K.EMPTY_ANSWER


@pytest.mark.parametrize(
    "error",
    [
        said("error", sequence_number=2, error={"type": "insufficient_quota", "message": "boom", "param": None}),
        said("error", code="server_error", message="boom", param=None),
        said("error", error="boom"),
        ended("failed", error={"code": "server_error", "message": "boom"}),
        b'data: {"error": {"message": "boom"}}\n\n',
        b'data: {"message": "boom", "code": "x"}\n\n',
    ],
)
def test_errors_in_every_shape(error: bytes) -> None:
    """Nested, flat, string, in the terminal event or without a type: an error inside a 200."""
    for body in (START + error, START + HI + error, START + HI + error + ended()):
        kind, text = judge(Ending.of(read(body)[1])) or (None, "")
        assert kind is K.STREAM_ERROR
        assert "boom" in text


def test_failed_and_cancelled_without_an_error_object_are_failures() -> None:
    """The status alone says that the answer is not one."""
    assert verdict(HI, ended("failed")) is K.STREAM_ERROR
    assert verdict(HI, ended("cancelled")) is K.STREAM_ERROR
    assert verdict(HI, said("response.completed", response={"status": "failed"})) is K.STREAM_ERROR


def test_an_item_that_came_without_deltas_counts_when_it_ends() -> None:
    """A tool call without arguments, or a whole text from a gateway, is a token at the end of its item, once."""
    added = said("response.output_item.added", item={"type": "function_call", "name": "f"})
    over = said("response.output_item.done", item={"type": "function_call", "name": "f", "arguments": ""})
    assert kinds(added, over) == ["preamble", "tool_call"]
    assert kinds(added, delta("function_call_arguments", "{}"), over) == ["preamble", "tool_call", "other"]
    message = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    assert kinds(said("response.output_item.done", item=message)) == ["text"]
    assert kinds(ended(output=[message]))[0] == "text"
    assert "text" not in kinds(HI, ended(output=[message]))[1:]


def test_encrypted_reasoning_is_no_token() -> None:
    """A reasoning item without text says that thinking happened, not when a token came."""
    item = {"type": "reasoning", "summary": [], "encrypted_content": "xyz"}
    assert kinds(said("response.output_item.added", item=item), said("response.output_item.done", item=item)) == [
        "preamble",
        "preamble",
    ]


@pytest.mark.parametrize("response", [None, [], "x", {"usage": [], "output": {}, "incomplete_details": 1, "status": 7}])
def test_a_strange_terminal_event_is_still_the_end(response: Any) -> None:
    """Wrong types inside it are read as absent."""
    assert verdict(HI, said("response.completed", response=response)) is None


def test_unknown_types_mean_nothing() -> None:
    """New event types pass without an effect; non-object JSON does not."""
    assert kinds(said("response.shiny.new", delta="x"), b"data: {}\n\n") == ["preamble", "preamble"]
    assert read(b"data: 1\n\n")[0][0].kind is EventKind.ERROR
