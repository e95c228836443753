"""Anthropic messages: blocks, thinking shown or not, tools, refusals, overload inside a 200."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitor.agent.dialects import DIALECTS, Decoder
from monitor.agent.events import StreamEvent
from monitor.agent.failures import Ending, judge
from monitor.model import DialectName, FailureKind, Tokens

K = FailureKind


def said(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def start(**usage: Any) -> bytes:
    return said("message_start", message={"model": "claude-x", "content": [], "usage": usage})


def block(kind: str = "text", **fields: Any) -> bytes:
    return said("content_block_start", index=0, content_block={"type": kind, **fields})


def delta(kind: str, **fields: Any) -> bytes:
    return said("content_block_delta", index=0, delta={"type": kind, **fields})


def stop(reason: str | None = "end_turn", **usage: Any) -> bytes:
    return said("message_delta", delta={"stop_reason": reason}, usage=usage)


BLOCK_STOP, END, PING = said("content_block_stop", index=0), said("message_stop"), said("ping")
HI = delta("text_delta", text="Hi")


def read(*pieces: bytes) -> tuple[list[StreamEvent], Decoder]:
    decoder = DIALECTS[DialectName.ANTHROPIC].decoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish(), decoder


def kinds(*pieces: bytes) -> list[str]:
    return [event.token.value if event.token else event.kind.value for event in read(*pieces)[0]]


def verdict(*pieces: bytes) -> FailureKind | None:
    found = judge(Ending.of(read(*pieces)[1]))
    return found[0] if found else None


def test_a_whole_stream() -> None:
    """message_start, block starts and pings are no tokens; input is the sum of its three parts; output is the last."""
    usage = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 5, "output_tokens": 1}
    body = start(**usage), block(text=""), PING, HI, BLOCK_STOP, stop(output_tokens=7), END
    assert kinds(*body) == ["preamble", "preamble", "keepalive", "text", "other", "finish", "usage", "done"]
    seen = read(*body)[1].seen
    assert seen.tokens == Tokens(output=7, reasoning=0, visible=7, input=115, cached=100)
    assert (seen.model, seen.finish_reason) == ("claude-x", "end_turn")
    assert verdict(*body) is None


def test_the_output_count_of_the_start_is_not_a_count() -> None:
    """A stream that broke after its start has no known output."""
    assert read(start(input_tokens=10, output_tokens=88), HI)[1].seen.tokens == Tokens(input=10)


def test_thinking_is_reasoning_when_it_is_shown() -> None:
    """An empty thinking delta and a signature alone are no tokens; an uncounted reasoning stays unknown."""
    thinking = (
        block("thinking", thinking=""),
        delta("thinking_delta", thinking=""),
        delta("signature_delta", signature="x"),
    )
    assert kinds(*thinking) == ["preamble"] * 3
    assert kinds(delta("thinking_delta", thinking="Hm")) == ["reasoning"]
    assert read(*thinking, HI, stop(output_tokens=9))[1].seen.tokens == Tokens(output=9)
    for bare in (delta("thinking_delta", thinking="Hm"), delta("signature_delta", signature="s")):  # a gateway's
        assert read(bare, HI, stop(output_tokens=9))[1].seen.tokens == Tokens(output=9)
    counted = stop(output_tokens=9, output_tokens_details={"thinking_tokens": 4})
    assert read(*thinking, HI, counted)[1].seen.tokens == Tokens(output=9, reasoning=4, visible=5)
    assert verdict(*thinking, delta("thinking_delta", thinking="Hm"), stop("max_tokens"), END) is K.REASONING_ONLY


def test_tools() -> None:
    """The usual empty first input delta is none; a tool without any input counts when its block ends."""
    tool = block("tool_use", name="f", input={})
    assert kinds(tool, delta("input_json_delta", partial_json=""), delta("input_json_delta", partial_json='{"')) == [
        "preamble",
        "preamble",
        "tool_call",
    ]
    assert kinds(tool, delta("input_json_delta", partial_json=""), BLOCK_STOP) == ["preamble", "preamble", "tool_call"]
    assert kinds(tool, delta("input_json_delta", partial_json="{}"), BLOCK_STOP) == ["preamble", "tool_call", "other"]
    assert verdict(tool, BLOCK_STOP, stop("tool_use"), END) is None


def test_a_block_that_starts_with_text_is_a_token() -> None:
    """Not seen from Anthropic, but other servers of the shape may."""
    assert kinds(block(text="Hi")) == ["text"]


def test_a_refusal_without_content_is_filtered() -> None:
    """A stop reason of refusal is no success, with or without text before it."""
    assert verdict(start(), stop("refusal"), END) is K.FILTERED
    assert verdict(start(), HI, stop("refusal"), END) is K.FILTERED


@pytest.mark.parametrize(
    "error",
    [
        said("error", error={"type": "overloaded_error", "message": "boom"}, request_id="req_1"),
        said("error", message="boom"),
        b"event: error\ndata: boom\n\n",
        b'data: {"error": {"message": "boom"}}\n\n',
        b'data: {"type": "error", "error": "boom"}\n\n',
    ],
)
def test_overload_inside_a_200(error: bytes) -> None:
    """First or mid-stream, with or without an end after it: an error inside a 200, with its words."""
    for body in (error, start() + HI + error, start() + error + stop() + END):
        kind, text = judge(Ending.of(read(body)[1])) or (None, "")
        assert kind is K.STREAM_ERROR
        assert "boom" in text


def test_missing_ends_are_truncation() -> None:
    """After an overload the connection just closes: no stop reason, no message_stop."""
    assert verdict(start(), HI) is K.TRUNCATED
    assert verdict(start(), HI, stop()) is K.TRUNCATED
    assert verdict(start(), HI, END) is K.TRUNCATED
    assert verdict(start(), stop(), END) is K.EMPTY_ANSWER


def test_a_stream_restarted_upstream_is_read_on() -> None:
    """Two message_starts in one body do not confuse it; the later model counts."""
    other = said("message_start", message={"model": "claude-y", "usage": {"input_tokens": 3}})
    events, decoder = read(start(input_tokens=1), HI, other, HI, stop(output_tokens=2), END)
    assert decoder.seen.model == "claude-y"
    assert decoder.seen.tokens.input == 3
    assert verdict(start(), HI, other, HI, stop(), END) is None
    assert len(events) == 7


@pytest.mark.parametrize("strange", [None, [], "x", 7])
def test_wrong_types_are_read_as_absent(strange: Any) -> None:
    """No field of a wrong type breaks the reading."""
    body = (
        said("message_start", message=strange)
        + said("content_block_start", content_block=strange)
        + said("content_block_delta", delta=strange)
        + said("message_delta", delta=strange, usage=strange)
    )
    assert set(kinds(body)) == {"preamble"}


def test_types_without_event_lines() -> None:
    """Gateways that drop the `event:` lines are read by type; a [DONE] of theirs means nothing."""
    body = b"".join(line + b"\n\n" for line in (start() + HI + stop() + END).split(b"\n") if line.startswith(b"data:"))
    assert verdict(body + b"data: [DONE]\n\n") is None
