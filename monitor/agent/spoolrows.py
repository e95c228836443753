"""What the rows of the spool mean: attempts, notes and sightings to payloads and back, and notes of what is lost.

Hides encoding. Everything here works on an open `SpoolFile`, inside its transaction, in the thread that owns it. What
cannot be read is set aside or dropped where it is found, so that it is in nobody's way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import structlog

from monitor.agent.spoolfile import ROW_OVERHEAD_BYTES, SpoolFile
from monitor.model import Attempt, SeriesKey, SpoolFull
from monitor.notes import LossReason, LostNote, Note
from monitor.wire import WireError, decode, decode_note, decode_sighting, dumps, encode, encode_note
from monitor.witness import Sighting

ROOM_SHARE = 200
"""A full spool makes room for a two-hundredth of its bound at a time: notes of losses then stay few."""
SlotKey = tuple[str, str, str, datetime]
"""(vantage, target, probe, planned instant)."""
log = structlog.get_logger("firsttoken.spool")


@dataclass(frozen=True, slots=True)
class SpooledRow:
    """An attempt with the id under which its delivery is acknowledged."""

    id: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class SpooledNote:
    """A note with the vantage point that it speaks of; its own id is the one under which it is acknowledged."""

    vantage: str
    note: Note


@dataclass(frozen=True, slots=True)
class SpooledSighting:
    """What a look saw, with the id under which its delivery is acknowledged."""

    id: int
    sighting: Sighting


def append(file: SpoolFile, attempt: Attempt, max_bytes: int, now_us: int) -> int:
    """Store an attempt, with the oldest giving way beyond `max_bytes`; its row id.

    Raises SpoolFull when it alone exceeds the bound, WireError when it cannot be encoded; both are counted as losses.
    """
    try:
        payload = encode(attempt)
    except WireError:
        file.lose("unwritable", 1)
        raise
    size = len(payload) + ROW_OVERHEAD_BYTES
    if size > max_bytes:
        file.lose("size", 1)
        raise SpoolFull(f"an attempt of {size} bytes exceeds the spool's bound of {max_bytes} bytes")
    if file.size_bytes + size > max_bytes:
        room = max(file.size_bytes + size - max_bytes, max_bytes // ROOM_SHARE)
        note_dropped(file, file.drop_oldest(room, "size"), LossReason.SPOOL_FULL)
    return file.append(payload, now_us)


def take(
    file: SpoolFile, limit: int, *, newest_first: bool, after: int, delivered: set[int], now_us: int
) -> list[SpooledRow]:
    """Up to `limit` attempts with ids above `after` that are not among the `delivered` ones."""
    found: list[SpooledRow] = []
    for row_id, payload in file.take(limit + len(delivered), newest_first=newest_first, after=after):
        if row_id in delivered:
            continue
        try:
            found.append(SpooledRow(row_id, decode(payload)))
        except WireError as error:
            file.reject(row_id, f"unreadable: {error}", now_us)
    return found[:limit]


def reject(file: SpoolFile, row: SpooledRow, reason: str, now_us: int) -> None:
    """Set one attempt aside for good, and note its slot as lost."""
    file.reject(row.id, reason, now_us)
    note_lost(file, [slot_of(row.attempt)], LossReason.REJECTED)


def drop_older(file: SpoolFile, than_us: int) -> None:
    """Drop what was appended before an instant, and note its slots as lost."""
    note_dropped(file, file.drop_older(than_us, "age"), LossReason.SPOOL_AGE)


def take_notes(file: SpoolFile, limit: int) -> list[SpooledNote]:
    """The oldest notes; one that cannot be read is dropped, and said."""
    found, broken = [], []
    for note_id, vantage, payload in file.notes(limit):
        try:
            found.append(SpooledNote(vantage, decode_note(vantage, {**json.loads(payload), "id": note_id})))
        except (WireError, ValueError, TypeError) as error:
            log.warning("a note about slots cannot be read and is dropped", vantage=vantage, cause=str(error)[:500])
            broken.append(note_id)
    if broken:  # left where they are they would be taken again and again, and hold up whatever is behind them
        file.delete_notes(broken)
    return found


def take_sightings(file: SpoolFile, limit: int) -> list[SpooledSighting]:
    """The newest sightings; one that cannot be read is dropped."""
    found, broken = [], []
    for row_id, vantage, payload in file.sightings(limit):
        try:
            found.append(SpooledSighting(row_id, decode_sighting(vantage, json.loads(payload))))
        except (WireError, ValueError):
            broken.append(row_id)
    if broken:
        file.delete_sightings(broken)
    return found


def slot_of(attempt: Attempt) -> SlotKey | None:
    """The slot of an attempt; None for a confirming one, which no plan owed."""
    return None if attempt.try_number else (attempt.vantage, attempt.target, attempt.probe, attempt.scheduled_at)


def note_dropped(file: SpoolFile, payloads: Iterable[bytes], reason: LossReason) -> None:
    """`note_lost` for encoded attempts; what cannot be read has no slot."""
    note_lost(file, map(_slot_in, payloads), reason)


def _slot_in(payload: bytes) -> SlotKey | None:
    try:
        return slot_of(decode(payload))
    except WireError:
        return None


def note_lost(file: SpoolFile, slots: Iterable[SlotKey | None], reason: LossReason) -> None:
    """One note for each series: how many attempts of which time are gone, and why."""
    of_series: dict[SeriesKey, list[datetime]] = {}
    for slot in slots:
        if slot is not None:
            of_series.setdefault(slot[:3], []).append(slot[3])
    for (vantage, target, probe), instants in of_series.items():
        note = LostNote(
            id=0,
            target=target,
            probe=probe,
            first_at=min(instants),
            last_at=max(instants),
            slots=len(instants),
            reason=reason,
        )
        file.note(vantage, written(note))


def written(note: Note) -> str:
    """A note without its id, which is the row's."""
    said = encode_note(note)
    del said["id"]
    return dumps(said).decode()
