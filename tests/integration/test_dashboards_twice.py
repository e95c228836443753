"""Panels where agents are scraped beside their hub: what two processes tell of one thing is shown once."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.integration.grafana_asks import GENERATED, Asking

PROMTOOL = shutil.which("promtool")
HUB = {"instance": "hub:8765", "job": "firsttoken"}
AGENT = {"instance": "lagos:9464", "job": "firsttoken-agents"}
PLACE = {"vantage": "lagos", "country": "NG"}
SERIES = PLACE | {"provider": "acme", "target": "chat", "model": "small"}
FRESH, SILENT = SERIES | {"probe": "fresh"}, SERIES | {"probe": "silent"}
MINUTES = 40


def told(metric: str, values: str, *labels: Mapping[str, str]) -> dict[str, str]:
    """One series with these labels, as `promtool test rules` takes it."""
    inside = ",".join(f'{name}="{value}"' for one in labels for name, value in one.items())
    return {"series": f"firsttoken_{metric}{{{inside}}}", "values": values}


def scraped() -> list[dict[str, str]]:
    """An agent that asks each five seconds, seen by itself and by its hub, a sample each 15 s."""
    found = [
        told("agent_last_seen_timestamp_seconds", "0+15x160", PLACE, HUB),
        told("agent_spool_attempts", "44x160", PLACE, HUB),
        told("agent_spool_lost_attempts_total", "0+15x160", PLACE, HUB),
        told("spool_attempts", "44x160", AGENT),
        told("spool_attempts", "0x160", HUB),
        told("spool_lost_attempts_total", "0+15x160", AGENT),
    ]
    for process in (HUB, AGENT):
        found += [
            told("series_info", "1x160", FRESH, process),
            told("series_info", "1x160", SILENT, process),
            told("interval_seconds", "5x160", FRESH, process),
            told("interval_seconds", "5x160", SILENT, process),
            told("last_attempt_timestamp_seconds", "-20+15x160", FRESH, process),
            told("last_attempt_timestamp_seconds", "1000x160", SILENT, process),
            told("last_attempt_success", "0x160", FRESH, process),
            told("last_attempt_success", "1x160", SILENT, process),
            told("delivered_attempts_total", "0+30x160", process),
        ]
    return found


@pytest.mark.skipif(PROMTOOL is None, reason="Debian package prometheus is not installed")
@pytest.mark.parametrize(
    ("board", "panel", "value"),
    [
        ("overview", "Failing now (A)", 1),
        ("overview", "Silent series (A)", 1),  # an answer that is 20 s old is what a scrape and a delivery take
        ("fleet", "Vantage points that measure (A)", 1),
        ("fleet", "Vantage points that are silent (A)", 0),
        ("fleet", "Waiting in spools (A)", 44),
        ("fleet", "Delivery an hour: acknowledged, failed, lost, refused, late (A)", 7200),
        ("fleet", "Delivery an hour: acknowledged, failed, lost, refused, late (C)", 3600),
    ],
)
def test_what_two_processes_tell_is_shown_once(tmp_path: Path, board: str, panel: str, value: float) -> None:
    """The hub's word and the agent's own are one series, one spool, one delivery."""
    asking = Asking(json.loads((GENERATED / f"{board}.json").read_text()), datetime.now(UTC), scrape_seconds=15)
    (asked,) = (one.text for one in asking.queries("prometheus") if one.where.endswith(f": {panel}"))
    case = {
        "interval": "15s",
        "input_series": scraped(),
        "promql_expr_test": [
            {"expr": asked, "eval_time": f"{MINUTES}m", "exp_samples": [{"labels": "{}", "value": value}]}
        ],
    }
    file = tmp_path / "case.yml"
    file.write_text(json.dumps({"tests": [case]}))
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
