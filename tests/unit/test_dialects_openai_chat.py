"""Chat completions in the spellings of some thirty servers: fixtures of our own writing, expectations by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitor.agent.dialects import DIALECTS, Decoder
from monitor.agent.events import EventKind, StreamEvent
from monitor.agent.failures import Ending, judge
from monitor.model import DialectName, FailureKind, Tokens

K, E = FailureKind, EventKind


def chunk(delta: Any = None, *, finish: Any = None, **more: Any) -> bytes:
    body = {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }
    return frame(body)


def frame(body: Any, event: str = "") -> bytes:
    return (f"event: {event}\n" if event else "").encode() + b"data: " + json.dumps(body).encode() + b"\n\n"


STOP = chunk({}, finish="stop")
DONE = b"data: [DONE]\n\n"


def read(*pieces: bytes) -> tuple[list[StreamEvent], Decoder]:
    decoder = DIALECTS[DialectName.OPENAI_CHAT].decoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish(), decoder


def kinds(*pieces: bytes) -> list[str]:
    return [event.token.value if event.token else event.kind.value for event in read(*pieces)[0]]


def verdict(*pieces: bytes) -> FailureKind | None:
    found = judge(Ending.of(read(*pieces)[1]))
    return found[0] if found else None


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": "", "refusal": None},
        {"role": "assistant", "content": None, "reasoning_content": ""},
        {"content": []},
        {"content": None, "tool_calls": None, "refusal": ""},
        {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "", "arguments": ""}}]},
        {"tool_calls": [None]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "xyz"}]},
        {"reasoning": None, "reasoning_details": []},
        {},
        None,
        "text",
        [1],
    ],
)
def test_what_is_no_token(delta: Any) -> None:
    """Roles, empty and null deltas, encrypted reasoning and wrong types are preamble."""
    assert kinds(chunk(delta)) == ["preamble"]


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"content": "Hi"}, [("text", "Hi")]),
        ({"content": " "}, [("text", " ")]),
        ({"role": "assistant", "content": "Hi"}, [("text", "Hi")]),
        ({"reasoning_content": "Hm", "content": None}, [("reasoning", "Hm")]),
        ({"reasoning": "Hm", "content": "", "channel": "analysis"}, [("reasoning", "Hm")]),
        ({"reasoning": "Hm", "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}]}, [("reasoning", "Hm")]),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "Hm"}]}, [("reasoning", "Hm")]),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]}, [("reasoning", "Hm")]),
        ({"content": [{"type": "reasoning", "summary": [{"text": "Hm"}]}]}, [("reasoning", "Hm")]),
        ({"content": [{"type": "text", "text": "Hi"}]}, [("text", "Hi")]),
        (
            {"content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Hi"}]},
            [("reasoning", "Hm"), ("text", "Hi")],
        ),
        ({"reasoning": "Hm", "content": "Hi"}, [("reasoning", "Hm"), ("text", "Hi")]),
        ({"tool_calls": [{"function": {"name": "f", "arguments": ""}}]}, [("tool_call", "")]),
        ({"tool_calls": [{"function": {"arguments": '{"'}}]}, [("tool_call", '{"')]),
        (
            {"tool_calls": [{"function": {"name": "f"}}, {"function": {"name": "g"}}]},
            [("tool_call", ""), ("tool_call", "")],
        ),
        ({"tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "x"}}]}, [("tool_call", "x")]),
        ({"function_call": {"name": "f", "arguments": "{}"}}, [("tool_call", "{}")]),
        ({"refusal": "No."}, [("refusal", "No.")]),
    ],
)
def test_what_is_a_token(delta: Any, expected: list[tuple[str, str]]) -> None:
    """Text, reasoning in all its spellings (once, however often repeated), tool calls by name or input, refusals."""
    events, _ = read(chunk(delta))
    assert [(event.token, event.text) for event in events] == expected


def test_azure_filter_results_are_preamble() -> None:
    """Azure's extra first chunk without choices is no token."""
    first = frame({"choices": [], "id": "", "model": "", "prompt_filter_results": [{"prompt_index": 0}]})
    assert kinds(first, chunk({"content": "Hi"})) == ["preamble", "text"]


