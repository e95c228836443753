"""The request of an attempt: written and signed before any time counts, or rehearsed without being sent.

Hides the nonce, and where secrets stand in a request.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from monitor.agent.dialects import DIALECTS, RequestParts
from monitor.clock import Clock
from monitor.model import MonitorError, Secret, Series

MASK = "***"

HeadersOnWire = Callable[[str, str, Mapping[str, str], bytes | None], list[tuple[str, str]]]
"""(method, URL, our headers, body) -> all headers of a request, in the order of the wire."""


class UnsendableHeader(MonitorError):
    """A request header holds what HTTP cannot carry; its value is not shown."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the request header {name!r} holds a character that HTTP does not allow"
            " (a line break, a blank at its end or a typographic quote in the key?)"
        )


@dataclass(frozen=True, slots=True)
class Question:
    """The request as it goes on the wire, written and signed before any time counts."""

    url: str
    headers: dict[str, str]  # with the secrets revealed: never shown
    body: bytes
    parts: RequestParts

    @classmethod
    def to(cls, series: Series, clock: Clock) -> Question:
        """Raises UnsendableHeader, ValueError on a URL that is none."""
        parts = DIALECTS[series.target.dialect].request(series.target, series.probe, _prompt(series))
        body = json.dumps(parts.body).encode()
        headers = _revealed(_signed(parts, "POST", parts.url, body, clock))
        return cls(parts.url, {**headers, "content-type": "application/json"}, body, parts)

    def headers_for(self, method: str, url: str, body: bytes, clock: Clock) -> dict[str, str]:
        """The headers of another request with the same key."""
        return _revealed(_signed(self.parts, method, url, body, clock))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A request as it would be sent, secrets as `***`."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...]  # in the order of the wire
    body: str
    control_url: str | None  # asked afterwards by GET


def rehearse(series: Series, clock: Clock, headers_on_wire: HeadersOnWire) -> Rehearsal:
    """What an attempt would send now. Sends nothing. Raises UnsendableHeader."""
    dialect = DIALECTS[series.target.dialect]
    question = Question.to(series, clock)
    written = _signed(question.parts, "POST", question.url, question.body, clock)
    masked = {name.lower() for name, value in written.items() if isinstance(value, Secret)}
    known = sorted((secret.reveal() for secret in secrets_of(series)), key=len, reverse=True)
    headers = headers_on_wire("POST", question.url, question.headers, question.body)
    return Rehearsal(
        method="POST",
        url=_masked(question.url, known),
        headers=tuple((name, _masked_header(name, value, known, name.lower() in masked)) for name, value in headers),
        body=_masked(question.body.decode(), known),
        control_url=_masked(dialect.control_url(series.target), known) if series.probe.control else None,
    )


def secrets_of(series: Series) -> list[Secret]:
    """Every secret that a request of this series may carry."""
    aws = series.target.aws
    signing = [aws.access_key_id, aws.secret_access_key, aws.session_token] if aws else []
    candidates = [series.target.api_key, *signing, *series.target.headers.values()]
    return [value for value in candidates if isinstance(value, Secret)]


def _prompt(series: Series) -> str:
    """The probe's prompt, behind a unique prefix that no prompt cache has seen."""
    return f"[{secrets.token_hex(6)}] {series.probe.prompt}" if series.probe.nonce else series.probe.prompt


def _signed(parts: RequestParts, method: str, url: str, body: bytes, clock: Clock) -> dict[str, str | Secret]:
    return {**parts.headers, **(parts.sign(method, url, body, clock.now()) if parts.sign else {})}


def _revealed(headers: Mapping[str, str | Secret]) -> dict[str, str]:
    return {name: _sendable(name, value) for name, value in headers.items()}


def _sendable(name: str, value: str | Secret) -> str:
    bare = value.reveal() if isinstance(value, Secret) else value
    if not bare.isascii() or not bare.isprintable() or bare != bare.strip():
        raise UnsendableHeader(name)
    return bare


def _masked(text: str, known: Iterable[str]) -> str:
    for secret in known:
        text = text.replace(secret, MASK) if secret else text
    return text


def _masked_header(name: str, value: str, known: Iterable[str], secret: bool) -> str:
    if not secret:
        return _masked(value, known)
    scheme, space, _ = value.partition(" ")
    return f"{scheme} {MASK}" if space and name.lower() == "authorization" else MASK
