"""Days are made ahead and dropped when they are old; rollups outlive them and stay true."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from threading import Thread

from sqlalchemy import Engine, text

from monitor.model import Attempt, MonitorError, Outcome
from monitor.store import attempts, partitions, retention, rollups
from monitor.store.retention import Policy, sweep
from monitor.timeline import Mark, Timeline

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
ONE = Attempt(
    vantage="lagos",
    target="acme",
    probe="short",
    probe_version="v",
    scheduled_at=NOW,
    started_at=NOW,
    outcome=Outcome.SUCCESS,
    timeline=Timeline({Mark.FIRST_TOKEN: 300_000_000}),
)


def days(store: Engine) -> list[date]:
    with store.connect() as connection:
        return partitions.existing(connection)


def rollup_hours(store: Engine) -> list[datetime]:
    with store.connect() as connection:
        return list(connection.execute(text("SELECT hour FROM rollups ORDER BY hour")).scalars())


def put(store: Engine, moment: datetime, now: datetime = NOW) -> attempts.Inserted:
    return attempts.insert(store, [], [replace(ONE, scheduled_at=moment, started_at=moment)], now)


def test_a_week_is_made_ahead(store: Engine) -> None:
    """A sweep makes today and the seven days after it; the next one finds them and makes one more a day later."""
    made = sweep(store, NOW).created
    assert made == [NOW.date() + timedelta(days=n) for n in range(8)] == days(store)
    assert sweep(store, NOW).created == []
    assert sweep(store, NOW + DAY).created == [NOW.date() + timedelta(days=8)]


def test_inserts_make_the_days_they_need(store: Engine) -> None:
    """Late and early rows find a place without a sweep, the edges of a day included."""
    midnight = datetime(2026, 2, 20, tzinfo=UTC)
    put(store, midnight)
    put(store, midnight - timedelta(microseconds=1))
    assert days(store) == [date(2026, 2, 19), date(2026, 2, 20)]


def test_raw_days_and_rollup_days(store: Engine) -> None:
    """Raw attempts go after `raw_days`, their rollups stay until `rollup_days`, then go too."""
    policy = Policy(raw_days=3, rollup_days=10)
    put(store, NOW)
    rollups.refresh(store, NOW)
    assert sweep(store, NOW + 3 * DAY, policy).dropped == []
    swept = sweep(store, NOW + 4 * DAY, policy)
    assert swept.dropped == [NOW.date()]
    assert attempts.recent(store, since=NOW - DAY) == []
    assert rollup_hours(store) == [NOW]
    assert sweep(store, NOW + 10 * DAY, policy).rollups_deleted == 0
    assert sweep(store, NOW + 11 * DAY, policy).rollups_deleted == 1
    assert rollup_hours(store) == []


def test_rollups_are_brought_up_to_date_before_raw_rows_go(store: Engine) -> None:
    """Rows that no refresh has seen yet are in the rollups after the sweep that drops them."""
    put(store, NOW)
    sweep(store, NOW + 40 * DAY, Policy(raw_days=30))
    assert rollup_hours(store) == [NOW]
    assert rollups.percentiles(store, "ttft", NOW, NOW + DAY)["lagos", "acme", "short"][0] is not None


def test_a_row_for_a_dropped_day_cannot_replace_its_rollup(store: Engine) -> None:
    """Once a day is dropped its rollups are final, also when `raw_days` is raised afterwards: such a row is refused."""
    for minute in range(5):
        put(store, NOW + timedelta(minutes=minute))
    later = NOW + 5 * DAY
    sweep(store, later, Policy(raw_days=2))
    result = put(store, NOW + timedelta(minutes=30), later)
    assert [r.reason for r in result.rejected] == ["the attempts of its day have been dropped already"]
    with store.connect() as connection:
        assert connection.execute(text("SELECT attempts FROM rollups")).scalars().all() == [5]


def test_sweeps_at_once_do_not_collide(store: Engine) -> None:
    """Two hubs may sweep in the same moment."""
    failures: list[MonitorError] = []

    def run() -> None:
        try:
            retention.sweep(store, NOW)
        except MonitorError as error:
            failures.append(error)

    workers = [Thread(target=run) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    assert len(days(store)) == 8
