"""A year of history: how long the dashboards' SQL takes on it, and what rollups save against raw rows.

    python benchmarks/history.py [--days 365] [--raw-days 30] [--vantages 3] [--targets 50] [--interval 60]

Everything is generated: hourly rollups of every series and measure for `--days`, and raw attempts, one every
`--interval` seconds for each series, for the last `--raw-days`; the rollups of these are computed by the product. Then
every SQL of the generated dashboards is asked at its default range, filled in as Grafana does, by a login of the
read-only role; and p95 of TTFT by vantage over the raw span comes from rollups and from raw rows, by the indexes and
partitions that the schema has. Postgres is embedded, without fsync. Minutes of work at the full size. One JSON object
at the end; exit code 1 when a query takes over 500 ms, rollups are less than 20 times faster, or differ by more than
the bins' error of 2 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from queries import DIMENSIONS, HISTOGRAMS, LIMIT_MS, ROLLUPS, asked
from rich.progress import Progress
from sqlalchemy import Engine, make_url, text

from monitor.clock import Clock
from monitor.store import embedded, migrate, partitions, rollups
from monitor.store.engine import open_engine
from monitor.store.histogram import RELATIVE_ERROR
from monitor.store.measures import COUNTED, NAMES, value_ns

LEAST_RATIO = 20.0
FAST = {
    "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "8GB",
    "shared_buffers": "2GB", "work_mem": "64MB", "maintenance_work_mem": "512MB",
}  # fmt: skip
DAY_OF_ATTEMPTS = """
INSERT INTO attempts (vantage_id, scheduled_at, series_id, try, started_at, received_at, content_hash, resolve_start_ns,
    resolve_end_ns, connect_start_ns, connect_end_ns, tls_start_ns, tls_end_ns, send_start_ns, send_end_ns, headers_ns,
    first_byte_ns, first_event_ns, first_token_ns, first_visible_ns, last_token_ns, end_ns, loop_lag_seconds,
    tcp_min_rtt_seconds, output_tokens, input_tokens, token_events, reads, coalesced_reads, stalls, connection_reused,
    proxied, simulated, outcome, probe_version, purpose, clock_source, validity, finish_reason, server)
SELECT vantage_id, at, series_id, 0, at, at, n, 0, r, r, c, c, l, l, l + 100000, w, w, w, t, t, t + 1000000000,
    t + 1001000000, 0, rtt / 1e9, 40, 50, 40, 41, 0, 0, false, false, true,
    CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'success' END, 'v', 'scheduled', 'kernel', '{}', 'stop', '{}'
FROM (
    SELECT *, l + (200000000 * exp(0.4 * z))::bigint AS w, l + (260000000 * exp(0.4 * z))::bigint AS t
    FROM (
        SELECT s.vantage_id, s.series_id, at, row_number() OVER () AS n, s.vantage_id * 30000000::bigint AS rtt,
            2000000::bigint AS r, 2000000 + s.vantage_id * 30000000::bigint AS c,
            2000000 + s.vantage_id * 60000000::bigint AS l,
            sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()) AS z
        FROM series s, generate_series(CAST(:first AS timestamptz), CAST(:last AS timestamptz),
            :interval * interval '1 second') AS at
    ) draws
) marks
"""
DIRTY = """
INSERT INTO dirty_hours (vantage_id, series_id, hour, marked_at)
SELECT vantage_id, series_id, h, now() FROM series,
    generate_series(CAST(:first AS timestamptz), CAST(:last AS timestamptz), interval '1 hour') AS h
