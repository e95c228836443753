"""Histograms of whole days, so that a month is thirty rows of a series and not seven hundred."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

STATEMENTS = """
CREATE TABLE rollup_days (
    vantage_id bigint NOT NULL,
    series_id bigint NOT NULL,
    measure text NOT NULL,
    day timestamptz NOT NULL,
    bins smallint[] NOT NULL,
    counts bigint[] NOT NULL,
    censored bigint[] NOT NULL,
    PRIMARY KEY (vantage_id, series_id, measure, day)
);
CREATE INDEX rollup_days_of_day ON rollup_days (measure, day);
CREATE TABLE dirty_days (
    vantage_id bigint NOT NULL,
    series_id bigint NOT NULL,
    day timestamptz NOT NULL,
    PRIMARY KEY (vantage_id, series_id, day)
);
INSERT INTO dirty_days (vantage_id, series_id, day)
SELECT DISTINCT vantage_id, series_id, date_trunc('day', hour, 'UTC') FROM rollups
"""


def upgrade() -> None:
    """Additive only: the previous release keeps running on the new schema, and does not look at days."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