@pytest.mark.parametrize("choices", [None, [], {}, "x", [None], [[]]])
def test_strange_choices_mean_nothing(choices: Any) -> None:
    """`choices` null, empty or of a wrong type is read as none, before and after tokens."""
    assert kinds(frame({"choices": choices}), chunk({"content": "Hi"}), frame({"choices": choices})) == [
        "preamble",
        "text",
        "other",
    ]


def test_keepalives_are_not_tokens_and_not_events() -> None:
    """Comments, blank data and events without data count as keep-alives only."""
    events, decoder = read(b": OPENROUTER PROCESSING\n\n: \n\ndata:\n\ndata: \n\nevent: ping\n\n")
    assert {event.kind for event in events} == {E.KEEPALIVE}
    assert (decoder.seen.keepalives, decoder.seen.frames) == (5, 0)


def test_one_chunk_may_hold_everything() -> None:
    """Token, finish reason, usage and model in one chunk (Mistral's tool calls) are several events."""
    last = chunk({"content": "Hi"}, finish="stop", model="m-1", usage={"prompt_tokens": 3, "completion_tokens": 2})
    events, decoder = read(last, DONE)
    assert [event.kind for event in events] == [E.USAGE, E.TOKEN, E.FINISH, E.DONE]
    assert (decoder.seen.model, decoder.seen.finish_reason) == ("m-1", "stop")
    assert verdict(last, DONE) is None


USAGES = [
    ({"prompt_tokens": 9, "completion_tokens": 5}, Tokens(output=5, input=9)),
    (
        {
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        Tokens(output=5, reasoning=3, visible=2, input=9, cached=4),
    ),
    (  # xAI: 496 + 77 + 121 = 694
        {
            "prompt_tokens": 496,
            "completion_tokens": 77,
            "total_tokens": 694,
            "completion_tokens_details": {"reasoning_tokens": 121},
        },
        Tokens(output=198, reasoning=121, visible=77, input=496),
    ),
    (  # more reasoning than output: it cannot be part of it
        {"prompt_tokens": 9, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 50}},
        Tokens(output=55, reasoning=50, visible=5, input=9),
    ),
    (
        {"prompt_tokens": 9, "completion_tokens": 5, "prompt_cache_hit_tokens": 8, "prompt_tokens_details": None},
        Tokens(output=5, input=9, cached=8),
    ),
    ({"prompt_tokens": "9", "completion_tokens": None, "total_tokens": -1}, Tokens()),
    ({"prompt_tokens": 9.0, "completion_tokens": True}, Tokens(input=9)),
    ({"completion_tokens": float("nan"), "prompt_tokens": 1e300}, Tokens()),
]


@pytest.mark.parametrize(("usage", "tokens"), USAGES)
def test_accounting(usage: dict[str, Any], tokens: Tokens) -> None:
    """Counts of every accounting become ours: output includes reasoning, visible is the rest, nonsense is unknown."""
    _, decoder = read(frame({"choices": [], "usage": usage}))
    assert decoder.seen.tokens == tokens


