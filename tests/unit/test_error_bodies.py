"""What providers mean by a status and an error object: their shapes, rewritten from what each documents or sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.agent.failures import classify_error_object, classify_status
from monitor.model import DialectName, FailureKind

K = FailureKind


def openai(message: str = "x", **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


TABLE = Path(__file__).resolve().parents[1] / "golden" / "error_bodies.jsonl"
CASES = [json.loads(line) for line in TABLE.read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_statuses(case: dict[str, Any]) -> None:
    """Every provider's way to say it gets the right kind, and its words are in the text."""
    raw = case["body"] if isinstance(case["body"], str) else json.dumps(case["body"])
    kind, text = classify_status(case["status"], {"Content-Type": "application/octet-stream"}, raw.encode())
    assert kind.value == case["kind"]
    assert text.startswith(f"HTTP {case['status']}: ")


def test_bedrock_names_its_error_in_a_header() -> None:
    """A model that still loads is a 429 there, named in x-amzn-errortype only."""
    headers = {"X-Amzn-ErrorType": "ModelNotReadyException:http://internal/"}
    assert classify_status(429, headers, b'{"message": "wait"}')[0] is K.LOADING
    assert classify_status(429, {"x-amzn-errortype": "ThrottlingException"}, b'{"message": "x"}')[0] is K.RATE_LIMITED


def test_redirects_show_where_to_without_the_query() -> None:
    """The new address without its query (Modal's holds a token) and without a password."""
    kind, text = classify_status(303, {"Location": "https://me:pass@host/v2?token=planted"}, b"")
    assert kind is K.REDIRECT
    assert text == "HTTP 303 to https://***@host/v2"
    assert classify_status(308, {}, b"")[0] is K.REDIRECT


def test_texts_help() -> None:
    """Retry-after and the page's title are told, keys are not, lengths are bounded."""
    _, text = classify_status(429, {"Retry-After": "20"}, json.dumps(openai("slow down, sk-abcdefgh12345678")).encode())
    assert text == "HTTP 429: slow down, *** (retry after 20 s)"
    assert "'Just a moment...'" in classify_status(403, {}, b"<html><title>Just a moment...</title>")[1]
    assert "anthropic" in classify_status(404, {}, b"", DialectName.ANTHROPIC)[1]
    assert len(classify_status(500, {}, b"word " * 100_000)[1]) <= 1500


def test_a_success_without_a_stream() -> None:
    """A 204 is no failure of the server, but no stream either."""
    assert classify_status(204, {}, b"")[0] is K.NOT_A_STREAM


@pytest.mark.parametrize(
    "body", [b"\xff\x00", b"[" * 10_000, b"null", b"[]", b"{}", b'{"error": null}', b'"x"', b"data: x"]
)
def test_strange_bodies(body: bytes) -> None:
    """No body breaks the reading."""
    assert classify_status(500, {}, body)[0] is K.SERVER_ERROR


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (openai("Overloaded", type="overloaded_error"), K.OVERLOADED),
        (openai("x", type="rate_limit_error"), K.RATE_LIMITED),
        (openai("x", code="insufficient_quota"), K.QUOTA_EXHAUSTED),
        (openai("x", code=429), K.RATE_LIMITED),
        (openai("x", code="503"), K.OVERLOADED),
        (openai("x", status_code=400, type="invalid_request_error"), K.BAD_REQUEST),
        (openai("The server had an error", type="server_error"), K.SERVER_ERROR),
        (openai("boom"), K.STREAM_ERROR),
        ("boom", K.STREAM_ERROR),
        ([openai("x", status="UNAVAILABLE")], K.OVERLOADED),
        ({"error": {"error": {"type": "overloaded_error", "message": "x"}}}, K.OVERLOADED),
        ({"detail": {"message": "Rate limit"}}, K.RATE_LIMITED),
        ({}, K.STREAM_ERROR),
        (None, K.STREAM_ERROR),
        (7, K.STREAM_ERROR),
        ([], K.STREAM_ERROR),
    ],
)
def test_error_objects_without_a_status(error: Any, kind: FailureKind) -> None:
    """Inside a stream the object must say it all; what says nothing is a stream error."""
    found, text = classify_error_object(error)
    assert found is kind
    assert text
