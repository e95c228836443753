"""Every slot owed is measured or missed with one cause: against a count that walks slot by slot, and in known cases."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.clock import instant
from monitor.detect.causes import CAUSE_WORDS
from monitor.detect.coverage import (
    CAUSES,
    GIVEN_UP_US,
    HOUR_US,
    LOST,
    OTHER,
    REACH_US,
    UNSENT,
    Row,
    Segment,
    Span,
    Tally,
    Waiting,
    cover,
    expected,
    micros,
    segments,
    spans,
)
from monitor.grid import US, Grid
from monitor.notes import GapNote, LostNote, Note, OutageNote, PlannedSeries, PlanNote

HOUR = micros(datetime(2026, 3, 1, 12, tzinfo=UTC))
MINUTE = 60 * US
KEY = ("t", "q")
EVER = Waiting(now_us=HOUR + 48 * HOUR_US, patience_us=45 * US)


def lattice(interval_us: int = MINUTE, lanes: int = 3, turn: int = 1, offset_us: int = 7 * US) -> Grid:
    return Grid(
        vantage="lagos",
        target=KEY[0],
        probe=KEY[1],
        interval_us=interval_us,
        offset_us=offset_us,
        step_us=interval_us // (2 * lanes),
        lanes=lanes,
        turn=turn,
    )


GRID = lattice()


def at(us: int) -> datetime:
    return instant(us * 1_000)


def plan(number: int, from_us: int, *grids: Grid) -> PlanNote:
    return PlanNote(
        id=number, at=at(from_us), series=tuple(PlannedSeries(grid=one, probe_version="v") for one in grids)
    )


def always(grid: Grid = GRID) -> list[Segment]:
    return [Segment(grid, HOUR - 99 * HOUR_US, None, "a")]


def rows_of(grid: Grid = GRID, hour: int = HOUR, missed: str | None = None) -> list[Row]:
    return [Row(grid.instant_us(n), missed) for n in grid.numbers(hour, hour + HOUR_US)]


# ------------------------------------------------------------------------------------------------ against walking


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Segment], list[Row], list[Span], Waiting]:
    """Plans that change, rows on, beside and behind the grid, notes that overlap, an hour that may still run."""
    moments = st.integers(HOUR - HOUR_US, HOUR + 2 * HOUR_US)
    grids = st.builds(
        lattice,
        st.sampled_from([90 * US, 61 * US, 5 * MINUTE, 47 * MINUTE]),
        st.integers(1, 4),
        st.integers(0, 0),
        st.integers(0, 40 * US),
    )
    ats = sorted(draw(st.lists(moments, min_size=1, max_size=4, unique=True)))
    notes = [plan(n, when, *draw(st.lists(grids, max_size=1))) for n, when in enumerate(ats)]
    known = segments(("a", note) for note in notes).get(KEY, [])
    planned = [s.grid.instant_us(n) for s in known for n in s.numbers(HOUR - HOUR_US, HOUR + 2 * HOUR_US)]
    shifts = st.sampled_from([0, 0, 0, 0, 1, 2, REACH_US - 1, REACH_US, 30 * US])
    instants = {draw(st.sampled_from(planned)) + draw(shifts) for _ in range(draw(st.integers(0, 60))) if planned}
    reasons = st.sampled_from([None, None, "overlap", "budget", "unheard_of"])
    rows = [Row(one, draw(reasons)) for one in sorted(instants)]
    pairs = draw(st.lists(st.tuples(moments, moments, st.integers(0, 3)), max_size=5))
    said = [_note(number, min(pair[:2]), max(pair[:2]), pair[2]) for number, pair in enumerate(pairs)]
    now = draw(st.integers(HOUR, HOUR + 2 * HOUR_US) | st.just(HOUR + GIVEN_UP_US + HOUR_US // 2))
    settled = draw(st.dictionaries(st.just("a"), moments))
    return known, rows, spans(said), Waiting(now_us=now, patience_us=draw(st.integers(0, MINUTE)), settled_us=settled)


def _note(number: int, begin: int, until: int, kind: int) -> Note:
    first, last = at(begin), at(until)
    match kind:
        case 0:
            return GapNote(id=number, target="t", probe="q", first_at=first, last_at=last, slots=1, reason="late")
        case 1:
            return OutageNote(id=number, begin=first, until=last, reason="power")
        case 2:
            return OutageNote(id=number, begin=first, until=last, reason="agent_off")
        case _:
            return LostNote(
                id=number, target=None, probe=None, first_at=first, last_at=last, slots=1, reason="spool_full"
            )


def walk(plan: list[Segment], hour: int, rows: list[Row], known: list[Span], wait: Waiting) -> Tally:
    """The same by looking at every slot and every row one by one."""
    tally, used = Tally(), set()
    for segment in plan:
        for number in range(hour // segment.grid.interval_us - 3, (hour + HOUR_US) // segment.grid.interval_us + 3):
            slot = segment.grid.instant_us(number)
            if not hour <= slot < hour + HOUR_US or not segment.owns(number):
                continue
            own = [row for row in rows if 0 <= row.at_us - slot < REACH_US]
            used.update(row.at_us for row in own)
            tally.repeated += max(0, len(own) - 1)
            _judge(slot, own, segment, known, wait, tally)
    elsewhere = {
        row.at_us
        for row in rows
        for segment in plan
        for number in [segment.grid.first_after(row.at_us) - 1]
        if row.at_us - segment.grid.instant_us(number) < REACH_US and segment.owns(number)
    }
    tally.unplanned = sum(hour <= r.at_us < hour + HOUR_US for r in rows if r.at_us not in used | elsewhere)
    return tally


def _judge(slot: int, own: list[Row], segment: Segment, known: list[Span], wait: Waiting, tally: Tally) -> None:
    causes = [s.reason for s in known if s.from_us <= slot <= s.until_us]
    if any(row.missed is None for row in own):
        tally.owed += 1
        tally.measured += 1
    elif own:
        tally.miss(own[0].missed or "", 1)
    elif slot > wait.now_us:
        return
    elif causes:
        tally.miss(causes[0], 1)
    elif slot > wait.now_us - wait.patience_us:
        tally.pending += 1
    elif slot <= max(wait.settled_us.get(segment.agent, 0) - wait.patience_us, wait.now_us - GIVEN_UP_US):
        tally.miss(LOST, 1)
    else:
        tally.miss(UNSENT, 1)


@given(situations())
@settings(max_examples=150, deadline=None)
def test_counting_by_ranges_agrees_with_walking_slot_by_slot(situation):
    """Whatever plans, rows and notes say, the count is that of a walk, and owed is measured plus missed."""
    plan, rows, known, wait = situation
    for hour in (HOUR - HOUR_US, HOUR, HOUR + HOUR_US):
        near = [row for row in rows if hour <= row.at_us < hour + HOUR_US + REACH_US]
        found = cover(plan, hour, near, known, wait)
        assert found == walk(plan, hour, near, known, wait)
        assert found.owed == found.measured + found.missed.total()


@given(situations())
@settings(max_examples=80, deadline=None)
def test_every_row_is_accounted_for_once(situation):
    """Rows are measured slots, slots missed with the row's reason, repetitions or unplanned: none vanishes."""
    plan, rows, _, _ = situation
    total = Tally()
    for hour in range(HOUR - HOUR_US, HOUR + 3 * HOUR_US, HOUR_US):
        near = [row for row in rows if hour <= row.at_us < hour + HOUR_US + REACH_US]
        total.add(cover(plan, hour, near, [], EVER))
    by_row = sum(total.missed[reason] for reason in ("overlap", "budget", OTHER))
    assert len(rows) == total.measured + by_row + total.repeated + total.unplanned


