"""A year of history: how long the dashboards' SQL takes on it, and what rollups save against raw rows.

    python benchmarks/history.py [--days 365] [--raw-days 30] [--vantages 3] [--targets 50] [--interval 60]
        [--rounds 5] [--server URL]

Everything is generated (`record.py`): hourly rollups and coverage of every series for `--days`; and for the last
`--raw-days` raw attempts, one every `--interval` seconds for each series, with a verdict about each, and looks at
three neutral endpoints a minute; the rollups of these the product computes. Then every SQL of the generated
dashboards, filled in as Grafana does, is asked at its default range by a login of the reading role as
docs/grafana.md makes it; and p95 of TTFT by vantage over the raw span comes from rollups and from raw rows, by the
indexes and partitions that the schema has.

Postgres is embedded, without fsync, unless `--server` names one (a user who may create databases and roles; ours
are dropped again). Says how it gets on and a table on stderr, one JSON object on stdout; exit code 1 when a query's
median is over 500 ms, or rollups are less than 20 times faster or differ by more than the bins' error of 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import record
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sqlalchemy import Connection, Engine, create_engine, make_url, text

from monitor.clock import Clock
from monitor.store import embedded, migrate, rollups
from monitor.store.engine import open_engine, parse_url
from monitor.store.histogram import RELATIVE_ERROR
from monitor.store.measures import COUNTED, value_ns

LIMIT_MS = 500.0
LEAST_RATIO = 20.0
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "4GB",
        "shared_buffers": "2GB", "maintenance_work_mem": "512MB"}  # fmt: skip
SCREEN = Console(stderr=True)
_DIRTY = """
INSERT INTO dirty_hours (vantage_id, series_id, hour, marked_at)
SELECT vantage_id, series_id, h, now() FROM series,
    generate_series(CAST(:first AS timestamptz), CAST(:last AS timestamptz), interval '1 hour') AS h
"""
_RAW = f"""
SELECT v.name, percentile_disc(0.95) WITHIN GROUP (ORDER BY {value_ns("ttft")}) / 1e9::double precision
FROM attempts a JOIN vantages v ON v.vantage_id = a.vantage_id
WHERE a.scheduled_at >= :since AND a.scheduled_at < :until AND {COUNTED} GROUP BY v.name
"""


@contextmanager
def patient(store: Engine) -> Iterator[Connection]:
    """A transaction whose statements may take as long as they do."""
    with store.begin() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        yield connection


def fill(store: Engine, chosen: argparse.Namespace, until: datetime) -> float:
    """The record that ends at `until`: rollups, then raw rows with the rollups that the product makes of them.

    Returns how many series-hours a second the product rolled up.
    """
    since = until - timedelta(days=chosen.raw_days)
    begin, series = until - timedelta(days=chosen.days), chosen.vantages * chosen.targets
    with Progress(console=SCREEN, transient=True) as shown:
        steps = shown.add_task("generating", total=2 * len(record.MEASURES) + 3 * chosen.raw_days + 2)
        with patient(store) as connection:
            record.names(connection, chosen.vantages, chosen.targets)
            record.hours(connection, begin, since)
        for measure in record.MEASURES:
            with patient(store) as connection:
                record.hours(connection, begin, since, measure)
            shown.advance(steps, 2)
        for day in range(chosen.raw_days):
            with patient(store) as connection:
                record.day(connection, since + day * record.DAY, chosen.interval)
            shown.advance(steps, 2)
        with patient(store) as connection:
            record.coverage(connection, since, until)
            connection.execute(text(_DIRTY), {"first": since, "last": until - timedelta(hours=1)})
        began = time.perf_counter()
        while made := rollups.refresh(store, until + record.DAY, max_hours=24 * series):
            shown.advance(steps, made / (24 * series))
        rate = series * 24 * chosen.raw_days / (time.perf_counter() - began)
        with store.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("VACUUM ANALYZE"))
        shown.advance(steps, 2)
    return rate


@contextmanager
def reader(store: Engine) -> Iterator[Engine]:
    """An engine that logs in as Grafana does: a login of the reading role, with none of our own sessions' settings."""
    name, password = f"grafana_{os.getpid()}", secrets.token_hex(16)
    with store.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD '{password}' IN ROLE firsttoken_reader")
        connection.exec_driver_sql(f"ALTER ROLE {name} SET jit = off")
    opened = create_engine(store.url.set(username=name, password=password))
    try:
        yield opened
    finally:
        opened.dispose()
        with store.begin() as connection:
            connection.exec_driver_sql(f"DROP ROLE {name}")


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    """Milliseconds of each round, ascending, after one that warms the cache."""
    work()
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        took.append(round(1000 * (time.perf_counter() - began), 1))
    return sorted(took)


