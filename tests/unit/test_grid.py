"""The grid of slots: spread, fair, the same on every machine, and counted without walking it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.grid import US, Grid, grid, microseconds, next_slot
from monitor.model import DialectName, Probe, Series, Target, Vantage

NOW = microseconds(datetime(2026, 3, 1, 12, tzinfo=UTC))
VANTAGES = ("lagos", "london", "virginia")
names = st.text("abcdefghij-", min_size=1, max_size=12)
vantage_sets = st.lists(names, min_size=1, max_size=9, unique=True)
intervals = st.one_of(st.floats(0.05, 2.0), st.floats(1.0, 86_400.0))
shares = st.floats(0.01, 0.99)


def series(vantage: str = "lagos", target: str = "t", interval: float = 60.0, deadline: float = 30.0) -> Series:
    return Series(
        vantage=Vantage(name=vantage),
        target=Target(name=target, provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
        probe=Probe(name="q", prompt="hi", interval_seconds=interval, deadline_seconds=deadline),
    )


def grids(vantages: list[str], target: str, interval: float, share: float) -> list[Grid]:
    return [grid(series(v, target, interval, interval * share), vantages) for v in vantages]


@given(vantage_sets, names, intervals, shares)
@settings(max_examples=60, deadline=None)
def test_each_vantage_owns_one_instant_of_each_window(vantages, target, interval, share):
    """Every (vantage, slot number) has exactly one instant, inside its window, shared with no other vantage."""
    lattices = grids(vantages, target, interval, share)
    for number in range(1000, 1000 + 2 * len(vantages)):
        instants = [one.instant_us(number) for one in lattices]
        begin = number * lattices[0].interval_us + lattices[0].offset_us
        assert all(begin <= at < begin + lattices[0].interval_us for at in instants)
        assert len(set(instants)) == len(vantages)


@given(vantage_sets, names, intervals, shares)
@settings(max_examples=60, deadline=None)
def test_each_vantage_goes_first_equally_often(vantages, target, interval, share):
    """Over as many windows as there are vantages each goes first once, and each last once."""
    lattices = grids(vantages, target, interval, share)
    windows = range(7, 7 + len(vantages))
    first = [min(lattices, key=lambda g: g.instant_us(number)).vantage for number in windows]
    last = [max(lattices, key=lambda g: g.instant_us(number)).vantage for number in windows]
    assert sorted(first) == sorted(last) == sorted(vantages)


@given(vantage_sets, names, intervals, shares)
@settings(max_examples=60, deadline=None)
def test_slots_of_a_series_keep_their_distance(vantages, target, interval, share):
    """Two slots of one series are never closer than the stated spacing, and that is above the deadline."""
    for lattice in grids(vantages, target, interval, share):
        instants = [lattice.instant_us(number) for number in range(50, 60 + len(vantages))]
        assert min(b - a for a, b in pairwise(instants)) >= lattice.spacing_us
        assert lattice.spacing_us >= round(interval * share * US)


@given(names, intervals, st.integers(0, 4 * 10**15))
@settings(max_examples=100, deadline=None)
def test_first_after_is_the_very_next_slot(target, interval, moment):
    """The first slot after an instant lies behind it, and the slot before does not."""
    lattice = grids(list(VANTAGES), target, interval, 0.5)[1]
    number = lattice.first_after(moment)
    assert lattice.instant_us(number - 1) <= moment < lattice.instant_us(number)


def test_the_grid_is_the_same_on_every_machine():
    """Instants are part of the contract between agents and hub: they may not change from version to version."""
    slots = [next_slot(series(v), VANTAGES, datetime(2026, 3, 1, 12, tzinfo=UTC)) for v in VANTAGES]
    told = [(slot.vantage, slot.scheduled_at.isoformat(), slot.number) for slot in slots]
    assert told == GOLDEN
    reordered = [next_slot(series(v), VANTAGES[::-1], datetime(2026, 3, 1, 12, tzinfo=UTC)) for v in VANTAGES]
    assert slots == reordered


GOLDEN = [
    ("lagos", "2026-03-01T12:00:30.467872+00:00", 29539440),
    ("london", "2026-03-01T12:00:00.467872+00:00", 29539440),
    ("virginia", "2026-03-01T12:00:15.467872+00:00", 29539440),
]


def test_targets_spread_over_the_interval():
    """A hundred targets at one a minute leave no quarter of the minute empty or crowded."""
    offsets = [grid(series(target=f"t{i}"), VANTAGES).offset_us for i in range(100)]
    quarters = [sum(q * 15 * US <= at < (q + 1) * 15 * US for at in offsets) for q in range(4)]
    assert all(10 <= n <= 45 for n in quarters)


def test_a_probe_of_one_vantage_is_not_rotated():
    """Where the probe selects its vantages, only those share the window: a single one has a steady rhythm."""
    alone = series()
    alone = Series(vantage=alone.vantage, target=alone.target, probe=Probe(name="q", prompt="hi", vantages=("lagos",)))
    lattice = grid(alone, VANTAGES)
    assert {lattice.instant_us(n + 1) - lattice.instant_us(n) for n in range(9)} == {60 * US}


moments = st.integers(1_700_000_000 * US, 1_800_000_000 * US)


@given(vantage_sets, names, st.floats(0.05, 900.0), shares, moments, st.floats(0, 200))
@settings(max_examples=100, deadline=None)
def test_counting_agrees_with_walking(vantages, target, interval, share, begin, windows):
    """The count of a half-open window is the number of instants in it, found one by one; so are the numbers."""
    for lattice in grids(vantages, target, interval, share)[:2]:
        end = begin + int(windows * lattice.interval_us)
        around = range(begin // lattice.interval_us - 3, end // lattice.interval_us + 4)
        walked = [number for number in around if begin <= lattice.instant_us(number) < end]
        assert list(lattice.numbers(begin, end)) == walked
        assert lattice.count(begin, end) == len(walked)
        assert lattice.total_us(lattice.numbers(begin, end)) == sum(map(lattice.instant_us, walked))


@given(vantage_sets, names, intervals, shares, moments)
@settings(max_examples=60, deadline=None)
def test_windows_that_touch_count_each_slot_once(vantages, target, interval, share, begin):
    """A slot on the border belongs to the window that begins there, and to no other; an empty window has none."""
    lattice = grids(vantages, target, interval, share)[0]
    border = lattice.instant_us(lattice.first_after(begin))
    assert lattice.count(border, border + 1) == 1
    assert lattice.count(border, border) == lattice.count(border, border - 5) == 0
    end = border + 7 * lattice.interval_us
    assert lattice.count(begin, border) + lattice.count(border, end) == lattice.count(begin, end)


@given(names, intervals, moments)
@settings(max_examples=60, deadline=None)
def test_an_instant_lies_in_its_own_window(target, interval, moment):
    """A planned instant leads back to its slot's number, and so does what lies a little behind it."""
    for lattice in grids(list(VANTAGES), target, interval, 0.5):
        number = lattice.first_after(moment)
        assert lattice.window_of(lattice.instant_us(number)) == number
        assert lattice.window_of(lattice.instant_us(number) + 99) == number
