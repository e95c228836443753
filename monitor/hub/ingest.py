"""What becomes of an upload: each row is stored, known already, put off, or refused with a reason, for itself alone.

Hides who is believed what. The vantage point is the token's, whatever a row says. A target and probe that nobody
configured are refused: names make rows in small tables, which an agent must not fill. For a while they are only put
off, since another copy of the hub may have handed out a newer configuration than this one has read yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from monitor import wire
from monitor.clock import Clock
from monitor.model import Attempt, Series, SeriesKey, StoreUnavailable
from monitor.notes import Note, PlanNote
from monitor.store.attempts import Inserted
from monitor.store.notes import Noted
from monitor.store.witness import Sighted
from monitor.wire.fleet import Receipt, Upload
from monitor.witness import Sighting

PATIENCE = timedelta(minutes=10)
"""How long an unknown series is put off: a new configuration reaches every copy of the hub sooner."""
REMEMBERED_SECONDS = 30.0

Names = frozenset[tuple[str, str]]
Keep = Callable[[Sequence[Attempt]], Inserted]
KeepNotes = Callable[[str, str, Sequence[Note]], Noted]
KeepSightings = Callable[[str, Sequence[Sighting]], Sighted]


class NotYet(StoreUnavailable):
    """What an agent says may be right, but this copy of the hub has not read of it yet: it is to come again."""


class Known(Protocol):
    """What was ever measured or planned from a vantage point, from the database."""

    def __call__(self, vantage: str) -> Names: ...


class Ingest:
    """Takes uploads in; safe to use from several threads. Every call may block on the database."""

    def __init__(
        self,
        keep: Keep,
        keep_notes: KeepNotes,
        keep_sightings: KeepSightings,
        configured: Callable[[], Mapping[SeriesKey, Series]],
        known: Known,
        clock: Clock,
    ) -> None:
        self._keep = keep
        self._keep_sightings = keep_sightings
        self._keep_notes = keep_notes
        self._configured = configured
        self._known = known
        self._clock = clock
        self._remembered: dict[str, tuple[float, Names]] = {}

    def take(self, vantage: str, upload: Upload) -> Receipt:
        """Store what can be stored of an upload by an agent of `vantage`. Raises StoreUnavailable: nothing is lost."""
        notes_rejected = self._take_notes(vantage, upload)
        rejected: dict[int, str] = {}
        deferred: dict[int, str] = {}
        good: dict[int, Attempt] = {}
        for index, row in enumerate(upload.attempts):
            try:
                attempt = wire.read_attempt(row)
            except wire.WireError as error:
                rejected[index] = str(error)
                continue
            if attempt.vantage != vantage:
                rejected[index] = f"the row is of the vantage point {attempt.vantage[:60]!r}, the token of {vantage!r}"
            elif self._is_known(vantage, attempt.target, attempt.probe):
                good[index] = attempt
            else:
                waits = self._clock.now() - attempt.scheduled_at < PATIENCE
                named = f"{attempt.target[:60]!r} with {attempt.probe[:60]!r}"
                (deferred if waits else rejected)[index] = f"no target and probe are configured here as {named}"
        inserted = self._keep(list(good.values())) if good else Inserted()
        places = {id(attempt): index for index, attempt in good.items()}
        rejected |= {places[id(one.attempt)]: one.reason for one in inserted.rejected}
        return Receipt(
            stored=len(inserted.new),
            duplicates=inserted.duplicates,
            conflicts=tuple(sorted(places[id(attempt)] for attempt in inserted.conflicts)),
            rejected=rejected,
            deferred=deferred,
            notes_rejected=notes_rejected,
            sightings_rejected=self._take_sightings(vantage, upload),
        )

    def _take_notes(self, vantage: str, upload: Upload) -> dict[int, str]:
        rejected: dict[int, str] = {}
        notes: list[Note] = []
        places: dict[int, int] = {}  # id of a note object -> index
        for index, row in enumerate(upload.notes):
            try:
                note = wire.decode_note(vantage, row)
            except wire.WireError as error:
                rejected[index] = str(error)
                continue
            strange = self._strange(vantage, note)
            if strange is None:
                notes.append(note)
                places[id(note)] = index
            elif isinstance(note, PlanNote) and abs(self._clock.now() - note.at) < PATIENCE:
                raise NotYet(strange)
            else:
                rejected[index] = strange
        if notes:
            noted = self._keep_notes(vantage, upload.agent, notes)
            rejected |= {places[id(note)]: reason for note, reason in noted.refused}
        return rejected

    def _take_sightings(self, vantage: str, upload: Upload) -> dict[int, str]:
        rejected: dict[int, str] = {}
        good: dict[int, Sighting] = {}
        for index, row in enumerate(upload.sightings):
            try:
                good[index] = wire.decode_sighting(vantage, row)
            except wire.WireError as error:
                rejected[index] = str(error)
        if good:
            sighted = self._keep_sightings(vantage, list(good.values()))
            places = {id(sighting): index for index, sighting in good.items()}
            rejected |= {places[id(sighting)]: reason for sighting, reason in sighted.refused}
        return rejected

    def _strange(self, vantage: str, note: Note) -> str | None:
        """Why a plan is not believed: it names what nobody configured, and names make rows.

        A fresh one is put off with its whole upload, as fresh rows are: refused for good, a plan that another copy
        handed out would leave its slots without anybody who owes them.
        """
        if not isinstance(note, PlanNote):
            return None
        for one in note.series:
            if not self._is_known(vantage, one.grid.target, one.grid.probe):
                return f"the plan names {one.grid.target[:60]!r} with {one.grid.probe[:60]!r}, which nobody configured"
        return None

    def _is_known(self, vantage: str, target: str, probe: str) -> bool:
        return (vantage, target, probe) in self._configured() or (target, probe) in self._names(vantage)

    def _names(self, vantage: str) -> Names:
        now = time.monotonic()
        until, names = self._remembered.get(vantage, (0.0, frozenset()))
        if now >= until:
            names = self._known(vantage)
            self._remembered[vantage] = (now + REMEMBERED_SECONDS, names)
        return names
