"""How long the dashboards' SQL takes on a large record: each query at its dashboard's default range.

    python benchmarks/queries.py [--days 8] [--vantages 3] [--targets 50] [--rounds 5]

Fills an embedded Postgres with generated hourly rollups of every series and measure (15 bins each, no verdicts, no raw
rows), then asks what the generated dashboards ask, filled in as Grafana does. One JSON object at the end: milliseconds,
median of the rounds; exit code 1 when a query takes more than 500.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import Connection, Engine, text

from monitor.clock import Clock
from monitor.store import embedded, migrate
from monitor.store.engine import open_engine
from monitor.store.measures import NAMES

ROOT = Path(__file__).resolve().parents[1]
LIMIT_MS = 500

DIMENSIONS = """
INSERT INTO vantages (vantage_id, name, city, country, latitude, longitude, simulated, first_seen_at)
SELECT v, 'vantage-' || v, 'City ' || v, 'C' || v, 10 * v - 40, 20 * v - 90, true, now()
FROM generate_series(1, :vantages) v;
INSERT INTO targets (target_id, name, provider, model, served_from_city, served_from_latitude,
    served_from_longitude, simulated, first_seen_at)
SELECT t, 'target-' || t, 'provider-' || t % 8, 'model-' || t % 20, 'Ashburn', 39.04, -77.49, true, now()
FROM generate_series(1, :targets) t;
INSERT INTO series (vantage_id, series_id, target_id, probe_id, vantage, target, probe, control, first_seen_at)
SELECT v, v * 1000 + t, t, 1, 'vantage-' || v, 'target-' || t, 'short', true, now()
FROM generate_series(1, :vantages) v, generate_series(1, :targets) t
"""
ROLLUPS = """
INSERT INTO rollups (vantage_id, series_id, hour, attempts, confirming, success, failed, missed, doubtful, failures,
    misses, output_tokens, reasoning_tokens, input_tokens, cached_tokens, stalls, refreshed_at)
SELECT s.vantage_id, s.series_id, h, 60, 0, 58, 2, 0, 0, '{"overloaded": 2}', '{}', 3000, 0, 2000, 0, 1, now()
FROM series s, generate_series(date_trunc('hour', now()) - :hours * interval '1 hour', now(), interval '1 hour') h
"""
HISTOGRAMS = """
INSERT INTO rollup_histograms (vantage_id, series_id, measure, hour, bins, counts, censored, sum_ns, min_ns, max_ns)
SELECT s.vantage_id, s.series_id, :measure, h, d.bins, d.counts, array_fill(0::bigint, ARRAY[15]),
    60 * 400000000::bigint, 100000000, 900000000
FROM series s, generate_series(date_trunc('hour', now()) - :hours * interval '1 hour', now(), interval '1 hour') h,
    LATERAL (SELECT array_agg((470 + (s.series_id + extract(epoch FROM h)::bigint / 3600) % 20 + n)::smallint
        ORDER BY n) AS bins, array_agg(4::bigint) AS counts FROM generate_series(1, 15) n) d
"""


def fill(connection: Connection, vantages: int, targets: int, days: int) -> None:
    """Everything that the history dashboards read, except verdicts."""
    for statement in DIMENSIONS.split(";"):
        connection.execute(text(statement), {"vantages": vantages, "targets": targets})
    connection.execute(text(ROLLUPS), {"hours": days * 24})
    for measure in NAMES:
        connection.execute(text(HISTOGRAMS), {"measure": measure, "hours": days * 24})


def asked(rounds: int, store: Engine) -> dict[str, float]:
    """Panel -> milliseconds, over all rounds the median."""
    sys.path.insert(0, str(ROOT))
    from tests.integration.grafana_asks import Asking, boards

    took = {}
    with store.connect() as connection:
        for board in boards().values():
            for query in Asking(board, Clock().now()).queries("grafana-postgresql-datasource"):
                sql = query.text.replace("%", "%%")
                took[query.where] = round(1000 * statistics.median(_time(connection, sql) for _ in range(rounds)), 1)
    return took


def _time(connection: Connection, sql: str) -> float:
    began = time.perf_counter()
    connection.exec_driver_sql(sql).all()
    return time.perf_counter() - began


def main() -> int:
    """Run it; returns the exit code: 1 when a query takes longer than it may."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("days", 8), ("vantages", 3), ("targets", 50), ("rounds", 5)):
        options.add_argument(f"--{name}", type=int, default=usual)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="firsttoken-queries-") as folder:
        Path(folder).chmod(0o755)
        with embedded.start(Path(folder) / "postgres") as server:
            migrate.upgrade(server.url)
            store = open_engine(server.url)
            with store.begin() as connection:
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                fill(connection, chosen.vantages, chosen.targets, chosen.days)
            with store.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("VACUUM ANALYZE"))
                rows = connection.execute(text("SELECT count(*) FROM rollup_histograms")).scalar_one()
            took = asked(chosen.rounds, store)
            store.dispose()
    slow = {where: ms for where, ms in took.items() if ms > LIMIT_MS}
    report = {"days": chosen.days, "histogram_rows": rows, "slowest": max(took.values()), "over": slow, "ms": took}
    print(json.dumps(report, indent=2))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