def ask(grafana: Engine, until: datetime, rounds: int) -> dict[str, dict[str, float]]:
    """Panel or variable -> milliseconds of its SQL: the median and the worst round, and how many rows it gave."""
    found = {}
    with grafana.connect() as connection, Progress(console=SCREEN, transient=True) as shown:
        for query in shown.track(record.asked_by_grafana(until), description="asking"):
            sql = query.text.replace("%", "%%")
            rows = len(connection.exec_driver_sql(sql).all())
            took = timed(lambda sql=sql: connection.exec_driver_sql(sql).all(), rounds)  # type: ignore[misc]
            found[query.where] = {"median_ms": statistics.median(took), "worst_ms": took[-1], "rows": rows}
    return dict(sorted(found.items(), key=lambda one: -one[1]["median_ms"]))


def compare(store: Engine, since: datetime, until: datetime, rounds: int) -> dict[str, object]:
    """p95 of TTFT by vantage, from rollups and from raw rows."""

    def from_raw() -> dict[str, float]:
        with patient(store) as connection:
            return {row[0]: float(row[1]) for row in connection.execute(text(_RAW), {"since": since, "until": until})}

    def from_rollups() -> dict[str, float]:
        found = rollups.percentiles(store, "ttft", since, until, (0.95,), by="vantage")
        return {key[0]: one.seconds for key, (one,) in found.items() if one is not None}

    raw, rolled = from_raw(), from_rollups()
    error = max(abs(rolled[name] / raw[name] - 1) for name in raw)
    raw_ms, rollups_ms = (statistics.median(timed(work, rounds)) for work in (from_raw, from_rollups))
    return {
        "p95_seconds_raw": {name: round(value, 4) for name, value in raw.items()},
        "p95_seconds_rollups": {name: round(value, 4) for name, value in rolled.items()},
        "worst_error_percent": round(100 * error, 2),
        "raw_ms": raw_ms,
        "rollups_ms": rollups_ms,
        "times_faster": round(raw_ms / rollups_ms, 1),
        "met": raw_ms / rollups_ms >= LEAST_RATIO and error <= RELATIVE_ERROR,
    }


@contextmanager
def database(given: str | None) -> Iterator[str]:
    """The URL of a fresh database: on a server of our own, or on that of `given`."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="firsttoken-history-") as folder:
            Path(folder).chmod(0o755)
            with embedded.start(Path(folder) / "postgres", settings=FAST) as server:
                yield server.url
        return
    name, admin = f"firsttoken_history_{os.getpid()}", create_engine(parse_url(given), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        yield make_url(admin.url).set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


def size(store: Engine) -> dict[str, dict[str, float]]:
    """Table -> rows and gigabytes with indexes; a partitioned table as one."""
    query = text(
        "WITH tables AS (SELECT CAST(unnest(CAST(:names AS text[])) AS regclass) AS of)"
        " SELECT CAST(of AS text), sum(c.reltuples)::bigint, sum(pg_total_relation_size(c.oid)) FROM tables"
        " JOIN pg_class c ON c.oid = of OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = of)"
        " WHERE c.relkind = 'r' GROUP BY 1"
    )
    names = ["rollups", "rollup_histograms", "coverage", "attempts", "verdicts", "witness"]
    with store.connect() as connection:
        return {
            row[0]: {"rows": row[1], "gb": round(float(row[2]) / 1e9, 2)}
            for row in connection.execute(query, {"names": names})
        }


def show(took: Mapping[str, Mapping[str, float]]) -> None:
    """The slowest as a table."""
    table = Table("panel or variable", "median ms", "worst ms", "rows", title="slowest SQL of the dashboards")
    for where, one in list(took.items())[:12]:
        table.add_row(where, f"{one['median_ms']:.0f}", f"{one['worst_ms']:.0f}", f"{one['rows']:.0f}")
    SCREEN.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (
        ("days", 365), ("raw-days", 30), ("vantages", 3), ("targets", 50), ("interval", 60), ("rounds", 5),
    ):  # fmt: skip
        options.add_argument(f"--{name}", type=int, default=usual)
    options.add_argument("--server")
    chosen = options.parse_args(arguments)
    until = Clock().now().replace(minute=0, second=0, microsecond=0)
    with database(chosen.server) as url:
        migrate.upgrade(url)
        store = open_engine(url)
        began = time.perf_counter()
        rate = fill(store, chosen, until)
        generated = {"seconds": round(time.perf_counter() - began), **size(store)}
        with reader(store) as grafana:
            took = ask(grafana, until, chosen.rounds)
        compared = compare(store, until - timedelta(days=chosen.raw_days), until, chosen.rounds)
        store.dispose()
    show(took)
    over = [where for where, one in took.items() if one["median_ms"] > LIMIT_MS]
    report = {
        "generated": {"days": chosen.days, "raw_days": chosen.raw_days, **generated},
        "series_hours_rolled_up_per_second": round(rate),
        "dashboards": {"queries": len(took), "over_500_ms": over, "ms": took},
        "p95_by_vantage": compared,
        "met": not over and bool(compared["met"]),
    }
    print(json.dumps(report, indent=2))
    return 0 if report["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
