"""Coverage read from a real Postgres: from rollups, from rows and from notes alike, and late data heals it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Thread

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import ProgrammingError

from monitor.clock import instant
from monitor.detect.coverage import Tally, micros
from monitor.grid import Grid, grid
from monitor.model import Attempt, DialectName, MissReason, Outcome, Probe, Series, Target, Vantage
from monitor.notes import GapNote, LostNote, Note, OutageNote, PlannedSeries, PlanNote
from monitor.store import attempts, coverage, coverage_hours, fleet, notes, retention, rollups

HOUR = timedelta(hours=1)
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
START = NOW - 6 * HOUR
US_1 = timedelta(microseconds=1)
SOON = NOW + timedelta(minutes=2)
VANTAGES = ("lagos", "london", "virginia")


def a_series(vantage: str = "lagos", target: str = "acme") -> Series:
    return Series(
        vantage=Vantage(name=vantage),
        target=Target(name=target, provider="acme", model="m", dialect=DialectName.ANTHROPIC, url="http://x/v1"),
        probe=Probe(name="short", prompt="Say hello."),
    )


def plan(number: int, at: datetime, *series: Series) -> PlanNote:
    planned = (PlannedSeries(grid=grid(one, VANTAGES), probe_version=one.probe.version) for one in series)
    return PlanNote(id=number, at=at, series=tuple(planned))


def said(store: Engine, *told: Note, vantage: str = "lagos", agent: str = "a" * 32) -> notes.Noted:
    return notes.insert(store, vantage, agent, told, NOW, known=[a_series(vantage)])


def slots(since: datetime, until: datetime, series: Series | None = None) -> list[datetime]:
    lattice: Grid = grid(series or a_series(), VANTAGES)
    return [instant(lattice.instant_us(n) * 1_000) for n in lattice.numbers(micros(since), micros(until))]


def attempt(at: datetime, missed: MissReason | None = None, series: Series | None = None) -> Attempt:
    one = series or a_series()
    return Attempt(
        vantage=one.vantage.name,
        target=one.target.name,
        probe=one.probe.name,
        probe_version=one.probe.version,
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.MISSED if missed else Outcome.SUCCESS,
        missed=missed,
    )


def put(store: Engine, given: Sequence[Attempt]) -> None:
    assert len(attempts.insert(store, [a_series()], given, NOW).new) == len(given)


def beat(store: Engine, sent_at: datetime, oldest_at: datetime | None, agent: str = "a" * 32) -> None:
    query = text(
        "INSERT INTO agents (vantage_id, agent, sent_at, received_at, spool_oldest_at, body) "
        "VALUES (:vantage_id, :agent, :sent_at, :sent_at, :oldest_at, '{}') ON CONFLICT (vantage_id, agent) "
        "DO UPDATE SET sent_at = excluded.sent_at, spool_oldest_at = excluded.spool_oldest_at"
    )
    with store.begin() as connection:
        vantage_id = coverage.vantage_id("lagos")
        connection.execute(
            query, {"vantage_id": vantage_id, "agent": agent, "sent_at": sent_at, "oldest_at": oldest_at}
        )


def hours(store: Engine, since: datetime = START, until: datetime = NOW, now: datetime = NOW) -> dict[datetime, Tally]:
    found = coverage.covered(store, since, until, now)
    return {hour: tally for (hour,), tally in coverage.grouped(found, "hour").items()}  # type: ignore[misc]


def total(store: Engine, since: datetime = START, until: datetime = NOW, now: datetime = NOW) -> Tally:
    return coverage.grouped(coverage.covered(store, since, until, now))[()]


def test_a_copied_agent_says_its_own_notes_too(store: Engine) -> None:
    """A copy of a state folder has taken the next numbers: the plan that the first one makes then is in force too."""
    before, after = a_series(), replace(a_series(), probe=replace(a_series().probe, interval_seconds=600.0))
    changed = START + 2 * HOUR
    assert said(store, plan(1, START - US_1, before)).new == 1
    assert said(store, plan(2, START + HOUR, before)).new == 1  # the copy's, with the same identity
    own = plan(2, changed, after)
    assert said(store, own).new == 1
    assert said(store, own, plan(2, START + HOUR, before)).new == 0
    beat(store, NOW, None)
    made = [*slots(START, changed + US_1, before), *slots(changed + US_1, NOW - HOUR, after)]
    put(store, [attempt(at, series=before) for at in made])
    tally = total(store, until=NOW - HOUR)
    assert (tally.owed, tally.measured, tally.unplanned) == (len(made), len(made), 0)


def test_rollups_and_rows_give_the_same_answer(store: Engine) -> None:
    """An hour counts alike while its rollup is not computed yet and afterwards, whole hours and broken ones."""
    said(store, plan(1, START - US_1, a_series()))
    whole, broken = slots(START, START + HOUR), slots(START + HOUR, START + 2 * HOUR)[:50]
    put(store, [attempt(at, MissReason.OVERLAP if n % 10 == 0 else None) for n, at in enumerate(whole + broken)])
    from_rows = hours(store)
    rollups.refresh(store, NOW)
    assert hours(store) == from_rows
    assert from_rows[START] == Tally(owed=60, measured=54, missed=Counter(overlap=6))
    assert from_rows[START + HOUR] == Tally(owed=60, measured=45, missed=Counter(overlap=5, unsent=10))
    assert [tally.owed + tally.pending for tally in from_rows.values()] == [60] * 6


def test_a_stray_row_in_a_slots_place_shows(store: Engine) -> None:
    """Sixty rows in an hour of sixty slots are not enough: one beside the grid leaves its slot unmeasured."""
    said(store, plan(1, START - US_1, a_series()))
    whole = slots(START, START + HOUR)
    put(store, [attempt(at) for at in [*whole[:-1], whole[-1] + timedelta(seconds=2)]])
    rollups.refresh(store, NOW)
    found = hours(store)[START]
    assert (found.owed, found.measured, found.missed, found.unplanned) == (60, 59, Counter(unsent=1), 1)


def test_causes_follow_notes_and_heartbeats(store: Engine) -> None:
    """Agent off, gap and loss are told apart; the rest is unsent until the agent says it has nothing older."""
    said(
        store,
        plan(1, START - US_1, a_series()),
        OutageNote(id=2, begin=START, until=START + HOUR - US_1, reason="agent_off"),
        GapNote(
            id=3,
            target="acme",
            probe="short",
            first_at=START + HOUR,
            last_at=START + 2 * HOUR - US_1,
            slots=60,
            reason="late",
        ),
        LostNote(
            id=4,
            target=None,
            probe=None,
            first_at=START + 2 * HOUR,
            last_at=START + 3 * HOUR - US_1,
            slots=60,
            reason="spool_full",
        ),
    )
    usual = Counter(agent_off=60, late=60, spool_full=60)
    assert total(store).missed == usual + Counter(unsent=180 - total(store).pending)
    beat(store, NOW, START + 5 * HOUR)
    patience = timedelta(seconds=30 + 10 + 15)  # deadline, grace and delivery
    lost = len(slots(START + 3 * HOUR, START + 5 * HOUR - patience + US_1))
    assert total(store).missed["lost"] == lost
    beat(store, NOW, None)
    assert total(store).missed == usual + Counter(lost=180 - total(store).pending)


def test_late_rows_heal(store: Engine) -> None:
    """What was unsent becomes measured when it arrives, also in hours that a sweep has written down already."""
    said(store, plan(1, START - US_1, a_series()))
    late = slots(START, START + 2 * HOUR)
    coverage_hours.sweep(store, SOON, 24 * HOUR)
    assert written(store) == {START + n * HOUR: (60, 0, {"unsent": 60}) for n in range(6)}
    put(store, [attempt(at) for at in late])
    assert coverage_hours.sweep(store, SOON, 24 * HOUR) == 2
    assert written(store)[START + HOUR] == (60, 60, {})
    assert coverage_hours.sweep(store, SOON, 24 * HOUR) == 0


def written(store: Engine) -> dict[datetime, tuple[int, int, dict[str, int]]]:
    with store.connect() as connection:
        query = text("SELECT hour, owed, measured, causes FROM hourly_coverage ORDER BY hour")
        return {row[0]: (row[1], row[2], row[3]) for row in connection.execute(query)}


def test_late_plans_heal(store: Engine) -> None:
    """A plan that reached the hub after its rows: they are not planned before, and measured slots afterwards."""
    put(store, [attempt(at) for at in slots(START, START + HOUR)])
    assert coverage.covered(store, START, NOW, NOW) == []
    said(store, plan(1, START - US_1, a_series()))
    assert hours(store)[START] == Tally(owed=60, measured=60)


def test_a_time_before_the_first_plan_owes_nothing(store: Engine) -> None:
    """A vantage point that is known, asked about a time of which nothing is: no hours, and no error."""
    said(store, plan(1, NOW, a_series()))
    assert coverage.covered(store, START, NOW - HOUR, SOON) == []
    assert coverage_hours.sweep(store, NOW, 6 * HOUR) == 0


def test_notes_are_kept_once_and_wrong_clocks_refused(store: Engine) -> None:
    """Saying a note again changes nothing; one of 1970 or of next week is refused with its reason."""
    assert said(store, plan(1, START, a_series())).new == 1
    assert said(store, plan(1, START, a_series()), plan(2, NOW, a_series())).new == 1
    refused = said(store, plan(3, datetime(1970, 1, 1, tzinfo=UTC)), plan(4, NOW + 7 * 24 * HOUR)).refused
    assert [note.id for note, _ in refused] == [3, 4]
    assert "days" in refused[0][1] and "future" in refused[1][1]


def test_the_running_hour_is_counted_so_far(store: Engine) -> None:
    """Half an hour in: slots of the future are not owed, the newest are pending, the rest is as it is."""
    said(store, plan(1, START - US_1, a_series()))
    now = START + HOUR / 2
    done = slots(START, now)
    put(store, [attempt(at) for at in done[:-2]])
    found = hours(store, START, NOW, now)
    assert list(found) == [START]
    assert found[START].measured == len(done) - 2
    assert found[START].pending + found[START].missed.total() == 2


def test_each_vantage_stands_alone(store: Engine) -> None:
    """Plans, notes and rows of one vantage say nothing about another; a filter leaves the rest out."""
    for vantage in VANTAGES:
        said(store, plan(1, START - US_1, a_series(vantage), a_series(vantage, "other")), vantage=vantage)
    put(store, [attempt(at, series=a_series("london")) for at in slots(START, NOW - HOUR, a_series("london"))])
    by = coverage.grouped(coverage.covered(store, START, NOW - HOUR, NOW), "vantage", "target")
    assert {key: tally.measured for key, tally in by.items() if tally.measured} == {("london", "acme"): 300}
    assert {tally.owed for tally in by.values()} == {300}
    only = coverage.covered(store, START, NOW, NOW, vantage="lagos", target="other")
    assert {(one.vantage, one.target) for one in only} == {("lagos", "other")}


def test_hours_without_rows_any_more_are_counted_from_their_rollups(store: Engine) -> None:
    """Retention drops rows: owed, measured and the sum of causes still agree, from counts."""
    said(store, plan(1, START - US_1, a_series()))
    put(store, [attempt(at) for at in slots(START, START + HOUR)[:40]])
    rollups.refresh(store, NOW)
    before = hours(store)[START]
    later = NOW + timedelta(days=40)
    retention.sweep(store, later, retention.Policy(raw_days=30))
    after = hours(store, now=later)[START]
    assert (after.owed, after.measured) == (before.owed, before.measured) == (60, 40)
    assert after.missed == Counter(lost=20)


def test_old_notes_go_but_the_plan_in_force_stays(store: Engine) -> None:
    """Notes are forgotten with the rollups, all but each agent's last plan, without which nothing would be owed."""
    said(store, plan(1, START, a_series()), plan(2, START + HOUR, a_series()))
    said(store, OutageNote(id=3, begin=START, until=START + HOUR, reason="power"))
    assert notes.forget(store, NOW) == 2
    assert total(store, NOW - HOUR).owed > 50


