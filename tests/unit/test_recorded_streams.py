"""Real recorded responses of the three dialects decode to what the vendors' SDKs read, however they are cut."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from monitor.agent.dialects import DIALECTS
from monitor.agent.endings import Ending, judge
from monitor.agent.events import StreamEvent, TokenKind
from monitor.agent.failures import classify_status
from monitor.model import DialectName, FailureKind, Tokens

ROOT = Path(__file__).resolve().parents[2]
STREAMS = ROOT.parent / "shared" / "recorded_streams" / "streams.jsonl.gz"
GOLDEN = ROOT / "tests" / "golden" / "streams"

AGENT_TO_AGENT = "localhost"
"""The host of the recordings that are no model API at all, but JSON-RPC between agents."""

recordings = pytest.mark.skipif(not STREAMS.exists(), reason="recorded streams are not here")


def dialect_of(stream: dict[str, Any]) -> DialectName | None:
    where = stream["host"] + stream["path"]
    return next((name for part, name in _BY_PLACE.items() if part in where), None)


_BY_PLACE = {
    "bedrock-runtime": DialectName.BEDROCK,
    "streamGenerateContent": DialectName.GEMINI,
    "/v1beta/interactions": DialectName.GEMINI,
    "/v2/chat": DialectName.COHERE,
    "/completions": DialectName.OPENAI_CHAT,
    "/responses": DialectName.OPENAI_RESPONSES,
    "/v1/messages": DialectName.ANTHROPIC,
}


@cache
def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.open(STREAMS, "rt")]


@cache
def ours() -> dict[str, tuple[DialectName, bytes]]:
    """Every recorded answer of a model with a status of 200."""
    named = ((s["id"], dialect_of(s), base64.b64decode(s["body"])) for s in recorded() if s["status"] == 200)
    return {key: (name, body) for key, name, body in named if name is not None}


def decoded(name: DialectName, pieces: list[bytes]) -> tuple[list[StreamEvent], Ending]:
    decoder = DIALECTS[name].decoder()
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish()
    return events, Ending.of(decoder)


def said(events: list[StreamEvent], kind: TokenKind) -> str:
    return "".join(event.text for event in events if event.token is kind)


def digest(text: str) -> str:
    return f"{len(text)}:{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def inputs(text: str) -> str:
    """Concatenated JSON objects, each with its keys sorted: how Anthropic's SDK hands tool input over."""
    decoder, at, parts = json.JSONDecoder(), 0, []
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        parts.append(json.dumps(value, sort_keys=True))
    return "".join(parts)


def golden(name: str) -> dict[str, dict[str, Any]]:
    rows = (json.loads(line) for line in (GOLDEN / name).read_text().splitlines())
    return {row.pop("id"): row for row in rows}


@recordings
def test_every_recording_is_read_or_named_with_a_reason() -> None:
    """No recorded stream is left out silently."""
    counts = Counter(name for name, _ in ours().values())
    assert counts == {
        DialectName.OPENAI_CHAT: 123,
        DialectName.OPENAI_RESPONSES: 56,
        DialectName.ANTHROPIC: 30,
        DialectName.GEMINI: 49,
        DialectName.BEDROCK: 68,
        DialectName.COHERE: 11,
    }
    others = Counter(s["host"] for s in recorded() if s["id"] not in ours())
    assert others == {AGENT_TO_AGENT: 21, "generativelanguage.googleapis.com": 1}  # the latter answered 400
    assert counts.total() + others.total() == 359


@recordings
@pytest.mark.parametrize("name", list(DialectName))
def test_a_stream_of_another_protocol_is_called_one(name: DialectName) -> None:
    """Agent-to-agent JSON-RPC, and the streams of every other dialect, are never taken for an answer."""
    strangers = [base64.b64decode(s["body"]) for s in recorded() if s["host"] == AGENT_TO_AGENT]
    strangers += [body for other, body in list(ours().values())[::7] if other is not name]
    kinds = Counter((judge(decoded(name, [body])[1]) or (None,))[0] for body in strangers)
    assert set(kinds) <= {FailureKind.PROTOCOL_ERROR, FailureKind.NOT_A_STREAM, FailureKind.STREAM_ERROR}
    assert kinds[FailureKind.STREAM_ERROR] <= 3  # recordings that hold an error in every dialect's eyes


@recordings
def test_decoders_agree_with_the_official_sdks() -> None:
    """Text, tool input, finish reason, served model and token counts are what the SDKs read from the same bytes."""
    by_hand = golden("by_hand.jsonl")
    wrong = {}
    for key, judged in [*golden("judged.jsonl").items(), *golden("judged_more.jsonl").items()]:
        name, body = ours()[key]
        judged.pop("dialect")
        expected = judged | by_hand.get(key, {}).get("instead", {})
        found = what_we_read(name, body)
        expected["server"] = pytest.approx(expected.pop("server", found.get("server")))
        different = {k: (found.get(k), v) for k, v in expected.items() if v is not None and found.get(k) != v}
        if different:
            wrong[key] = different
    assert wrong == {}


def what_we_read(name: DialectName, body: bytes) -> dict[str, Any]:
    events, ending = decoded(name, [body])
    verdict = judge(ending)
    if verdict and verdict[0] is FailureKind.STREAM_ERROR:
        return {"error": verdict[1].partition("): ")[2].removeprefix("invalid_request_error: ")[:80]}
    seen = ending.seen
    calls = said(events, TokenKind.TOOL_CALL)
    sorted_keys = name in (DialectName.ANTHROPIC, DialectName.GEMINI)
    return {
        "text": digest(said(events, TokenKind.TEXT)),
        "calls": digest(inputs(calls) if sorted_keys else calls),
        "reasoning_text": digest(said(events, TokenKind.REASONING)),
        "finish": seen.finish_reason,
        "model": seen.model,
        "output": seen.tokens.output,
        "reasoning": seen.tokens.reasoning,
        "input": seen.tokens.input,
        "cached": seen.tokens.cached,
        "server": seen.server,
    }


