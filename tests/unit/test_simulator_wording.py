"""What the simulated vendors say: each dialect's shapes, counts and orders, and the log of what was sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.model import DialectName
from monitor.simulator.answer import Answer, Frame, plan
from monitor.simulator.behaviour import Behaviour, Content, ErrorKind
from monitor.simulator.dialects import WORDINGS
from monitor.simulator.question import BadQuestionError, Question, Request, question
from monitor.simulator.refusals import known_error
from monitor.simulator.sendlog import SendKind, SendLog, read_log

PATHS = {
    DialectName.OPENAI_CHAT: "/v1/chat/completions",
    DialectName.OPENAI_RESPONSES: "/v1/responses",
    DialectName.ANTHROPIC: "/v1/messages",
}


def asked(dialect: DialectName, cap: int | None = None, usage: bool = True) -> Question:
    return Question(dialect=dialect, model="m", stream=True, cap=cap, include_usage=usage, input_tokens=9)


def answer(dialect: DialectName, cap: int | None = None, **behaviour: Any) -> Answer:
    timings = {"prompt_ms": 1.0} if behaviour.pop("timed", False) else None
    return plan(Behaviour(**behaviour), asked(dialect, cap), id="1", created=1, timings=lambda: timings)


def events(frames: list[Frame]) -> list[dict[str, Any]]:
    """The JSON of every frame; each must be one whole server-sent event."""
    values = []
    for frame in frames:
        text = frame.data.decode()
        assert text.endswith("\n\n")
        *named, line = text[:-2].split("\n")
        value = json.loads(line.removeprefix("data: ")) if line != "data: [DONE]" else {"type": "[DONE]"}
        assert named == ([f"event: {value['type']}"] if named else [])
        values.append(value)
    return values


@pytest.mark.parametrize("dialect", list(WORDINGS))
@pytest.mark.parametrize("content", Content)
@pytest.mark.parametrize("reasoning", [0, 3])
def test_every_token_is_one_event_on_its_step(dialect: DialectName, content: Content, reasoning: int) -> None:
    """Tokens are numbered from 0 without a hole, each is due on its own step, and nothing comes after the end."""
    frames = list(WORDINGS[dialect].frames(answer(dialect, content=content, tokens=5, reasoning_tokens=reasoning)))
    assert [f.token for f in frames if f.kind is SendKind.TOKEN] == list(range(5 + reasoning))
    assert [f.step for f in frames if f.kind is SendKind.TOKEN] == list(range(5 + reasoning))
    assert [f.step for f in frames] == sorted(f.step for f in frames)
    assert frames[-1].kind is SendKind.DONE
    assert events(frames)


@pytest.mark.parametrize("dialect", list(WORDINGS))
def test_the_whole_answer_and_the_stream_report_the_same_usage(dialect: DialectName) -> None:
    """Reasoning counts as output; a stream's usage is the whole object's."""
    reply = answer(dialect, tokens=5, reasoning_tokens=3)
    whole = WORDINGS[dialect].whole(reply)["usage"]
    last = events(list(WORDINGS[dialect].frames(reply)))[-2:]
    streamed = last[0].get("usage") or last[1]["response"]["usage"]
    assert streamed == whole
    assert whole.get("output_tokens", whole.get("completion_tokens")) == 8


def test_chat_sends_usage_after_finish_and_only_when_asked() -> None:
    """Role, tokens, finish, usage with empty choices, [DONE]; without include_usage no usage key at all."""
    dialect = DialectName.OPENAI_CHAT
    frames = list(WORDINGS[dialect].frames(answer(dialect, tokens=1)))
    role, token, finish, usage, done = events(frames)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert token["choices"][0]["delta"] == {"content": "The"}
    assert token["usage"] is None
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert (usage["choices"], done) == ([], {"type": "[DONE]"})
    bare = plan(Behaviour(tokens=1), asked(dialect, usage=False), id="1", created=1)
    assert not any("usage" in value for value in events(list(WORDINGS[dialect].frames(bare))))


def test_responses_number_their_events_and_end_without_done() -> None:
    """`sequence_number` has no hole, the last event is the terminal one and holds the output."""
    values = events(list(WORDINGS[DialectName.OPENAI_RESPONSES].frames(answer(DialectName.OPENAI_RESPONSES, tokens=2))))
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    assert [values[0]["type"], values[-1]["type"]] == ["response.created", "response.completed"]
    assert values[-1]["response"]["output"][0]["content"][0]["text"] == "The light"


def test_anthropic_pings_after_the_first_block_begins() -> None:
    """message_start, block start, ping, deltas, block stop, message_delta with the stop reason, message_stop."""
    values = events(list(WORDINGS[DialectName.ANTHROPIC].frames(answer(DialectName.ANTHROPIC, tokens=1))))
    assert [value["type"] for value in values] == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert values[-2]["delta"]["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("dialect", "reason"),
    [
        (DialectName.OPENAI_CHAT, '"finish_reason":"length"'),
        (DialectName.OPENAI_RESPONSES, '"reason":"max_output_tokens"'),
        (DialectName.ANTHROPIC, '"stop_reason":"max_tokens"'),
    ],
)
def test_a_cap_cuts_and_is_told(dialect: DialectName, reason: str) -> None:
    """Reasoning eats of the request's cap first; what was cut finishes as the vendor says so."""
    reply = answer(dialect, cap=4, tokens=5, reasoning_tokens=3)
    assert (len(reply.reasoning), len(reply.visible)) == (3, 1)
    assert reason in b"".join(frame.data for frame in WORDINGS[dialect].frames(reply)).decode()


