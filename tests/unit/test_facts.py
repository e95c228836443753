"""Facts beside the times, from the headers that providers really send; and where their edges stand."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.agent.arrivals import edge_of
from monitor.agent.dialects import DIALECTS
from monitor.agent.facts import MAX_LIMITS, request_id, service_facts
from monitor.edges import _table, place_of
from monitor.model import DialectName, RateLimit, ServiceFacts

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
STREAMS = Path(__file__).resolve().parents[3] / "shared" / "recorded_streams" / "streams.jsonl.gz"


def facts(headers: dict[str, str], body: dict[str, str] | None = None, error: bytes = b"") -> ServiceFacts:
    return service_facts(headers, body or {}, NOW, error)


def limit(name: str, *numbers: float | None) -> RateLimit:
    most, left, reset = (*numbers, None, None, None)[:3]
    return RateLimit(name=name, limit=most, remaining=left, reset_seconds=reset)


@pytest.mark.parametrize(
    ("who", "headers", "limits"),
    [
        (
            "OpenAI",
            {
                "x-ratelimit-limit-requests": "5000",
                "x-ratelimit-remaining-requests": "4999",
                "x-ratelimit-reset-requests": "12ms",
                "x-ratelimit-limit-tokens": "2000000",
                "x-ratelimit-remaining-tokens": "1999983",
                "x-ratelimit-reset-tokens": "1m30.5s",
            },
            (limit("requests", 5000, 4999, 0.012), limit("tokens", 2_000_000, 1_999_983, 90.5)),
        ),
        ("Groq", {"x-ratelimit-reset-tokens": "17.399999999s"}, (limit("tokens", None, None, 17.4),)),
        ("Groq", {"x-ratelimit-reset-requests": "1h2m3s"}, (limit("requests", None, None, 3723.0),)),
        ("Cerebras", {"x-ratelimit-reset-tokens-minute": "33.012"}, (limit("tokens-minute", None, None, 33.012),)),
        (
            "Azure",
            {
                "x-ratelimit-limit-requests": "500",
                "x-ratelimit-reset-requests": "500",
                "x-ratelimit-renewalperiod-requests": "60",
                "x-ratelimit-key": "abc",
            },
            (limit("requests", 500),),
        ),
        (
            "Anthropic",
            {
                "anthropic-ratelimit-input-tokens-limit": "2000000",
                "anthropic-ratelimit-input-tokens-remaining": "1999000",
                "anthropic-ratelimit-input-tokens-reset": "2026-03-01T12:00:07Z",
            },
            (limit("input-tokens", 2_000_000, 1_999_000, 7.0),),
        ),
        (
            "Anthropic, by the server's own clock",
            {"anthropic-ratelimit-requests-reset": "2020-01-01T00:00:30Z", "date": "Wed, 01 Jan 2020 00:00:00 GMT"},
            (limit("requests", None, None, 30.0),),
        ),
        (
            "Mistral",
            {
                "x-ratelimit-limit-req-10-second": "60",
                "x-ratelimit-remaining-tokens-minute": "499000",
                "x-ratelimit-tokens-query-cost": "70",
                "ratelimitbysize-limit": "2000",
                "ratelimitbysize-reset": "18",
                "ratelimitbysize-query-cost": "3",
            },
            (
                limit("req-10-second", 60),
                limit("tokens-minute", None, 499_000),
                limit("ratelimitbysize", 2000, None, 18.0),
            ),
        ),
        (
            "Cohere",
            {"x-trial-endpoint-call-limit": "20", "x-trial-endpoint-call-remaining": "19"},
            (limit("trial-endpoint-call", 20, 19),),
        ),
        (
            "Together",
            {"x-ratelimit-limit": "10", "x-ratelimit-remaining": "9", "x-ratelimit-reset": "1"},
            (limit("requests", 10, 9, 1.0),),
        ),
        ("Replicate", {"ratelimit-remaining": "599", "ratelimit-reset": "60"}, (limit("requests", None, 599, 60.0),)),
        (
            "OpenRouter",
            {"x-ratelimit-reset": str(int(NOW.timestamp() * 1000) + 4500)},
            (limit("requests", None, None, 4.5),),
        ),
        (
            "Fireworks",
            {"x-ratelimit-limit-tokens-cache-adjusted-prompt": "60000"},
            (limit("tokens-cache-adjusted-prompt", 60_000),),
        ),
        ("nonsense", {"x-ratelimit-limit-requests": "many", "x-ratelimit-reset-tokens": "soon"}, ()),
    ],
)
def test_limits(who: str, headers: dict[str, str], limits: tuple[RateLimit, ...]) -> None:
    """Every vendor's spelling gives limit, remainder and seconds until the reset."""
    assert facts(headers).limits == limits


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after": "7"}, b"", 7.0),
        ({"retry-after": "1", "retry-after-ms": "0"}, b"", 1.0),
        ({"retry-after": "1", "retry-after-ms": "250"}, b"", 0.25),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:20 GMT"}, b"", 20.0),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT"}, b"", 0.0),
        ({"retry-after": "soon"}, b"", None),
        ({"retry-after": "1e300"}, b"", None),
        ({}, b'{"error": {"details": [{}, {"@type": "google.rpc.RetryInfo", "retryDelay": "48.5s"}]}}', 48.5),
        ({}, b'[{"error": {"details": [{"retryDelay": "3s"}]}}]', 3.0),
        ({}, b'{"error": {"details": [{"retryDelay"', None),
    ],
)
def test_retry_after(headers: dict[str, str], body: bytes, seconds: float | None) -> None:
    """Seconds, milliseconds, a date, or Google's body; nonsense is absent."""
    assert facts(headers, error=body).retry_after_seconds == seconds


