"""Attempts as bytes: an exact round trip, room for the future, and a clear refusal of everything else."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor import wire
from monitor.model import (
    Attempt,
    ClockSource,
    DialectName,
    Doubt,
    Failure,
    FailureKind,
    HttpFacts,
    MissReason,
    Outcome,
    Place,
    Probe,
    Purpose,
    RateLimit,
    Series,
    ServiceFacts,
    Target,
    TcpFacts,
    Tokens,
    Vantage,
)
from monitor.timeline import Gaps, Mark, Phase, Timeline

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
PLAIN = Attempt(
    vantage="lagos",
    target="acme",
    probe="short",
    probe_version="0123456789ab",
    scheduled_at=NOW,
    started_at=NOW,
    outcome=Outcome.SUCCESS,
)
SERIES = Series(
    vantage=Vantage(name="lagos", place=Place(country="NG")),
    target=Target(name="acme", provider="acme", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
    probe=Probe(name="short", prompt="hi"),
)

clean = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
int64 = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
moments = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
maybe = st.none()


def optional_fields(kind: type, **known: st.SearchStrategy) -> st.SearchStrategy:
    """Instances of a facts type whose fields are each None or drawn; a field without a strategy fails the test."""
    given_fields = {field.name: maybe | known[field.name] for field in fields(kind) if field.type != "bool"}
    flags = {field.name: st.booleans() for field in fields(kind) if field.type == "bool"}
    return st.builds(kind, **given_fields, **flags)


attempts = st.builds(
    Attempt,
    vantage=clean,
    target=clean,
    probe=clean,
    probe_version=clean,
    scheduled_at=moments,
    try_number=st.integers(0, 32767),
    purpose=st.sampled_from(Purpose),
    started_at=moments,
    outcome=st.sampled_from(Outcome),
    failure=maybe | st.builds(Failure, kind=st.sampled_from(FailureKind), phase=st.sampled_from(Phase), text=clean),
    missed=maybe | st.sampled_from(MissReason),
    timeline=st.builds(Timeline, st.dictionaries(st.sampled_from(Mark), int64)),
    gaps=maybe | st.builds(Gaps, maybe | finite, maybe | finite, maybe | finite, counts, maybe | finite),
    tokens=optional_fields(Tokens, output=int64, reasoning=int64, visible=int64, input=int64, cached=int64),
    token_events=counts,
    finish_reason=maybe | clean,
    http=optional_fields(
        HttpFacts,
        status=int64,
        certificate_expires_at=moments,
        **dict.fromkeys(
            ("version", "remote", "family", "tls_version", "alpn", "content_encoding", "edge", "request_id"), clean
        ),
        served_model=clean,
    ),
    server=st.dictionaries(clean, finite, max_size=10),
    service=optional_fields(
        ServiceFacts,
        limits=st.lists(
            optional_fields(RateLimit, name=clean, limit=finite, remaining=finite, reset_seconds=finite), max_size=4
        ).map(lambda limits: tuple(replace(limit, name=limit.name or "requests") for limit in limits)),
        retry_after_seconds=finite,
        version=clean,
        region=clean,
        upstream=clean,
        tier=clean,
    ).map(lambda facts: replace(facts, limits=facts.limits or ())),
    tcp=optional_fields(TcpFacts, min_rtt=finite, rtt=finite, retransmits=int64, out_of_order=int64),
    clock_source=maybe | st.sampled_from(ClockSource),
    validity=st.lists(st.sampled_from(Doubt), unique=True).map(tuple),
    loop_lag_seconds=finite,
    coalesced_reads=counts,
    reads=counts,
    cost=maybe | finite,
)


def changed(**changes: object) -> bytes:
    """An encoded attempt with some keys replaced."""
    return json.dumps({**json.loads(wire.encode(PLAIN)), **changes}).encode()


@given(attempts)
@settings(max_examples=25, deadline=None)
def test_round_trip(attempt: Attempt) -> None:
    """Whatever an attempt holds comes back equal, in bounded valid JSON without NaN."""
    data = wire.encode(attempt)
    assert len(data) <= wire.MAX_BYTES
    json.loads(data, parse_constant=pytest.fail)
    assert wire.decode(data) == attempt


def test_every_field_of_an_attempt_travels() -> None:
    """A field added to the nouns without a place on the wire fails here, not in production."""
    assert {field.name for field in fields(Attempt)} == {
        *("vantage", "target", "probe", "probe_version", "scheduled_at", "try_number", "purpose", "started_at"),
        *("outcome", "failure", "missed", "timeline", "gaps", "tokens", "token_events", "finish_reason", "http"),
        *("server", "service", "tcp", "clock_source", "validity", "loop_lag_seconds", "coalesced_reads", "reads"),
        "cost",
    }
    assert {field.name for field in fields(Gaps)} == {"p50", "p95", "max", "stalls", "burst_share"}


def test_an_attempt_of_the_first_version_is_read() -> None:
    """What an older agent has spooled has no service facts, and loses nothing."""
    assert wire.decode(changed(wire="1.0")) == PLAIN


def test_other_time_zones_become_utc() -> None:
    """An instant is the same instant after the round trip, told in UTC with a Z."""
    lagos = NOW.astimezone(timezone(timedelta(hours=1)))
    data = wire.encode(replace(PLAIN, started_at=lagos))
    assert b'"started_at":"2026-03-01T12:00:00.123456Z"' in data
    assert wire.decode(data).started_at == NOW


def test_a_newer_minor_version_is_read() -> None:
    """Fields and marks that this version does not know are ignored."""
    data = changed(wire="1.9", moon_phase="full", marks={"resolve_start": 0, "warp": 7}, http={"status": 200, "x": []})
    read = wire.decode(data)
    assert (read.timeline.marks, read.http.status) == ({Mark.RESOLVE_START: 0}, 200)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(wire="2.0"), "wire: this is format 2.0, this program reads 1.x: upgrade the older"),
        (changed(wire="x"), "wire: 'x' is no version such as '1.1'"),
        (changed(wire=1), "wire: 1 must be a text"),
        (b"", "an attempt must be JSON in UTF-8"),
        (b"\xff\xfe", "an attempt must be JSON in UTF-8"),
        (b"[" * 100_000, "an attempt must be JSON in UTF-8"),
        (b"[]", "an attempt: must be a JSON object"),
        (b" " * (wire.MAX_BYTES + 1), "is too large"),
        (changed(vantage="x" * 201), "vantage: .* must be a text of at most 200 characters"),
        (changed(vantage=None), "vantage: None must be a text"),
        (b'{"wire":"1.0"}', "vantage: is missing"),
        (changed(scheduled_at="yesterday"), "scheduled_at: 'yesterday' must be an RFC 3339 instant"),
        (changed(scheduled_at="2026-03-01T12:00:00"), "scheduled_at: .* with its time zone"),
        (changed(scheduled_at="0001-01-01T00:00:00+14:00"), "scheduled_at"),
        (changed(outcome="great"), "outcome: 'great' must be one of success, failed, missed"),
        (changed(validity=["loop_lag", "bad_mood"]), "validity: 'bad_mood' must be one of"),
        (changed(validity=["loop_lag"] * 50), "validity: .* must be a short list"),
        (changed(marks={"headers": 1.5}), "marks.headers: 1.5 must be an integer"),
        (changed(marks={"headers": True}), "marks.headers: True must be an integer"),
        (changed(marks={"headers": 2**63}), "marks.headers: .* must be an integer of 64 bits"),
        (changed(marks=[]), "marks: must be a JSON object"),
        (changed(tokens={"output": "7"}), "tokens.output: '7' must be an integer"),
        (changed(failure={"kind": "bad_luck", "phase": "wait", "text": ""}), "failure.kind: 'bad_luck' must be one of"),
        (changed(failure={"kind": "dns", "phase": "wait"}), "failure.text: is missing"),
        (changed(server={"a": "b"}), "server.a: 'b' must be a finite number"),
        (changed(server={str(n): 1 for n in range(65)}), "server: more than 64 entries"),
        (changed(server={"a": float("nan")}), "an attempt must be JSON"),
        (changed(tcp={"rtt": 10**400}), "tcp.rtt"),
        (changed(service={"limits": {}}), "service.limits: .* must be a list"),
        (changed(service={"limits": [{"limit": 1}]}), r"service.limits\[0\].name: is missing"),
        (changed(service={"region": 7}), "service.region: 7 must be a text"),
        (changed(**{"try": -1}), "try: -1 must be between 0 and 32767"),
        (changed(http={"reused": "yes"}), "http.reused: 'yes' must be true or false"),
    ],
)
def test_what_is_refused(data: bytes, message: str) -> None:
    """Bytes that are no attempt of this format are refused with the field, what was found and what is allowed."""
    with pytest.raises(wire.WireError, match=message):
        wire.decode(data)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.floats() | clean, st.lists).map(repr).map(str.encode))
@settings(max_examples=20, deadline=None)
def test_nothing_but_a_wire_error(data: bytes) -> None:
    """No input makes the decoder fail in another way."""
    with pytest.raises(wire.WireError):
        wire.decode(data)


def test_what_json_and_databases_cannot_hold_is_mended() -> None:
    """NUL, lone surrogates, NaN, infinity and numbers beyond 64 bits never travel; the rest of the attempt does."""
    odd = replace(
        PLAIN,
        finish_reason="a\0b \\u0000 \\\0 \ud800",
        timeline=Timeline({Mark.END: 2**70, Mark.HEADERS: 5}),
        tokens=Tokens(output=10**30, input=3),
        server={"nan": float("nan"), "good": 1.5},
        tcp=TcpFacts(rtt=float("-inf"), min_rtt=0.1),
        gaps=Gaps(float("nan"), 1.0, None, 0, None),
    )
    read = wire.decode(wire.encode(odd))
    assert read.finish_reason == "a\ufffdb \\u0000 \\\ufffd \ufffd"
    assert (read.timeline.marks, read.tokens) == ({Mark.HEADERS: 5}, Tokens(input=3))
    assert (read.server, read.tcp, read.gaps) == ({"good": 1.5}, TcpFacts(min_rtt=0.1), Gaps(None, 1.0, None, 0, None))


def test_the_largest_attempt_fits() -> None:
    """With every text at its bound and of the most expensive characters, an attempt stays under the limit."""
    worst = "\x01" * 10_000
    texts = {field.name: worst for field in fields(HttpFacts) if field.type == "str | None"}
    huge = replace(
        PLAIN,
        vantage="\x01" * 200,
        target="\x01" * 200,
        probe="\x01" * 200,
        finish_reason=worst,
        failure=Failure(kind=FailureKind.FIRST_TOKEN_DEADLINE, phase=Phase.GENERATE, text=worst),
        http=HttpFacts(**texts),
        server={f"{n}{worst}": 1 / 3 for n in range(1000)},
        timeline=Timeline(dict.fromkeys(Mark, -(2**63))),
    )
    data = wire.encode(huge)
    assert len(data) <= wire.MAX_BYTES
    assert wire.encode(wire.decode(data)) == data


def test_names_are_never_cut() -> None:
    """A name is an identity: one that is too long is refused, not shortened into another one's."""
    with pytest.raises(wire.WireError, match="too long"):
        wire.encode(replace(PLAIN, target="x" * 201))
    with pytest.raises(wire.WireError, match="time zone"):
        wire.encode(replace(PLAIN, started_at=NOW.replace(tzinfo=None)))


