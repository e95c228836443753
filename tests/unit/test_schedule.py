"""The cursor that walks a grid: never twice, unmoved by clock steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.agent.schedule import LATE_ROWS, Cursor, Walked
from monitor.grid import US, grid, microseconds
from monitor.model import DialectName, Probe, Series, Target, Vantage

NOW = microseconds(datetime(2026, 3, 1, 12, tzinfo=UTC))
HOUR = 3600 * US
VANTAGES = ("lagos", "london", "virginia")


def series(vantage: str = "lagos", target: str = "t", interval: float = 60.0, deadline: float = 30.0) -> Series:
    return Series(
        vantage=Vantage(name=vantage),
        target=Target(name=target, provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
        probe=Probe(name="q", prompt="hi", interval_seconds=interval, deadline_seconds=deadline),
    )


def started(interval: float = 60.0) -> Cursor:
    return Cursor.resume(grid(series(interval=interval), VANTAGES), None, NOW)


def walk(cursor: Cursor, *looks: int) -> tuple[Cursor, list]:
    found = []
    for at in looks:
        cursor, due = cursor.look(at)
        found.append(due)
    return cursor, found


def test_waking_at_each_slot_runs_each_once():
    """Looked at on time, every slot runs exactly once, in order, and nothing is late."""
    cursor, ran = started(), []
    now = NOW
    for _ in range(20):
        now = cursor.next_us(now)
        cursor, due = cursor.look(now + 3)
        again, nothing = cursor.look(now + 5)
        assert again == cursor and nothing.run is None and not nothing.late
        assert due.late == () and due.skipped == 0
        ran.append(due.run.number)
    assert ran == list(range(ran[0], ran[0] + 20))


def test_an_early_look_finds_nothing():
    """A timer that fires a hair early decides nothing, and the same slot stays next."""
    cursor = started()
    at = cursor.next_us(NOW)
    after, due = cursor.look(at - 1)
    assert due.run is None and due.late == () and after.next_us(at - 1) == at


def test_a_slot_beyond_its_grace_is_late():
    """A slot found later than its grace becomes a late one and does not run."""
    cursor = started()
    at = cursor.next_us(NOW)
    _, due = cursor.look(at + cursor.grid.grace_us + 1)
    assert due.run is None and [microseconds(slot.scheduled_at) for slot in due.late] == [at]


def test_a_week_of_sleep_is_a_handful_of_rows_and_a_count():
    """After a week asleep one slot at most runs, five are rows, and the rest is counted with its range."""
    cursor = started()
    awake = cursor.next_us(NOW + 7 * 24 * HOUR)
    first = cursor.grid.first_after(NOW)
    _, due = cursor.look(awake)
    assert due.run is not None and len(due.late) == LATE_ROWS
    assert 1 + len(due.late) + due.skipped == due.run.number - first + 1
    assert due.skipped_from == cursor.grid.slot(first).scheduled_at
    assert due.skipped_to == cursor.grid.slot(due.late[0].number - 1).scheduled_at


def test_a_step_forward_neither_stalls_nor_bursts():
    """Two hours forward: what lies between is late, and the next slot is the next on the grid."""
    cursor, _ = walk(started(), NOW + 90 * US)
    after, (due,) = walk(cursor, NOW + 2 * HOUR)
    assert due.skipped + len(due.late) in range(117, 121)
    assert 0 < after.next_us(NOW + 2 * HOUR) - (NOW + 2 * HOUR) <= 81 * US


def test_a_step_back_neither_stalls_nor_repeats():
    """Two hours back: slots come at once again, each with an instant that no slot before had."""
    cursor, now, seen = started(), NOW, []
    for hours in (3, -2, 3, -2, -1, 4):
        begin = now if hours > 0 else now + hours * HOUR
        end = now + hours * HOUR if hours > 0 else begin + 30 * 60 * US
        now = begin
        while now < end:
            upcoming = cursor.next_us(now)
            assert upcoming - now <= 2 * 60 * US + cursor.grid.interval_us
            now = upcoming
            cursor, due = cursor.look(now)
            seen += [slot.scheduled_at for slot in (due.run, *due.late) if slot]
    assert len(seen) == len(set(seen)) and len(seen) > 400


def test_a_small_step_back_waits_for_the_next_slot():
    """Back by less than an interval: the slot that ran is not run again, the next one comes in its time."""
    cursor = started()
    at = cursor.next_us(NOW)
    cursor, due = cursor.look(at)
    after, nothing = cursor.look(at - 20 * US)
    again, ran = after.look(after.next_us(at - 20 * US))
    assert nothing.run is None and ran.run.number == due.run.number + 1 and again.walked.repeats == 0


def test_after_a_restart_no_slot_comes_twice():
    """What was decided on before stays decided, on time and with a clock that went back while we were off."""
    cursor = started()
    at = cursor.next_us(NOW)
    cursor, due = cursor.look(at)
    resumed = Cursor.resume(cursor.grid, cursor.walked, at - 5)
    assert resumed.look(at + 5)[1].run is None
    older = Cursor.resume(cursor.grid, Walked(handled_us=at + HOUR, ceiling_us=at + HOUR), at - 5)
    _, repeated = older.look(at)
    assert repeated.run is not None and repeated.run.scheduled_at == due.run.scheduled_at + timedelta(microseconds=1)


def test_a_fresh_start_owes_nothing_of_the_past():
    """Slots of the time in which the process did not run are not this process's to record."""
    resumed = Cursor.resume(started().grid, Walked(handled_us=NOW - 24 * HOUR, ceiling_us=NOW - 24 * HOUR), NOW)
    assert resumed.look(NOW)[1].late == ()


@given(st.lists(st.integers(-3 * HOUR, 3 * HOUR), max_size=30), st.sampled_from([0.5, 7.0, 60.0, 3600.0]))
@settings(max_examples=60, deadline=None)
def test_no_two_slots_share_an_instant_whatever_the_clock_does(steps, interval):
    """Random walks of the wall clock never hand out one instant twice, nor more than one slot to run at a look."""
    cursor, now, seen = started(interval), NOW, []
    for step in steps:
        now += step
        for _ in range(3):
            now = cursor.next_us(now)
            cursor, due = cursor.look(now)
            seen += [slot.scheduled_at for slot in (due.run, *due.late) if slot]
    assert len(seen) == len(set(seen))
