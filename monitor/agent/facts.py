"""Facts beside the times: what headers, body and error body say about limits, version, place and origin of an answer.

Hides that every vendor has its own spelling: counts in dozens of headers, and resets as Go durations, plain seconds,
RFC 3339 instants or Unix time. All resets come out as seconds from the answer. What is absent or cannot be understood
is left out; nothing is guessed (Azure's resets have no stated unit and are left out).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from monitor.agent.foreign_json import NOT_JSON, items, obj, parse, text
from monitor.model import RateLimit, ServiceFacts

MAX_LIMITS = 24
_MAX_NAME, _MAX_TEXT = 60, 200
_MAX_SECONDS = 400 * 86_400.0

_NAMED_LIMITS = (  # what is counted, which of the three
    re.compile(r"(?:x-)?ratelimit-(?P<part>limit|remaining|reset)(?:-(?P<what>.+))?"),
    re.compile(r"anthropic-ratelimit-(?P<what>.+)-(?P<part>limit|remaining|reset)"),
    re.compile(r"(?P<what>ratelimitbysize)-(?P<part>limit|remaining|reset)"),
    re.compile(r"x-(?P<what>(?:trial-)?endpoint(?:-monthly)?-call)-(?P<part>limit|remaining)"),
)
_REQUEST_IDS = (
    "x-request-id",
    "request-id",
    "apim-request-id",
    "x-amzn-requestid",
    "x-generation-id",
    "mistral-correlation-id",
    "x-kong-request-id",
    "x-debug-trace-id",
    "x-ds-trace-id",
    "inference-id",
    "cf-ray",
    "x-amz-cf-id",
)
_REGIONS = ("x-groq-region", "x-ms-region", "x-ppl-region")
_VERSIONS = ("azureml-model-session", "x-build-commit")
_UPSTREAMS = ("x-provider-name", "x-inference-provider")
_TIERS = ("x-gemini-service-tier",)
_NO_REGION = frozenset({"not_available", "unknown"})

_DURATION = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?(?:\d+(?:\.\d+)?[uµn]s)?"
)
_UNITS = (86_400.0, 3600.0, 60.0, 1.0, 1e-3)


def service_facts(
    headers: Mapping[str, str], body: Mapping[str, str], now: datetime, error_body: bytes = b""
) -> ServiceFacts:
    """What is known beside the times. `headers` with lower-case names, `body` as `Seen.facts`, `now` aware.

    Instants are compared with the server's own `date`, where it has one: our clock may be wrong.
    """
    at = _instant(headers.get("date", "")) or now
    region = _first(headers, _REGIONS) or body.get("region")
    return ServiceFacts(
        limits=_limits(headers, at),
        retry_after_seconds=_retry_after(headers, at, error_body),
        version=body.get("fingerprint") or _first(headers, _VERSIONS),
        region=None if region in _NO_REGION else region,
        upstream=body.get("upstream") or _first(headers, _UPSTREAMS),
        tier=body.get("tier") or _first(headers, _TIERS),
    )


def request_id(headers: Mapping[str, str], body: Mapping[str, str]) -> str | None:
    """The id under which the provider's support finds this request, at most 128 characters."""
    found = _first(headers, _REQUEST_IDS) or body.get("response_id")
    return found[:128] if found else None


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((headers[name][:_MAX_TEXT] for name in names if headers.get(name)), None)


def _limits(headers: Mapping[str, str], at: datetime) -> tuple[RateLimit, ...]:
    """One entry for each thing that is counted, in the order of the headers."""
    unit_known = not any(name.startswith("x-ratelimit-renewalperiod") for name in headers)
    found: dict[str, dict[str, float]] = {}
    for name, value in headers.items():
        match = _limit_name(name)
        if match is None:
            continue
        part, what = match["part"], (match["what"] or "requests")[:_MAX_NAME]
        number = _count(value) if part != "reset" else _reset(value, at) if unit_known else None
        if number is not None and (what in found or len(found) < MAX_LIMITS):
            found.setdefault(what, {})[part] = number
    return tuple(
        RateLimit(name=what, limit=of.get("limit"), remaining=of.get("remaining"), reset_seconds=of.get("reset"))
        for what, of in found.items()
    )


def _limit_name(name: str) -> re.Match[str] | None:
    if "limit" not in name and "-call-" not in name:
        return None
    return next((match for pattern in _NAMED_LIMITS if (match := pattern.fullmatch(name))), None)


def _count(value: str) -> float | None:
    number = _number(value.partition(",")[0].partition(";")[0])
    return number if number is not None and number < 1e15 else None


def _reset(value: str, at: datetime) -> float | None:
    """Seconds until the reset, from `1m30s`, `6ms`, `0.5`, an instant, or Unix time in seconds or milliseconds."""
    number = _number(value)
    if number is None:
        seconds = _duration(value)
        if seconds is None and (instant := _instant(value)) is not None:
            seconds = (instant - at).total_seconds()
    elif number > 1e11:
        seconds = number / 1000 - at.timestamp()
    else:
        seconds = number - at.timestamp() if number > 1e9 else number
    if seconds is None or seconds > _MAX_SECONDS:
        return None
    return round(max(0.0, seconds), 6)


def _retry_after(headers: Mapping[str, str], at: datetime, error_body: bytes) -> float | None:
    exact = _number(headers.get("retry-after-ms", ""))
    if exact:  # Azure says 0 there beside a second in the other one
        return _sane(exact / 1000)
    told = headers.get("retry-after", "")
    if (seconds := _number(told)) is not None:
        return _sane(seconds)
    if (instant := _instant(told)) is not None:
        return _sane(max(0.0, (instant - at).total_seconds()))
    return next(_retry_delays(error_body), None)


def _retry_delays(error_body: bytes) -> Iterator[float]:
    """Google says it in the body: {"@type": "...RetryInfo", "retryDelay": "48s"}."""
    if b"retryDelay" not in error_body:
        return
    said: Any = parse(error_body.decode("utf-8", "replace"))
    said = said[0] if isinstance(said, list) and said else said
    if said is NOT_JSON:
        return
    for detail in items(obj(obj(said).get("error")).get("details"))[:20]:
        if (seconds := _duration(text(obj(detail).get("retryDelay")))) is not None:
            yield seconds


def _sane(seconds: float) -> float | None:
    return seconds if seconds <= _MAX_SECONDS else None


def _number(value: str) -> float | None:
    try:
        number = float(value) if len(value) <= 30 else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _duration(value: str) -> float | None:
    match = _DURATION.fullmatch(value) if 0 < len(value) <= 40 else None
    if match is None:
        return None
    return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part)


def _instant(value: str) -> datetime | None:
    """RFC 3339, or an HTTP date; None for anything else and for an instant without its zone."""
    if not value or len(value) > 40:
        return None
    try:
        instant = datetime.fromisoformat(value) if value[0].isdigit() else parsedate_to_datetime(value)
        return instant.astimezone(UTC) if instant.tzinfo else None
    except (ValueError, TypeError, OverflowError):
        return None
