"""What agents and hub say to each other comes back as it was said, and anything else is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from monitor.model import Attempt, Outcome
from monitor.wire import ForeignVersion, WireError, encode, read_attempt
from monitor.wire.fleet import (
    MAX_HEARTBEAT_BYTES,
    MAX_ROWS,
    MAX_UPLOAD_BYTES,
    Heartbeat,
    Receipt,
    decode_heartbeat,
    decode_receipt,
    decode_upload,
    encode_heartbeat,
    encode_receipt,
    encode_upload,
)

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
AGENT = "0123456789abcdef" * 2
BEAT = Heartbeat(
    agent=AGENT,
    version="0.1.0",
    config_digest="abc",
    config_error=None,
    booted_at=AT,
    started_at=AT,
    sent_at=AT,
    spool_attempts=3,
    spool_bytes=4,
    spool_limit_bytes=5,
    spool_oldest_at=AT,
    spool_lost=6,
    clock_offset_seconds=-0.25,
)


def attempt() -> Attempt:
    return Attempt(
        vantage="lagos", target="t", probe="p", probe_version="v", scheduled_at=AT, started_at=AT,
        outcome=Outcome.SUCCESS,
    )  # fmt: skip


def test_an_upload_comes_back_row_by_row() -> None:
    """Spliced from encoded attempts; each row can be read for itself."""
    upload = decode_upload(encode_upload(AGENT, [encode(attempt())] * 2, [{"id": 1}]))
    assert upload.agent == AGENT
    assert [read_attempt(row) for row in upload.attempts] == [attempt()] * 2
    assert upload.notes == [{"id": 1}]


def test_a_foreign_version_is_told_apart() -> None:
    """A major version that we do not read is no malformed upload: the agent must know which side is old."""
    with pytest.raises(ForeignVersion, match=r"format 2\.0"):
        decode_upload(b'{"wire":"2.0","agent":"%s"}' % AGENT.encode())


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"[]",
        b"{}",
        b'{"wire":"1.1"}',
        b'{"wire":"1.1","agent":"short"}',
        b'{"wire":"1.1","agent":"%s","attempts":{}}' % AGENT.encode(),
        b'{"wire":"1.1","agent":"%s","attempts":[%s]}' % (AGENT.encode(), b",".join([b"1"] * (MAX_ROWS + 1))),
        b'{"wire":"1.1","agent":"%s","attempts":[NaN]}' % AGENT.encode(),
        b"[" * 100_000,
        b" " * (MAX_UPLOAD_BYTES + 1),
    ],
)
def test_what_is_no_upload_is_refused(junk: bytes) -> None:
    """Whatever a stranger sends instead costs a sentence."""
    with pytest.raises(WireError) as caught:
        decode_upload(junk)
    assert not isinstance(caught.value, ForeignVersion)


def test_heartbeats_come_back() -> None:
    """With and without what may be unknown."""
    assert decode_heartbeat(encode_heartbeat(BEAT)) == BEAT
    unknown = {"config_digest": None, "spool_oldest_at": None, "clock_offset_seconds": None}
    little = replace(BEAT, config_error="x" * 3_000, **unknown)
    assert decode_heartbeat(encode_heartbeat(little)) == replace(little, config_error="x" * 2_000)


@pytest.mark.parametrize("field", ["agent", "version", "booted_at", "sent_at", "spool"])
def test_a_heartbeat_needs_its_fields(field: str) -> None:
    """The refusal names what is missing."""
    said = json.loads(encode_heartbeat(BEAT))
    del said[field]
    with pytest.raises(WireError, match="spool|" + field):
        decode_heartbeat(json.dumps(said).encode())
    with pytest.raises(WireError, match="too large"):
        decode_heartbeat(b" " * (MAX_HEARTBEAT_BYTES + 1))


def test_receipts_come_back() -> None:
    """Row by row: what is refused for good, what is put off, what conflicts."""
    receipt = Receipt(
        stored=3, duplicates=1, conflicts=(4,), rejected={5: "never"}, deferred={6: "later"}, notes_rejected={0: "no"}
    )
    assert decode_receipt(encode_receipt(receipt, AT)) == receipt
