"""What agents say about slots that became no rows, and each agent's last heartbeat."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE notes (
    vantage_id bigint NOT NULL,
    agent text NOT NULL,
    note_id bigint NOT NULL,
    kind text NOT NULL,
    first_at timestamptz NOT NULL,
    last_at timestamptz,
    received_at timestamptz NOT NULL,
    body jsonb NOT NULL,
    PRIMARY KEY (vantage_id, agent, note_id)
);
CREATE INDEX notes_by_time ON notes (vantage_id, kind, first_at);
CREATE TABLE agents (
    vantage_id bigint NOT NULL,
    agent text NOT NULL,
    sent_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    booted_at timestamptz,
    started_at timestamptz,
    version text,
    config_digest text,
    config_error text,
    spool_depth bigint,
    spool_bytes bigint,
    spool_oldest_at timestamptz,
    spool_lost bigint,
    clock_offset_seconds double precision,
    body jsonb NOT NULL,
    PRIMARY KEY (vantage_id, agent)
)
"""


def upgrade() -> None:
    """Additive only: the previous release keeps running on the new schema."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    for statement in TABLES.split(";"):
        op.execute(statement)
