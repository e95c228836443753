"""What each attempt cost, by the price table of the agent that made it; also in the view."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

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
    return f"CASE WHEN a.{end} < a.{begin} THEN 0 ELSE (a.{end} - a.{begin}) / 1e9::double precision END"


# As in 0001, with `cost` at its end: Postgres adds columns to a view only there.
MEASUREMENTS = f"""
CREATE OR REPLACE VIEW measurements AS
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
    a.served_model, a.finish_reason, a.server, a.cost
FROM attempts a
JOIN series s ON s.vantage_id = a.vantage_id AND s.series_id = a.series_id
JOIN vantages v ON v.vantage_id = a.vantage_id
JOIN targets t ON t.target_id = s.target_id
"""


def upgrade() -> None:
    """Additive only: the previous release keeps running on the new schema."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    op.execute("ALTER TABLE attempts ADD COLUMN cost double precision")
    op.execute(MEASUREMENTS)