def test_a_busy_sweep_and_late_rows_settle(store: Engine) -> None:
    """Rows that arrive while hours are written down are in the table after the next sweep at the latest."""
    said(store, plan(1, START - US_1, a_series()))
    every = [attempt(at) for at in slots(START, NOW)]
    writer = Thread(target=lambda: [put(store, every[n : n + 20]) for n in range(0, len(every), 20)])
    writer.start()
    while writer.is_alive():
        coverage_hours.sweep(store, NOW, 24 * HOUR)
        rollups.refresh(store, NOW)
    writer.join()
    coverage_hours.sweep(store, NOW, 24 * HOUR)
    assert list(written(store).values()) == [(60, 60, {})] * 6


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_walk_repeated_after_a_clock_step_is_owed_once(store: Engine, repeats: int) -> None:
    """Rows some microseconds behind the grid answer for the same slots, through rollups and rows alike."""
    said(store, plan(1, START - US_1, a_series()))
    first = [attempt(at) for at in slots(START, START + HOUR)[:45]]
    again = [
        replace(one, scheduled_at=one.scheduled_at + n * US_1, started_at=one.started_at + n * US_1)
        for n in range(1, repeats + 1)
        for one in [attempt(at) for at in slots(START, START + HOUR)[30:]]
    ]
    put(store, first + again)
    rollups.refresh(store, NOW)
    found = hours(store)[START]
    assert (found.owed, found.measured, found.repeated) == (60, 60, 15 + 30 * (repeats - 1))


