"""Coverage by the hour, for dashboards; rollups remember enough of their slots to be compared with a plan."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

READER = "firsttoken_reader"
STATEMENTS = (
    # The sum of the first tries' planned instants, microseconds behind the hour; null: an older release computed it.
    "ALTER TABLE rollups ADD COLUMN slots_us bigint",
    """
CREATE TABLE coverage (
    vantage_id bigint NOT NULL,
    series_id bigint NOT NULL,
    hour timestamptz NOT NULL,
    owed bigint NOT NULL,
    measured bigint NOT NULL,
    missed jsonb NOT NULL,
    repeated bigint NOT NULL,
    unplanned bigint NOT NULL,
    counted_at timestamptz NOT NULL,
    PRIMARY KEY (vantage_id, series_id, hour)
)""",
    "CREATE INDEX coverage_of_hour ON coverage (hour)",
    """
CREATE VIEW hourly_coverage AS
SELECT c.vantage_id, c.series_id, c.hour, f.vantage, f.city, f.country, f.provider, f.target, f.model, f.probe,
    f.simulated, c.owed, c.measured, c.owed - c.measured AS missed, c.missed AS causes, c.repeated, c.unplanned
FROM coverage c JOIN series_facts f ON f.vantage_id = c.vantage_id AND f.series_id = c.series_id""",
    f"""
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
        GRANT SELECT ON hourly_coverage TO {READER};
    END IF;
END $$""",
)


def upgrade() -> None:
    """Additive only: the previous release keeps running on the new schema."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    for statement in STATEMENTS:
        op.execute(statement)
