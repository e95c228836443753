"""Attempt -> bytes. Hides which fields there are on the wire, their bounds, and how odd values are mended."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime

from monitor.model import Attempt, HttpFacts, MonitorError, RateLimit, ServiceFacts, TcpFacts
from monitor.timeline import Gaps

MAJOR, MINOR = 1, 1
MAX_BYTES = 131_072
"""No encoded attempt is larger; larger input is refused before it is parsed."""
MAX_NAME = 200
MAX_TEXT = 500
MAX_SERVER_TIMINGS = 64
MAX_TIMING_NAME = 60
MAX_LIMITS = 64
INT64 = 2**63


class WireError(MonitorError):
    """These bytes are no attempt that this version can read; the message says which field, and why."""


class ForeignVersion(WireError):
    """Another major version of the format: nothing in it can be relied on."""


def encode(attempt: Attempt) -> bytes:
    """One attempt as UTF-8 JSON without line breaks, at most `MAX_BYTES`; `decode` gives back an equal attempt.

    What has no place in JSON or in a database is mended, not carried on: NUL and lone surrogates become U+FFFD, a
    number that is not finite or beyond 64 bits is left out, a text beyond its bound is cut. Raises WireError for names
    beyond `MAX_NAME` and instants without a time zone, which no measurement produces.
    """
    return b'{"wire":"%d.%d",' % (MAJOR, MINOR) + dumps(document(attempt))[1:]


def fingerprint(body: bytes) -> int:
    """A signed 64-bit hash (BLAKE2b) of an attempt's `dumps(document(...))`: tells a duplicate from a conflict."""
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), signed=True)


_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def dumps(value: object) -> bytes:
    """Compact JSON that every database takes: NUL characters and lone surrogates become U+FFFD. NaN is a ValueError."""
    text = _to_json(value)
    if "\\u0000" in text:
        text = _without_nul(text)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _without_nul(text: str) -> str:
    """The JSON with NUL characters replaced; an escaped backslash before "u0000" is text, not a NUL."""
    halves = text.split("\\\\")
    return "\\\\".join(half.replace("\\u0000", "\ufffd") for half in halves)


def document(a: Attempt) -> dict[str, object]:
    """What the attempt says as JSON values, bounded and finite, without a version. Raises as `encode` does."""
    body: dict[str, object] = {
        "vantage": _name(a.vantage),
        "target": _name(a.target),
        "probe": _name(a.probe),
        "probe_version": _name(a.probe_version),
        "scheduled_at": rfc3339(a.scheduled_at),
        "try": a.try_number,
        "purpose": a.purpose,
        "started_at": rfc3339(a.started_at),
        "outcome": a.outcome,
        "marks": {mark: at for mark, at in a.timeline.marks.items() if -INT64 <= at < INT64},
    }
    if a.failure is not None:
        body["failure"] = {
            "kind": a.failure.kind,
            "phase": a.failure.phase,
            "text": a.failure.text[:MAX_TEXT],
        }
    if a.gaps is not None:
        body["gaps"] = gap_values(a.gaps)
    _put(body, "missed", a.missed)
    _put(body, "finish_reason", _short(a.finish_reason))
    _put(body, "clock_source", a.clock_source)
    _put(body, "cost", finite(a.cost))
    _put(body, "loop_lag_seconds", finite(a.loop_lag_seconds) or None)
    for key in ("token_events", "coalesced_reads", "reads"):
        _put(body, key, _int64(getattr(a, key)) or None)
    _put(body, "tokens", {key: n for key in TOKENS if (n := _int64(getattr(a.tokens, key))) is not None})
    _put(body, "http", _http(a.http))
    _put(body, "server", timings(a.server))
    _put(body, "service", service(a.service))
    _put(body, "tcp", _tcp(a.tcp))
    _put(body, "validity", list(a.validity))
    return body


GAPS = ("p50", "p95", "max", "stalls", "burst_share")
TOKENS = ("output", "reasoning", "visible", "input", "cached")
SERVICE_TEXTS = ("version", "region", "upstream", "tier")
LIMIT_NUMBERS = ("limit", "remaining", "reset_seconds")
HTTP_TEXTS = (
    "version",
    "remote",
    "family",
    "tls_version",
    "alpn",
    "content_encoding",
    "edge",
    "request_id",
    "served_model",
)


def gap_values(gaps: Gaps | None) -> dict[str, float | int | None]:
    if gaps is None:
        return dict.fromkeys(GAPS)
    return {name: getattr(gaps, name) if name == "stalls" else finite(getattr(gaps, name)) for name in GAPS}


def _http(http: HttpFacts) -> dict[str, object]:
    facts: dict[str, object] = {key: text for key in HTTP_TEXTS if (text := _short(getattr(http, key))) is not None}
    _put(facts, "status", _int64(http.status))
    _put(facts, "reused", http.reused or None)
    _put(facts, "proxied", http.proxied or None)
    if http.certificate_expires_at is not None:
        facts["certificate_expires_at"] = rfc3339(http.certificate_expires_at)
    return facts


def service(facts: ServiceFacts) -> dict[str, object]:
    """Limits, version, place and origin as JSON values; {} when there are none."""
    told: dict[str, object] = {key: text for key in SERVICE_TEXTS if (text := _short(getattr(facts, key))) is not None}
    _put(told, "retry_after_seconds", finite(facts.retry_after_seconds))
    _put(told, "limits", [_limit(limit) for limit in facts.limits[:MAX_LIMITS]])
    return told


def _limit(limit: RateLimit) -> dict[str, object]:
    told: dict[str, object] = {"name": limit.name[:MAX_NAME]}
    for key in LIMIT_NUMBERS:
        _put(told, key, finite(getattr(limit, key)))
    return told


def _tcp(tcp: TcpFacts) -> dict[str, object]:
    facts: dict[str, object] = {}
    _put(facts, "min_rtt", finite(tcp.min_rtt))
    _put(facts, "rtt", finite(tcp.rtt))
    _put(facts, "retransmits", _int64(tcp.retransmits))
    _put(facts, "out_of_order", _int64(tcp.out_of_order))
    return facts


def timings(server: Mapping[str, float]) -> dict[str, float]:
    named = list(server.items())[:MAX_SERVER_TIMINGS]
    return {name[:MAX_TIMING_NAME]: float(value) for name, value in named if math.isfinite(value)}


def _put(document: dict[str, object], key: str, value: object) -> None:
    """Set a key unless there is nothing to say: absent is smaller than null, and hashes the same in later versions."""
    if value is not None and value not in ({}, []):
        document[key] = value


def _name(name: str) -> str:
    if len(name) > MAX_NAME:
        raise WireError(f"a name of {len(name)} characters is too long (at most {MAX_NAME}): {name[:40]!r}...")
    return name


def _short(text: str | None) -> str | None:
    return None if text is None else text[:MAX_TEXT]


def _int64(number: int | None) -> int | None:
    return number if number is not None and -INT64 <= number < INT64 else None


def finite(number: float | None) -> float | None:
    return float(number) if number is not None and math.isfinite(number) else None


def rfc3339(moment: datetime) -> str:
    """An aware datetime as RFC 3339 in UTC with microseconds: `2026-01-31T12:00:00.000000Z`."""
    if moment.tzinfo is None:
        raise WireError(f"an instant needs a time zone: {moment}")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
