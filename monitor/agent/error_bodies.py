"""What a provider means by an HTTP status and an error object, whatever shape it gives them.

Hides that there are a dozen shapes (nested, flat, a bare string, a list around it, FastAPI's `detail`, Google's
`details`) and that one meaning has many names: 429 is our quota at one provider, their capacity at another and a
model that still loads at a third. The words decide within what the status allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monitor.agent.foreign_json import NOT_JSON, items, obj, parse, text
from monitor.agent.scrub import scrub
from monitor.model import DialectName, FailureKind

K = FailureKind
_BODY_BYTES = 65_536
_TEXT_LIMIT = 1_500  # the caller scrubs once more, with the secrets it knows, and cuts at 500


@dataclass(frozen=True, slots=True)
class Said:
    """An error object, whatever its shape: its names (type, code, status, reason), its HTTP status, its message."""

    names: tuple[str, ...] = ()
    status: int | None = None
    message: str = ""

    def __str__(self) -> str:
        name = self.names[0] if self.names else ""
        return ": ".join(part for part in (name, self.message) if part) or "an error without a text"


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: FailureKind
    names: re.Pattern[str]
    message: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None  # a message that says the opposite with the same words

    def fits(self, said: Said) -> bool:
        if self.names.search(" ".join(said.names).lower()):
            return True
        message = said.message.lower()
        if self.message is None or (self.unless is not None and self.unless.search(message)):
            return False
        return self.message.search(message) is not None


def _rule(kind: FailureKind, names: str, message: str | None = None, unless: str | None = None) -> _Rule:
    return _Rule(
        kind, re.compile(names), re.compile(message) if message else None, re.compile(unless) if unless else None
    )


_RULES: tuple[_Rule, ...] = (  # the first that fits and that the status allows
    _rule(K.FILTERED, r"content_?filter|content_policy|responsible_?ai|moderation|safety"),
    _rule(
        K.QUOTA_EXHAUSTED,
        r"insufficient_?(quota|balance|credit|fund)|billing|spend_limit|payment|quota_?exhausted|perday|credit",
        r"credit balance|insufficient (balance|quota|credits?|funds)|payment required|more credits|out of credits"
        r"|included credits|(spend|spending|monthly|usage) limit",
    ),
    _rule(
        K.LOADING,
        r"model_?not_?ready|model_?loading|not_ready|estimated_time|scaledtozero",
        r"loading model|(model|server|replica|endpoint|worker)s?\b.{0,100}\b(loading|starting|initiali[sz]ing|warming)"
        r"|currently loading|no workers? available|cold start|scal(ed|ing) (to zero|from zero|up)|not ready",
        unless=r"\b(error|fail(ed|ure)?|unable|cannot|could not|can't)\b.{0,20}\b(load|start|initiali[sz])",
    ),
    _rule(
        K.OVERLOADED,
        r"overloaded|capacity|slow_?down|serviceunavailable|insufficient_system_resource|\bunavailable\b",
        r"overloaded|(over|at|exceeded) capacity|capacity (is )?exceeded|server busy|too busy|slow down",
    ),
    _rule(
        K.RATE_LIMITED,
        r"rate_?limit|resource_exhausted|throttl|too_?many_?requests|\b429\b",
        r"rate limit|too many requests|(requests|tokens) per (second|minute|hour|day)",
    ),
    _rule(
        K.UNAUTHORIZED,
        r"authentication|api_?key|unauthenticated|unauthori[sz]ed|unrecognizedclient|expired_?token|invalid_token",
        r"(incorrect|invalid|missing|expired|wrong|no) (api[ _-]?key|auth\w*|credentials?|bearer|access token)"
        r"|api key (is )?(not valid|invalid|missing|expired)|provide an api key",
    ),
    _rule(
        K.MODEL_GONE,
        r"model_?not_?found|invalid_?model|model_decommissioned|deployment_?not_?found|model_not_available|unknown_model",
        r"\b(model|deployment|engine)s?\b.{0,150}\b(not found|(does not|doesn't|not) exist|decommissioned|no longer"
        r"|not available|retired|end of (its )?life)|not a valid model|model identifier is invalid"
        r"|have access to the model|(unknown|invalid|no such|unsupported) model|no endpoints found"
        r"|(not found|no such|unknown).{0,40}\b(model|deployment)\b|^model: ",
    ),
    _rule(K.FORBIDDEN, r"permission|forbidden|access_?denied|unsupported_country"),
    _rule(K.NOT_FOUND, r"not_?found"),
    _rule(
        K.BAD_REQUEST,
        r"invalid_?request|invalid_?argument|validation|bad_?request|unprocessable|context_length|tool_use",
    ),
    _rule(K.SERVER_ERROR, r"server_?error|api_error|internal|timeout|timed_out|upstream|bad_gateway|generation"),
)

_WRONG_KEY = _rule(  # what a 403 says when the key is wrong: AWS and some gateways know no 401
    K.UNAUTHORIZED,
    r"unrecognizedclient|expired_?token|invalidsignature|signaturedoesnotmatch|incompletesignature|invalidclienttoken"
    r"|missingauthentication|invalid_?api_?key",
    r"security token included in the request is (invalid|expired)|request signature we calculated does not match"
    r"|signature expired|(incorrect|invalid|wrong|expired) api[ _-]?key|make sure your api key is valid",
)
_CLIENT = frozenset({K.FILTERED, K.QUOTA_EXHAUSTED, K.LOADING, K.OVERLOADED, K.UNAUTHORIZED, K.MODEL_GONE})
_SERVER = frozenset({K.LOADING, K.OVERLOADED})
_BY_STATUS: Mapping[int, tuple[FailureKind, frozenset[FailureKind]]] = {
    401: (K.UNAUTHORIZED, frozenset()),
    402: (K.QUOTA_EXHAUSTED, frozenset()),
    403: (K.FORBIDDEN, frozenset({K.FILTERED, K.QUOTA_EXHAUSTED, K.MODEL_GONE})),
    404: (K.NOT_FOUND, frozenset({K.MODEL_GONE, K.LOADING})),
    405: (K.NOT_FOUND, frozenset()),  # a POST to a page: the wrong URL
    407: (K.PROXY, frozenset()),
    408: (K.SERVER_ERROR, _SERVER),
    410: (K.MODEL_GONE, frozenset()),
    424: (K.SERVER_ERROR, _SERVER),
    429: (K.RATE_LIMITED, frozenset({K.QUOTA_EXHAUSTED, K.LOADING, K.OVERLOADED})),
    451: (K.FORBIDDEN, frozenset()),
    498: (K.OVERLOADED, frozenset()),  # Groq: flex capacity exceeded
    503: (K.OVERLOADED, frozenset({K.LOADING, K.QUOTA_EXHAUSTED})),
    529: (K.OVERLOADED, frozenset()),
}


def classify_status(
    status: int, headers: Mapping[str, str], body: bytes, dialect: DialectName | None = None
) -> tuple[FailureKind, str]:
    """What a response with a status other than 200 means, with one sentence (scrubbed of what looks like a key).

    `body` may be cut short. For a 200 the body decides: see `judge`.
    """
    found = {name.lower(): value for name, value in headers.items()}
    if 300 <= status < 400:
        return K.REDIRECT, _redirect(status, found.get("location", ""))
    if status < 400:
        return K.NOT_A_STREAM, f"HTTP {status} instead of a stream"
    said = _read_body(body[:_BODY_BYTES], found)
    kind = _kind(said, status)
    hint = f" (is the base URL right for {dialect.value}?)" if kind is K.NOT_FOUND and dialect else ""
    return kind, scrub(f"HTTP {status}: {said}{_retry_after(found)}{hint}", limit=_TEXT_LIMIT)


def classify_error_object(error: Any) -> tuple[FailureKind, str]:
    """What an error object of any shape means without an HTTP status beside it; STREAM_ERROR when it does not say."""
    said = read_error(error)
    if said.status is not None and said.status >= 400:
        return _kind(said, said.status), scrub(str(said), limit=_TEXT_LIMIT)
    kind = next((rule.kind for rule in _RULES if rule.fits(said)), K.STREAM_ERROR)
    return kind, scrub(str(said), limit=_TEXT_LIMIT)


def has_error(value: Any) -> bool:
    """Whether a JSON value of no known meaning is an error object of some provider."""
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict) and has_error(value[0])
    value = obj(value)
    if value.get("error") or value.get("error_type") or "error" in (value.get("type"), value.get("object")):
        return True
    return bool(value.get("detail")) or (isinstance(value.get("message"), str) and "choices" not in value)


def read_error(error: Any) -> Said:
    """An error object of any shape, read."""
    if isinstance(error, list):
        error = next((item for item in error if isinstance(item, dict)), error)
    if not isinstance(error, dict):
        return Said(message=error[:2000] if isinstance(error, str) else "")
    inner = error.get("error")
    layers = [inner, error] if isinstance(inner, dict) else [error]
    if isinstance(inner, dict) and isinstance(inner.get("error"), dict):
        layers.insert(0, inner["error"])
    names = tuple(dict.fromkeys(name[:100] for layer in layers for name in _names(layer)))
    numbers = (_number(layer.get(key)) for layer in layers for key in ("status_code", "code", "status", "http_status"))
    return Said(
        names=names,
        status=next((n for n in numbers if n is not None), None),
        message=next((said for said in map(_message, layers) if said), "")[:2000],
    )


def _kind(said: Said, status: int) -> FailureKind:
    default = (K.SERVER_ERROR, _SERVER) if status >= 500 else (K.BAD_REQUEST, _CLIENT)
    kind, allowed = _BY_STATUS.get(status, default)
    if status == 403 and _WRONG_KEY.fits(said):
        return K.UNAUTHORIZED
    return next((rule.kind for rule in _RULES if rule.kind in allowed and rule.fits(said)), kind)


def _names(layer: dict[str, Any]) -> Iterator[str]:
    for key in ("type", "code", "status", "error_type", "reason", "error_code"):
        name = layer.get(key)
        if isinstance(name, str) and name and name != "error" and not name.isdigit():
            yield name
    if "estimated_time" in layer:
        yield "estimated_time"
    details = layer.get("details")
    if isinstance(details, dict):
        yield from _names({k: v for k, v in details.items() if k != "details"})
    for detail in map(obj, items(details)[:20]):
        yield from (said for said in (text(detail.get("reason")),) if said)
        yield from (text(obj(v).get("quotaId")) or "quota" for v in items(detail.get("violations"))[:20])


def _message(layer: dict[str, Any]) -> str:
    for key in ("message", "error", "detail", "msg", "error_message", "title", "Message"):
        said = layer.get(key)
        if isinstance(said, str) and said:
            return said
        if isinstance(said, list):  # FastAPI: [{"loc": [...], "msg": "..."}]
            parts = [text(obj(part).get("msg")) or text(part) for part in said[:5]]
            if any(parts):
                return "; ".join(part for part in parts if part)
    return text(obj(layer.get("detail")).get("message"))


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600 else None


_TITLE = re.compile(r"<title[^>]{0,200}>(.{0,300}?)</title", re.IGNORECASE | re.DOTALL)


def _read_body(body: bytes, headers: Mapping[str, str]) -> Said:
    named = headers.get("x-amzn-errortype", "").split(":")[0]
    plain = body.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if plain[:1] == "<":
        title = _TITLE.search(plain)
        return Said(message="an HTML page" + (f", {title.group(1).strip()!r}" if title else ""))
    if plain.startswith(("data:", "event:")):  # an error answered in the frame of a stream
        plain = next((line[5:] for line in plain.splitlines() if line.startswith("data:")), "")
    error = parse(plain)
    said = read_error(error) if error is not NOT_JSON else Said(message=plain[:500])
    if not said.message and not said.names:
        said = Said(message=plain[:500] if plain.strip() else "an empty body", status=said.status)
    return Said((named, *said.names), said.status, said.message) if named else said


def _redirect(status: int, location: str) -> str:
    return scrub(f"HTTP {status} to {location.split('?')[0]}" if location else f"HTTP {status} without a location")


def _retry_after(headers: Mapping[str, str]) -> str:
    told = headers.get("retry-after", "")
    return f" (retry after {told[:40]}{' s' if told.isdigit() else ''})" if told else ""