def test_version_region_upstream_and_tier() -> None:
    """From headers and from the body; what says nothing is absent."""
    assert facts({"x-groq-region": "me-central-1"}, {"fingerprint": "fp_1", "tier": "default"}) == ServiceFacts(
        version="fp_1", region="me-central-1", tier="default"
    )
    assert facts({"x-ms-region": "East US 2", "azureml-model-session": "d1"}) == ServiceFacts(
        region="East US 2", version="d1"
    )
    assert facts({}, {"region": "not_available", "upstream": "Novita"}) == ServiceFacts(upstream="Novita")
    assert facts({"content-type": "text/event-stream"}) == ServiceFacts()


def test_request_ids() -> None:
    """The vendor's id before the CDN's, the body's where no header has one; bounded."""
    assert request_id({"cf-ray": "1-LHR", "request-id": "req_1"}, {"response_id": "r"}) == "req_1"
    assert request_id({}, {"response_id": "r"}) == "r"
    assert request_id({}, {}) is None
    assert len(request_id({"x-request-id": "x" * 500}, {}) or "") == 128


names = st.sampled_from(
    [
        "x-ratelimit-reset",
        "x-ratelimit-limit-tokens",
        "anthropic-ratelimit-x-reset",
        "retry-after",
        "retry-after-ms",
        "date",
    ]
)
values = st.text(max_size=40) | st.from_regex(r"[0-9.]{1,20}(s|ms|m|h)?", fullmatch=True) | st.datetimes().map(str)


@given(headers=st.dictionaries(names, values), body=st.binary(max_size=60).map(lambda data: b"retryDelay" + data))
def test_foreign_values_never_raise(headers: dict[str, str], body: bytes) -> None:
    """Whatever stands in the headers: finite numbers, not negative, or nothing."""
    found = facts(headers, error=body)
    numbers = [
        found.retry_after_seconds,
        *(n for one in found.limits for n in (one.limit, one.remaining, one.reset_seconds)),
    ]
    assert all(number is None or (number >= 0 and math.isfinite(number)) for number in numbers)


def test_a_flood_of_limits_is_bounded() -> None:
    """A hundred thousand headers give a few entries."""
    assert len(facts({f"x-ratelimit-limit-{i}": "1" for i in range(1000)}).limits) == MAX_LIMITS


@pytest.mark.parametrize(
    ("edge", "city", "country"),
    [
        ("LHR", "London", "GB"),
        ("LOS", "Lagos", "NG"),
        ("IAD", "Washington", "US"),
        ("JFK50-P1", "New York", "US"),
        ("TXL52", "Berlin", "DE"),
        ("nrt", "Tokyo", "JP"),
    ],
)
def test_edges_have_cities(edge: str, city: str, country: str) -> None:
    """Cloudflare's and CloudFront's codes, whatever follows the airport."""
    place = place_of(edge)
    assert place is not None
    assert (place.city, place.country) == (city, country)


@pytest.mark.parametrize("edge", [None, "", "XX", "QQQ", "LHRX", "cache-lhr"])
def test_unknown_edges_are_unknown(edge: str | None) -> None:
    """No guess."""
    assert place_of(edge) is None


def test_the_table_is_sound() -> None:
    """Some 350 airports, each once, with positions on earth and a country."""
    table = _table()
    assert len(table) > 340
    for code, place in table.items():
        assert len(code) == 3
        assert code.isupper()
        assert place.city
        assert place.country is not None
        assert len(place.country) == 2
        assert place.latitude is not None
        assert place.longitude is not None
        assert -60 < place.latitude < 75
        assert -180 <= place.longitude <= 180


@pytest.mark.skipif(not STREAMS.exists(), reason="recorded streams are not here")
def test_recorded_answers() -> None:
    """Every edge of the recordings has a city; what headers and bodies hold is found as often as it is there."""
    counts: Counter[str] = Counter()
    for stream in map(json.loads, gzip.decompress(STREAMS.read_bytes()).splitlines()):
        headers = {name.lower(): value for name, value in stream["headers"].items()}
        edge = edge_of(headers)
        counts["edge"] += edge is not None
        assert edge in (None, "XXX") or place_of(edge) is not None, edge  # XXX: taken out by a recorder
        found = facts(headers, _body_facts(stream))
        counts["limits"] += bool(found.limits)
        counts["regions"] += found.region is not None
        counts["resets"] += any(one.reset_seconds is not None for one in found.limits)
        counts["upstream"] += found.upstream is not None
        counts["version"] += found.version is not None
    assert counts["edge"] >= 80
    assert counts["limits"] >= 54  # the others hold placeholders
    assert counts["resets"] >= 40
    assert counts["regions"] >= 14
    assert counts["upstream"] >= 20
    assert counts["version"] >= 30


def _body_facts(stream: dict[str, str]) -> dict[str, str]:
    name = DialectName.OPENAI_CHAT if stream["path"].endswith("/completions") else DialectName.ANTHROPIC
    decoder = DIALECTS[name].decoder()
    decoder.feed(base64.b64decode(stream["body"]))
    return decoder.seen.facts