def test_a_vantage_point_without_a_token_owes_nothing_more(store: Engine) -> None:
    """What is revoked is retired, owed up to then; with a new token the plan goes on, and the time between is owed."""
    said(store, plan(1, START - US_1, a_series()))
    fleet.enrol(store, Vantage(name="lagos"), START)
    assert total(store, now=SOON).owed == 360
    fleet.revoke(store, "lagos", START + 2 * HOUR)
    assert total(store, now=SOON).owed == 120
    fleet.rotate(store, "lagos", START + 4 * HOUR)
    assert total(store, now=SOON).owed == 360


def test_dashboards_may_read_it(store: Engine) -> None:
    """The reading role sees the view with names and causes, and nothing behind it."""
    said(store, plan(1, START - US_1, a_series()))
    coverage_hours.sweep(store, SOON, 24 * HOUR)
    with store.begin() as connection:
        connection.execute(text("SET LOCAL ROLE firsttoken_reader"))
        row = connection.execute(
            text("SELECT vantage, target, probe, owed, missed, causes FROM hourly_coverage")
        ).first()
    assert tuple(row) == ("lagos", "acme", "short", 60, 60, {"unsent": 60})
    with store.begin() as connection:
        connection.execute(text("SET LOCAL ROLE firsttoken_reader"))
        with pytest.raises(ProgrammingError, match="denied"):
            connection.execute(text("SELECT * FROM notes"))
