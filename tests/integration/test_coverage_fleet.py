"""Coverage as hubs serve it: every copy answers the same, and only the copy that sweeps exports the gauges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from monitor.clock import Clock
from monitor.grid import Grid
from monitor.notes import PlannedSeries, PlanNote
from monitor.store import notes
from tests.integration.running_fleet import Fleet, running
from tests.integration.running_up import until
from tests.ports import free_port

OWED = "firsttoken_coverage_owed_slots"


@pytest.fixture
def fleet(tmp_path: Path, database_url: str, store: Engine) -> Iterator[Fleet]:
    """A hub over a record in which an agent owed a slot a minute for two hours and was not heard of since."""
    lattice = Grid(
        vantage="lagos", target="t", probe="p", interval_us=60_000_000, offset_us=0, step_us=0, lanes=1, turn=0
    )
    now = Clock().now()
    plan = PlanNote(id=1, at=now - timedelta(hours=2), series=(PlannedSeries(grid=lattice, probe_version="v"),))
    notes.insert(store, "lagos", "a" * 32, [plan], now)
    with running(tmp_path, database_url) as one:
        yield one


def test_every_copy_answers_and_one_exports(fleet: Fleet) -> None:
    """The same JSON from both copies; the last hour's gauges from the lease holder alone, also after it has died."""
    second_port = free_port()
    second = fleet.child("hub-2", ["hub", str(fleet.file), "--listen", f"127.0.0.1:{second_port}"])
    fleet.start_hub(second)
    until(lambda: fleet.metric(OWED) == 60, "the last whole hour from the first copy, which holds the lease")
    assert fleet.metric(OWED, second_port) == 0
    ask = "/api/v1/coverage?since=2h&by=vantage,target"
    said = [json.loads(fleet.get(ask, port))["rows"][0] for port in (fleet.port, second_port)]
    assert [(row["vantage"], row["target"], row["measured"]) for row in said] == [("lagos", "t", 0)] * 2
    assert all(row["missed"] == {"unsent": row["owed"]} and row["owed"] > 100 for row in said)
    fleet.hub.kill()
    until(lambda: fleet.metric(OWED, second_port) == 60, "the gauges from the other copy", 60)
    assert "/api/v1/coverage" in json.loads(fleet.get("/api/openapi.json", second_port))["paths"]
