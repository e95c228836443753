"""What the read API asks of the database costs a bounded amount, however it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from monitor.store import reading, rollups
from tests.integration.test_store_rollups import HOUR, MS, NOW, a_series, good, put

VANTAGES = ("lagos", "london", "virginia")


@pytest.fixture
def filled(store: Engine) -> Engine:
    """An hour of three vantage points, rolled up."""
    batch = [good(NOW - HOUR + timedelta(minutes=n), 100 * MS, vantage) for vantage in VANTAGES for n in range(40)]
    put(store, batch, [a_series(vantage) for vantage in VANTAGES])
    rollups.refresh(store, NOW + HOUR)
    return store


def test_too_large_an_answer_is_not_begun(filled: Engine) -> None:
    """Steps times groups are counted first: beyond the bound there is a sentence, and no histogram was read."""
    asked: list[str] = []
    event.listen(filled, "before_cursor_execute", lambda *told: asked.append(told[2]))
    since = NOW - timedelta(days=300)
    with pytest.raises(reading.TooMuch, match="7,200 steps of 3 groups are more than 20,000 rows"):
        reading.over_time(filled, "ttft", since, NOW, step="hour", by="series")
    assert not [query for query in asked if "rollup" in query]
    for fewer in ({"vantage": "lagos"}, {"by": "all"}, {"step": "day"}):
        how = {"step": "hour", "by": "series", **fewer}
        assert reading.over_time(filled, "ttft", since, NOW, **how)  # type: ignore[arg-type]


def test_a_page_reads_what_it_shows_and_little_more(filled: Engine) -> None:
    """A page behind a cursor begins there, and vantage points that cannot have any are not looked through."""
    looked = reading.Selection(since=NOW - timedelta(days=20), until=NOW)
    first = reading.attempts(filled, looked, 60)
    second = reading.attempts(filled, looked, 60, reading.sequence(first, 60))
    assert len({one.key for one in (*first, *second)}) == 120
    assert reading.sequence(reading.attempts(filled, looked, 60, second[-1].key), 60) is None
    nobody = reading.Selection(since=looked.since, until=NOW, vantage="lagos", target="nobody")
    assert rows_read(filled, nobody) == 0
    assert rows_read(filled, looked) >= 120
    assert rows_read(filled, looked, second[-1].key) <= 10


def rows_read(store: Engine, asked: reading.Selection, after: reading.Key | None = None) -> float:
    """Rows of attempts that Postgres looked at for one page, by its own account."""
    query, values = reading.question(asked, 60, after)
    with store.connect() as connection:
        (told,) = connection.execute(text(f"EXPLAIN (ANALYZE, FORMAT JSON) {query.text}"), values).scalar_one()
    return sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in nodes(told["Plan"])
        if str(node.get("Relation Name", "")).startswith("attempts")
    )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)
