"""How long coverage takes on a large record: a month by the hour, two days for the page, one hour for the metric.

    python benchmarks/coverage.py [--days 30] [--vantages 3] [--targets 50] [--broken 0.01]

Fills an embedded Postgres with one series for each vantage and target at one slot a minute: plans, a weekly outage
of twelve hours, rollups of full hours, and for a share of the hours (`--broken`) rows with slots missing, which must be
read one by one. One JSON object at the end: seconds of each question, once cold and once warm.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Engine, text

from monitor import wire
from monitor.clock import Clock, instant
from monitor.detect.coverage import HOUR_US, micros, segments
from monitor.detect.coverage import expected as owed
from monitor.grid import grid
from monitor.model import Attempt, DialectName, Outcome, Probe, Series, Target, Vantage
from monitor.notes import OutageNote, PlannedSeries, PlanNote
from monitor.store import attempts, coverage, coverage_hours, embedded, migrate, notes, rollups
from monitor.store.attempts import hour_of
from monitor.store.engine import open_engine
from monitor.store.rows import series_id, vantage_id

HOUR = timedelta(hours=1)
ROLLUPS = text("""
INSERT INTO rollups (vantage_id, series_id, hour, attempts, confirming, success, failed, missed, doubtful, failures,
    misses, output_tokens, reasoning_tokens, input_tokens, cached_tokens, stalls, refreshed_at, slots_us)
SELECT r.vantage_id, r.series_id, r.hour, r.n, 0, r.n, 0, 0, 0, '{}', '{}', 0, 0, 0, 0, 0, r.hour, r.slots_us
FROM json_to_recordset(CAST(:rows AS json))
    AS r(vantage_id bigint, series_id bigint, hour timestamptz, n bigint, slots_us bigint)
""")


@dataclass(frozen=True)
class Record:
    """What is generated."""

    store: Engine
    now: datetime
    days: int
    vantages: list[str]
    targets: list[str]
    broken: float

    @property
    def since(self) -> datetime:
        return hour_of(self.now) - timedelta(days=self.days)

    def series(self, vantage: str) -> Iterator[Series]:
        for target in self.targets:
            yield Series(
                vantage=Vantage(name=vantage),
                target=Target(name=target, provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
                probe=Probe(name="short", prompt="hi"),
            )


def fill(record: Record) -> int:
    """Plans, outages, rollups and the rows of broken hours; how many series-hours there are."""
    dice, made = random.Random(7), 0
    for vantage in record.vantages:
        every = list(record.series(vantage))
        planned = tuple(
            PlannedSeries(grid=grid(one, record.vantages), probe_version=one.probe.version) for one in every
        )
        plan = PlanNote(id=1, at=record.since - timedelta(seconds=1), series=planned)
        outages = [
            OutageNote(id=2 + week, begin=begin, until=begin + 12 * HOUR - timedelta(seconds=1), reason="power")
            for week, begin in enumerate(_weeks(record))
        ]
        notes.insert(record.store, vantage, "a" * 32, [plan, *outages], record.now, known=every, raw_days=400)
        off = {begin + n * HOUR for begin in _weeks(record) for n in range(12)}
        hours = [record.since + n * HOUR for n in range(record.days * 24)]
        for one in every:
            made += len(hours)
            ill = {hour for hour in hours if dice.random() < record.broken}
            _rollups(record, one, [hour for hour in hours if hour not in off and hour not in ill])
            _rows(record, one, sorted(ill - off))
    while rollups.refresh(record.store, record.now):
        pass
    with record.store.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    return made


def _weeks(record: Record) -> list[datetime]:
    return [record.since + timedelta(days=day) for day in range(3, record.days, 7)]


def _rollups(record: Record, one: Series, hours: list[datetime]) -> None:
    plan = PlanNote(
        id=1,
        at=record.since - timedelta(seconds=1),
        series=(PlannedSeries(grid=grid(one, record.vantages), probe_version="v"),),
    )
    ((_, known),) = segments([("a", plan)]).items()
    rows = []
    for hour in hours:
        count, slots_us = owed(known, micros(hour))
        names = one.key
        ids = {"vantage_id": vantage_id(one.vantage.name), "series_id": series_id(*names)}
        rows.append({**ids, "hour": wire.rfc3339(hour), "n": count, "slots_us": slots_us})
    with record.store.begin() as connection:
        connection.execute(ROLLUPS, {"rows": wire.dumps(rows).decode()})


def _rows(record: Record, one: Series, hours: list[datetime]) -> None:
    lattice = grid(one, record.vantages)
    made = []
    for hour in hours:
        for number in list(lattice.numbers(micros(hour), micros(hour) + HOUR_US))[5:]:
            at = instant(lattice.instant_us(number) * 1_000)
            made.append(
                Attempt(
                    vantage=one.vantage.name,
                    target=one.target.name,
                    probe=one.probe.name,
                    probe_version=one.probe.version,
                    scheduled_at=at,
                    started_at=at,
                    outcome=Outcome.SUCCESS,
                )
            )
    attempts.insert(record.store, [one], made, record.now, raw_days=400)


def _timed(ask: Callable[[], object]) -> list[float]:
    took = []
    for _ in range(2):
        began = time.perf_counter()
        ask()
        took.append(round(time.perf_counter() - began, 3))
    return took


def main() -> int:
    """Run it; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("days", 30), ("vantages", 3), ("targets", 50)):
        options.add_argument(f"--{name}", type=int, default=usual)
    options.add_argument("--broken", type=float, default=0.01)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="firsttoken-coverage-") as folder:
        Path(folder).chmod(0o755)
        with embedded.start(Path(folder) / "postgres") as server:
            migrate.upgrade(server.url)
            store = open_engine(server.url)
            record = Record(
                store,
                Clock().now(),
                chosen.days,
                [f"vantage-{n}" for n in range(chosen.vantages)],
                [f"target-{n}" for n in range(chosen.targets)],
                chosen.broken,
            )
            made = fill(record)
            ended = hour_of(record.now)
            ask = {
                "month": lambda: coverage.covered(store, record.since, ended, record.now),
                "two_days": lambda: coverage.covered(store, ended - 48 * HOUR, record.now, record.now),
                "last_hour": lambda: coverage.covered(store, ended - HOUR, ended, record.now),
                "sweep_of_a_week": lambda: coverage_hours.sweep(store, record.now, timedelta(days=7)),
            }
            report = {"series_hours": made, "seconds": {name: _timed(one) for name, one in ask.items()}}
            store.dispose()
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
