"""Verdicts in a real Postgres: on the evidence of all vantage points, whenever it comes, counted once."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Thread

import pytest
from sqlalchemy import Engine, text

from monitor.detect.coldstart import USUAL_RULE, VERSION, Judgement, Reason
from monitor.model import (
    Attempt,
    ColdStartRule,
    DialectName,
    Failure,
    FailureKind,
    MissReason,
    Outcome,
    Probe,
    Series,
    Target,
    Vantage,
)
from monitor.model import VerdictKind as Kind
from monitor.store import attempts, retention, verdicts
from monitor.timeline import Mark, Phase, Timeline

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MS = 1_000_000
CHAT = Target(name="chat", provider="acme", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x.test/v1")
SHORT, LONG = Probe(name="short", prompt="a"), Probe(name="long", prompt="b")
LAGOS, LONDON = Vantage(name="lagos"), Vantage(name="london")
ALL = [Series(vantage=v, target=CHAT, probe=p) for v in (LAGOS, LONDON) for p in (SHORT, LONG)]


def attempt(
    at: float, ttft_ms: float = 200, of: Series = ALL[0], total_ms: float | None = None, **more: object
) -> Attempt:
    """One planned `at` seconds after noon that took so long."""
    planned = NOON + timedelta(seconds=at)
    took = {Mark.SEND_START: 0, Mark.SEND_END: 1, Mark.FIRST_TOKEN: ttft_ms, Mark.END: total_ms or ttft_ms + 100}
    made = Attempt(
        vantage=of.vantage.name,
        target=of.target.name,
        probe=of.probe.name,
        probe_version=of.probe.version,
        scheduled_at=planned,
        started_at=planned,
        outcome=Outcome.SUCCESS,
        timeline=Timeline({mark: round(ms * MS) for mark, ms in took.items()}),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def second(planned: Attempt, ttft_ms: float = 200) -> Attempt:
    """The confirming attempt of a planned one, straight after it."""
    began = planned.started_at + timedelta(microseconds=planned.timeline.lasted_ns // 1000 + 2000)
    return replace(attempt(0, ttft_ms), scheduled_at=planned.scheduled_at, started_at=began, try_number=1)


def usual(count: int = 8, every: float = 60.0, start: float = -600.0) -> list[Attempt]:
    """A warm history that ends some minutes before noon; the first attempt of a series is confirmed."""
    several = [attempt(start + every * n, 190 + n) for n in range(count)]
    return [several[0], second(several[0]), *several[1:]]


class Hub:
    """A store and the moment at which things reach it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.counted: list[Judgement] = []

    def take(self, *several: Attempt, after: float = 0.5) -> None:
        """Store attempts `after` seconds after the last of them ended."""
        ended = max(one.started_at + timedelta(microseconds=one.timeline.lasted_ns // 1000) for one in several)
        done = attempts.insert(self.engine, ALL, several, ended + timedelta(seconds=after))
        assert len(done.new) == len(several)

    def sweep(self, at: float = 3.0, rule: ColdStartRule = USUAL_RULE) -> list[Judgement]:
        """What a sweep so many seconds after noon settles."""
        settled = verdicts.sweep(self.engine, NOON + timedelta(seconds=at), lambda _: rule)
        self.counted += settled
        return settled

    def verdict(self, of: Attempt) -> Judgement:
        found = {one.key: one for one in verdicts.judged_since(self.engine, NOON - timedelta(days=30), 10_000)}
        return found[of.key]


@pytest.fixture
def hub(store: Engine) -> Hub:
    return Hub(store)


def test_a_cold_start_with_its_confirming_attempt(hub: Hub) -> None:
    """Cold, with what it cost and how long nobody had asked; both tries have a verdict, one of them counts."""
    planned = attempt(0, 1400)
    hub.take(*usual(), planned, second(planned))
    hub.sweep()
    found = hub.verdict(planned)
    assert (found.verdict.kind, found.verdict.reasons) == (Kind.COLD, (Reason.SLOW_FIRST_TOKEN, Reason.CONFIRM_WARM))
    assert found.verdict.penalty_seconds == pytest.approx(1.4 - 0.1935, abs=0.01)
    assert found.idle_before == pytest.approx(180 - 0.297, abs=0.001)
    assert hub.verdict(second(planned)).verdict.reasons == (Reason.FOLLOWS,)
    assert [one.key for one in hub.counted if one.verdict.kind is Kind.COLD] == [planned.key]
    assert hub.sweep(200) == []


def test_the_verdict_waits_for_the_confirming_attempt(hub: Hub) -> None:
    """What came without it is unclear and not counted yet; when it comes, the verdict is made anew and counted once."""
    hub.take(*usual())
    hub.sweep()
    planned = attempt(0, 1400)
    hub.take(planned)
    assert hub.sweep() == []
    assert hub.verdict(planned).verdict.reasons == (Reason.UNCONFIRMED,)
    hub.take(second(planned))
    assert [one.verdict.kind for one in hub.sweep(5)] == [Kind.COLD]
    assert hub.verdict(planned).verdict.kind is Kind.COLD
    assert hub.sweep(300) == []
    assert verdicts.waiting(hub.engine) == 0


def test_a_confirming_attempt_that_never_comes(hub: Hub) -> None:
    """Two minutes later it stands as unclear, and counts as that."""
    hub.take(*usual())
    hub.sweep()
    planned = attempt(0, 1400)
    hub.take(planned)
    assert hub.sweep(60) == []
    assert [(one.key, one.verdict.kind) for one in hub.sweep(130)] == [(planned.key, Kind.UNCLEAR)]
    assert verdicts.waiting(hub.engine) == 0


def test_idleness_is_the_targets_not_a_series(hub: Hub) -> None:
    """Another vantage point with another probe had asked ten seconds before; another target counts for nothing."""
    other = replace(CHAT, name="code")
    elsewhere = Series(vantage=LAGOS, target=other, probe=SHORT)
    planned = attempt(0)
    hub.take(*usual(), attempt(-10, of=ALL[3]), attempt(-1, of=elsewhere), planned)
    hub.sweep()
    assert hub.verdict(planned).idle_before == pytest.approx(9.7)


def test_what_never_reached_the_target_did_not_wake_it(hub: Hub) -> None:
    """A name that did not resolve and a slot that was missed leave it idle."""
    failure = Failure(kind=FailureKind.DNS, phase=Phase.RESOLVE, text="no such name")
    lost = attempt(-5, outcome=Outcome.FAILED, failure=failure, timeline=Timeline({Mark.GAVE_UP: MS}))
    missed = attempt(-4, of=ALL[1], outcome=Outcome.MISSED, missed=MissReason.OVERLAP, timeline=Timeline())
    planned = attempt(0)
    hub.take(*usual(), lost, missed, planned)
    hub.sweep()
    assert hub.verdict(planned).idle_before == pytest.approx(179.7, abs=0.01)
    assert hub.verdict(lost).verdict.reasons == (Reason.FAILED,)
    with pytest.raises(KeyError):
        hub.verdict(missed)


def test_a_late_row_changes_its_neighbours(hub: Hub) -> None:
    """London had asked a moment before, which was not known: no cold start. The counters keep what they counted."""
    planned = attempt(0, 1400)
    hub.take(*usual(), planned, second(planned))
    hub.sweep()
    assert hub.verdict(planned).verdict.kind is Kind.COLD
    counted = len(hub.counted)
    hub.take(attempt(-1, 100, ALL[2], total_ms=800), after=3600)
    hub.sweep(3700)
    found = hub.verdict(planned)
    assert found.idle_before == pytest.approx(0.2)
    assert found.verdict.reasons == (Reason.SLOW_FIRST_TOKEN, Reason.NOT_IDLE)
    assert len(hub.counted) == counted


def test_late_attempts_are_judged_and_not_counted(hub: Hub) -> None:
    """They tell of the past; counters tell of now."""
    planned = attempt(0, 1400)
    hub.take(*usual(), planned, second(planned), after=7200)
    assert hub.sweep(7300) == []
    assert hub.verdict(planned).verdict.kind is Kind.COLD


def test_idleness_whatever_the_order_of_arrival(hub: Hub) -> None:
    """Rows in any order and batches, with a sweep after each: in the end it is what a look at all of them gives."""
    chance = random.Random(7)
    all_of_them = [
        attempt(slot * 20 + chance.uniform(0, 4), 100, of, total_ms=chance.choice([200, 3000, 15_000]))
        for slot in range(40)
        for of in ALL
        if chance.random() < 0.6
    ]
    shuffled = chance.sample(all_of_them, len(all_of_them))
    while shuffled:
        batch, shuffled = shuffled[:9], shuffled[9:]
        hub.take(*batch)
        hub.sweep(5000)
    for one in all_of_them:
        found, expected = hub.verdict(one).idle_before, idleness(one, all_of_them)
        assert (found is None) == (expected is None)
        assert found is None or found == pytest.approx(expected, abs=1e-5)


def idleness(one: Attempt, others: Iterable[Attempt]) -> float | None:
    """The definition, by looking at everything."""
    ends = [
        other.started_at + timedelta(microseconds=other.timeline.lasted_ns // 1000)
        for other in others
        if other.started_at < one.started_at
    ]
    return max(0.0, (one.started_at - max(ends)).total_seconds()) if ends else None


def test_attempts_are_never_amended(hub: Hub) -> None:
    """Judging and judging again leaves every column of every attempt as it was."""
    planned = attempt(0, 1400)
    hub.take(*usual(), planned, second(planned))

    def rows() -> list[object]:
        with hub.engine.connect() as connection:
            return list(connection.execute(text("SELECT * FROM attempts ORDER BY scheduled_at, try")))

    before = rows()
    hub.sweep()
    assert rows() == before


def test_a_new_rule_judges_what_was_stored_before(hub: Hub) -> None:
    """Rows of an earlier release and verdicts of an earlier version are asked about again; old verdicts stay."""
    planned = attempt(0, 1400)
    hub.take(*usual(), planned, second(planned))
    hub.sweep()
    with hub.engine.begin() as connection:
        connection.execute(text("UPDATE verdicts SET version = :old"), {"old": VERSION - 1})
    span = (NOON - timedelta(days=1), NOON + timedelta(days=1), NOON)
    assert verdicts.ask_again(hub.engine, *span) == 11
    hub.sweep()
    assert hub.verdict(planned).verdict.kind is Kind.COLD
    assert verdicts.ask_again(hub.engine, *span) == 0
    with hub.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM verdicts")).scalar_one() == 22


def test_a_sweep_is_bounded_and_fresh_rows_go_first(hub: Hub) -> None:
    """A backlog is worked off in steps, from its oldest on, and never in front of what has just come."""
    backlog = [attempt(-86400 + n * 60) for n in range(500)]
    hub.take(*backlog, second(backlog[0]), after=3600)
    fresh = attempt(0)
    hub.take(fresh)
    verdicts.sweep(hub.engine, NOON + timedelta(seconds=9), lambda _: USUAL_RULE, max_attempts=200)
    assert hub.verdict(fresh)
    assert verdicts.waiting(hub.engine) in range(280, 303)
    while verdicts.sweep(
        hub.engine, NOON + timedelta(seconds=9), lambda _: USUAL_RULE, max_attempts=200
    ) or verdicts.waiting(hub.engine):
        pass
    assert hub.verdict(backlog[-1]).verdict.kind is Kind.WARM


def test_another_prompt_has_another_history(hub: Hub) -> None:
    """A longer prompt takes longer, which is no cold start: its first attempts have no history yet."""
    changed = attempt(0, 1400, probe_version="f" * 12)
    hub.take(*usual(), changed)
    hub.sweep()
    assert hub.verdict(changed).verdict.reasons == (Reason.NO_HISTORY,)


def test_each_target_has_its_rule(hub: Hub) -> None:
    """What the configuration says of a target is what its attempts are judged by."""
    planned = attempt(0, 500)
    hub.take(*usual(), planned, second(planned))
    hub.sweep(rule=ColdStartRule(factor=2.0, minimum_seconds=0.2))
    assert hub.verdict(planned).verdict.kind is Kind.COLD


def test_two_sweeps_at_once(hub: Hub) -> None:
    """Several processes share the work; each attempt is counted by one of them."""
    hub.take(*[attempt(-100 + n / 3, of=of) for n in range(75) for of in ALL])
    sweeps = [Thread(target=hub.sweep, args=(3.0,)) for _ in range(4)]
    for one in sweeps:
        one.start()
    for one in sweeps:
        one.join()
    hub.sweep(200)
    keys = [one.key for one in hub.counted]
    assert len(set(keys)) == len(keys) == 300


def test_verdicts_go_with_their_attempts(hub: Hub) -> None:
    """What retention drops leaves no verdict and no question behind."""
    old = [attempt(-86400 * 40 + n * 60) for n in range(3)]
    hub.take(*old)
    hub.take(attempt(0))
    hub.sweep()
    retention.sweep(hub.engine, NOON, retention.Policy(raw_days=30))
    assert hub.verdict(attempt(0))
    with pytest.raises(KeyError):
        hub.verdict(old[0])


def test_the_latest_of_each_series(hub: Hub) -> None:
    """What a page asks at its start: a bounded number for each series."""
    hub.take(*[attempt(-60 * n, of=of) for n in range(5) for of in ALL])
    hub.sweep()
    found = verdicts.latest(hub.engine, 2, NOON - timedelta(days=3))
    assert len(found) == 2 * len(ALL)
    assert {one.key[1] for one in found} == {NOON, NOON - timedelta(seconds=60)}


def test_dashboards_read_times_with_verdicts(hub: Hub) -> None:
    """The view gives each attempt's TTFT: as the verdict keeps it, or as the attempt has it where an earlier release
    kept none; what got no first token has none.
    """
    planned = attempt(0, 1400)
    failed = Failure(kind=FailureKind.OVERLOADED, phase=Phase.WAIT, text="")
    broken = attempt(60, outcome=Outcome.FAILED, failure=failed, timeline=Timeline({Mark.END: 5 * MS}))
    hub.take(*usual(), planned, second(planned), broken)
    hub.sweep(300)
    newest = text(
        "SELECT ttft_seconds, outcome FROM judged_attempts WHERE try = 0 AND scheduled_at >= :noon"
        " ORDER BY scheduled_at"
    )
    with hub.engine.begin() as connection:
        kept = connection.execute(text("SELECT count(ttft_seconds) FROM verdicts")).scalar_one()
        assert kept == len(usual()) + 2
        told = [tuple(row) for row in connection.execute(newest, {"noon": NOON})]
        connection.execute(text("UPDATE verdicts SET ttft_seconds = NULL"))
        assert [tuple(row) for row in connection.execute(newest, {"noon": NOON})] == told
    assert told == [(1.4, "success"), (None, "failed")]
