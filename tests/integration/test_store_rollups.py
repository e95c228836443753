"""Hourly rollups give what the raw attempts give, within the bins' stated error, whenever the rows arrive."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Thread

import pytest
from sqlalchemy import Engine, text

from monitor.model import (
    Attempt,
    DialectName,
    Doubt,
    Failure,
    FailureKind,
    MissReason,
    Outcome,
    Probe,
    Series,
    Target,
    Tokens,
    Vantage,
)
from monitor.store import attempts, rollups
from monitor.store.histogram import RELATIVE_ERROR
from monitor.store.measures import MEASURES
from monitor.timeline import Mark, Phase, Timeline, nearest_rank

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
ENDED = NOW + HOUR
MS = 1_000_000


def a_series(vantage: str = "lagos", target: str = "acme") -> Series:
    return Series(
        vantage=Vantage(name=vantage),
        target=Target(name=target, provider="acme", model="m", dialect=DialectName.ANTHROPIC, url="http://x/v1"),
        probe=Probe(name="short", prompt="Say hello."),
    )


def good(moment: datetime, ttft_ns: int, vantage: str = "lagos", **changes: object) -> Attempt:
    marks = {Mark.RESOLVE_START: 0, Mark.RESOLVE_END: 2 * MS, Mark.SEND_END: 3 * MS, Mark.HEADERS: ttft_ns - 1000}
    marks |= {Mark.FIRST_TOKEN: ttft_ns, Mark.FIRST_VISIBLE: ttft_ns, Mark.END: ttft_ns * 2}
    made = Attempt(
        vantage=vantage,
        target="acme",
        probe="short",
        probe_version="v",
        scheduled_at=moment,
        started_at=moment,
        outcome=Outcome.SUCCESS,
        timeline=Timeline(marks),
        tokens=Tokens(output=10, input=5),
    )
    return replace(made, **changes)


def timed_out(moment: datetime, lasted_ns: int, kind: FailureKind = FailureKind.FIRST_TOKEN_DEADLINE) -> Attempt:
    line = Timeline({Mark.RESOLVE_START: 0, Mark.RESOLVE_END: MS, Mark.SEND_END: 3 * MS, Mark.GAVE_UP: lasted_ns})
    failure = Failure(kind=kind, phase=Phase.WAIT, text="no token came in time")
    return replace(good(moment, MS), outcome=Outcome.FAILED, failure=failure, timeline=line, tokens=Tokens())


def put(store: Engine, batch: Iterable[Attempt], series: Iterable[Series] = ()) -> None:
    batch = list(batch)
    result = attempts.insert(store, series or [a_series()], batch, NOW)
    assert len(result.new) == len(batch)


def row(store: Engine, hour: datetime) -> dict[str, object]:
    with store.connect() as connection:
        query = text("SELECT * FROM rollups WHERE hour = :hour")
        return dict(connection.execute(query, {"hour": hour}).mappings().one())


def random_ttfts(count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [int(chance.lognormvariate(0, 1.2) * 400 * MS) + 1 for _ in range(count)]


@pytest.mark.parametrize("q", [0.01, 0.5, 0.9, 0.95, 0.99, 1.0])
def test_percentiles_agree_with_raw_ones(store: Engine, q: float) -> None:
    """Over several hours the rollups' percentile is within the stated relative error of the exact one."""
    values = random_ttfts(400, seed=round(q * 100))
    put(store, [good(NOW - timedelta(seconds=45 * n), value) for n, value in enumerate(values)])
    rollups.refresh(store, ENDED)
    found = rollups.percentiles(store, "ttft", NOW - 6 * HOUR, NOW + HOUR, [q])
    exact = nearest_rank(sorted(values), q) / 1e9
    assert found["lagos", "acme", "short"][0].seconds == pytest.approx(exact, rel=RELATIVE_ERROR * 1.0001)


def test_every_measure_has_its_histogram(store: Engine) -> None:
    """Phases, ttft, ttfo, total and control are rolled up where they happened, and only there."""
    put(store, [good(NOW, 500 * MS)])
    rollups.refresh(store, ENDED)
    found = {m: rollups.percentiles(store, m, NOW, NOW + HOUR, [0.5], by="all") for m in MEASURES}
    seconds = {m: by[()][0].seconds for m, by in found.items() if by}
    assert seconds == {
        "ttft": pytest.approx(0.5, rel=0.02),
        "ttfo": pytest.approx(0.5, rel=0.02),
        "total": pytest.approx(1.0, rel=0.02),
        "resolve": pytest.approx(0.002, rel=0.02),
        "wait": pytest.approx(0.497, rel=0.02),
        "generate": pytest.approx(0.5, rel=0.02),
    }


