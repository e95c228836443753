"""The views and functions that dashboards read agree with the product's own definitions."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from monitor.metrics import tokens_per_second
from monitor.model import (
    Attempt,
    DialectName,
    Outcome,
    Place,
    Probe,
    Series,
    Target,
    TcpFacts,
    Tokens,
    Vantage,
)
from monitor.store import attempts, rollups
from monitor.store.histogram import RELATIVE_ERROR, seconds_of
from monitor.timeline import Gaps, Mark, Timeline
from tests.integration.grafana_asks import Asking, boards

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
MS = 1_000_000
LAGOS = Place(city="Lagos", country="NG", latitude=6.4541, longitude=3.3947)
LONDON = Place(city="London", country="GB", latitude=51.5074, longitude=-0.1278)
SERIES = Series(
    vantage=Vantage(name="lagos", place=LAGOS),
    target=Target(
        name="acme", provider="acme", model="m", dialect=DialectName.ANTHROPIC, url="http://x/v1", served_from=LONDON
    ),
    probe=Probe(name="short", prompt="Say hello."),
)


def attempt(second: int, ttft_ns: int) -> Attempt:
    marks = {Mark.SEND_END: 3 * MS, Mark.HEADERS: ttft_ns - 1000, Mark.FIRST_TOKEN: ttft_ns}
    at = HOUR + timedelta(seconds=second)
    return Attempt(
        vantage="lagos",
        target="acme",
        probe="short",
        probe_version=SERIES.probe.version,
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
        timeline=Timeline({**marks, Mark.LAST_TOKEN: ttft_ns + 900 * MS, Mark.END: ttft_ns + 901 * MS}),
        gaps=Gaps(0.01, 0.02, 0.35, 0, 0.0),
        tokens=Tokens(output=10, input=5),
        tcp=TcpFacts(min_rtt=0.08),
    )


@pytest.fixture
def filled(store: Engine) -> Engine:
    """An hour of a hundred attempts of one series, rolled up."""
    chance = random.Random(7)
    batch = [attempt(second * 30, round(chance.lognormvariate(-1, 0.5) * 1e9)) for second in range(100)]
    attempts.insert(store, [SERIES], batch, HOUR)
    rollups.refresh(store, HOUR + timedelta(hours=2))
    return store


def ask(store: Engine, query: str, **values: object) -> list[dict[str, object]]:
    with store.connect() as connection:
        return [dict(row) for row in connection.execute(text(query), values).mappings()]


def test_a_bin_stands_for_the_same_seconds_in_sql(store: Engine) -> None:
    """`bin_seconds` is `histogram.seconds_of`, for every bin up to ten minutes."""
    rows = ask(store, "SELECT n, bin_seconds(n::smallint) AS seconds FROM generate_series(0, 700) AS n")
    assert [row["seconds"] for row in rows] == pytest.approx([seconds_of(int(str(row["n"]))) for row in rows], rel=1e-9)


def test_the_floor_is_light_in_fibre_over_the_great_circle(filled: Engine) -> None:
    """Lagos to London is 5,002 km on the ellipsoid, the sphere is within 0.6 % of it; both ways at c / 1.468."""
    fact = ask(filled, "SELECT distance_km, floor_seconds FROM series_facts")[0]
    assert fact["distance_km"] == pytest.approx(5002, rel=0.006)
    assert fact["floor_seconds"] == pytest.approx(2 * float(str(fact["distance_km"])) / (299792.458 / 1.468))


def test_places_without_coordinates_have_no_floor(store: Engine) -> None:
    """What is not known is null, not 0."""
    unknown = Series(vantage=Vantage(name="lagos"), target=SERIES.target, probe=SERIES.probe)
    attempts.insert(store, [unknown], [attempt(0, MS)], HOUR)
    fact = ask(store, "SELECT distance_km, floor_seconds FROM series_facts")[0]
    assert fact == {"distance_km": None, "floor_seconds": None}


def test_percentiles_of_panels_are_those_of_the_product(filled: Engine) -> None:
    """The SQL of a panel and `rollups.percentiles` give the same numbers from the same bins."""
    asking = Asking(boards()["geography"], HOUR + timedelta(hours=1))
    query = next(one for one in asking.queries("grafana-postgresql-datasource") if "p50 and p95" in one.where)
    with filled.connect() as connection:
        found = {str(row.metric): row.value for row in connection.exec_driver_sql(query.text.replace("%", "%%"))}
    own = rollups.percentiles(filled, "ttft", HOUR, HOUR + timedelta(hours=1), [0.5, 0.95], by="vantage")
    wanted = [percentile and percentile.seconds for percentile in own["lagos",]]
    assert [found["lagos p50"], found["lagos p95"]] == pytest.approx(wanted)


def test_facts_that_are_no_marks_are_rolled_up_too(filled: Engine) -> None:
    """Round trip, longest pause and time of a token, within the bins' error of what the attempts say."""
    expected = {"rtt": 0.08, "gap": 0.35, "token": 1 / (tokens_per_second(attempt(0, MS)) or 0)}
    for measure, seconds in expected.items():
        found = rollups.percentiles(filled, measure, HOUR, HOUR + timedelta(hours=1), [0.5], by="all")[()][0]
        assert found is not None
        assert found.seconds == pytest.approx(seconds, rel=RELATIVE_ERROR)
        assert not found.at_least
