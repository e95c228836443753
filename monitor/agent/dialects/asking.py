"""What all requests have in common: joining a base URL with a path, headers, the target's own body merged in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from monitor.model import Secret, Target

COMMON_HEADERS: Mapping[str, str] = {
    "content-type": "application/json",
    "accept": "text/event-stream",
    "accept-encoding": "identity",  # a compressing server holds small events back
}


def joined(base: str, path: str) -> str:
    """`base` with `path` appended before its query; a base that already ends with `path` stays as it is."""
    parts = urlsplit(base)
    stem = parts.path.rstrip("/")
    if not stem.endswith(path):
        stem += path
    return urlunsplit((parts.scheme, parts.netloc, stem, parts.query, ""))


def replaced(url: str, old_end: str, new_end: str) -> str:
    """`url` with the end of its path exchanged, its query kept."""
    parts = urlsplit(url)
    stem = parts.path.rstrip("/").removesuffix(old_end)
    return urlunsplit((parts.scheme, parts.netloc, stem + new_end, parts.query, ""))


def keyed_headers(target: Target, usual: str) -> dict[str, str | Secret]:
    """Common headers with the key where the dialect has it (`usual`) or the target wants it; the target's own win.

    `authorization` takes it as a bearer.
    """
    headers: dict[str, str | Secret] = dict(COMMON_HEADERS)
    name = target.auth_header or usual
    if target.api_key is not None:
        bearer = name == "authorization"
        headers[name] = Secret(f"Bearer {target.api_key.reveal()}") if bearer else target.api_key
    return with_own_headers(headers, target)


def bearer_headers(target: Target) -> dict[str, str | Secret]:
    """Common headers with `Authorization: Bearer`, or what the target wants instead; the target's own win."""
    return keyed_headers(target, "authorization")


def with_own_headers(headers: dict[str, str | Secret], target: Target) -> dict[str, str | Secret]:
    """The target's own headers over the dialect's, whatever their case."""
    return headers | {name.lower(): value for name, value in target.headers.items()}


def merged(body: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """JSON merge patch (RFC 7396): objects merge, None removes a key, everything else replaces."""
    result = dict(body)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result
