"""Whatever bytes come, decoders give events: never an exception, and the same events for every cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.agent.dialects import DIALECTS
from monitor.agent.endings import Ending, judge
from monitor.agent.events import EventKind, StreamEvent
from monitor.model import DialectName

KEYS = [
    *[
        "type",
        "choices",
        "delta",
        "content",
        "reasoning",
        "reasoning_details",
        "tool_calls",
        "function",
        "name",
        "arguments",
    ],
    *["refusal", "finish_reason", "usage", "completion_tokens", "prompt_tokens", "completion_tokens_details", "error"],
    *["message", "code", "detail", "details", "model", "response", "item", "output", "status", "incomplete_details"],
    *["content_block", "text", "thinking", "partial_json", "stop_reason", "timings", "x_groq", "metrics", "prompt_ms"],
    *["candidates", "parts", "finishReason", "promptFeedback", "blockReason", "usageMetadata", "candidatesTokenCount"],
    *["functionCall", "executableCode", "event_type", "interaction", "step", "done", "done_reason", "eval_count"],
    *["tool_plan", "tokens", "billed_units", "output_tokens", "load_duration", "completion", "bytes", "stopReason"],
]
WORDS = [
    *["response.output_text.delta", "response.completed", "response.output_item.done", "response.output_item.added"],
    *["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"],
    *[
        "step.delta",
        "interaction.completed",
        "content-delta",
        "tool-call-start",
        "tool-call-end",
        "message-end",
        "SAFETY",
    ],
    *["message_stop", "text_delta", "thinking", "tool_use", "function_call", "error", "stop", "x", "", "\ud800"],
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
LINES = st.builds(lambda value: json.dumps(value).encode() + b"\n", VALUES)
FRAMES = st.builds(
    lambda field, value: field + json.dumps(value).encode() + b"\n\n",
    st.sampled_from([b"data: ", b"event: error\ndata: ", b"error: ", b"", b"event: message_start\ndata: "]),
    VALUES,
)
BODIES = st.lists(FRAMES | LINES | st.binary(max_size=30) | st.just(b"data: [DONE]\n\n"), max_size=6).map(b"".join)


def decoded(name: DialectName, pieces: list[bytes]) -> list[StreamEvent]:
    decoder = DIALECTS[name].decoder()
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish()
    judge(Ending.of(decoder))
    return events


@pytest.mark.parametrize("name", list(DialectName))
@given(body=BODIES, cuts=st.lists(st.integers(0, 400), max_size=8))
@settings(max_examples=50, deadline=None)
def test_nothing_raises_and_cuts_mean_nothing(name: DialectName, body: bytes, cuts: list[int]) -> None:
    """Known keys with values of every type, garbage between, cut anywhere."""
    marks = sorted(min(cut, len(body)) for cut in cuts)
    pieces = [body[a:b] for a, b in zip([0, *marks], [*marks, len(body)], strict=True)]
    events = decoded(name, [body])
    assert repr(decoded(name, pieces)) == repr(events)
    assert all((event.kind is EventKind.ERROR) == (event.failure is not None) for event in events)
    assert all((event.kind is EventKind.TOKEN) == (event.token is not None) for event in events)