@pytest.mark.parametrize("dialect", list(WORDINGS))
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_the_pieces_of_a_tool_call_are_no_empty_tokens_and_parse_together(dialect: DialectName, count: int) -> None:
    """However many pieces are asked for: each carries something, and the arguments are JSON."""
    reply = answer(dialect, content=Content.TOOL_CALL, tokens=count)
    assert len(reply.visible) == count
    assert all(reply.visible)
    assert json.loads(reply.text)["city"].strip()


@pytest.mark.parametrize("dialect", list(WORDINGS))
def test_body_timings_ride_on_the_last_events(dialect: DialectName) -> None:
    """llama.cpp's timings are reported exactly once, when asked for."""
    for timed, times in ((True, 1), (False, 0)):
        reply = answer(dialect, tokens=1, timed=timed)
        assert b"".join(frame.data for frame in WORDINGS[dialect].frames(reply)).count(b'"timings"') == times


@pytest.mark.parametrize("dialect", list(WORDINGS))
@pytest.mark.parametrize("kind", ErrorKind)
def test_an_error_inside_a_stream_is_the_vendors_object(dialect: DialectName, kind: ErrorKind) -> None:
    """Every listed error can be said in every dialect, with a type and a text."""
    reply = answer(dialect)
    status, error = known_error(dialect, kind, "req_1")
    assert status in (429, 500, 503, 529)
    assert error["error"]["message"]
    assert error["error"]["type"]
    first = events(list(WORDINGS[dialect].error_frames(reply, error, 0, 2)))[0]
    assert first["error"] == error["error"]


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/chat/completions", b"{", "could not parse"),
        ("/v1/chat/completions", b"[]", "model"),
        ("/v1/chat/completions", b'{"model":"m"}', "Missing required parameter"),
        ("/v1/messages", b'{"model":"m","messages":[1]}', "max_tokens"),
        ("/v1/responses", b'{"model":"m","input":"x","max_output_tokens":0}', "at least 1"),
    ],
)
def test_a_body_that_is_no_request_is_refused_with_a_reason(path: str, body: bytes, text: str) -> None:
    """Bad JSON and missing parts are 400s that name what is wrong."""
    with pytest.raises(BadQuestionError, match=text):
        question(Request(id="1", method="POST", path=path, headers={}, body=body))


@pytest.mark.parametrize("dialect", list(WORDINGS))
def test_questions_are_read_from_each_dialects_own_fields(dialect: DialectName) -> None:
    """Model, cap, streaming and the size of the prompt are found where the vendor puts them."""
    cap = {"openai_chat": "max_completion_tokens", "openai_responses": "max_output_tokens", "anthropic": "max_tokens"}
    said: Any = [{"role": "user", "content": [{"type": "text", "text": "one two three"}]}]
    where = "input" if dialect is DialectName.OPENAI_RESPONSES else "messages"
    body = json.dumps({"model": "m", "stream": True, cap[dialect]: 7, where: said}).encode()
    read = question(Request(id="1", method="POST", path=PATHS[dialect], headers={}, body=body))
    assert (read.dialect, read.model, read.stream, read.cap) == (dialect, "m", True, 7)
    assert read.input_tokens == 12  # 7 for the frame, 3 words, and the role and type


def test_the_send_log_keeps_the_newest_and_says_what_it_forgot() -> None:
    """Memory is bounded: the oldest streams go first, counted."""
    log = SendLog(keep=5)
    for stream in "abc":
        for token in range(2):
            log.add(stream, SendKind.TOKEN, token, 1, 2, 3)
    assert log.streams == ["b", "c"]
    assert log.forgotten == 2
    assert log.of("a") == []
    sent = log.token("c", 1)
    assert sent is not None
    assert sent.before_ns == 1


def test_the_send_log_file_reads_back_what_was_logged(tmp_path: Path) -> None:
    """One JSON object a line, exact integers; a last line cut by a kill costs only itself."""
    log = SendLog(tmp_path / "log", keep=10)
    log.add("s", SendKind.HEADERS, None, 10**18, 10**18 + 1, 7)
    log.add("s", SendKind.TOKEN, 0, 3, 4, 5)
    log.close()
    with (tmp_path / "log").open("a") as file:
        file.write('{"stream":"s","kind"')
    assert read_log(tmp_path / "log") == {"s": log.of("s")}
