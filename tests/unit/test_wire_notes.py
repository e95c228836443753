"""Notes as JSON: an exact round trip, and a refusal by name of everything that nobody could count on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor import wire
from monitor.grid import Grid
from monitor.notes import GapNote, LostNote, Note, OutageNote, PlannedSeries, PlanNote

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
GRID = Grid(
    vantage="lagos", target="t", probe="q", interval_us=60_000_000, offset_us=7, step_us=15_000_000, lanes=3, turn=1
)
PLAN = PlanNote(id=1, at=AT, series=(PlannedSeries(grid=GRID, probe_version="0123456789ab"),))
NOTES: list[Note] = [
    PLAN,
    PlanNote(id=2, at=AT, series=()),
    GapNote(id=3, target="t", probe="q", first_at=AT, last_at=AT, slots=1, reason="late"),
    OutageNote(id=4, begin=AT, until=AT + timedelta(hours=1), reason="power"),
    LostNote(id=5, target=None, probe=None, first_at=AT, last_at=AT, slots=9, reason="spool_full"),
]


@pytest.mark.parametrize("note", NOTES, ids=lambda note: type(note).__name__)
def test_a_note_survives_the_journey(note: Note) -> None:
    """What an agent says is what the hub reads, through JSON text."""
    assert wire.decode_note("lagos", json.loads(json.dumps(wire.encode_note(note)))) == note


@given(st.integers(1_000, 10**10), st.integers(1, 9), st.data())
@settings(max_examples=50, deadline=None)
def test_every_grid_survives_the_journey(interval: int, lanes: int, data: st.DataObject) -> None:
    """Any grid that can be walked comes back equal: owed slots are the same on both sides."""
    grid = Grid(
        vantage="lagos",
        target="t",
        probe="q",
        interval_us=interval,
        offset_us=data.draw(st.integers(0, interval - 1)),
        step_us=data.draw(st.integers(0, interval // lanes)),
        lanes=lanes,
        turn=data.draw(st.integers(0, lanes - 1)),
    )
    note = PlanNote(id=1, at=AT, series=(PlannedSeries(grid=grid, probe_version="v"),))
    assert wire.decode_note("lagos", wire.encode_note(note)) == note


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"interval_us": 0}, "interval_us"),
        ({"interval_us": 999, "offset_us": 0, "step_us": 0}, "interval_us"),
        ({"lanes": 0, "turn": 0}, "lane"),
        ({"lanes": 4, "step_us": 15_000_001}, "step_us"),
        ({"turn": 3}, "turn"),
        ({"offset_us": 60_000_000}, "offset_us"),
        ({"interval_us": 1e9}, "interval_us"),
        ({"target": "x" * 201}, "target"),
        ({"lanes": True}, "lanes"),
    ],
)
def test_a_grid_that_nobody_can_walk_is_refused(change: dict[str, object], named: str) -> None:
    """Zero intervals, lanes that overlap and numbers out of range would never end or count twice."""
    document = wire.encode_note(PLAN)
    document["series"] = [{**row, **change} for row in document["series"]]  # type: ignore[attr-defined]
    with pytest.raises(wire.WireError, match=named):
        wire.decode_note("lagos", document)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "object"),
        ({"id": 1, "kind": "rumour"}, "kind"),
        ({**wire.encode_note(NOTES[2]), "last_at": "2026-02-28T00:00:00Z"}, "last_at"),
        ({**wire.encode_note(NOTES[3]), "until": "2026-02-28T00:00:00Z"}, "until"),
        ({**wire.encode_note(NOTES[4]), "slots": -1}, "slots"),
        ({**wire.encode_note(PLAN), "series": wire.encode_note(PLAN)["series"] * 2}, "twice"),  # type: ignore[operator]
        ({**wire.encode_note(PLAN), "at": "yesterday"}, "at"),
    ],
)
def test_a_note_that_says_nothing_sure_is_refused(document: object, named: str) -> None:
    """Unknown kinds, ranges that run backwards and a series planned twice get a sentence that names the field."""
    with pytest.raises(wire.WireError, match=named):
        wire.decode_note("lagos", document)
