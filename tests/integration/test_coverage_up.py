"""Coverage of a real `firsttoken up`: killed, stopped, started again, reloaded: every slot is measured or explained."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from monitor.clock import Clock
from monitor.detect.coverage import Tally
from monitor.grid import Grid
from monitor.notes import OutageNote, PlannedSeries, PlanNote
from monitor.simulator import SimulatorProcess
from monitor.store import coverage, notes
from tests.integration.running_up import Up, configuration, target, until

LISTENER = {"name": "main", "models": {"*": {"ttft_seconds": 0.05, "tokens": 5, "tokens_per_second": 200}}}
PROBES = {"short": {"prompt": "hi", "interval": "500ms", "deadline": "300ms"}}
ROW_REASONS = ("overlap", "late", "capacity", "budget", "retry_after", "paused", "shutdown")


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess({"listeners": [LISTENER]}) as running:
        yield running


def so_far(store: Engine) -> Tally:
    now = Clock().now()
    found = coverage.covered(store, now - timedelta(hours=1), now, now)
    return coverage.grouped(found).get((), Tally())


def rows(store: Engine) -> int:
    with store.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM attempts WHERE try = 0")).scalar_one())


def test_every_slot_of_a_rough_life_is_accounted_for(tmp_path, simulator, store, database_url):
    """Run, kill -9, silence, run, reload, stop, silence, run: rows and counted gaps are the slots owed, none twice."""
    up = Up(tmp_path, configuration(simulator.url(), probes=PROBES), DATABASE_URL=database_url)
    with up:
        until(lambda: so_far(store).measured >= 6, "measured slots")
        up.process.kill()
        up.wait()
    time.sleep(2.0)  # slots of a time in which nobody runs: real time must pass
    up.lines.clear()
    with up:
        until(lambda: so_far(store).missed["agent_off"] >= 3, "an outage that the next start has told")
        two = {"alpha": target(simulator.url()), "beta": target(simulator.url())}
        up.write(configuration(simulator.url(), probes=PROBES, targets=two))
        until(lambda: rows(store) >= 30, "rows of both targets")
        assert up.stop() == 0
    off = so_far(store).missed["agent_off"]
    time.sleep(1.5)
    up.lines.clear()
    with up:
        until(lambda: so_far(store).missed["agent_off"] > off, "the second outage")
        said = json.loads(up.get("api/v1/coverage?since=1h&by=target"))
        assert {row["target"] for row in said["rows"]} == {"alpha", "beta"}
        assert up.stop() == 0
    now = Clock().now()
    found = [one.tally for one in coverage.covered(store, now - timedelta(hours=1), now, now)]
    total = so_far(store)
    assert all(one.owed == one.measured + one.missed.total() for one in found)
    assert rows(store) == total.measured + sum(total.missed[reason] for reason in ROW_REASONS) + total.repeated
    assert total.unplanned == 0
    assert set(total.missed) <= {*ROW_REASONS, "agent_off"}


def well_within_an_hour() -> datetime:
    """Now, once the hour does not end within a minute: another one would be the last whole one meanwhile."""
    left = 3600.0 - (Clock().now().timestamp() % 3600.0)
    if left < 60.0:
        time.sleep(left)
    return Clock().now()


def test_the_last_whole_hour_is_a_metric(tmp_path, simulator, store, database_url):
    """The process that tends the database exports what became of the hour that ended last, causes included."""
    now = well_within_an_hour()
    ended = now.replace(minute=0, second=0, microsecond=0)
    lattice = Grid(
        vantage="lagos",
        target="alpha",
        probe="short",
        interval_us=60_000_000,
        offset_us=0,
        step_us=0,
        lanes=1,
        turn=0,
    )
    plan = PlanNote(
        id=1, at=ended - timedelta(hours=2), series=(PlannedSeries(grid=lattice, probe_version="0123456789ab"),)
    )
    half = ended - timedelta(minutes=30)
    off = OutageNote(id=2, begin=ended - timedelta(hours=1), until=half - timedelta(seconds=1), reason="power")
    notes.insert(store, "lagos", "a" * 32, [plan, off], now)
    with Up(tmp_path, configuration(simulator.url()), DATABASE_URL=database_url) as up:
        until(lambda: up.metric("firsttoken_coverage_owed_slots", vantage="lagos", target="alpha") == 60, "owed")
        assert up.metric("firsttoken_coverage_measured_slots", vantage="lagos", target="alpha") == 0
        assert up.metric("firsttoken_coverage_missed_slots", target="alpha", reason="power") == 30
        assert up.metric("firsttoken_coverage_missed_slots", target="alpha") == 60
        assert up.stop() == 0
