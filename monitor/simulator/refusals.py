"""How the vendors word a refusal: status, JSON body and headers for each error, OpenAI's and Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitor.model import DialectName
from monitor.simulator.behaviour import ErrorKind

# kind: (OpenAI status, type, code, text), (Anthropic status, type, text)
_WORDS: Mapping[ErrorKind, tuple[tuple[int, str, str | None, str], tuple[int, str, str]]] = {
    ErrorKind.OVERLOADED: (
        (503, "service_unavailable_error", "overloaded", "The server is overloaded. Please try again later."),
        (529, "overloaded_error", "Overloaded"),
    ),
    ErrorKind.SERVER_ERROR: (
        (500, "server_error", None, "The server had an error while processing your request. Sorry about that!"),
        (500, "api_error", "Internal server error"),
    ),
    ErrorKind.RATE_LIMITED: (
        (429, "requests", "rate_limit_exceeded", "Rate limit reached for requests per min (RPM)."),
        (429, "rate_limit_error", "This request would exceed your organization's rate limit."),
    ),
    ErrorKind.QUOTA: (
        (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota, please check your plan."),
        (429, "rate_limit_error", "You have reached your specified API usage limits."),
    ),
    ErrorKind.LOADING: (
        (503, "unavailable_error", "503", "Loading model"),
        (503, "api_error", "Loading model"),
    ),
}

_OPENAI_TYPES = {400: "invalid_request_error", 401: "invalid_request_error", 403: "permission_error"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def known_error(dialect: DialectName, kind: ErrorKind, request_id: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of one of the listed errors."""
    openai, anthropic = _WORDS[kind]
    if dialect is DialectName.ANTHROPIC:
        return anthropic[0], _anthropic(anthropic[1], anthropic[2], request_id)
    status, type_, code, text = openai
    return status, _openai(type_, text, code)


def other_error(
    dialect: DialectName, status: int, text: str, request_id: str, code: str | None = None
) -> dict[str, Any]:
    """JSON of any other status."""
    if dialect is DialectName.ANTHROPIC:
        unlisted = "api_error" if status >= 500 else "invalid_request_error"
        return _anthropic(_ANTHROPIC_TYPES.get(status, unlisted), text, request_id)
    unlisted = "server_error" if status >= 500 else "invalid_request_error"
    return _openai(_OPENAI_TYPES.get(status, unlisted), text, code)


def _openai(type_: str, text: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": text, "type": type_, "param": None, "code": code}}


def _anthropic(type_: str, text: str, request_id: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": type_, "message": text}, "request_id": request_id}
