"""Attempts as bytes: the versioned JSON that spools and uploads carry, and the object that `probe --json` prints.

Hides the format. Its rules: what is unknown or did not happen is left out; marks are integer nanoseconds; instants are
RFC 3339 in UTC with microseconds; every text and count is bounded. A newer minor version only adds fields, and a reader
ignores fields that it does not know; a foreign major version is refused. A value of a closed list that the reader
does not know is refused too: guessing at a failure or a doubt would change what the attempt says.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar

from monitor.model import (
    Attempt,
    ClockSource,
    Doubt,
    Failure,
    FailureKind,
    HttpFacts,
    MissReason,
    MonitorError,
    Outcome,
    Purpose,
    Series,
    TcpFacts,
    Tokens,
)
from monitor.timeline import Gaps, Mark, Phase, Timeline

MAJOR, MINOR = 1, 0
MAX_BYTES = 131_072
"""No encoded attempt is larger; larger input is refused before it is parsed."""
MAX_NAME = 200
MAX_TEXT = 500
MAX_SERVER_TIMINGS = 64
MAX_TIMING_NAME = 60
INT64 = 2**63

E = TypeVar("E", bound=StrEnum)


class WireError(MonitorError):
    """These bytes are no attempt that this version can read; the message says which field, and why."""


# ---------------------------------------------------------------------------------------------------- encode


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
        body["gaps"] = {name: _finite(getattr(a.gaps, name)) for name in _GAPS}
    _put(body, "missed", a.missed)
    _put(body, "finish_reason", _short(a.finish_reason))
    _put(body, "clock_source", a.clock_source)
    _put(body, "loop_lag_seconds", _finite(a.loop_lag_seconds) or None)
    for key in ("token_events", "coalesced_reads", "reads"):
        _put(body, key, _int64(getattr(a, key)) or None)
    _put(body, "tokens", {key: n for key in _TOKENS if (n := _int64(getattr(a.tokens, key))) is not None})
    _put(body, "http", _http(a.http))
    _put(body, "server", _timings(a.server))
    _put(body, "tcp", _tcp(a.tcp))
    _put(body, "validity", list(a.validity))
    return body


_GAPS = ("p50", "p95", "max", "stalls", "burst_share")
_TOKENS = ("output", "reasoning", "visible", "input", "cached")
_HTTP_TEXTS = (
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


def _http(http: HttpFacts) -> dict[str, object]:
    facts: dict[str, object] = {key: text for key in _HTTP_TEXTS if (text := _short(getattr(http, key))) is not None}
    _put(facts, "status", _int64(http.status))
    _put(facts, "reused", http.reused or None)
    _put(facts, "proxied", http.proxied or None)
    if http.certificate_expires_at is not None:
        facts["certificate_expires_at"] = rfc3339(http.certificate_expires_at)
    return facts


def _tcp(tcp: TcpFacts) -> dict[str, object]:
    facts: dict[str, object] = {}
    _put(facts, "min_rtt", _finite(tcp.min_rtt))
    _put(facts, "rtt", _finite(tcp.rtt))
    _put(facts, "retransmits", _int64(tcp.retransmits))
    _put(facts, "out_of_order", _int64(tcp.out_of_order))
    return facts


def _timings(server: Mapping[str, float]) -> dict[str, float]:
    named = list(server.items())[:MAX_SERVER_TIMINGS]
    return {name[:MAX_TIMING_NAME]: value for name, value in named if math.isfinite(value)}


def _put(document: dict[str, object], key: str, value: object) -> None:
    """Set a key unless there is nothing to say: absent is smaller than null, and hashes the same in later versions."""
    if value is not None and value != {} and value != []:
        document[key] = value


def _name(name: str) -> str:
    if len(name) > MAX_NAME:
        raise WireError(f"a name of {len(name)} characters is too long (at most {MAX_NAME}): {name[:40]!r}...")
    return name


def _short(text: str | None) -> str | None:
    return None if text is None else text[:MAX_TEXT]


def _int64(number: int | None) -> int | None:
    return number if number is not None and -INT64 <= number < INT64 else None


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def rfc3339(moment: datetime) -> str:
    """An aware datetime as RFC 3339 in UTC with microseconds: `2026-01-31T12:00:00.000000Z`."""
    if moment.tzinfo is None:
        raise WireError(f"an instant needs a time zone: {moment}")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


# ---------------------------------------------------------------------------------------------------- decode


def decode(data: bytes) -> Attempt:
    """The attempt in `data`; raises WireError, which names the field, for anything else. Costs bounded memory."""
    fields = _Fields(_parse(data), "")
    _check_version(fields)
    return _attempt(fields)


def _parse(data: bytes) -> object:
    if len(data) > MAX_BYTES:
        raise WireError(f"an attempt of {len(data)} bytes is too large (at most {MAX_BYTES})")
    try:
        return json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"an attempt must be JSON in UTF-8: {type(error).__name__}") from error


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _check_version(fields: _Fields) -> None:
    version = fields.text("wire")
    major, dot, minor = version.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal() and len(version) <= 20):
        raise WireError(f"wire: {version[:20]!r} is no version such as '{MAJOR}.{MINOR}'")
    if int(major) != MAJOR:
        raise WireError(f"wire: the attempt is in format {version}, this program reads {MAJOR}.x: upgrade the older")


def _attempt(f: _Fields) -> Attempt:
    return Attempt(
        vantage=f.text("vantage", MAX_NAME),
        target=f.text("target", MAX_NAME),
        probe=f.text("probe", MAX_NAME),
        probe_version=f.text("probe_version", MAX_NAME),
        scheduled_at=f.moment("scheduled_at"),
        try_number=f.count("try", 32_767),
        purpose=f.member("purpose", Purpose),
        started_at=f.moment("started_at"),
        outcome=f.member("outcome", Outcome),
        failure=f.nested("failure", _failure),
        missed=f.maybe("missed", lambda key: f.member(key, MissReason)),
        timeline=Timeline(_marks(f)),
        gaps=f.nested("gaps", _gaps),
        tokens=f.nested("tokens", _tokens) or Tokens(),
        token_events=f.maybe("token_events", f.count) or 0,
        finish_reason=f.maybe("finish_reason", f.text),
        http=f.nested("http", _http_facts) or HttpFacts(),
        server=f.nested("server", _Fields.numbers) or {},
        tcp=f.nested("tcp", _tcp_facts) or TcpFacts(),
        clock_source=f.maybe("clock_source", lambda key: f.member(key, ClockSource)),
        validity=f.maybe("validity", _doubts(f)) or (),
        loop_lag_seconds=f.maybe("loop_lag_seconds", f.number) or 0.0,
        coalesced_reads=f.maybe("coalesced_reads", f.count) or 0,
        reads=f.maybe("reads", f.count) or 0,
    )


def _failure(f: _Fields) -> Failure:
    return Failure(kind=f.member("kind", FailureKind), phase=f.member("phase", Phase), text=f.text("text"))


_KNOWN_MARKS: Mapping[str, Mark] = {mark.value: mark for mark in Mark}


def _marks(f: _Fields) -> dict[Mark, int]:
    """Marks by name; one of a newer minor version is a field like any other and ignored."""
    inside = f.inside("marks")
    return {mark: inside.integer(name) for name in inside.data if (mark := _KNOWN_MARKS.get(name)) is not None}


def _gaps(f: _Fields) -> Gaps:
    return Gaps(
        p50=f.maybe("p50", f.number),
        p95=f.maybe("p95", f.number),
        max=f.maybe("max", f.number),
        stalls=f.count("stalls"),
        burst_share=f.maybe("burst_share", f.number),
    )


def _tokens(f: _Fields) -> Tokens:
    return Tokens(**{key: f.integer(key) for key in _TOKENS if key in f.data})


def _http_facts(f: _Fields) -> HttpFacts:
    texts = {key: f.text(key) for key in _HTTP_TEXTS if key in f.data}
    return HttpFacts(
        status=f.maybe("status", f.integer),
        reused=f.maybe("reused", f.flag) or False,
        proxied=f.maybe("proxied", f.flag) or False,
        certificate_expires_at=f.maybe("certificate_expires_at", f.moment),
        **texts,
    )


def _tcp_facts(f: _Fields) -> TcpFacts:
    return TcpFacts(
        min_rtt=f.maybe("min_rtt", f.number),
        rtt=f.maybe("rtt", f.number),
        retransmits=f.maybe("retransmits", f.integer),
        out_of_order=f.maybe("out_of_order", f.integer),
    )


def _doubts(f: _Fields) -> Callable[[str], tuple[Doubt, ...]]:
    def read(key: str) -> tuple[Doubt, ...]:
        given = f.data[key]
        if not isinstance(given, list) or len(given) > 2 * len(Doubt):
            raise f.wrong(key, "a short list of reasons")
        return tuple(_Fields({key: each}, f.path).member(key, Doubt) for each in given)

    return read


T = TypeVar("T")


class _Fields:
    """One JSON object, read with checks: each method gives the type it says, or a WireError with the field's path."""

    __slots__ = ("data", "path")

    def __init__(self, data: object, path: str) -> None:
        if not isinstance(data, dict):
            raise WireError(f"{path.rstrip('.') or 'an attempt'}: must be a JSON object")
        self.data: dict[str, object] = data
        self.path = path

    def wrong(self, key: str, wanted: str) -> WireError:
        if key not in self.data:
            return WireError(f"{self.path}{key}: is missing (must be {wanted})")
        return WireError(f"{self.path}{key}: {_shown(self.data[key])} must be {wanted}")

    def maybe(self, key: str, read: Callable[[str], T]) -> T | None:
        return None if self.data.get(key) is None else read(key)

    def inside(self, key: str) -> _Fields:
        return _Fields(self.data.get(key, {}), f"{self.path}{key}.")

    def nested(self, key: str, read: Callable[[_Fields], T]) -> T | None:
        return None if self.data.get(key) is None else read(self.inside(key))

    def text(self, key: str, limit: int = MAX_TEXT) -> str:
        value = self.data.get(key)
        if not isinstance(value, str) or len(value) > limit:
            raise self.wrong(key, f"a text of at most {limit} characters")
        return value

    def integer(self, key: str) -> int:
        value = self.data.get(key)
        if type(value) is not int or not -INT64 <= value < INT64:
            raise self.wrong(key, "an integer of 64 bits")
        return value

    def count(self, key: str, limit: int = INT64 - 1) -> int:
        value = self.integer(key)
        if not 0 <= value <= limit:
            raise self.wrong(key, f"between 0 and {limit}")
        return value

    def number(self, key: str) -> float:
        value = self.data.get(key)
        if type(value) is int and -INT64 <= value < INT64:
            return float(value)
        if not isinstance(value, float) or not math.isfinite(value):
            raise self.wrong(key, "a finite number")
        return value

    def flag(self, key: str) -> bool:
        value = self.data.get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def moment(self, key: str) -> datetime:
        text = self.text(key, 40)
        try:
            moment = datetime.fromisoformat(text)
            return moment.astimezone(UTC) if moment.tzinfo else _fail()
        except (ValueError, OverflowError):
            raise self.wrong(key, "an RFC 3339 instant with its time zone") from None

    def member(self, key: str, kinds: type[E]) -> E:
        try:
            return kinds(self.text(key))
        except ValueError:
            raise self.wrong(key, "one of " + ", ".join(kinds)) from None

    def numbers(self) -> dict[str, float]:
        if len(self.data) > MAX_SERVER_TIMINGS:
            raise WireError(f"{self.path.rstrip('.')}: more than {MAX_SERVER_TIMINGS} entries")
        return {name[:MAX_TIMING_NAME]: self.number(name) for name in self.data}