@given(situations())
@settings(max_examples=80, deadline=None)
def test_a_note_more_never_changes_how_many_were_owed(situation):
    """Notes explain slots; they neither make nor unmake any."""
    plan, rows, known, _ = situation
    near = [row for row in rows if HOUR <= row.at_us < HOUR + HOUR_US + REACH_US]
    without, with_notes = cover(plan, HOUR, near, [], EVER), cover(plan, HOUR, near, known, EVER)
    assert (without.owed, without.measured) == (with_notes.owed, with_notes.measured)


@given(situations(), st.integers(0, HOUR_US - 1))
@settings(max_examples=50, deadline=None)
def test_count_and_sum_tell_a_full_hour(situation, stray):
    """Rows that agree in number and sum with the plan are the slots owed; a stray row in a slot's place shows."""
    plan, _, known, _ = situation
    owed = [Row(s.grid.instant_us(n)) for s in plan for n in s.numbers(HOUR, HOUR + HOUR_US)]
    assert expected(plan, HOUR) == (len(owed), sum(row.at_us - HOUR for row in owed))
    full = cover(plan, HOUR, owed, known, EVER)
    assert (full.owed, full.measured, full.unplanned) == (len(owed), len(owed), 0)
    others = [*owed[1:], Row(HOUR + stray)]
    told = (len(others), sum(row.at_us - HOUR for row in others)) == expected(plan, HOUR)
    assert told == (sorted(row.at_us for row in others) == [row.at_us for row in owed])


