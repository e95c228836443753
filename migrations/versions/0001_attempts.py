"""The record: attempts, the small tables that describe them, hourly rollups and their queue."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ATTEMPTS = """
CREATE TABLE attempts (
    vantage_id bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    series_id bigint NOT NULL,
    try smallint NOT NULL,
    started_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    content_hash bigint NOT NULL,
    resolve_start_ns bigint,
    resolve_end_ns bigint,
    connect_start_ns bigint,
    connect_end_ns bigint,
    tls_start_ns bigint,
    tls_end_ns bigint,
    send_start_ns bigint,
    send_end_ns bigint,
    headers_ns bigint,
    first_byte_ns bigint,
    first_event_ns bigint,
    first_token_ns bigint,
    first_reasoning_ns bigint,
    first_visible_ns bigint,
    first_tool_ns bigint,
    last_token_ns bigint,
    finish_ns bigint,
    done_ns bigint,
    end_ns bigint,
    gave_up_ns bigint,
    control_start_ns bigint,
    control_sent_ns bigint,
    control_headers_ns bigint,
    gap_p50_seconds double precision,
    gap_p95_seconds double precision,
    gap_max_seconds double precision,
    burst_share double precision,
    loop_lag_seconds double precision NOT NULL,
    tcp_min_rtt_seconds double precision,
    tcp_rtt_seconds double precision,
    output_tokens bigint,
    reasoning_tokens bigint,
    visible_tokens bigint,
    input_tokens bigint,
    cached_tokens bigint,
    token_events bigint NOT NULL,
    reads bigint NOT NULL,
    coalesced_reads bigint NOT NULL,
    stalls bigint,
    tcp_retransmits bigint,
    tcp_out_of_order bigint,
    certificate_expires_at timestamptz,
    http_status integer,
    connection_reused boolean NOT NULL,
    proxied boolean NOT NULL,
    simulated boolean NOT NULL,
    outcome text NOT NULL,
    missed_reason text,
    failure_kind text,
    failure_phase text,
    failure_text text,
    probe_version text NOT NULL,
    purpose text NOT NULL,
    clock_source text,
    validity text[] NOT NULL,
    finish_reason text,
    http_version text,
    remote text,
    address_family text,
    tls_version text,
    alpn text,
    content_encoding text,
    edge text,
    request_id text,
    served_model text,
    server jsonb NOT NULL,
    PRIMARY KEY (vantage_id, scheduled_at, series_id, try)
) PARTITION BY RANGE (scheduled_at)
"""

DIMENSIONS = """
CREATE TABLE vantages (
    vantage_id bigint PRIMARY KEY,
    name text NOT NULL,
    city text,
    country text,
    latitude double precision,
    longitude double precision,
    network text,
    simulated boolean NOT NULL,
    first_seen_at timestamptz NOT NULL
);
CREATE TABLE targets (
    target_id bigint PRIMARY KEY,
    name text NOT NULL,
    provider text,
    model text,
    dialect text,
    endpoint text,
    served_from_city text,
    served_from_country text,
    served_from_latitude double precision,
    served_from_longitude double precision,
    simulated boolean NOT NULL,
    first_seen_at timestamptz NOT NULL
);
CREATE TABLE probes (
    probe_id bigint NOT NULL,
    version text NOT NULL,
    name text NOT NULL,
    prompt text,
    max_output_tokens bigint,
    connection text,
    nonce boolean,
    first_seen_at timestamptz NOT NULL,
    PRIMARY KEY (probe_id, version)
);
CREATE TABLE series (
    vantage_id bigint NOT NULL,
    series_id bigint NOT NULL,
    target_id bigint NOT NULL,
    probe_id bigint NOT NULL,
    vantage text NOT NULL,
    target text NOT NULL,
    probe text NOT NULL,
    interval_seconds double precision,
    deadline_seconds double precision,
    control boolean,
    first_seen_at timestamptz NOT NULL,
    PRIMARY KEY (vantage_id, series_id)
)
"""

ROLLUPS = """
CREATE TABLE rollups (
    vantage_id bigint NOT NULL,
    series_id bigint NOT NULL,
    hour timestamptz NOT NULL,
    attempts bigint NOT NULL,
    confirming bigint NOT NULL,
    success bigint NOT NULL,
    failed bigint NOT NULL,
    missed bigint NOT NULL,
    doubtful bigint NOT NULL,
    failures jsonb NOT NULL,
    misses jsonb NOT NULL,
    output_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    input_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    stalls bigint NOT NULL,
    refreshed_at timestamptz NOT NULL,
    PRIMARY KEY (vantage_id, series_id, hour)
);
CREATE INDEX rollups_of_hour ON rollups (hour);
CREATE TABLE rollup_histograms (
    vantage_id bigint NOT NULL,
    series_id bigint NOT NULL,
    measure text NOT NULL,
    hour timestamptz NOT NULL,
    bins smallint[] NOT NULL,
    counts bigint[] NOT NULL,
    censored bigint[] NOT NULL,
    sum_ns bigint NOT NULL,
    min_ns bigint NOT NULL,
    max_ns bigint NOT NULL,
    PRIMARY KEY (vantage_id, series_id, measure, hour)
);
CREATE INDEX rollup_histograms_of_hour ON rollup_histograms (measure, hour);
CREATE TABLE dirty_hours (
    vantage_id bigint NOT NULL,
    series_id bigint NOT NULL,
    hour timestamptz NOT NULL,
    marked_at timestamptz NOT NULL,
    PRIMARY KEY (vantage_id, series_id, hour)
);
CREATE TABLE retention_floor (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    raw_from timestamptz NOT NULL
)
"""

INTERVALS = {
    "resolve_seconds": ("resolve_start_ns", "resolve_end_ns"),
    "connect_seconds": ("connect_start_ns", "connect_end_ns"),
    "tls_seconds": ("tls_start_ns", "tls_end_ns"),
    "send_seconds": ("send_start_ns", "send_end_ns"),
    "wait_seconds": ("send_end_ns", "headers_ns"),
    "generate_seconds": ("headers_ns", "end_ns"),
    "control_seconds": ("control_sent_ns", "control_headers_ns"),
}


def _seconds(begin: str, end: str) -> str:
    """An interval as SQL: null unless both marks were passed (greatest() would turn null into 0), never negative."""
    return f"CASE WHEN a.{end} < a.{begin} THEN 0 ELSE (a.{end} - a.{begin}) / 1e9::double precision END"


MEASUREMENTS = f"""
CREATE VIEW measurements AS
SELECT
    a.vantage_id, a.series_id, a.scheduled_at, a.started_at, a.received_at, a.try,
    s.vantage, v.city, v.country, t.provider, s.target, t.model, s.probe, a.probe_version, a.simulated,
    a.outcome, a.missed_reason, a.failure_kind, a.failure_phase, a.failure_text,
    a.validity <@ ARRAY['coalesced'] AS valid, a.validity, a.clock_source,
    {", ".join(f"{_seconds(*marks)} AS {name}" for name, marks in INTERVALS.items())},
    a.first_token_ns / 1e9::double precision AS ttft_seconds,
    a.first_visible_ns / 1e9::double precision AS ttfo_seconds,
    a.end_ns / 1e9::double precision AS total_seconds,
    coalesce(a.end_ns, a.gave_up_ns, 0) / 1e9::double precision AS lasted_seconds,
    a.gap_p50_seconds, a.gap_p95_seconds, a.gap_max_seconds, a.stalls, a.burst_share,
    a.output_tokens, a.reasoning_tokens, a.visible_tokens, a.input_tokens, a.cached_tokens, a.token_events,
    a.tcp_min_rtt_seconds, a.tcp_rtt_seconds, a.tcp_retransmits, a.tcp_out_of_order,
    a.http_status, a.http_version, a.remote, a.address_family, a.tls_version, a.connection_reused, a.edge,
    a.served_model, a.finish_reason, a.server
FROM attempts a
JOIN series s ON s.vantage_id = a.vantage_id AND s.series_id = a.series_id
JOIN vantages v ON v.vantage_id = a.vantage_id
JOIN targets t ON t.target_id = s.target_id
"""


def upgrade() -> None:
    """Additive only: the previous release keeps running on the new schema."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    op.execute(ATTEMPTS)
    op.execute("CREATE INDEX attempts_of_series ON attempts (vantage_id, series_id, scheduled_at)")
    op.execute("CREATE INDEX attempts_received ON attempts (received_at)")
    for script in (DIMENSIONS, ROLLUPS):
        for statement in script.split(";"):
            op.execute(statement)
    op.execute(MEASUREMENTS)
