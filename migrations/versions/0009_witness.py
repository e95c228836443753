"""What vantage points saw of neutral endpoints: the line, told apart from the provider."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

READER = "firsttoken_reader"
TABLE = """
CREATE TABLE witness (
    vantage_id bigint NOT NULL,
    endpoint_id bigint NOT NULL,
    started_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    endpoint text NOT NULL,
    address text NOT NULL,
    resolve_seconds double precision,
    connect_seconds double precision,
    tls_seconds double precision,
    failure_kind text,
    failure_phase text,
    failure_text text,
    validity text[] NOT NULL,
    PRIMARY KEY (vantage_id, endpoint_id, started_at)
);
CREATE INDEX witness_started ON witness (started_at)
"""
VIEW = """
CREATE VIEW sightings AS
SELECT w.vantage_id, v.name AS vantage, v.city, coalesce(v.country, '') AS country, v.network, v.simulated,
    w.endpoint, w.address, w.started_at, w.failure_kind IS NULL AS up, w.failure_kind, w.failure_phase,
    w.resolve_seconds, w.connect_seconds, w.tls_seconds,
    coalesce(w.resolve_seconds, 0) + coalesce(w.connect_seconds, 0) + coalesce(w.tls_seconds, 0) AS seconds,
    w.validity <@ ARRAY['coalesced'] AS valid
FROM witness w JOIN vantages v ON v.vantage_id = w.vantage_id
"""
LET_READ = f"""
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
        GRANT SELECT ON sightings TO {READER};
    END IF;
END $$"""


def upgrade() -> None:
    """Additive only: the previous release keeps running on the new schema."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    for statement in (*TABLE.split(";"), VIEW, LET_READ):
        op.execute(statement)