def test_hours_and_series_add_up(store: Engine) -> None:
    """A group's percentile is the percentile of all its attempts, not of percentiles."""
    far, near = random_ttfts(60, 1), random_ttfts(60, 2)
    batch = [good(NOW + timedelta(minutes=n), v) for n, v in enumerate(far)]
    batch += [good(NOW + timedelta(minutes=n), v, vantage="london") for n, v in enumerate(near)]
    put(store, batch, [a_series(), a_series("london")])
    rollups.refresh(store, ENDED)
    one = rollups.percentiles(store, "ttft", NOW, NOW + HOUR, [0.5], by="target")["acme",][0]
    exact = nearest_rank(sorted(far + near), 0.5) / 1e9
    assert one.seconds == pytest.approx(exact, rel=0.0201)
    assert set(rollups.percentiles(store, "ttft", NOW, NOW + HOUR, by="vantage")) == {("lagos",), ("london",)}


def test_a_timeout_stays_in_the_percentiles(store: Engine) -> None:
    """Attempts that a deadline cut count as "at least the deadline": half of them timing out shows in the p95."""
    batch = [good(NOW + timedelta(minutes=n), 300 * MS) for n in range(10)]
    batch += [timed_out(NOW + timedelta(minutes=20 + n), 10_000 * MS) for n in range(10)]
    put(store, batch)
    rollups.refresh(store, ENDED)
    p50, p95 = rollups.percentiles(store, "ttft", NOW, NOW + HOUR, [0.5, 0.95])["lagos", "acme", "short"]
    assert (p50.seconds, p50.at_least) == (pytest.approx(0.3, rel=0.02), False)
    assert (p95.seconds, p95.at_least) == (pytest.approx(10, rel=0.02), True)


def test_other_failures_say_nothing_about_latency(store: Engine) -> None:
    """A refused connection is a failure, not a fast answer and not a slow one."""
    refused = replace(timed_out(NOW, MS), failure=Failure(kind=FailureKind.REFUSED, phase=Phase.CONNECT, text="no"))
    put(store, [refused])
    rollups.refresh(store, ENDED)
    assert rollups.percentiles(store, "ttft", NOW, NOW + HOUR) == {}
    assert row(store, NOW)["failures"] == {"refused": 1}


def test_counts(store: Engine) -> None:
    """Outcomes, kinds, reasons, doubts and tokens are counted; a confirming try enters no percentile and no outcome."""
    put(
        store,
        [
            good(NOW, 300 * MS),
            good(NOW, 9000 * MS, try_number=1),
            good(NOW + timedelta(minutes=1), 9000 * MS, validity=(Doubt.LOOP_LAG,)),
            good(NOW + timedelta(minutes=2), 300 * MS, validity=(Doubt.COALESCED,)),
            timed_out(NOW + timedelta(minutes=3), MS),
            replace(
                good(NOW + timedelta(minutes=4), MS),
                outcome=Outcome.MISSED,
                missed=MissReason.OVERLAP,
                timeline=Timeline(),
                tokens=Tokens(),
            ),
        ],
    )
    assert rollups.refresh(store, ENDED) == 1
    found = row(store, NOW)
    counted = {name: found[name] for name in ("attempts", "confirming", "success", "failed", "missed", "doubtful")}
    assert counted == {"attempts": 5, "confirming": 1, "success": 3, "failed": 1, "missed": 1, "doubtful": 1}
    assert (found["failures"], found["misses"]) == ({"first_token_deadline": 1}, {"overlap": 1})
    assert (found["output_tokens"], found["input_tokens"]) == (40, 20)
    assert rollups.percentiles(store, "ttft", NOW, NOW + HOUR, [1.0])["lagos", "acme", "short"][0].seconds < 0.4


def test_late_rows_change_their_own_hour_only(store: Engine) -> None:
    """A row that arrives hours late re-opens the hour in which it was scheduled, and no other."""
    put(store, [good(NOW - 5 * HOUR, 300 * MS), good(NOW - 2 * HOUR, 300 * MS)])
    rollups.refresh(store, ENDED)
    later = NOW + 3 * HOUR
    put(store, [good(NOW - 5 * HOUR + timedelta(minutes=59), 700 * MS)])
    assert rollups.backlog(store) == 1
    assert rollups.refresh(store, later) == 1
    assert (row(store, NOW - 5 * HOUR)["attempts"], row(store, NOW - 5 * HOUR)["refreshed_at"]) == (2, later)
    assert (row(store, NOW - 2 * HOUR)["attempts"], row(store, NOW - 2 * HOUR)["refreshed_at"]) == (1, ENDED)


def test_refresh_again_changes_nothing(store: Engine) -> None:
    """A refresh without marks does nothing; a repeated mark gives the same numbers."""
    put(store, [good(NOW, 300 * MS)])
    rollups.refresh(store, ENDED)
    before = row(store, NOW)
    assert rollups.refresh(store, ENDED + HOUR) == 0
    with store.begin() as connection:
        connection.execute(text("INSERT INTO dirty_hours SELECT vantage_id, series_id, hour, hour FROM rollups"))
    rollups.refresh(store, ENDED)
    assert row(store, NOW) == before


