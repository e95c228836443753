"""Bytes -> attempt. Hides the checks: every field is read with its type and bound, or refused by name."""

from __future__ import annotations

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
    Outcome,
    Purpose,
    RateLimit,
    ServiceFacts,
    TcpFacts,
    Tokens,
)
from monitor.timeline import Gaps, Mark, Phase, Timeline
from monitor.wire.encoding import (
    HTTP_TEXTS,
    INT64,
    LIMIT_NUMBERS,
    MAJOR,
    MAX_BYTES,
    MAX_LIMITS,
    MAX_NAME,
    MAX_SERVER_TIMINGS,
    MAX_TEXT,
    MAX_TIMING_NAME,
    MINOR,
    SERVICE_TEXTS,
    TOKENS,
    ForeignVersion,
    WireError,
)

E = TypeVar("E", bound=StrEnum)


def decode(data: bytes) -> Attempt:
    """The attempt in `data`; raises WireError, which names the field, for anything else. Costs bounded memory."""
    return read_attempt(parse(data, MAX_BYTES, "an attempt"))


def read_attempt(document: object) -> Attempt:
    """The attempt in JSON values, as a row of an upload has it; raises WireError like `decode`."""
    fields = Fields(document, "")
    check_version(fields)
    return _attempt(fields)


def parse(data: bytes, limit: int, what: str) -> object:
    """JSON values; raises WireError for more than `limit` bytes, for what is no JSON, and for NaN and its kin."""
    if len(data) > limit:
        raise WireError(f"{what} of {len(data)} bytes is too large (at most {limit})")
    try:
        return json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} must be JSON in UTF-8: {type(error).__name__}") from error


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def check_version(fields: Fields) -> None:
    """Raises ForeignVersion for another major version than ours, WireError for no version at all."""
    version = fields.text("wire")
    major, dot, minor = version.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal() and len(version) <= 20):
        raise WireError(f"wire: {version[:20]!r} is no version such as '{MAJOR}.{MINOR}'")
    if int(major) != MAJOR:
        raise ForeignVersion(f"wire: this is format {version}, this program reads {MAJOR}.x: upgrade the older")


def _attempt(f: Fields) -> Attempt:
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
        server=f.nested("server", Fields.numbers) or {},
        service=f.nested("service", _service_facts) or ServiceFacts(),
        tcp=f.nested("tcp", _tcp_facts) or TcpFacts(),
        clock_source=f.maybe("clock_source", lambda key: f.member(key, ClockSource)),
        validity=f.maybe("validity", read_doubts(f)) or (),
        loop_lag_seconds=f.maybe("loop_lag_seconds", f.number) or 0.0,
        coalesced_reads=f.maybe("coalesced_reads", f.count) or 0,
        reads=f.maybe("reads", f.count) or 0,
        cost=f.maybe("cost", f.number),
    )


def _failure(f: Fields) -> Failure:
    return Failure(kind=f.member("kind", FailureKind), phase=f.member("phase", Phase), text=f.text("text"))


_KNOWN_MARKS: Mapping[str, Mark] = {mark.value: mark for mark in Mark}


def _marks(f: Fields) -> dict[Mark, int]:
    """Marks by name; one of a newer minor version is a field like any other and ignored."""
    inside = f.inside("marks")
    return {mark: inside.integer(name) for name in inside.data if (mark := _KNOWN_MARKS.get(name)) is not None}


def _gaps(f: Fields) -> Gaps:
    return Gaps(
        p50=f.maybe("p50", f.number),
        p95=f.maybe("p95", f.number),
        max=f.maybe("max", f.number),
        stalls=f.count("stalls"),
        burst_share=f.maybe("burst_share", f.number),
    )


def _tokens(f: Fields) -> Tokens:
    return Tokens(**{key: f.integer(key) for key in TOKENS if key in f.data})


def _http_facts(f: Fields) -> HttpFacts:
    texts = {key: f.text(key) for key in HTTP_TEXTS if key in f.data}
    return HttpFacts(
        status=f.maybe("status", f.integer),
        reused=f.maybe("reused", f.flag) or False,
        proxied=f.maybe("proxied", f.flag) or False,
        certificate_expires_at=f.maybe("certificate_expires_at", f.moment),
        **texts,
    )


def read_service(value: object) -> ServiceFacts:
    """What `encoding.service` wrote, read back; raises WireError, which names the field, for anything else."""
    return _service_facts(Fields(value, "service."))


def _service_facts(f: Fields) -> ServiceFacts:
    return ServiceFacts(
        limits=tuple(_limit(each) for each in f.rows("limits", MAX_LIMITS)),
        retry_after_seconds=f.maybe("retry_after_seconds", f.number),
        **{key: f.maybe(key, f.text) for key in SERVICE_TEXTS},
    )


def _limit(f: Fields) -> RateLimit:
    return RateLimit(name=f.text("name", MAX_NAME), **{key: f.maybe(key, f.number) for key in LIMIT_NUMBERS})


def _tcp_facts(f: Fields) -> TcpFacts:
    return TcpFacts(
        min_rtt=f.maybe("min_rtt", f.number),
        rtt=f.maybe("rtt", f.number),
        retransmits=f.maybe("retransmits", f.integer),
        out_of_order=f.maybe("out_of_order", f.integer),
    )


def read_doubts(f: Fields) -> Callable[[str], tuple[Doubt, ...]]:
    """A reader of a key that holds reasons to doubt a measurement."""

    def read(key: str) -> tuple[Doubt, ...]:
        given = f.data[key]
        if not isinstance(given, list) or len(given) > 2 * len(Doubt):
            raise f.wrong(key, "a short list of reasons")
        return tuple(Fields({key: each}, f.path).member(key, Doubt) for each in given)

    return read


T = TypeVar("T")


class Fields:
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

    def inside(self, key: str) -> Fields:
        return Fields(self.data.get(key, {}), f"{self.path}{key}.")

    def nested(self, key: str, read: Callable[[Fields], T]) -> T | None:
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

    def rows(self, key: str, limit: int) -> list[Fields]:
        given = self.data.get(key, [])
        if not isinstance(given, list) or len(given) > limit:
            raise self.wrong(key, f"a list of at most {limit} entries")
        return [Fields(each, f"{self.path}{key}[{place}].") for place, each in enumerate(given)]

    def numbers(self) -> dict[str, float]:
        if len(self.data) > MAX_SERVER_TIMINGS:
            raise WireError(f"{self.path.rstrip('.')}: more than {MAX_SERVER_TIMINGS} entries")
        return {name[:MAX_TIMING_NAME]: self.number(name) for name in self.data}


def _fail() -> datetime:
    raise ValueError("no time zone")


def _shown(value: object) -> str:
    """A short picture of a value, however large it is."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."