def test_the_last_usage_wins_and_what_it_leaves_out_stays() -> None:
    """Usage in every chunk is cumulative; a later null or partial one erases nothing."""
    _, decoder = read(
        chunk({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": 1}),
        chunk({"content": "b"}, usage={"completion_tokens": 2}),
        chunk({}, finish="stop", usage=None),
    )
    assert decoder.seen.tokens == Tokens(output=2, input=9)


def test_usage_in_other_places() -> None:
    """Groq's extension, Moonshot's choice and llama.cpp's cached count are found too."""
    groq = frame({"choices": [], "x_groq": {"id": "r", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}})
    moonshot = frame({"choices": [{"delta": {}, "usage": {"prompt_tokens": 1, "completion_tokens": 2}}]})
    llama = frame({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}, "timings": {"cache_n": 1}})
    assert read(groq)[1].seen.tokens == read(moonshot)[1].seen.tokens == Tokens(output=2, input=1)
    assert read(llama)[1].seen.tokens == Tokens(output=2, input=1, cached=1)


TIMINGS = [
    ({"timings": {"prompt_ms": 40.5, "predicted_ms": 200, "prompt_n": 9}}, {"prefill": 0.0405, "decode": 0.2}),
    (
        {"x_groq": {"usage": {"queue_time": 0.1, "prompt_time": 0.01, "completion_time": 0.2, "total_time": 0.21}}},
        {"queue": 0.1, "prefill": 0.01, "decode": 0.2, "total": 0.21},
    ),
    ({"time_info": {"queue_time": 0.1, "created": 1786507380}}, {"queue": 0.1}),
    ({"metrics": {"queue_time_ms": 5, "time_to_first_token_ms": 30}}, {"queue": 0.005, "engine_ttft": 0.03}),
    ({"usage": {"time_to_first_token_ms": 38.6, "time_per_output_token_ms": 17}}, {"ttft": 0.0386, "itl": 0.017}),
    ({"sla_metrics": {"ttft_ms": 274, "ts_us": 1}}, {"ttft": 0.274}),
    (
        {"latency_checkpoint": {"pre_inference_ms": 82, "engine_ttft_ms": 80, "service_ttft_ms": 664}},
        {"pre_inference": 0.082, "engine_ttft": 0.08, "ttft": 0.664},
    ),
    ({"timings": None, "usage": None, "metrics": [], "time_info": {"queue_time": "0.1"}}, {}),
    ({"timings": {"prompt_ms": -1, "predicted_ms": float("inf")}}, {}),
]


@pytest.mark.parametrize(("fields", "server"), TIMINGS)
def test_server_timings_are_seconds(fields: dict[str, Any], server: dict[str, float]) -> None:
    """What servers report about their own time, each in its own unit, comes out in seconds under one set of names."""
    assert read(frame({"choices": [], **fields}))[1].seen.server == pytest.approx(server)


ERRORS = {
    "nested": frame({"error": {"message": "boom", "type": "server_error", "code": 500}}),
    "flat": frame({"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}),
    "string": frame({"error": "boom", "error_type": "generation"}),
    "event": frame({"error": {"message": "boom"}}, event="error"),
    "event with text": b"event: error\ndata: boom\n\n",
    "event, flat": frame({"message": "boom"}, event="error"),
    "error line": b'error: {"code":500,"message":"boom"}\n\n',
    "error line with text": b"error: boom\n\n",
    "in a chunk beside choices": chunk({"content": ""}, error={"code": 400, "message": "boom"}),
    "in a choice": frame({"choices": [{"delta": {}, "error": {"code": 502, "message": "boom"}}]}),
    "in a list": frame([{"error": {"message": "boom"}}]),
    "bare": b'{"error": {"message": "boom"}}\n',
    "bare and pretty": b'{\n  "error": {\n    "message": "boom"\n  }\n}\n',
    "detail": frame({"detail": "boom"}),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("begun", [b"", chunk({"content": "Hi"})], ids=["first event", "mid-stream"])
@pytest.mark.parametrize("end", [b"", DONE, STOP + DONE], ids=["then EOF", "then [DONE]", "then finish and [DONE]"])
def test_an_error_inside_a_200_is_never_a_success(error: bytes, begun: bytes, end: bytes) -> None:
    """In every spelling, first or mid-stream, with or without a proper end after it."""
    kind, text = judge(Ending.of(read(begun + error + end)[1])) or (None, "")
    assert kind is K.STREAM_ERROR
    assert "boom" in text


def test_a_null_error_is_none() -> None:
    """Several servers put `error: null` into every chunk."""
    assert verdict(chunk({"content": "Hi"}, error=None), STOP, DONE) is None


@pytest.mark.parametrize(
    "data",
    [b"{broken", b'"text"', b"1", b"null", b"[]", b"[1]", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"\x00\xff"],
    ids=lambda data: repr(data[:8]),
)
def test_what_is_no_json_object_is_a_protocol_error(data: bytes) -> None:
    """Broken, deeply nested or non-object JSON is an event, never an exception."""
    events, _ = read(b"data: " + data + b"\n\n")
    assert [event.kind for event in events] == [E.ERROR]
    assert verdict(chunk({"content": "Hi"}), b"data: " + data + b"\n\n", STOP, DONE) is K.PROTOCOL_ERROR


def test_a_last_chunk_without_its_blank_line_counts() -> None:
    """The finish chunk and the marker are often what the peer did not end with a blank line."""
    assert verdict(chunk({"content": "Hi"}), STOP, b"data: [DONE]") is None
    assert verdict(chunk({"content": "Hi"}), STOP[:-2], b"\n\n" + DONE[:-1]) is None


def test_a_chunk_cut_in_the_middle_is_truncation() -> None:
    """Half a JSON object at the end of the body is no protocol error: the body was cut."""
    assert verdict(chunk({"content": "Hi"}), STOP[:-10]) is K.TRUNCATED
    assert verdict(chunk({"content": "Hi"}), STOP, b"data: [DO") is K.TRUNCATED


def test_endings() -> None:
    """Success needs tokens, a finish reason and the marker; each thing missing has its own name."""
    token, thought = chunk({"content": "Hi"}), chunk({"reasoning": "Hm"})
    assert verdict(token, STOP, DONE) is None
    assert verdict(token, STOP) is verdict(token, DONE) is verdict(token) is verdict() is K.TRUNCATED
    assert verdict(STOP, DONE) is K.EMPTY_ANSWER
    assert verdict(thought, STOP, DONE) is K.REASONING_ONLY
    assert verdict(token, chunk({}, finish="content_filter"), DONE) is K.FILTERED
    assert verdict(chunk({"refusal": "No."}), STOP, DONE) is K.FILTERED
    assert verdict(token, chunk({}, finish="error"), DONE) is K.STREAM_ERROR
    assert verdict(chunk({"tool_calls": [{"function": {"name": "f"}}]}), chunk({}, finish="tool_calls"), DONE) is None


def test_hidden_reasoning_that_ate_the_budget_is_named() -> None:
    """A cap of 50, 50 reasoning tokens, no visible one: not a success and not an empty answer."""
    usage = {"prompt_tokens": 9, "completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 50}}
    body = (
        chunk({"role": "assistant", "content": ""}),
        chunk({}, finish="length"),
        frame({"choices": [], "usage": usage}),
    )
    assert verdict(*body, DONE) is K.REASONING_ONLY


def test_a_repeated_finish_reason_is_one_event() -> None:
    """OpenRouter repeats it beside the usage: the finish mark is the first."""
    assert kinds(chunk({"content": "a"}), STOP, chunk({}, finish="stop", usage={"completion_tokens": 1}), DONE) == [
        "text",
        "finish",
        "usage",
        "done",
    ]


def test_what_trails_after_the_end_marker_is_ignored() -> None:
    """Comments, tokens and errors after [DONE] change nothing."""
    trail = b": 408 Request Timeout\n\n" + chunk({"content": "x"}) + frame({"error": "late"}) + DONE
    assert kinds(chunk({"content": "a"}), STOP, DONE + trail, trail) == ["text", "finish", "done"]


def test_perplexity_ends_with_an_object_type() -> None:
    """No [DONE] by design: the object `chat.completion.done` is the marker there."""
    last = chunk({"content": ""}, finish="stop").replace(b"chat.completion.chunk", b"chat.completion.done")
    assert verdict(chunk({"content": "1"}), last) is None


def test_a_body_beyond_its_bound_is_too_large() -> None:
    """A line of more than 16 MB ends the parse with its kind instead of growing."""
    piece = b"x" * 1_000_000
    assert verdict(chunk({"content": "a"}), b"data: ", *[piece] * 18) is K.TOO_LARGE


def test_the_opening_is_kept() -> None:
    """The first two kilobytes of any body are kept for the record, not more."""
    _, decoder = read(b"<html>", b"x" * 5000)
    assert (decoder.opening[:6], len(decoder.opening), decoder.body_bytes) == (b"<html>", 2048, 5006)
