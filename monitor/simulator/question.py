"""What a client asks, read leniently from any of the three dialects' request bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monitor.model import DialectName

PATHS: Mapping[str, DialectName] = {
    "/v1/chat/completions": DialectName.OPENAI_CHAT,
    "/v1/responses": DialectName.OPENAI_RESPONSES,
    "/v1/messages": DialectName.ANTHROPIC,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request, whole: header names in lower case, `id` is what the response calls `x-request-id`."""

    id: str
    method: str
    path: str  # without the query
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str | None:
        """The API key the client sent, in either vendor's header."""
        bearer = self.headers.get("authorization", "")
        if bearer[:7].lower() == "bearer ":
            return bearer[7:].strip()
        return self.headers.get("x-api-key")

    @property
    def dialect(self) -> DialectName:
        """By path; elsewhere by the headers that only Anthropic's clients send."""
        to_anthropic = "anthropic-version" in self.headers or "x-api-key" in self.headers
        return PATHS.get(self.path, DialectName.ANTHROPIC if to_anthropic else DialectName.OPENAI_CHAT)


class BadQuestionError(Exception):
    """The body is no request of this dialect; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The parts of a request that matter to the answer."""

    dialect: DialectName
    model: str
    stream: bool
    cap: int | None  # output tokens
    include_usage: bool
    input_tokens: int  # words of everything said: near enough


_CAPS = {
    DialectName.OPENAI_CHAT: ("max_completion_tokens", "max_tokens"),
    DialectName.OPENAI_RESPONSES: ("max_output_tokens",),
    DialectName.ANTHROPIC: ("max_tokens",),
}


def question(request: Request) -> Question:
    """Read a request's body. Raises BadQuestionError."""
    dialect = PATHS[request.path]
    try:
        body = json.loads(request.body)
    except ValueError:
        raise BadQuestionError("We could not parse the JSON body of your request.") from None
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise BadQuestionError("you must provide a model parameter")
    said = body.get("input" if dialect is DialectName.OPENAI_RESPONSES else "messages")
    if not said:
        raise BadQuestionError("Missing required parameter: what to answer.")
    return Question(
        dialect=dialect,
        model=body["model"],
        stream=body.get("stream") is True,
        cap=_cap(body, dialect),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        input_tokens=7 + _words(said),
    )


def _cap(body: Mapping[str, Any], dialect: DialectName) -> int | None:
    cap = next((body[name] for name in _CAPS[dialect] if body.get(name) is not None), None)
    if cap is None and dialect is DialectName.ANTHROPIC:
        raise BadQuestionError("max_tokens: Field required")
    if cap is not None and (not isinstance(cap, int) or cap < 1):
        raise BadQuestionError(f"{_CAPS[dialect][0]}: must be a whole number of at least 1")
    return cap


def _words(said: Any) -> int:
    """Words in all strings of a nested value."""
    waiting, words = [said], 0
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            words += len(part.split())
        elif isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return words
