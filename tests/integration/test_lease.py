"""A hub's copy and a database that somebody must mend first: what it says, how often, and that it goes on by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import create_engine, make_url, text
from structlog.testing import capture_logs

from monitor.cli.lease import Lease
from monitor.cli.storage import Storage
from monitor.clock import Clock
from monitor.config import loads
from monitor.metrics import Metrics
from monitor.metrics.fleet import FleetMetrics
from tests.integration.running_up import configuration


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Poll a condition that threads bring about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # no event tells of it
            await asyncio.sleep(0.05)


def test_a_missing_database_is_said_once(postgres_server: str, empty_database_url: str, tmp_path: Path) -> None:
    """At the start, with the remedy, also as the reason why it is not ready; made, it is used without a restart."""
    name = make_url(empty_database_url).database
    admin = create_engine(postgres_server, isolation_level="AUTOCOMMIT")

    def do(statement: str) -> None:
        with admin.connect() as connection:
            connection.execute(text(f"{statement} {name}"))

    do("DROP DATABASE")
    clock, config = Clock(), loads(json.dumps(configuration("http://127.0.0.1:9/v1")), {})
    metrics, storage = Metrics(clock), Storage(empty_database_url, tmp_path / "postgres", clock)
    lease = Lease(
        storage,
        metrics,
        FleetMetrics(metrics.registry),
        clock,
        config=lambda: config,
        handout=lambda vantage: None,
        enrolled=lambda enrolled: None,
    )

    async def hold() -> None:
        lease.start()
        await until(lambda: lease.trouble and "create it (CREATE DATABASE" in lease.trouble)
        await asyncio.sleep(6.0)  # it has tried again
        do("CREATE DATABASE")
        await until(lambda: lease.held and lease.trouble is None)
        await lease.stop()

    with capture_logs() as logs:
        asyncio.run(hold())
    storage.close()
    admin.dispose()
    said = [(line["log_level"], line["event"]) for line in logs if "database" in line["event"]]
    assert said == [
        ("error", "the database takes nothing until this is mended; agents keep theirs"),
        ("info", "the database is back"),
    ]
    assert "create it (CREATE DATABASE" in next(line["cause"] for line in logs if line["log_level"] == "error")
