"""Sightings as JSON values and back. Hides field names and bounds."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.model import Failure, FailureKind
from monitor.timeline import Phase
from monitor.wire.decoding import Fields, read_doubts
from monitor.wire.encoding import MAX_NAME, MAX_TEXT, rfc3339
from monitor.witness import Sighting

MAX_SECONDS = 3_600.0
MAX_ADDRESS = 300


def encode_sighting(one: Sighting) -> dict[str, object]:
    """What a look saw as JSON values, without its vantage point, which the upload is of."""
    said: dict[str, object] = {
        "endpoint": one.endpoint,
        "address": one.address,
        "started_at": rfc3339(one.started_at),
        "seconds": dict(one.seconds),
    }
    if one.failure is not None:
        text = one.failure.text[:MAX_TEXT]
        said["failure"] = {"kind": one.failure.kind, "phase": one.failure.phase, "text": text}
    if one.validity:
        said["validity"] = list(one.validity)
    return said


def decode_sighting(vantage: str, document: object) -> Sighting:
    """The sighting in JSON values, of `vantage`; raises WireError, which names the field, for anything else."""
    f = Fields(document, "")
    return Sighting(
        vantage=vantage,
        endpoint=f.text("endpoint", MAX_NAME),
        address=f.text("address", MAX_ADDRESS),
        started_at=f.moment("started_at"),
        seconds=_seconds(f.inside("seconds")),
        failure=f.nested("failure", _failure),
        validity=f.maybe("validity", read_doubts(f)) or (),
    )


def _seconds(f: Fields) -> Mapping[Phase, float]:
    """By phase; one of a newer minor version is ignored like any field."""
    found = {phase: f.number(phase) for phase in Phase if phase in f.data}
    for phase, seconds in found.items():
        if not 0 <= seconds <= MAX_SECONDS:
            raise f.wrong(phase, f"between 0 and {MAX_SECONDS:.0f}")
    return found


def _failure(f: Fields) -> Failure:
    return Failure(kind=f.member("kind", FailureKind), phase=f.member("phase", Phase), text=f.text("text"))