def test_the_running_hour_is_computed_now_and_then(store: Engine) -> None:
    """New rows of the running hour wait up to five minutes for the rollup, and are in it when the hour has ended."""
    put(store, [good(NOW, 300 * MS)])
    assert rollups.refresh(store, NOW + timedelta(minutes=1)) == 1
    put(store, [good(NOW + timedelta(minutes=1), 300 * MS)])
    assert rollups.refresh(store, NOW + timedelta(minutes=2)) == 0
    assert rollups.refresh(store, NOW + timedelta(minutes=6)) == 1
    put(store, [good(NOW + timedelta(minutes=58), 300 * MS)])
    assert rollups.refresh(store, NOW + HOUR) == 1
    assert row(store, NOW)["attempts"] == 3


def test_a_claimed_hour_is_skipped_by_others(store: Engine) -> None:
    """While one process computes an hour, another takes the rest and does not wait."""
    put(store, [good(NOW, 300 * MS), good(NOW - HOUR, 300 * MS)])
    with store.begin() as connection:
        connection.execute(text("SELECT * FROM dirty_hours WHERE hour = :hour FOR UPDATE"), {"hour": NOW})
        assert rollups.refresh(store, ENDED) == 1
    assert rollups.refresh(store, ENDED) == 1


def test_nothing_is_lost_between_inserts_and_refreshes_at_once(store: Engine) -> None:
    """With four writers and two refreshers at once, the final rollup counts every row."""

    def write(n: int) -> None:
        for k in range(25):
            put(store, [good(NOW + timedelta(seconds=n * 25 + k), 300 * MS)])

    def refresh() -> None:
        for _ in range(25):
            rollups.refresh(store, ENDED)

    workers = [Thread(target=write, args=(n,)) for n in range(4)] + [Thread(target=refresh) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rollups.refresh(store, ENDED)
    assert row(store, NOW)["attempts"] == 100


def spread(days: int, seed: int) -> list[Attempt]:
    """An attempt every twenty minutes, over whole days before NOW."""
    first = NOW.replace(hour=0) - timedelta(days=days)
    count = days * 72
    return [good(first + n * timedelta(minutes=20), ttft) for n, ttft in enumerate(random_ttfts(count, seed))]


def by_hours(store: Engine, since: datetime, until: datetime) -> dict[int, int]:
    """Counts by bin from hours alone."""
    query = text(
        "SELECT u.bin, sum(u.n) FROM rollup_histograms h CROSS JOIN LATERAL unnest(h.bins, h.counts) AS u(bin, n) "
        "WHERE h.measure = 'ttft' AND h.hour >= :since AND h.hour < :until GROUP BY 1"
    )
    with store.connect() as connection:
        return {number: int(n) for number, n in connection.execute(query, {"since": since, "until": until})}


def days_of(store: Engine) -> int:
    with store.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM rollup_days WHERE measure = 'ttft'")).scalar_one())


@pytest.mark.parametrize("by", ["series", "vantage", "target", "all"])
def test_whole_days_are_added_up_and_give_the_same(store: Engine, by: rollups.By) -> None:
    """Whatever the range begins and ends with: days in the middle, hours at both ends, nothing twice or left out."""
    put(store, spread(4, 1))
    rollups.refresh(store, NOW)
    assert days_of(store) == 4
    midnight = NOW.replace(hour=0)
    for since, until in (
        (midnight - timedelta(days=4), midnight),
        (midnight - timedelta(days=3, hours=5), midnight - timedelta(hours=7)),
        (midnight - timedelta(days=2), midnight - timedelta(days=2) + HOUR),
        (midnight - timedelta(days=2, hours=-3), midnight - timedelta(days=2, hours=-9)),
        (midnight - timedelta(days=9), midnight + timedelta(days=9)),
    ):
        (found,) = rollups.histograms(store, "ttft", since, until, by=by).values()
        assert found.counts == by_hours(store, since, until)


def test_a_late_row_opens_its_day_again(store: Engine) -> None:
    """Until the day is added up anew its hours count; afterwards the day has the late row, too."""
    put(store, spread(2, 2))
    rollups.refresh(store, NOW)
    since, until = NOW.replace(hour=0) - timedelta(days=2), NOW.replace(hour=0)
    put(store, [good(since + timedelta(hours=3, minutes=5), 77 * MS)])
    with store.begin() as connection:  # as a refresh that was cut off behind the hours
        hour = since + timedelta(hours=3)
        claimed = rollups._claim(connection, NOW, NOW)
        rollups._compute(connection, hour, claimed[hour], NOW)
    assert days_of(store) == 1
    for _ in range(2):
        (found,) = rollups.histograms(store, "ttft", since, until, by="all").values()
        assert found.counts == by_hours(store, since, until)
        assert found.count == 2 * 72 + 1
        rollups.refresh(store, NOW)
    assert days_of(store) == 2


def test_the_running_day_is_hours(store: Engine) -> None:
    """A day is added up once it has ended."""
    put(store, [good(NOW - HOUR, 5 * MS)])
    rollups.refresh(store, NOW)
    assert days_of(store) == 0
    (found,) = rollups.histograms(store, "ttft", NOW - timedelta(days=2), NOW + timedelta(days=2), by="all").values()
    assert found.count == 1
    rollups.refresh(store, NOW + timedelta(days=1))
    assert days_of(store) == 1
