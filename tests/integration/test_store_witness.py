"""What was seen of neutral endpoints: stored once, read back exactly, forgotten in time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from monitor.detect.line import LineState, line
from monitor.model import Doubt, Failure, FailureKind, Place, Vantage
from monitor.store import retention, witness
from monitor.timeline import Phase
from monitor.witness import Sighting

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LAGOS = Vantage(name="lagos", place=Place(city="Lagos", country="NG"), network="MTN")
SECONDS = {Phase.RESOLVE: 0.001234567, Phase.CONNECT: 0.105, Phase.TLS: 0.21}
DEAD = Failure(kind=FailureKind.CONNECT_TIMEOUT, phase=Phase.TLS, text="no answer")


def sighting(endpoint: str = "near", ago: float = 1, **more: object) -> Sighting:
    made = Sighting(
        vantage="lagos",
        endpoint=endpoint,
        address=f"tls://{endpoint}.example:443",
        started_at=NOW - ago * MINUTE,
        seconds=SECONDS,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def test_the_same_comes_back(store: Engine) -> None:
    """Everything a look says is in the record, times to the microsecond and durations exactly."""
    given = [
        sighting(ago=3),
        sighting(ago=2, seconds={Phase.CONNECT: 0.1}, failure=DEAD, validity=(Doubt.CPU_STEAL, Doubt.CLOCK_STEP)),
        sighting("resolver", ago=1, seconds={Phase.RESOLVE: 0.02}),
        sighting("gone", ago=0.5, seconds={}, failure=DEAD),
    ]
    assert witness.insert(store, "lagos", given, NOW).new == 4
    assert witness.between(store, "lagos", NOW - 10 * MINUTE, NOW) == given
    assert witness.between(store, "london", NOW - 10 * MINUTE, NOW) == []


def test_twice_is_once(store: Engine) -> None:
    """A look that is delivered again, alone or beside others, changes nothing."""
    assert witness.insert(store, "lagos", [sighting(), sighting()], NOW).new == 1
    again = witness.insert(store, "lagos", [sighting(), sighting(ago=2)], NOW + MINUTE)
    assert (again.new, again.refused) == (1, [])
    assert len(witness.between(store, "lagos", NOW - 10 * MINUTE, NOW)) == 2


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (sighting(vantage="london"), "london"),
        (sighting(ago=-3 * 24 * 60), "future"),
        (sighting(ago=31 * 24 * 60), "older than the 30 days"),
    ],
)
def test_what_is_not_believed(store: Engine, wrong: Sighting, why: str) -> None:
    """Another vantage point's, and those of a wrong clock, are refused one by one; the others are kept."""
    done = witness.insert(store, "lagos", [wrong, sighting()], NOW)
    ((refused, reason),) = done.refused
    assert refused == wrong
    assert why in reason
    assert done.new == 1


def test_newest_of_each(store: Engine) -> None:
    """The last look of each vantage point at each endpoint, and nothing that is too old."""
    witness.insert(store, "lagos", [sighting(ago=ago) for ago in (1, 2, 3)] + [sighting("far", ago=9)], NOW)
    witness.insert(store, "london", [sighting(vantage="london", ago=2)], NOW)
    newest = witness.newest(store, ["lagos", "london"], NOW - 5 * MINUTE)
    assert [(one.vantage, one.endpoint, one.started_at) for one in sorted(newest, key=lambda one: one.vantage)] == [
        ("lagos", "near", NOW - MINUTE),
        ("london", "near", NOW - 2 * MINUTE),
    ]
    assert witness.newest(store, ["nowhere"], NOW - 5 * MINUTE) == []


def test_raw_days_bound_it(store: Engine) -> None:
    """What is older than single attempts are kept goes with the sweep; the rest stays."""
    witness.insert(store, "lagos", [sighting(ago=day * 24 * 60) for day in (1, 5, 20)], NOW)
    retention.sweep(store, NOW, retention.Policy(raw_days=10))
    assert len(witness.between(store, "lagos", NOW - timedelta(days=40), NOW)) == 2


def test_a_reader_sees_it_by_name(store: Engine) -> None:
    """Dashboards' role reads the view `sightings`, with the vantage point's place, and not the table."""
    witness.insert(store, "lagos", [sighting(), sighting("far", failure=DEAD)], NOW, known=LAGOS)
    with store.connect() as connection:
        connection.execute(text("SET ROLE firsttoken_reader"))
        rows = connection.execute(text("SELECT * FROM sightings ORDER BY endpoint DESC")).mappings().all()
    near, far = rows
    assert (near["vantage"], near["city"], near["country"], near["network"]) == ("lagos", "Lagos", "NG", "MTN")
    assert (near["up"], near["valid"], near["seconds"]) == (True, True, pytest.approx(sum(SECONDS.values())))
    assert (far["up"], far["failure_kind"]) == (False, "connect_timeout")
    with store.connect() as connection:
        connection.execute(text("SET ROLE firsttoken_reader"))
        with pytest.raises(Exception, match="permission denied"):
            connection.execute(text("SELECT * FROM witness"))


def test_the_line_is_judged_from_the_record(store: Engine) -> None:
    """What is read back says what was seen: a line that went down five minutes ago."""
    looks = [
        sighting(name, ago=ago + 0.1, **({"failure": DEAD, "seconds": {}} if ago < 5 else {}))
        for name in ("a", "b", "c")
        for ago in range(30)
    ]
    witness.insert(store, "lagos", looks, NOW)
    found = line(witness.between(store, "lagos", NOW - timedelta(days=1), NOW), NOW)
    assert (found.state, found.since) == (LineState.DOWN, NOW - 4.1 * MINUTE)
