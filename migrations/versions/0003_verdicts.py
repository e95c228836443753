"""Cold-start verdicts of attempts, and the queue of attempts that wait for theirs."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE verdicts (
    vantage_id bigint NOT NULL,
    series_id bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    try smallint NOT NULL,
    version smallint NOT NULL,
    judged_at timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    settled boolean NOT NULL,
    kind text NOT NULL,
    reasons text[] NOT NULL,
    idle_before_seconds double precision,
    penalty_seconds double precision,
    probe_version text NOT NULL,
    server_part_seconds double precision,
    accounted_seconds double precision,
    load_seconds double precision,
    connect_seconds double precision,
    tls_seconds double precision,
    token_seconds double precision,
    PRIMARY KEY (vantage_id, series_id, scheduled_at, try, version)
);
CREATE INDEX verdicts_judged ON verdicts (judged_at);
CREATE INDEX verdicts_scheduled ON verdicts (scheduled_at);
CREATE TABLE unjudged (
    vantage_id bigint NOT NULL,
    series_id bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    try smallint NOT NULL,
    due_at timestamptz NOT NULL,
    PRIMARY KEY (vantage_id, series_id, scheduled_at, try)
);
CREATE INDEX unjudged_scheduled ON unjudged (scheduled_at);
CREATE INDEX series_of_target ON series (target_id)
"""


def upgrade() -> None:
    """Additive only: the previous release keeps running on the new schema."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    for statement in TABLES.split(";"):
        op.execute(statement)
