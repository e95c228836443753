"""Tokens of agents elsewhere, and leases: what only one of several hubs may do."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE agent_tokens (
    token_hash bytea PRIMARY KEY,
    vantage_id bigint NOT NULL,
    vantage text NOT NULL,
    city text,
    country text,
    latitude double precision,
    longitude double precision,
    network text,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
);
CREATE INDEX agent_tokens_of_vantage ON agent_tokens (vantage_id);
CREATE TABLE leases (
    name text PRIMARY KEY,
    holder text NOT NULL,
    expires_at timestamptz NOT NULL
)
"""


def upgrade() -> None:
    """Additive only: the previous release keeps running on the new schema."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    for statement in TABLES.split(";"):
        op.execute(statement)
