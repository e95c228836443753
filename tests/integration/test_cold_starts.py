"""Cold starts from the probe to the page: simulated models that fall asleep, stay awake, or refuse while loading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from monitor.simulator import SimulatorProcess
from tests.integration.running_up import Up, configuration, target, until

LOAD_SECONDS = 1.2
QUICK = {"ttft_seconds": 0.05, "tokens": 5, "tokens_per_second": 200}
SLEEPY = {**QUICK, "sleeps_after_seconds": 1.2, "load_seconds": LOAD_SECONDS}
LISTENERS = [
    {"name": "sleepy", "models": {"*": SLEEPY}},
    {"name": "awake", "models": {"*": QUICK}},
    {"name": "refusing", "models": {"*": {**SLEEPY, "refuses_while_loading": True}}},
]
NAMES = [str(listener["name"]) for listener in LISTENERS]
FAR = {"rtt_ms": 105}


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess({"listeners": LISTENERS, "distances": {"far": FAR}}) as running:
        yield running


def rows(up: Up, name: str, vantage: str = "here") -> list[dict[str, Any]]:
    """The planned attempts of a target as the page's JSON has them, the judged ones."""
    said = json.loads(up.get(f"api/live?vantage={vantage}&target={name}&probe=gap"))
    return [row for row in said["attempts"] if row["verdict"] and not row["confirming"]]


def test_cold_starts_are_found_confirmed_counted_and_shown(tmp_path, simulator, store, database_url):
    """Asleep between its slots: each first token is cold from near and far alike, with what the loading took."""
    content = configuration(
        "",
        vantages={"here": {}, "far": {"proxy": simulator.proxy("far"), "simulated": True}},
        targets={name: target(simulator.url(name)) for name in NAMES},
        probes={"gap": {"prompt": "hi", "interval": "3600ms", "deadline": "3200ms"}},
    )
    with Up(tmp_path, content, DATABASE_URL=database_url) as up:
        for vantage in ("here", "far"):
            until(lambda v=vantage: cold(up, "sleepy", v), f"a cold start from {vantage}", 60)
        until(lambda: (up.metric("firsttoken_cold_starts_total", target="sleepy") or 0) >= 2, "cold starts counted")
        until(lambda: up.metric("firsttoken_cold_starts_total", target="refusing"), "a refusal counted")
        found = [*cold(up, "sleepy"), *cold(up, "sleepy", "far")]
        assert all(row["idle"] is None or row["idle"] > 1.0 for row in found)  # None: nobody asked it before
        assert all(LOAD_SECONDS * 0.5 < row["verdict"]["penalty"] < LOAD_SECONDS * 2 for row in found)
        assert {row["state"] for row in found} == {"cold"}
        assert {row["verdict"]["kind"] for row in rows(up, "awake")} == {"warm"}
        assert up.metric("firsttoken_cold_starts_total", target="awake") == 0
        assert up.metric("firsttoken_confirming_attempts_total", target="awake") == 2  # the first of each series
        refused = cold(up, "refusing")
        assert {row["failure"]["kind"] for row in refused} == {"loading"}
        assert up.metric("firsttoken_cold_start_penalty_seconds_count", target="refusing") == 0
        assert [line for line in up.lines if line["level"] in ("error", "critical")] == []
        up.stop()


def cold(up: Up, name: str, vantage: str = "here") -> list[dict[str, Any]]:
    return [row for row in rows(up, name, vantage) if row["verdict"]["kind"] == "cold"]
