"""What agents say about slots that became no rows, kept under (vantage, agent, note id): twice is once.

Hides the table, and where the notes of a cloned agent go. Notes come in through `insert`, from uploads and from the
process itself; coverage reads them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, text

from monitor import wire
from monitor.model import Series
from monitor.notes import GapNote, LostNote, Note, OutageNote, PlanNote
from monitor.store import dimensions
from monitor.store.engine import transaction
from monitor.store.rows import vantage_id

MOST_READ = 20_000
"""Notes of one vantage and kind in one answer: beyond that the oldest say nothing."""
RAW_DAYS = 30
FUTURE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Noted:
    """What became of notes: each given was new, known, or is refused with a reason."""

    new: int = 0
    refused: list[tuple[Note, str]] = field(default_factory=list)


_INSERT = text(
    "INSERT INTO notes (vantage_id, agent, note_id, kind, first_at, last_at, received_at, body) "
    "SELECT :vantage_id, :agent, note_id, kind, first_at, last_at, :now, body "
    "FROM json_populate_recordset(NULL::notes, CAST(:rows AS json)) ORDER BY note_id "
    "ON CONFLICT (vantage_id, agent, note_id) DO NOTHING RETURNING note_id"
)
_INSERT_OF_A_COPY = text(
    "INSERT INTO notes (vantage_id, agent, note_id, kind, first_at, last_at, received_at, body) "
    "SELECT :vantage_id, :copy, said.note_id, said.kind, said.first_at, said.last_at, :now, said.body "
    "FROM json_populate_recordset(NULL::notes, CAST(:rows AS json)) said "
    "JOIN notes known ON (known.vantage_id, known.agent, known.note_id) = (:vantage_id, :agent, said.note_id) "
    "WHERE known.body <> said.body ORDER BY said.note_id "
    "ON CONFLICT (vantage_id, agent, note_id) DO NOTHING RETURNING note_id"
)
_PLANS = text(
    "SELECT n.agent, n.body FROM notes n WHERE n.vantage_id = :vantage_id AND n.kind = 'plan'"
    " AND n.first_at < :until AND (n.first_at >= :since OR n.note_id = ("
    "  SELECT max(p.note_id) FROM notes p WHERE p.vantage_id = n.vantage_id AND p.agent = n.agent"
    "  AND p.kind = 'plan' AND p.first_at < :since)) ORDER BY n.first_at DESC LIMIT :most"
)
_OTHERS = text(
    "SELECT agent, body FROM notes WHERE vantage_id = :vantage_id AND kind <> 'plan'"
    " AND first_at < :until AND last_at >= :since ORDER BY first_at DESC LIMIT :most"
)
_FORGET = text(
    "DELETE FROM notes n WHERE n.first_at < :before AND coalesce(n.last_at < :before, EXISTS ("
    "  SELECT FROM notes p WHERE p.vantage_id = n.vantage_id AND p.agent = n.agent AND p.kind = 'plan'"
    "  AND p.note_id > n.note_id AND p.first_at < :before))"
)


def insert(
    engine: Engine,
    vantage: str,
    agent: str,
    notes: Iterable[Note],
    now: datetime,
    *,
    known: Iterable[Series] = (),
    raw_days: int = RAW_DAYS,
) -> Noted:
    """Store what an agent of `vantage` says; what it has said before changes nothing. Raises StoreUnavailable.

    Refused are notes of a clock that is obviously wrong: over a day ahead of `now`, or over `raw_days` before it. A
    plan's series get their names in the dimension tables, described as far as they are in `known`.
    """
    result, good = [], []
    for note in notes:
        reason = _refusal(note, now, raw_days)
        result += [(note, reason)] if reason else []
        good += [] if reason else [note]
    return Noted(_store(engine, vantage, agent, good, now, known) if good else 0, result)


def copy_of(agent: str) -> str:
    """Under whom the notes of an agent are kept whose numbers were taken, by another that has its state folder.

    Both have measured: the plan of neither may be forgotten, or what it measured would count as lost.
    """
    return f"{agent}*"


def _refusal(note: Note, now: datetime, raw_days: int) -> str | None:
    first, last = _times(note)
    if first > now + FUTURE:
        return "it is of more than a day in the future: is a clock wrong?"
    if (last or first) < now - timedelta(days=raw_days):
        return f"it is older than the {raw_days} days for which attempts are kept"
    return None


def _store(
    engine: Engine, vantage: str, agent: str, notes: Sequence[Note], now: datetime, known: Iterable[Series]
) -> int:
    planned = [
        (vantage, one.grid.target, one.grid.probe, one.probe_version)
        for note in notes
        if isinstance(note, PlanNote)
        for one in note.series
    ]
    names = dimensions.pending_names(engine, known, planned, now)
    with transaction(engine) as connection:
        dimensions.write(connection, names, now)
        said = {"vantage_id": vantage_id(vantage), "agent": agent, "now": now, "rows": _rows(notes)}
        stored = len(connection.execute(_INSERT, said).all())
        if stored < len(notes):
            stored += len(connection.execute(_INSERT_OF_A_COPY, said | {"copy": copy_of(agent)}).all())
    dimensions.remember(engine, names, now)
    return stored


def read(connection: Connection, vantage: str, since: datetime, until: datetime) -> list[tuple[str, Note]]:
    """The plans in force in [since, until) and the other notes that touch it, each with its agent."""
    asked = {"vantage_id": vantage_id(vantage), "since": since, "until": until, "most": MOST_READ}
    found = []
    for query in (_PLANS, _OTHERS):
        for agent, body in connection.execute(query, asked):
            with suppress(wire.WireError):  # of a newer release, which this one cannot read
                found.append((agent, wire.decode_note(vantage, body)))
    return found


def forget(engine: Engine, before: datetime) -> int:
    """Delete what ended before an instant, plans when a later one of their agent had replaced them by then."""
    with transaction(engine) as connection:
        return int(connection.execute(_FORGET, {"before": before}).rowcount)


def _rows(notes: Sequence[Note]) -> str:
    rows = []
    for note in notes:
        first, last = _times(note)
        rows.append(
            {
                "note_id": note.id,
                "kind": wire.encode_note(note)["kind"],
                "first_at": wire.rfc3339(first),
                "last_at": None if last is None else wire.rfc3339(last),
                "body": wire.encode_note(note),
            }
        )
    return wire.dumps(rows).decode()


def _times(note: Note) -> tuple[datetime, datetime | None]:
    match note:
        case PlanNote():
            return note.at, None
        case OutageNote():
            return note.begin, note.until
        case GapNote() | LostNote():
            return note.first_at, note.last_at
