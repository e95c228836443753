"""A verdict keeps its attempt's TTFT, so that a day of verdicts is read without a day of attempts."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

OF_ATTEMPT = (
    "FROM attempts a WHERE a.vantage_id = v.vantage_id AND a.scheduled_at = v.scheduled_at"
    " AND a.series_id = v.series_id AND a.try = v.try"
)
STATEMENTS = (
    "ALTER TABLE verdicts ADD COLUMN ttft_seconds double precision",
    # Verdicts of an earlier release have none: theirs is looked up, except where the verdict says that there was none.
    f"""
CREATE OR REPLACE VIEW judged_attempts AS
SELECT v.vantage_id, v.series_id, v.scheduled_at, v.try, f.vantage, f.city, f.country, f.provider, f.target, f.model,
    f.probe, f.simulated, v.version, v.settled, v.kind, v.reasons, v.idle_before_seconds, v.penalty_seconds,
    CASE WHEN v.reasons && '{{failed,cut_by_deadline}}' THEN v.ttft_seconds
        ELSE coalesce(v.ttft_seconds, (SELECT a.first_token_ns / 1e9::double precision {OF_ATTEMPT}))
        END AS ttft_seconds,
    (SELECT a.outcome {OF_ATTEMPT}) AS outcome
FROM verdicts v JOIN series_facts f ON f.vantage_id = v.vantage_id AND f.series_id = v.series_id
WHERE NOT EXISTS (
    SELECT FROM verdicts newer WHERE newer.vantage_id = v.vantage_id AND newer.series_id = v.series_id
    AND newer.scheduled_at = v.scheduled_at AND newer.try = v.try AND newer.version > v.version)""",
)


def upgrade() -> None:
    """Additive only: the previous release keeps running on the new schema. A view keeps who may read it."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    for statement in STATEMENTS:
        op.execute(statement)
