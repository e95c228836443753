"""Sightings as JSON: an exact round trip, also inside an upload, and a refusal by name of everything else."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from monitor import wire
from monitor.model import Doubt, Failure, FailureKind
from monitor.timeline import Phase
from monitor.wire.fleet import Receipt, decode_receipt, decode_upload, encode_receipt, encode_upload
from monitor.witness import Sighting

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
GOOD = Sighting(
    vantage="lagos",
    endpoint="near",
    address="tls://192.0.2.1:443",
    started_at=AT,
    seconds={Phase.RESOLVE: 0.001, Phase.CONNECT: 0.1051234567, Phase.TLS: 0.2},
)
BAD = Sighting(
    vantage="lagos",
    endpoint="near",
    address="tls://192.0.2.1:443",
    started_at=AT,
    failure=Failure(kind=FailureKind.CONNECT_TIMEOUT, phase=Phase.CONNECT, text="no answer"),
    validity=(Doubt.CPU_STEAL,),
)


@pytest.mark.parametrize("sighting", [GOOD, BAD])
def test_a_sighting_survives_the_journey(sighting: Sighting) -> None:
    """What an agent saw is what the hub reads, through the bytes of an upload."""
    upload = decode_upload(encode_upload("a" * 32, (), (), [wire.encode_sighting(sighting)]))
    assert [wire.decode_sighting("lagos", row) for row in upload.sightings] == [sighting]


def test_an_upload_without_any() -> None:
    """An upload of an earlier release has none, and nothing is missed."""
    assert decode_upload(encode_upload("a" * 32, ())).sightings == []


def test_the_vantage_point_is_the_tokens() -> None:
    """What a row says of its vantage point is not even looked at."""
    row = {**wire.encode_sighting(GOOD), "vantage": "london"}
    assert wire.decode_sighting("lagos", row).vantage == "lagos"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"endpoint": None}, "endpoint"),
        ({"endpoint": "x" * 201}, "endpoint"),
        ({"address": 7}, "address"),
        ({"started_at": "yesterday"}, "started_at"),
        ({"started_at": "2026-03-01T12:00:00"}, "started_at"),
        ({"seconds": [1]}, "seconds"),
        ({"seconds": {"connect": -1}}, "seconds.connect"),
        ({"seconds": {"connect": 1e9}}, "seconds.connect"),
        ({"seconds": {"connect": "fast"}}, "seconds.connect"),
        ({"failure": {"kind": "tired", "phase": "connect", "text": ""}}, "failure.kind"),
        ({"failure": {"kind": "dns", "phase": "lunch", "text": ""}}, "failure.phase"),
        ({"validity": ["moody"]}, "validity"),
        ({"validity": "cpu_steal"}, "validity"),
    ],
)
def test_what_is_no_sighting(change: dict[str, object], named: str) -> None:
    """Each wrong field is refused by its name."""
    row = json.loads(json.dumps({**wire.encode_sighting(GOOD), **change}))
    with pytest.raises(wire.WireError, match=named):
        wire.decode_sighting("lagos", row)


def test_refusals_come_back() -> None:
    """An agent learns which of its sightings will never be taken."""
    receipt = Receipt(sightings_rejected={1: "too old"})
    assert decode_receipt(encode_receipt(receipt, AT)).sightings_rejected == {1: "too old"}
