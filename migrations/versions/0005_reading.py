"""Views and functions that dashboards read, and a role that may read nothing else."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

READER = "firsttoken_reader"
EARTH_DIAMETER_KM = 12742.0176  # the sphere of the mean radius; within 0.6 % of the ellipsoid
KM_A_SECOND_IN_FIBRE = "(299792.458 / 1.468)"

FUNCTIONS = (
    f"""
CREATE FUNCTION great_circle_km(
    latitude_a double precision, longitude_a double precision, latitude_b double precision, longitude_b double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT {EARTH_DIAMETER_KM} * asin(least(1, sqrt(
        sin(radians(latitude_b - latitude_a) / 2) ^ 2
        + cos(radians(latitude_a)) * cos(radians(latitude_b)) * sin(radians(longitude_b - longitude_a) / 2) ^ 2)))
$$""",
    """
CREATE FUNCTION bin_seconds(bin smallint) RETURNS double precision LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT 2 * exp(bin * ln(1.02::double precision / 0.98)) / (1.02::double precision / 0.98 + 1) / 1e9
$$""",
)
"""Seconds that stand for a histogram's bin: the same as `store.histogram.seconds_of`, which a test compares."""

FACTS = f"""
CREATE VIEW series_facts AS
SELECT
    s.vantage_id, s.series_id, s.vantage, v.city, coalesce(v.country, '') AS country, v.latitude, v.longitude,
    v.network,
    coalesce(t.provider, '') AS provider, s.target, coalesce(t.model, '') AS model, s.probe,
    s.interval_seconds, s.deadline_seconds, s.control, v.simulated OR t.simulated AS simulated,
    t.served_from_city, t.served_from_country, t.served_from_latitude, t.served_from_longitude,
    great_circle_km(v.latitude, v.longitude, t.served_from_latitude, t.served_from_longitude) AS distance_km,
    2 * great_circle_km(v.latitude, v.longitude, t.served_from_latitude, t.served_from_longitude)
        / {KM_A_SECOND_IN_FIBRE} AS floor_seconds,
    (SELECT a.edge FROM attempts a WHERE a.vantage_id = s.vantage_id AND a.series_id = s.series_id
        AND a.scheduled_at > now() - interval '3 days' AND a.outcome <> 'missed'
        ORDER BY a.scheduled_at DESC LIMIT 1) AS edge
FROM series s
JOIN vantages v ON v.vantage_id = s.vantage_id
JOIN targets t ON t.target_id = s.target_id
"""
NAMED = "f.vantage, f.city, f.country, f.provider, f.target, f.model, f.probe, f.simulated"
OF_SERIES = "JOIN series_facts f ON f.vantage_id = {0}.vantage_id AND f.series_id = {0}.series_id"
VIEWS = (
    FACTS,
    f"""
CREATE VIEW hourly_bins AS
SELECT h.vantage_id, h.series_id, h.hour, h.measure, {NAMED}, b.bin, b.n, b.censored
FROM rollup_histograms h {OF_SERIES.format("h")}
CROSS JOIN LATERAL unnest(h.bins, h.counts, h.censored) AS b(bin, n, censored)
""",
    f"""
CREATE VIEW hourly_sums AS
SELECT h.vantage_id, h.series_id, h.hour, h.measure, {NAMED},
    (SELECT sum(c) FROM unnest(h.counts) AS u(c)) AS n, h.sum_ns / 1e9::double precision AS sum_seconds,
    h.min_ns / 1e9::double precision AS min_seconds, h.max_ns / 1e9::double precision AS max_seconds
FROM rollup_histograms h {OF_SERIES.format("h")}
""",
    f"""
CREATE VIEW hourly_counts AS
SELECT r.vantage_id, r.series_id, r.hour, {NAMED}, r.attempts, r.confirming, r.success, r.failed, r.missed,
    r.doubtful, r.failures, r.misses, r.output_tokens, r.reasoning_tokens, r.input_tokens, r.cached_tokens, r.stalls
FROM rollups r {OF_SERIES.format("r")}
""",
    f"""
CREATE VIEW judged_attempts AS
SELECT v.vantage_id, v.series_id, v.scheduled_at, v.try, {NAMED}, v.version, v.settled, v.kind, v.reasons,
    v.idle_before_seconds, v.penalty_seconds, a.first_token_ns / 1e9::double precision AS ttft_seconds, a.outcome
FROM verdicts v {OF_SERIES.format("v")}
JOIN attempts a ON a.vantage_id = v.vantage_id AND a.scheduled_at = v.scheduled_at
    AND a.series_id = v.series_id AND a.try = v.try
WHERE NOT EXISTS (
    SELECT FROM verdicts newer WHERE newer.vantage_id = v.vantage_id AND newer.series_id = v.series_id
    AND newer.scheduled_at = v.scheduled_at AND newer.try = v.try AND newer.version > v.version)
""",
)

MAKE_READER = f"""
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
        CREATE ROLE {READER} NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;  -- another database of this server was quicker
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role {READER} was not made: this user may not; see docs/grafana.md';
END $$"""
READABLE = "measurements, series_facts, hourly_bins, hourly_sums, hourly_counts, judged_attempts"
LET_READ = f"""
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO {READER}', current_schema());
        GRANT SELECT ON {READABLE} TO {READER};
    END IF;
END $$"""


def upgrade() -> None:
    """Additive only. A view reads with its owner's rights: the role needs none on the tables behind it."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    for statement in (*FUNCTIONS, *VIEWS, MAKE_READER, LET_READ):
        op.execute(statement)
