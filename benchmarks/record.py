"""A large record, generated inside Postgres through the product's own schema, for benchmarks that read one.

Hides the SQL that makes it. Nothing of it was measured: first tokens are drawn from a log-normal distribution, one
attempt in 50 fails, one in 200 is judged cold, and rollups that no raw rows stand behind have 15 bins each.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from monitor.store import partitions
from monitor.store.measures import NAMES

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # what Grafana asks is known to the tests
from tests.integration.grafana_asks import Asking, Query, boards  # noqa: E402 (needs the line above)

DAY = timedelta(days=1)
MEASURES = NAMES
"""Those that have histograms."""

_DIMENSIONS = """
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
_HOURS = "generate_series(CAST(:first AS timestamptz), CAST(:last AS timestamptz), interval '1 hour')"
_ROLLUPS = f"""
INSERT INTO rollups (vantage_id, series_id, hour, attempts, confirming, success, failed, missed, doubtful, failures,
    misses, output_tokens, reasoning_tokens, input_tokens, cached_tokens, stalls, refreshed_at)
SELECT s.vantage_id, s.series_id, h, 60, 0, 58, 2, 0, 0, '{{"overloaded": 2}}', '{{}}', 3000, 0, 2000, 0, 1, now()
FROM series s, {_HOURS} h
"""
_HISTOGRAMS = f"""
INSERT INTO rollup_histograms (vantage_id, series_id, measure, hour, bins, counts, censored, sum_ns, min_ns, max_ns)
SELECT s.vantage_id, s.series_id, :measure, h, d.bins, d.counts, array_fill(0::bigint, ARRAY[15]),
    60 * 400000000::bigint, 100000000, 900000000
FROM series s, {_HOURS} h,
    LATERAL (SELECT array_agg((470 + (s.series_id + extract(epoch FROM h)::bigint / 3600) % 20 + n)::smallint
        ORDER BY n) AS bins, array_agg(4::bigint) AS counts FROM generate_series(1, 15) n) d
"""
_COVERAGE = f"""
INSERT INTO coverage (vantage_id, series_id, hour, owed, measured, missed, repeated, unplanned, counted_at)
SELECT s.vantage_id, s.series_id, h, 60, 60 - n, CASE n WHEN 0 THEN '{{}}' ELSE jsonb_build_object('agent_off', n) END,
    0, 0, now()
FROM series s, {_HOURS} h, LATERAL (SELECT (s.series_id + extract(epoch FROM h)::bigint / 3600) % 3 AS n) m
"""
_ATTEMPTS = """
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
_VERDICTS = """
INSERT INTO verdicts (vantage_id, series_id, scheduled_at, try, version, judged_at, started_at, settled, kind, reasons,
    idle_before_seconds, penalty_seconds, probe_version, ttft_seconds, server_part_seconds, connect_seconds,
    tls_seconds)
SELECT vantage_id, series_id, scheduled_at, try, 1, received_at, started_at, true,
    CASE WHEN outcome <> 'success' THEN 'unclear' WHEN content_hash % 200 = 1 THEN 'cold' ELSE 'warm' END,
    CASE WHEN outcome <> 'success' THEN '{failed}'::text[]
        WHEN content_hash % 200 = 1 THEN '{slow_first_token,confirm_warm}' ELSE '{in_band}' END,
    random() * 60, CASE WHEN outcome = 'success' AND content_hash % 200 = 1 THEN 2 + random() END, 'v',
    CASE WHEN outcome = 'success' THEN first_token_ns / 1e9 END, 0.2, 0.03, 0.03
FROM attempts WHERE scheduled_at >= :first AND scheduled_at <= :last
"""
_SIGHTINGS = """
INSERT INTO witness (vantage_id, endpoint_id, started_at, received_at, endpoint, address, resolve_seconds,
    connect_seconds, validity, failure_kind)
SELECT vantage_id, e, at, at, 'endpoint-' || e, '192.0.2.' || e, 0.01, vantage_id * 0.03 + random() * 0.01, '{}',
    CASE WHEN random() < 0.001 THEN 'timeout' END
FROM vantages, generate_series(1, 3) e,
    generate_series(CAST(:first AS timestamptz), CAST(:last AS timestamptz), interval '1 minute') AS at
"""


def names(connection: Connection, vantages: int, targets: int) -> None:
    """Vantage points, targets, and a series for each pair."""
    for statement in _DIMENSIONS.split(";"):
        connection.execute(text(statement), {"vantages": vantages, "targets": targets})


def hours(connection: Connection, since: datetime, until: datetime, measure: str | None = None) -> None:
    """Rollups of whole hours in [since, until): counts and coverage, or the histograms of one of `MEASURES`."""
    span = {"first": since, "last": until - timedelta(hours=1)}
    if measure is not None:
        connection.execute(text(_HISTOGRAMS), {"measure": measure, **span})
    else:
        connection.execute(text(_ROLLUPS), span)
        connection.execute(text(_COVERAGE), span)


def coverage(connection: Connection, since: datetime, until: datetime) -> None:
    """Coverage alone, of whole hours whose rollups somebody else makes."""
    connection.execute(text(_COVERAGE), {"first": since, "last": until - timedelta(hours=1)})


def day(connection: Connection, first: datetime, interval: int) -> None:
    """24 hours of raw rows from `first` on: an attempt every `interval` seconds, its verdict, looks at endpoints."""
    partitions.create(connection, {first.date(), (first + DAY).date()})
    attempts: Mapping[str, Any] = {"first": first, "last": first + DAY - timedelta(seconds=interval)}
    connection.execute(text(_ATTEMPTS), {"interval": interval, **attempts})
    connection.execute(text(_VERDICTS), attempts)
    connection.execute(text(_SIGHTINGS), {"first": first, "last": first + DAY - timedelta(minutes=1)})


def asked_by_grafana(now: datetime) -> list[Query]:
    """Every SQL of the generated dashboards, panels and variables, at its default range that ends at `now`."""
    kind = "grafana-postgresql-datasource"
    looks = [Asking(board, now) for board in boards().values()]
    return [query for look in looks for query in (*look.variables(kind), *look.queries(kind))]
