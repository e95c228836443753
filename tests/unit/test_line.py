"""Whether a vantage point's line works: N of M, votes that expire, and slowness against its own normal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.detect.line import Line, LineState, line
from monitor.model import Doubt, Failure, FailureKind
from monitor.timeline import Phase
from monitor.witness import Sighting

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DEAD = Failure(kind=FailureKind.CONNECT_TIMEOUT, phase=Phase.CONNECT, text="no answer")
FIVE = ("a", "b", "c", "d", "e")


def look(endpoint: str, ago: float, seconds: float | None = 0.1, **more: object) -> Sighting:
    """One look some minutes ago; None: it failed."""
    failure = DEAD if seconds is None else None
    passed = {} if seconds is None else {Phase.CONNECT: seconds}
    return Sighting(
        vantage="lagos",
        endpoint=endpoint,
        address=str(more.pop("address", f"tcp://{endpoint}.example:443")),
        started_at=AT - ago * MINUTE,
        seconds=passed,
        failure=failure,
        **more,  # type: ignore[arg-type]
    )


def looks(endpoint: str, *newest_first: float | None, before: int = 60) -> list[Sighting]:
    """The newest looks of an endpoint, one a minute, and before them good ones of 100 ms."""
    told = [*newest_first, *[0.1] * before]
    return [look(endpoint, ago + 0.5, seconds) for ago, seconds in enumerate(told)]


def of(**endpoints: list[Sighting]) -> Line:
    return line([one for every in endpoints.values() for one in every], AT)


def test_all_is_well() -> None:
    """Every endpoint is reached as quickly as ever."""
    found = of(**{name: looks(name) for name in FIVE})
    assert found == Line(state=LineState.UP, voters=5)


@pytest.mark.parametrize(
    ("failing", "state"),
    list(enumerate([LineState.UP] * 3 + [LineState.DEGRADED] + [LineState.DOWN] * 2)),
)
def test_n_of_five(failing: int, state: LineState) -> None:
    """One stranger's machine may fail; most of them are the line."""
    dead = set(FIVE[:failing])
    found = of(**{name: looks(name, *([None, None] if name in dead else [])) for name in FIVE})
    assert found.state is state
    assert set(found.failing) == dead


def test_two_witnesses_must_agree() -> None:
    """Of two endpoints, one alone says nothing about the line."""
    assert of(a=looks("a", None, None), b=looks("b")).state is LineState.UP
    assert of(a=looks("a", None, None), b=looks("b", None, None)).state is LineState.DOWN


def test_a_single_failed_look_is_no_failure() -> None:
    """A lost packet happens: it takes two looks in a row."""
    assert of(**{name: looks(name, None) for name in FIVE}).state is LineState.UP


def test_one_witness_is_none() -> None:
    """With a single endpoint, or none, nothing is known."""
    assert of(a=looks("a", None, None)).state is LineState.UNKNOWN
    assert line([], AT) == Line(state=LineState.UNKNOWN)


def test_votes_expire() -> None:
    """Silence is neither good nor bad: an agent that was off is not a line that is down."""
    every = [one for name in FIVE for one in looks(name, None, None)]
    assert line(every, AT + 2 * MINUTE).state is LineState.DOWN
    assert line(every, AT + 4 * MINUTE).state is LineState.UNKNOWN
    assert line(every, AT + 4 * MINUTE, interval=5 * MINUTE).state is LineState.DOWN


def test_nobody_knows_the_future() -> None:
    """At an instant in the past, later looks count for nothing."""
    every = [one for name in FIVE for one in looks(name, None, None)]
    assert line(every, AT - 2 * MINUTE).state is LineState.UP


def test_since_when() -> None:
    """A line is down since the endpoint failed that made it enough."""
    found = of(a=looks("a", *[None] * 9), b=looks("b", *[None] * 5), c=looks("c", *[None] * 3))
    assert found.state is LineState.DOWN
    assert found.since == AT - 4.5 * MINUTE


def test_slower_than_usual() -> None:
    """Half of the endpoints at twice their own normal: degraded, and which ones is said."""
    slow = [0.2] * 5
    found = of(a=looks("a", *slow), b=looks("b", *slow), c=looks("c"), d=looks("d"))
    assert (found.state, found.slow) == (LineState.DEGRADED, ("a", "b"))
    assert of(a=looks("a", *slow), b=looks("b"), c=looks("c"), d=looks("d")).state is LineState.UP


def test_far_away_is_not_slow() -> None:
    """The normal is each endpoint's own: 400 ms are slow for one and usual for the other."""
    far = [look("far", ago + 0.5, 0.4) for ago in range(60)]
    assert of(far=far, near=looks("near")).state is LineState.UP


@pytest.mark.parametrize(("normal", "now", "state"), [(0.002, 0.02, LineState.UP), (1.0, 1.4, LineState.UP)])
def test_small_changes_are_none(normal: float, now: float, state: LineState) -> None:
    """It takes both a factor and an amount."""
    made = {name: [look(name, ago + 0.5, now if ago < 5 else normal) for ago in range(60)] for name in FIVE}
    assert of(**made).state is state


def test_one_outlier_is_none() -> None:
    """Medians, so that single slow looks count for nothing."""
    assert of(**{name: looks(name, 3.0, 0.1, 3.0, 0.1, 0.1) for name in FIVE}).state is LineState.UP


def test_without_a_past_nothing_is_slow() -> None:
    """A line that is measured for the first time has no normal."""
    assert of(**{name: looks(name, *[9.0] * 5, before=3) for name in FIVE}).state is LineState.UP


def test_doubtful_looks_do_not_count() -> None:
    """A machine without a processor sees dead lines everywhere."""
    dead = {name: [look(name, ago + 0.5, None, validity=(Doubt.CPU_THROTTLED,)) for ago in range(3)] for name in FIVE}
    assert of(**dead).state is LineState.UNKNOWN


def test_another_address_under_the_same_name() -> None:
    """What was looked at before a change of the configuration is no normal of what is looked at now."""
    moved = {
        name: [look(name, ago + 0.5, 0.4, address="tcp://far:1") for ago in range(5)]
        + [look(name, ago + 5.5) for ago in range(60)]
        for name in FIVE
    }
    assert of(**moved).state is LineState.UP


def test_a_name_alone_is_judged_by_its_lookup() -> None:
    """The lookup counts where it is all that is done, and nowhere else: its answer may come from a memory."""

    def asked(name: str, now: float, connect: float | None) -> list[Sighting]:
        rest = {} if connect is None else {Phase.CONNECT: connect}
        return [
            Sighting(
                vantage="lagos",
                endpoint=name,
                address="x",
                started_at=AT - (ago + 0.5) * MINUTE,
                seconds={Phase.RESOLVE: now if ago < 5 else 0.01, **rest},
            )
            for ago in range(60)
        ]

    assert of(a=asked("a", 0.5, None), b=asked("b", 0.5, None)).state is LineState.DEGRADED
    assert of(a=asked("a", 0.5, 0.1), b=asked("b", 0.5, 0.1)).state is LineState.UP


@given(
    st.lists(st.tuples(st.sampled_from(FIVE), st.floats(0, 20), st.one_of(st.none(), st.floats(0, 5)))), st.randoms()
)
def test_the_order_of_looks_does_not_matter(told: list[tuple[str, float, float | None]], random: object) -> None:
    """The same looks say the same, however they come."""
    told_looks = [look(name, ago, seconds) for name, ago, seconds in told]
    every = list({(one.endpoint, one.started_at): one for one in told_looks}.values())  # an instant has microseconds
    shuffled = every.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert line(every, AT) == line(shuffled, AT)