def _fail() -> datetime:
    raise ValueError("no time zone")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---------------------------------------------------------------------------------------------------- report


def report(attempt: Attempt, series: Series) -> dict[str, object]:
    """The object that `firsttoken probe --json` prints: every key always there, null where nothing happened.

    Durations are seconds, derived from the marks as `timeline` defines them; all numbers are finite.
    """
    a, line = attempt, attempt.timeline
    return {
        "vantage": a.vantage,
        "target": a.target,
        "probe": a.probe,
        "started_at": rfc3339(a.started_at),
        "outcome": a.outcome.value,
        "failure": _reported_failure(a.failure),
        "missed": None if a.missed is None else a.missed.value,
        "seconds": {
            **{phase.value: line.phase(phase) for phase in Phase},
            "ttft": line.ttft,
            "ttfo": line.ttfo,
            "total": line.total,
            "control": line.control,
            "remainder": None if line.remainder_ns is None else line.remainder_ns / 1e9,
            "lasted": line.lasted_ns / 1e9,
        },
        "tokens": {key: getattr(a.tokens, key) for key in _TOKENS},
        "gaps": {key: None if a.gaps is None else _finite(getattr(a.gaps, key)) for key in _GAPS},
        "http": _reported_http(a.http),
        "server": _timings(a.server),
        "tcp": {key: _finite(getattr(a.tcp, key)) for key in ("min_rtt", "rtt", "retransmits", "out_of_order")},
        "clock_source": None if a.clock_source is None else a.clock_source.value,
        "valid": a.valid,
        "validity": [doubt.value for doubt in a.validity],
        "scheduled_at": rfc3339(a.scheduled_at),
        "try": a.try_number,
        "purpose": a.purpose.value,
        "probe_version": a.probe_version,
        "provider": series.target.provider,
        "model": series.target.model,
        "dialect": series.target.dialect.value,
        "country": series.vantage.place.country,
        "simulated": series.simulated,
        "finish_reason": a.finish_reason,
        "token_events": a.token_events,
        "loop_lag_seconds": _finite(a.loop_lag_seconds),
        "coalesced_reads": a.coalesced_reads,
        "reads": a.reads,
    }


def _reported_failure(failure: Failure | None) -> dict[str, str] | None:
    if failure is None:
        return None
    return {"kind": failure.kind.value, "phase": failure.phase.value, "text": failure.text}


def _reported_http(http: HttpFacts) -> dict[str, object]:
    expires = http.certificate_expires_at
    facts: dict[str, object] = {key: getattr(http, key) for key in ("status", *_HTTP_TEXTS, "reused", "proxied")}
    return {**facts, "certificate_expires_at": None if expires is None else rfc3339(expires)}
