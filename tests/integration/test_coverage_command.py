"""`firsttoken coverage`: for people and for machines, with a sentence where there is nothing to show."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine

from monitor.clock import Clock, instant
from monitor.detect.coverage import CAUSES, micros
from monitor.grid import grid
from monitor.model import Attempt, DialectName, Outcome, Probe, Series, Target, Vantage
from monitor.notes import OutageNote, PlannedSeries, PlanNote
from monitor.store import attempts, notes

FIRSTTOKEN = str(Path(sys.executable).parent / "firsttoken")
HOUR = timedelta(hours=1)
SERIES = Series(
    vantage=Vantage(name="lagos"),
    target=Target(name="chat", provider="p", model="m", dialect=DialectName.ANTHROPIC, url="http://x.test"),
    probe=Probe(name="short", prompt="hi"),
)


def run(url: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a folder without a configuration."""
    return subprocess.run(
        [FIRSTTOKEN, "coverage", *arguments],
        env={**os.environ, "DATABASE_URL": url, "COLUMNS": "200"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def filled(store: Engine, database_url: str) -> str:
    """Six hours in which one vantage point was off for the last but one."""
    now = Clock().now()
    planned = PlannedSeries(grid=grid(SERIES, ["lagos"]), probe_version=SERIES.probe.version)
    outage = OutageNote(id=2, begin=now - 2 * HOUR, until=now - HOUR, reason="power")
    told = [PlanNote(id=1, at=now - 6 * HOUR, series=(planned,)), outage]
    notes.insert(store, "lagos", "a" * 32, told, now)
    numbers = planned.grid.numbers(micros(now - 6 * HOUR) + 1, micros(now - 2 * HOUR))
    later = planned.grid.numbers(micros(now - HOUR) + 1, micros(now))
    made = [
        Attempt(
            vantage="lagos",
            target="chat",
            probe="short",
            probe_version=SERIES.probe.version,
            scheduled_at=instant(planned.grid.instant_us(number) * 1_000),
            started_at=now,
            outcome=Outcome.SUCCESS,
        )
        for number in [*numbers, *later]
    ]
    attempts.insert(store, [SERIES], made, now)
    return database_url


def test_a_person_reads_causes_in_words(filled: str, tmp_path: Path) -> None:
    """One line for each vantage point and target, with the share and why the rest is missing; exit 0 all the same."""
    done = run(filled, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "lagos" in done.stdout and "60 (the machine was off)" in done.stdout
    assert "83.3 %" in done.stdout and "300 of 360 slots measured" in done.stdout


def test_machines_get_json_and_csv(filled: str, tmp_path: Path) -> None:
    """The same numbers as the read API's, in its two forms."""
    said = json.loads(run(filled, tmp_path, "--json", "--by", "vantage,hour").stdout)
    assert said["total"]["owed"] == said["total"]["measured"] + sum(said["total"]["missed"].values()) == 360
    lines = list(csv.DictReader(io.StringIO(run(filled, tmp_path, "--csv", "--by", "vantage,hour").stdout)))
    assert [int(line["owed"]) for line in lines] == [row["owed"] for row in said["rows"]]
    assert sum(int(line[cause]) for line in lines for cause in CAUSES) == 60


def test_nothing_planned_is_a_sentence(database_url: str, tmp_path: Path) -> None:
    """An empty record is no error."""
    done = run(database_url, tmp_path)
    assert (done.returncode, "No plan is known" in done.stdout) == (0, True)


def test_a_name_without_slots_is_said(filled: str, tmp_path: Path) -> None:
    """A name that was mistyped is not taken for an empty record; two formats at once are a mistake."""
    done = run(filled, tmp_path, "--vantage", "lagoss")
    assert (done.returncode, done.stdout.startswith("Nothing of vantage lagoss was planned")) == (0, True)
    assert run(filled, tmp_path, "--json", "--csv").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--since", "yesterday"], "--since"), (["--by", "colour"], "--by"), (["--since", "60d"], "31 days")],
)
def test_a_question_that_makes_no_sense_is_bad_usage(
    database_url: str, tmp_path: Path, arguments: list[str], named: str
) -> None:
    """Exit 2 and how to spell it."""
    done = run(database_url, tmp_path, *arguments)
    assert (done.returncode, named in done.stderr) == (2, True), done.stderr


def test_no_database_is_bad_usage(tmp_path: Path) -> None:
    """Neither a file nor DATABASE_URL: exit 2 and what to name."""
    done = run("", tmp_path)
    assert (done.returncode, "no database is named" in done.stderr) == (2, True)