@recordings
def test_every_recording_ends_as_the_table_checked_by_hand_says() -> None:
    """All recordings are successes but those that a person looked at and named."""
    endings = {key: row["ending"] for key, row in golden("by_hand.jsonl").items() if "ending" in row}
    found = {}
    for key, (name, body) in ours().items():
        verdict = judge(decoded(name, [body])[1])
        if verdict is not None:
            found[key] = verdict[0].value
    assert found == endings


@recordings
def test_the_first_token_is_where_a_person_found_it() -> None:
    """Frame (counted from 0, comments included) and kind of the first generated token, looked up in the bytes."""
    expected = {key: tuple(row["first_token"]) for key, row in golden("by_hand.jsonl").items() if "first_token" in row}
    assert {key: first_token(*ours()[key]) for key in expected} == expected


def first_token(name: DialectName, body: bytes) -> tuple[int, str] | None:
    decoder = DIALECTS[name].decoder()
    for number, frame in enumerate(binary_frames(body) if name is DialectName.BEDROCK else text_frames(body)):
        tokens = [event.token for event in decoder.feed(frame) if event.token is not None]
        if tokens:
            return number, tokens[0].value
    return None


def text_frames(body: bytes) -> list[bytes]:
    return [frame + b"\n\n" for frame in body.replace(b"\r\n", b"\n").split(b"\n\n") if frame.strip()]


def binary_frames(body: bytes) -> list[bytes]:
    frames, at = [], 0
    while at < len(body):
        frames.append(body[at : at + int.from_bytes(body[at : at + 4])])
        at += len(frames[-1])
    return frames


@recordings
def test_any_way_of_cutting_gives_the_same_events() -> None:
    """Chunk boundaries mean nothing: halves of characters, of line ends and of fields included."""
    dice = random.Random(7)
    for name, body in dice.sample(list(ours().values()), 40):
        whole, _ = decoded(name, [body])
        cuts = sorted(dice.choices(range(len(body) + 1), k=60))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        assert decoded(name, pieces)[0] == whole


@recordings
def test_small_recordings_one_byte_at_a_time() -> None:
    """The finest cut of all, on the shortest recording of each dialect."""
    for wanted in {name for name, _ in ours().values()}:
        name, body = min((pair for pair in ours().values() if pair[0] is wanted), key=lambda pair: len(pair[1]))
        assert decoded(name, [body[i : i + 1] for i in range(len(body))])[0] == decoded(name, [body])[0]


@recordings
def test_crlf_changes_nothing() -> None:
    """The same recording with CRLF or CR line ends gives the same events."""
    for name, body in [pair for pair in ours().values() if pair[0] is not DialectName.BEDROCK][::20]:
        plain = body.replace(b"\r\n", b"\n")
        for ends in (b"\r\n", b"\r"):
            assert decoded(name, [plain.replace(b"\n", ends)])[0] == decoded(name, [plain])[0]


@recordings
def test_a_recording_cut_short_is_truncated_or_complete() -> None:
    """Whatever prefix of a good stream arrives, its ending is called truncated, unless only what trails is missing."""
    dice = random.Random(8)
    kinds = Counter()
    for name, body in dice.sample(list(ours().values()), 40):
        if judge(decoded(name, [body])[1]) is None:
            verdict = judge(decoded(name, [body[: dice.randrange(len(body) - 20)]])[1])
            kinds[verdict and verdict[0]] += 1
    assert set(kinds) <= {FailureKind.TRUNCATED, None}
    assert kinds[FailureKind.TRUNCATED] > 25


@recordings
def test_the_recorded_error_response_is_named() -> None:
    """A 400 with a pretty-printed JSON body under an event-stream content type (Gemini's way to say: wrong key)."""
    stream = next(s for s in recorded() if s["status"] == 400)
    kind, text = classify_status(400, stream["headers"], base64.b64decode(stream["body"]))
    assert kind is FailureKind.UNAUTHORIZED
    assert "API key not valid" in text


@pytest.mark.parametrize(
    ("name", "text", "finish", "tokens", "server"),
    [
        (
            DialectName.OPENAI_CHAT,
            "I'm glad you've joined",
            "length",
            Tokens(output=6, input=33, cached=0),
            {"prefill": 0.297878, "decode": 0.076667},
        ),
        (
            DialectName.OPENAI_RESPONSES,
            "That's a lovely welcome amen",
            "completed",
            Tokens(output=6, input=33, cached=32),
            {"prefill": 0.0181, "decode": 0.086792},
        ),
        (
            DialectName.ANTHROPIC,
            "Hello! It's an honor",
            "max_tokens",
            Tokens(output=6, reasoning=0, visible=6, input=33, cached=32),
            {},
        ),
    ],
)
def test_the_real_model_reads_as_a_person_reads_it(
    name: DialectName, text: str, finish: str, tokens: Tokens, server: dict[str, float]
) -> None:
    """llama.cpp's own answers in the three dialects (recorded by us), against values looked up in the bytes."""
    events, ending = decoded(name, [(GOLDEN / f"llamacpp_{name.value}.sse").read_bytes()])
    assert judge(ending) is None
    assert said(events, TokenKind.TEXT) == text
    assert ending.seen.token_events == 6
    assert (ending.seen.finish_reason, ending.seen.model) == (finish, "smollm2")
    assert ending.seen.tokens == tokens
    assert ending.seen.server == pytest.approx(server)
