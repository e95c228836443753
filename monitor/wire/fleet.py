"""What agents and hub say to each other beside single attempts: uploads and their answers, heartbeats and theirs.

Hides field names and bounds. An upload is spliced from the bytes that wait in a spool, so that an agent encodes each
attempt once; the hub reads it row by row, so that one bad row is one refusal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from monitor.wire.decoding import Fields, check_version, parse
from monitor.wire.encoding import INT64, MAJOR, MINOR, WireError, dumps, rfc3339

MAX_ROWS = 500
"""Attempts, notes and sightings of one upload: so many of each."""
MAX_PACKED_BYTES = 4_000_000
MAX_UPLOAD_BYTES = 8_000_000
MAX_UPLOAD_VALUES = 500_000
"""Commas and opening brackets: a thousand a row. As Python's objects, `{}` is thirty times its own two bytes."""
MAX_HEARTBEAT_BYTES = 16_384
MAX_ANSWER_BYTES = 1_000_000
MAX_REASON = 300
MAX_ERROR = 2_000
_AGENT = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A batch as it came: rows are JSON values that nobody has looked at yet."""

    agent: str  # 32 hex digits, made once for each state folder
    attempts: list[object]
    notes: list[object]
    sightings: list[object] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of a batch; an index is a row's place in it. What is not named here is in the record."""

    stored: int = 0
    duplicates: int = 0
    conflicts: tuple[int, ...] = ()
    rejected: Mapping[int, str] = field(default_factory=dict)  # for good
    deferred: Mapping[int, str] = field(default_factory=dict)  # not now: keep them
    notes_rejected: Mapping[int, str] = field(default_factory=dict)
    sightings_rejected: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """How an agent is. Instants by its own clock."""

    agent: str
    version: str
    config_digest: str | None  # of the configuration in force; None: it has none yet
    config_error: str | None  # why a newer one was refused
    booted_at: datetime
    started_at: datetime
    sent_at: datetime
    spool_attempts: int
    spool_bytes: int
    spool_limit_bytes: int
    spool_oldest_at: datetime | None
    spool_lost: int
    clock_offset_seconds: float | None  # its clock minus the hub's; None: not measured yet


def encode_upload(
    agent: str, attempts: Sequence[bytes], notes: Sequence[object] = (), sightings: Sequence[object] = ()
) -> bytes:
    """One upload of `encode`d attempts, and of notes and sightings as `encode_note` and `encode_sighting` give them."""
    head = b'{"wire":"%d.%d","agent":"%s","attempts":[' % (MAJOR, MINOR, agent.encode())
    seen = b',"sightings":' + dumps(list(sightings)) if sightings else b""
    return head + b",".join(attempts) + b'],"notes":' + dumps(list(notes)) + seen + b"}"


def decode_upload(data: bytes) -> Upload:
    """Raises ForeignVersion, or WireError for what is no upload at all."""
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_UPLOAD_VALUES:
        raise WireError(f"an upload of more than {MAX_UPLOAD_VALUES} values is too large: send fewer rows at a time")
    f = Fields(parse(data, MAX_UPLOAD_BYTES, "an upload"), "")
    check_version(f)
    return Upload(
        agent=_agent(f), attempts=_rows(f, "attempts"), notes=_rows(f, "notes"), sightings=_rows(f, "sightings")
    )


def encode_receipt(receipt: Receipt, now: datetime) -> bytes:
    """What the hub answers, with its time."""
    return dumps(
        {
            "stored": receipt.stored,
            "duplicates": receipt.duplicates,
            "conflicts": list(receipt.conflicts),
            "rejected": _reasons(receipt.rejected),
            "deferred": _reasons(receipt.deferred),
            "notes_rejected": _reasons(receipt.notes_rejected),
            "sightings_rejected": _reasons(receipt.sightings_rejected),
            "now": rfc3339(now),
        }
    )


def decode_receipt(data: bytes) -> Receipt:
    """What the agent makes of an answer; raises WireError for anything else."""
    f = Fields(parse(data, MAX_ANSWER_BYTES, "an answer"), "")
    return Receipt(
        stored=f.count("stored", MAX_ROWS),
        duplicates=f.count("duplicates", MAX_ROWS),
        conflicts=tuple(Fields({"index": one}, "conflicts.").count("index", MAX_ROWS) for one in _rows(f, "conflicts")),
        rejected=_read_reasons(f, "rejected"),
        deferred=_read_reasons(f, "deferred"),
        notes_rejected=_read_reasons(f, "notes_rejected"),
        sightings_rejected=_read_reasons(f, "sightings_rejected"),
    )


def encode_heartbeat(beat: Heartbeat) -> bytes:
    """One heartbeat."""
    return dumps(
        {
            "agent": beat.agent,
            "version": beat.version,
            "config_digest": beat.config_digest,
            "config_error": beat.config_error and beat.config_error[:MAX_ERROR],
            "booted_at": rfc3339(beat.booted_at),
            "started_at": rfc3339(beat.started_at),
            "sent_at": rfc3339(beat.sent_at),
            "spool": {
                "attempts": beat.spool_attempts,
                "bytes": beat.spool_bytes,
                "limit_bytes": beat.spool_limit_bytes,
                "oldest_at": beat.spool_oldest_at and rfc3339(beat.spool_oldest_at),
                "lost": beat.spool_lost,
            },
            "clock_offset_seconds": beat.clock_offset_seconds,
        }
    )


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Raises WireError for anything else."""
    return read_heartbeat(parse(data, MAX_HEARTBEAT_BYTES, "a heartbeat"))


def read_heartbeat(document: object) -> Heartbeat:
    """The heartbeat in JSON values; raises WireError like `decode_heartbeat`."""
    f = Fields(document, "")
    spool = f.inside("spool")
    return Heartbeat(
        agent=_agent(f),
        version=f.text("version", 60),
        config_digest=f.maybe("config_digest", lambda key: f.text(key, 64)),
        config_error=f.maybe("config_error", lambda key: f.text(key, MAX_ERROR)),
        booted_at=f.moment("booted_at"),
        started_at=f.moment("started_at"),
        sent_at=f.moment("sent_at"),
        spool_attempts=spool.count("attempts"),
        spool_bytes=spool.count("bytes"),
        spool_limit_bytes=spool.count("limit_bytes"),
        spool_oldest_at=spool.maybe("oldest_at", spool.moment),
        spool_lost=spool.count("lost"),
        clock_offset_seconds=f.maybe("clock_offset_seconds", f.number),
    )


def _agent(f: Fields) -> str:
    agent = f.text("agent", 32)
    if not _AGENT.fullmatch(agent):
        raise f.wrong("agent", "32 hexadecimal digits")
    return agent


def _rows(f: Fields, key: str) -> list[object]:
    given = f.data.get(key, [])
    if not isinstance(given, list) or len(given) > MAX_ROWS:
        raise WireError(f"{key}: must be a list of at most {MAX_ROWS} entries")
    return given


def _reasons(reasons: Mapping[int, str]) -> list[object]:
    return [{"index": index, "reason": reason[:MAX_REASON]} for index, reason in sorted(reasons.items())]


def _read_reasons(f: Fields, key: str) -> dict[int, str]:
    return {row.count("index", INT64 - 1): row.text("reason", MAX_REASON) for row in f.rows(key, MAX_ROWS)}
