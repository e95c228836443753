"""Notes as JSON values and back. Hides field names and bounds; a grid that nobody can walk is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from monitor.grid import SHORTEST_INTERVAL_US, Grid
from monitor.notes import GapNote, LostNote, Note, NoteKind, OutageNote, PlannedSeries, PlanNote
from monitor.wire.decoding import Fields
from monitor.wire.encoding import INT64, MAX_NAME, WireError, rfc3339

MAX_PLANNED = 10_000
MAX_LANES = 1_000
LONGEST_INTERVAL_US = 30 * 86_400 * 1_000_000
MAX_REASON = 40


def encode_note(note: Note) -> dict[str, object]:
    """What a note says as JSON values; `decode_note` gives back an equal one."""
    match note:
        case PlanNote():
            said: dict[str, object] = {"at": rfc3339(note.at), "series": [_planned(one) for one in note.series]}
        case OutageNote():
            said = {"from": rfc3339(note.begin), "until": rfc3339(note.until), "reason": note.reason}
        case GapNote() | LostNote():
            said = {
                "target": note.target,
                "probe": note.probe,
                "first_at": rfc3339(note.first_at),
                "last_at": rfc3339(note.last_at),
                "slots": note.slots,
                "reason": note.reason,
            }
    return {"id": note.id, "kind": KINDS[type(note)], **said}


KINDS: Mapping[type[Note], NoteKind] = {
    PlanNote: NoteKind.PLAN,
    GapNote: NoteKind.GAP,
    OutageNote: NoteKind.OUTAGE,
    LostNote: NoteKind.LOST,
}


def decode_note(vantage: str, document: object) -> Note:
    """The note in JSON values, said by `vantage`; raises WireError, which names the field, for anything else."""
    fields = Fields(document, "")
    return _READERS[fields.member("kind", NoteKind)](fields, vantage)


def _planned(one: PlannedSeries) -> dict[str, object]:
    grid = one.grid
    return {
        "target": grid.target,
        "probe": grid.probe,
        "interval_us": grid.interval_us,
        "offset_us": grid.offset_us,
        "step_us": grid.step_us,
        "lanes": grid.lanes,
        "turn": grid.turn,
        "probe_version": one.probe_version,
    }


def _plan(f: Fields, vantage: str) -> PlanNote:
    rows = f.rows("series", MAX_PLANNED)
    planned = tuple(PlannedSeries(grid=_grid(row, vantage), probe_version=_name(row, "probe_version")) for row in rows)
    if len({(one.grid.target, one.grid.probe) for one in planned}) != len(planned):
        raise WireError("series: names a target and probe twice")
    return PlanNote(id=f.count("id"), at=f.moment("at"), series=planned)


def _grid(f: Fields, vantage: str) -> Grid:
    interval, lanes = f.count("interval_us", LONGEST_INTERVAL_US), f.count("lanes", MAX_LANES)
    if interval < SHORTEST_INTERVAL_US or not lanes:
        raise WireError(f"{f.path}interval_us: needs {SHORTEST_INTERVAL_US} at least, and one lane")
    grid = Grid(
        vantage=vantage,
        target=_name(f, "target"),
        probe=_name(f, "probe"),
        interval_us=interval,
        offset_us=f.count("offset_us", interval - 1),
        step_us=f.count("step_us", interval),
        lanes=lanes,
        turn=f.count("turn", lanes - 1),
    )
    if lanes > 1 and grid.step_us * lanes > interval:
        raise WireError(f"{f.path}step_us: {lanes} lanes of {grid.step_us} do not fit into an interval of {interval}")
    return grid


def _gap(f: Fields, _: str) -> GapNote:
    first, last = f.moment("first_at"), f.moment("last_at")
    if last < first:
        raise f.wrong("last_at", "at or after first_at")
    return GapNote(
        id=f.count("id"),
        target=_name(f, "target"),
        probe=_name(f, "probe"),
        first_at=first,
        last_at=last,
        slots=f.count("slots", INT64 - 1),
        reason=f.text("reason", MAX_REASON),
    )


def _outage(f: Fields, _: str) -> OutageNote:
    begin, until = f.moment("from"), f.moment("until")
    if until < begin:
        raise f.wrong("until", "at or after from")
    return OutageNote(id=f.count("id"), begin=begin, until=until, reason=f.text("reason", MAX_REASON))


def _lost(f: Fields, _: str) -> LostNote:
    first, last = f.moment("first_at"), f.moment("last_at")
    if last < first:
        raise f.wrong("last_at", "at or after first_at")
    return LostNote(
        id=f.count("id"),
        target=f.maybe("target", lambda key: _name(f, key)),
        probe=f.maybe("probe", lambda key: _name(f, key)),
        first_at=first,
        last_at=last,
        slots=f.count("slots", INT64 - 1),
        reason=f.text("reason", MAX_REASON),
    )


def _name(f: Fields, key: str) -> str:
    return f.text(key, MAX_NAME)


_READERS: Mapping[NoteKind, Callable[[Fields, str], Note]] = {
    NoteKind.PLAN: _plan,
    NoteKind.GAP: _gap,
    NoteKind.OUTAGE: _outage,
    NoteKind.LOST: _lost,
}
