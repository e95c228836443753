"""What providers say about limits, version, place and origin of an answer, beside each attempt."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Additive: a column without a default is no rewrite, and the previous release does not name it."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("SET LOCAL statement_timeout = '10min'")
    op.execute("ALTER TABLE attempts ADD COLUMN service jsonb")