# ------------------------------------------------------------------------------------------------ known cases


def test_a_full_hour_is_covered():
    """Sixty slots, sixty rows: all measured, whether they succeeded or failed."""
    found = cover(always(), HOUR, rows_of(), [], EVER)
    assert (found.owed, found.measured, found.missed.total(), found.share) == (60, 60, 0, 1.0)


def test_missed_rows_name_their_reason():
    """A row with outcome `missed` counts for its reason, also where an outage claims the same slot."""
    outage = spans([OutageNote(id=1, begin=at(HOUR), until=at(HOUR + HOUR_US), reason="power")])
    assert cover(always(), HOUR, rows_of(missed="budget"), outage, EVER).missed == Counter(budget=60)


def test_the_most_particular_note_explains():
    """Gap before outage before loss, each slot once, and what nobody explains waits to be sent."""
    quarter = HOUR_US // 4
    found = cover(
        always(lattice(offset_us=0, lanes=1, turn=0)),
        HOUR,
        [],
        spans(
            [
                LostNote(
                    id=1,
                    target="t",
                    probe=None,
                    first_at=at(HOUR + US),
                    last_at=at(HOUR + 3 * quarter - US),
                    slots=44,
                    reason="spool_full",
                ),
                OutageNote(id=2, begin=at(HOUR + US), until=at(HOUR + 2 * quarter - US), reason="agent_off"),
                GapNote(
                    id=3,
                    target="t",
                    probe="q",
                    first_at=at(HOUR),
                    last_at=at(HOUR + quarter - US),
                    slots=15,
                    reason="late",
                ),
            ]
        ),
        EVER,
    )
    assert found.missed == Counter(late=15, agent_off=15, spool_full=15, unsent=15)


def test_notes_of_another_series_do_not_explain():
    """A gap names its series; an outage concerns all."""
    gap, outage = spans(
        [
            GapNote(id=1, target="t", probe="q", first_at=at(HOUR), last_at=at(HOUR), slots=1, reason="late"),
            OutageNote(id=2, begin=at(HOUR), until=at(HOUR), reason="power"),
        ]
    )
    assert gap.concerns(KEY) and not gap.concerns(("t", "other")) and outage.concerns(("x", "y"))


def test_a_grid_walked_again_is_owed_once():
    """After a step back of the clock the same slots have two rows each: owed once, the second rows apart."""
    first = rows_of()[:40]
    again = [Row(row.at_us + 1) for row in rows_of()[20:]]
    found = cover(always(), HOUR, [*first, *again], [], EVER)
    assert (found.owed, found.measured, found.repeated) == (60, 60, 20)


def test_a_repetition_heals_a_slot_that_was_passed_over():
    """A clock that ran ahead and came back: slots first missed, then measured, are measured."""
    late = [Row(row.at_us, "late") for row in rows_of()]
    found = cover(always(), HOUR, [*late, *(Row(row.at_us + 2) for row in rows_of())], [], EVER)
    assert (found.measured, found.missed.total(), found.repeated) == (60, 0, 60)


def test_the_running_hour_owes_what_is_over():
    """Slots to come are not owed, those that may still run are pending, older ones are unsent."""
    now = HOUR + 30 * MINUTE
    grid = lattice(offset_us=0, lanes=1, turn=0)
    found = cover(always(grid), HOUR, [], [], Waiting(now_us=now, patience_us=2 * MINUTE))
    assert (found.owed, found.pending, found.missed) == (29, 2, Counter(unsent=29))


