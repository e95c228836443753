"""What a hub believes of plans: what its configuration has, soon what another copy has, never what nobody named."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from monitor import wire
from monitor.clock import ManualClock
from monitor.grid import grid
from monitor.hub.ingest import PATIENCE, Ingest
from monitor.model import DialectName, Probe, Series, StoreUnavailable, Target, Vantage
from monitor.notes import Note, PlannedSeries, PlanNote
from monitor.store import attempts, coverage, fleet, notes, witness
from monitor.wire.fleet import Upload

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
AGENT = "0123456789abcdef" * 2
Key = tuple[str, str, str]


def a_series(target: str) -> Series:
    return Series(
        vantage=Vantage(name="lagos"),
        target=Target(name=target, provider="p", model="m", dialect=DialectName.ANTHROPIC, url="http://x.test"),
        probe=Probe(name="short", prompt="hi"),
    )


def plan(*targets: str) -> Upload:
    every = (a_series(target) for target in targets)
    planned = tuple(PlannedSeries(grid=grid(one, ["lagos"]), probe_version="v") for one in every)
    note: Note = PlanNote(id=1, at=NOW, series=planned)
    return Upload(agent=AGENT, attempts=[], notes=[wire.encode_note(note)])


class Copy:
    """One copy of a hub, with a configuration that may change."""

    def __init__(self, store: Engine, *targets: str) -> None:
        self.clock = ManualClock(NOW)
        self.configured: dict[Key, Series] = {}
        self.configure(*targets)
        self.ingest = Ingest(
            lambda given: attempts.insert(store, list(self.configured.values()), given, self.clock.now()),
            lambda vantage, agent, said: notes.insert(store, vantage, agent, said, self.clock.now()),
            lambda vantage, seen: witness.insert(store, vantage, seen, self.clock.now()),
            lambda: self.configured,
            lambda vantage: fleet.series_of(store, vantage),
            self.clock,
        )

    def configure(self, *targets: str) -> None:
        self.configured = {("lagos", one, "short"): a_series(one) for one in targets}


def planned(store: Engine) -> set[str]:
    found = coverage.covered(store, NOW, NOW + timedelta(hours=1), NOW + timedelta(hours=1))
    return {one.target for one in found}


def test_a_plan_of_a_newer_configuration_is_put_off(store: Engine) -> None:
    """A copy that has not read the new file yet keeps the agent waiting; once it has, the plan is in force."""
    copy = Copy(store, "old")
    with pytest.raises(StoreUnavailable, match="'new'"):
        copy.ingest.take("lagos", plan("old", "new"))
    assert planned(store) == set()
    copy.configure("old", "new")
    assert copy.ingest.take("lagos", plan("old", "new")).notes_rejected == {}
    assert planned(store) == {"old", "new"}


def test_a_plan_of_what_nobody_configures_is_refused_in_the_end(store: Engine) -> None:
    """An agent cannot fill the small tables with names, nor wait for ever."""
    copy = Copy(store, "old")
    copy.clock.advance(PATIENCE.total_seconds() + 1)
    receipt = copy.ingest.take("lagos", plan("old", "new"))
    assert "nobody configured" in receipt.notes_rejected[0]
    assert planned(store) == set()
