"""Attempts as bytes: the versioned JSON that spools and uploads carry, and the object that `probe --json` prints.

Hides the format. Its rules: what is unknown or did not happen is left out; marks are integer nanoseconds; instants are
RFC 3339 in UTC with microseconds; every text and count is bounded. A newer minor version only adds fields, and a reader
ignores fields that it does not know; a foreign major version is refused. A value of a closed list that the reader
does not know is refused too: guessing at a failure or a doubt would change what the attempt says.
"""

from __future__ import annotations

from monitor.wire.decoding import decode, read_attempt, read_service
from monitor.wire.encoding import (
    MAJOR,
    MAX_BYTES,
    MINOR,
    ForeignVersion,
    WireError,
    document,
    dumps,
    encode,
    fingerprint,
    rfc3339,
)
from monitor.wire.notes import decode_note, encode_note
from monitor.wire.printing import report, report_of
from monitor.wire.sightings import decode_sighting, encode_sighting

__all__ = [
    "MAJOR",
    "MAX_BYTES",
    "MINOR",
    "ForeignVersion",
    "WireError",
    "decode",
    "decode_note",
    "decode_sighting",
    "document",
    "dumps",
    "encode",
    "encode_note",
    "encode_sighting",
    "fingerprint",
    "read_attempt",
    "read_service",
    "report",
    "report_of",
    "rfc3339",
]