def test_the_fingerprint_tells_content_apart() -> None:
    """Equal attempts hash alike on any machine; any difference shows."""
    hashed = wire.fingerprint(wire.dumps(wire.document(PLAIN)))
    assert hashed == -4359458486999558207
    assert wire.fingerprint(wire.dumps(wire.document(replace(PLAIN, reads=1)))) != hashed
    whole = replace(PLAIN, server={"prompt": 1})
    assert wire.dumps(wire.document(whole)) == wire.dumps(wire.document(wire.decode(wire.encode(whole))))


def test_the_report_has_every_key_always() -> None:
    """`probe --json` prints the promised object; what did not happen is null, never absent and never 0."""
    printed = wire.report(PLAIN, SERIES)
    json.dumps(printed, allow_nan=False)
    assert printed["failure"] is None
    assert printed["started_at"] == "2026-03-01T12:00:00.123456Z"
    assert {key: printed["seconds"][key] for key in ("resolve", "connect", "tls", "send", "wait")} == dict.fromkeys(
        ("resolve", "connect", "tls", "send", "wait")
    )
    assert {key: printed["seconds"][key] for key in ("ttft", "ttfo", "total", "control")} == dict.fromkeys(
        ("ttft", "ttfo", "total", "control")
    )
    assert printed["tokens"] == dict.fromkeys(("output", "reasoning", "visible", "input", "cached"))
    assert printed["gaps"] == dict.fromkeys(("p50", "p95", "max", "stalls", "burst_share"))
    assert printed["tcp"].keys() >= {"min_rtt", "rtt", "retransmits"}
    assert printed["http"].keys() >= {"status", "version", "remote", "edge"}
    assert printed["valid"] is True
    assert printed.keys() >= {"vantage", "target", "probe", "outcome", "server", "clock_source", "validity", "missed"}


@given(attempts)
@settings(max_examples=25, deadline=None)
def test_the_report_is_json_whatever_happened(attempt: Attempt) -> None:
    """Every attempt prints as finite JSON with the same keys."""
    printed = wire.report(attempt, SERIES)
    assert printed.keys() == wire.report(PLAIN, SERIES).keys()
    json.dumps(printed, allow_nan=False)


def test_a_failure_in_the_report() -> None:
    """Kind, phase and text as data; durations in seconds from the marks."""
    line = Timeline({Mark.RESOLVE_START: 0, Mark.RESOLVE_END: 5_000_000, Mark.GAVE_UP: 7_500_000})
    failure = Failure(kind=FailureKind.REFUSED, phase=Phase.CONNECT, text="refused")
    failed = replace(PLAIN, outcome=Outcome.FAILED, failure=failure, timeline=line, validity=(Doubt.WARM_UP,))
    printed = wire.report(failed, SERIES)
    assert printed["failure"] == {"kind": "refused", "phase": "connect", "text": "refused"}
    assert (printed["seconds"]["resolve"], printed["seconds"]["lasted"]) == (0.005, 0.0075)
    assert (printed["valid"], printed["validity"]) == (False, ["warm_up"])