def test_unsent_becomes_lost_when_the_agent_has_nothing_more():
    """Behind what its agent has settled a slot will not come; without any word it is given up after a week."""
    grid = lattice(offset_us=0, lanes=1, turn=0)
    half = Waiting(now_us=EVER.now_us, patience_us=MINUTE, settled_us={"a": HOUR + 30 * MINUTE})
    assert cover(always(grid), HOUR, [], [], half).missed == Counter(lost=30, unsent=30)
    stranger = Waiting(now_us=EVER.now_us, patience_us=MINUTE, settled_us={"b": EVER.now_us})
    assert cover(always(grid), HOUR, [], [], stranger).missed == Counter(unsent=60)
    much_later = Waiting(now_us=HOUR + HOUR_US + GIVEN_UP_US, patience_us=MINUTE)
    assert cover(always(grid), HOUR, [], [], much_later).missed == Counter(lost=60)


def test_a_plan_that_changes_within_the_hour_owes_each_part():
    """Up to its successor's `at`, that instant included, a plan owes its own slots; behind it the new one does."""
    slow = lattice(interval_us=10 * MINUTE, lanes=1, turn=0, offset_us=0)
    fast = lattice(lanes=1, turn=0, offset_us=0)
    known = segments([("a", plan(1, HOUR - 1, slow)), ("a", plan(2, HOUR + 30 * MINUTE, fast))])[KEY]
    assert [len(one.numbers(HOUR, HOUR + HOUR_US)) for one in known] == [4, 29]
    on_the_border = cover(known, HOUR, [Row(HOUR + 30 * MINUTE)], [], EVER)
    assert (on_the_border.measured, on_the_border.unplanned) == (1, 0)
    stopped = segments([("a", plan(1, HOUR - 1, fast)), ("a", plan(2, HOUR + 30 * MINUTE))])[KEY]
    assert cover(stopped, HOUR, [], [], EVER).owed == 31


def test_the_same_plan_said_again_changes_nothing():
    """A restart says its plan again: one segment, and what lay between stays owed."""
    known = segments(("a", plan(n, HOUR + n * MINUTE, GRID)) for n in range(5))
    assert known == {KEY: [Segment(GRID, HOUR, None, "a")]}


def test_a_plan_said_after_a_step_back_overrides():
    """A later note with an earlier `at`: the clock went back, and what it says holds from there on."""
    new = lattice(interval_us=5 * MINUTE)
    known = segments(
        [("a", plan(1, HOUR, GRID)), ("a", plan(2, HOUR + 3 * HOUR_US, GRID)), ("a", plan(3, HOUR + HOUR_US, new))]
    )
    assert known[KEY] == [Segment(GRID, HOUR, HOUR + HOUR_US, "a"), Segment(new, HOUR + HOUR_US, None, "a")]


def test_a_clone_owes_nothing_twice():
    """Two agents with one vantage's plan: the slots of the hour are owed once."""
    known = segments([("a", plan(1, HOUR - US, GRID)), ("b", plan(1, HOUR + 20 * MINUTE, GRID))])
    found = cover(known[KEY], HOUR, rows_of(), [], EVER)
    assert (found.owed, found.measured, found.unplanned) == (60, 60, 0)


def test_notes_of_one_cause_join():
    """A flapping agent's outages that overlap are one: its notes may be many, the answer stays cheap."""
    notes = [
        OutageNote(id=n, begin=at(HOUR + n * MINUTE), until=at(HOUR + (n + 1) * MINUTE), reason="power")
        for n in range(50)
    ]
    assert spans(notes) == [Span(1, HOUR, HOUR + 50 * MINUTE, "power")]


def test_nothing_planned_owes_nothing():
    """Notes without any plan, as of a time before the first one, are no plan."""
    assert segments([]) == segments([("a", _note(1, HOUR, HOUR + 1, 1))]) == {}


def test_slots_before_the_first_plan_are_not_owed():
    """What nobody planned is no gap; rows of that time are unplanned."""
    known = segments([("a", plan(1, HOUR + 30 * MINUTE, GRID))])[KEY]
    found = cover(known, HOUR, rows_of(), [], EVER)
    assert found.owed == found.measured == GRID.count(HOUR + 30 * MINUTE + 1, HOUR + HOUR_US)
    assert found.owed + found.unplanned == 60


def test_every_cause_has_words_in_code_and_docs() -> None:
    """No cause is shown as a bare name, and docs/coverage.md has a row for each, with the same words."""
    assert set(CAUSE_WORDS) == set(CAUSES)
    page = (Path(__file__).resolve().parents[2] / "docs" / "coverage.md").read_text(encoding="utf-8")
    for cause, words in CAUSE_WORDS.items():
        assert f"| `{cause}` | {words.short} | {words.advice} |" in page