"""
RAW = f"""
SELECT v.name, percentile_disc(0.95) WITHIN GROUP (ORDER BY {value_ns("ttft")}) / 1e9::double precision
FROM attempts a JOIN vantages v ON v.vantage_id = a.vantage_id
WHERE a.scheduled_at >= :since AND a.scheduled_at < :until AND {COUNTED} GROUP BY v.name
"""


def fill(store: Engine, chosen: argparse.Namespace, since: datetime, until: datetime) -> None:
    """A year of rollups, and raw attempts from `since` on with the rollups that the product makes of them."""
    raw_hours = chosen.raw_days * 24
    with Progress(transient=True) as shown:
        steps = shown.add_task("generating", total=len(NAMES) + 2 * chosen.raw_days + 3)
        with store.begin() as connection:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            for statement in DIMENSIONS.split(";"):
                connection.execute(text(statement), {"vantages": chosen.vantages, "targets": chosen.targets})
            hours = {"hours": chosen.days * 24}
            connection.execute(text(ROLLUPS), hours)
            for measure in NAMES:
                connection.execute(text(HISTOGRAMS), {"measure": measure, **hours})
                shown.advance(steps)
            for table in ("rollups", "rollup_histograms"):  # what the product will make of the raw rows
                connection.execute(text(f"DELETE FROM {table} WHERE hour >= :since"), {"since": since})
        for day in range(chosen.raw_days):
            first = since + timedelta(days=day)
            with store.begin() as connection:
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                partitions.create(connection, {first.date()})
                last = first + timedelta(days=1) - timedelta(seconds=chosen.interval)
                said = {"first": first, "last": last, "interval": chosen.interval}
                connection.execute(text(DAY_OF_ATTEMPTS), said)
            shown.advance(steps)
        with store.begin() as connection:
            connection.execute(text(DIRTY), {"first": since, "last": until - timedelta(hours=1)})
        done = 0
        at_once = chosen.vantages * chosen.targets * 24
        while made := rollups.refresh(store, until + timedelta(days=1), max_hours=at_once):
            done += made
            shown.update(steps, advance=chosen.raw_days * made / (raw_hours * chosen.vantages * chosen.targets))
        with store.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("VACUUM ANALYZE"))


def reader(store: Engine) -> Engine:
    """An engine that logs in as Grafana does: a login of the role that reads views."""
    with store.begin() as connection:
        connection.execute(text("CREATE ROLE grafana LOGIN IN ROLE firsttoken_reader"))
    url = make_url(store.url).set(username="grafana").render_as_string(hide_password=False)
    return open_engine(url)


def timed(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds, the median, after one round that warms the cache."""
    work()
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took)


def compare(store: Engine, since: datetime, until: datetime, rounds: int) -> dict[str, object]:
    """p95 of TTFT by vantage, from rollups and from raw rows."""

    def from_raw() -> dict[str, float]:
        with store.begin() as connection:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            return {row[0]: float(row[1]) for row in connection.execute(text(RAW), {"since": since, "until": until})}

    def from_rollups() -> dict[str, float]:
        found = rollups.percentiles(store, "ttft", since, until, (0.95,), by="vantage")
        return {key[0]: one.seconds for key, (one,) in found.items() if one is not None}

    raw, rolled = from_raw(), from_rollups()
    errors = [abs(rolled[name] / raw[name] - 1) for name in raw]
    raw_ms, rollup_ms = timed(from_raw, rounds), timed(from_rollups, rounds)
    return {
        "p95_seconds_raw": {name: round(value, 4) for name, value in raw.items()},
        "p95_seconds_rollups": {name: round(value, 4) for name, value in rolled.items()},
        "worst_error_percent": round(100 * max(errors), 2),
        "raw_ms": round(raw_ms, 1),
        "rollups_ms": round(rollup_ms, 1),
        "times_faster": round(raw_ms / rollup_ms, 1),
        "met": raw_ms / rollup_ms >= LEAST_RATIO and max(errors) <= RELATIVE_ERROR,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (
        ("days", 365), ("raw-days", 30), ("vantages", 3), ("targets", 50), ("interval", 60), ("rounds", 3),
    ):  # fmt: skip
        options.add_argument(f"--{name}", type=int, default=usual)
    chosen = options.parse_args(arguments)
    until = Clock().now().replace(hour=0, minute=0, second=0, microsecond=0)
    since = until - timedelta(days=chosen.raw_days)
    with tempfile.TemporaryDirectory(prefix="firsttoken-history-") as folder:
        Path(folder).chmod(0o755)
        with embedded.start(Path(folder) / "postgres", settings=FAST) as server:
            migrate.upgrade(server.url)
            store = open_engine(server.url)
            began = time.perf_counter()
            fill(store, chosen, since, until)
            filled = time.perf_counter() - began
            with store.connect() as connection:
                rows = {
                    table: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
                    for table in ("rollups", "rollup_histograms", "attempts")
                }
            took = asked(chosen.rounds, reader(store))
            compared = compare(store, since, until, chosen.rounds)
            store.dispose()
    slow = {where: ms for where, ms in took.items() if ms > LIMIT_MS}
    report = {
        "generated": {**rows, "days": chosen.days, "raw_days": chosen.raw_days, "seconds": round(filled)},
        "dashboards": {"slowest_ms": max(took.values()), "over_500_ms": slow, "ms": took},
        "p95_by_vantage": compared,
        "met": not slow and bool(compared["met"]),
    }
    print(json.dumps(report, indent=2))
    return 0 if report["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
