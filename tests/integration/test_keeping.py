"""What keeps the record, on a real Postgres: a hub's backlog of verdicts."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Engine

from monitor.cli.keeping import Keeping
from monitor.cli.storage import JUDGE_AT_ONCE, Storage
from monitor.clock import Clock
from monitor.config import loads
from monitor.metrics import Metrics
from monitor.store import attempts, verdicts
from tests.integration.running_up import configuration
from tests.integration.test_store_verdicts import ALL, NOON, attempt

HOUR = 3600.0


def test_a_backlog_of_verdicts_needs_no_pauses_at_a_hub(store: Engine, tmp_path: Path) -> None:
    """More than one batch is waiting, as after an outage: all are judged although the next look is an hour away."""
    clock, config = Clock(), loads(json.dumps(configuration("http://127.0.0.1:9/v1")), {})
    now = clock.now()
    lately = (now - NOON).total_seconds() - HOUR
    early = [attempt(lately + n) for n in range(2 * JUDGE_AT_ONCE + 1)]
    attempts.insert(store, ALL, early, early[-1].started_at + timedelta(minutes=1))
    assert verdicts.due(store, now)
    assert not verdicts.due(store, early[0].started_at)

    async def keep() -> None:
        url = store.url.render_as_string(hide_password=False)
        storage = Storage(url, tmp_path / "postgres", clock)
        kept = Keeping(
            storage, Metrics(clock), clock, config=lambda: config, known=dict, gently=False, judge_seconds=HOUR
        )
        kept.start()
        try:
            async with asyncio.timeout(90):
                while verdicts.waiting(store):  # noqa: ASYNC110  # threads do it, no event tells of it
                    await asyncio.sleep(0.05)
        finally:
            await kept.stop()

    asyncio.run(keep())
    assert len(verdicts.judged_since(store, now - timedelta(days=1), 10_000)) == len(early)
