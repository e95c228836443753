"""The definitions of every duration: absent where not reached; phases and remainder are the total."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.timeline import Gaps, Mark, Phase, Timeline, gaps, nearest_rank

MS = 1_000_000
WHOLE = Timeline(
    {
        Mark.RESOLVE_START: 1 * MS,
        Mark.RESOLVE_END: 11 * MS,
        Mark.CONNECT_START: 12 * MS,
        Mark.CONNECT_END: 117 * MS,
        Mark.TLS_START: 118 * MS,
        Mark.TLS_END: 223 * MS,
        Mark.SEND_START: 224 * MS,
        Mark.SEND_END: 225 * MS,
        Mark.HEADERS: 525 * MS,
        Mark.FIRST_TOKEN: 700 * MS,
        Mark.FIRST_VISIBLE: 900 * MS,
        Mark.END: 1500 * MS,
        Mark.CONTROL_SENT: 1600 * MS,
        Mark.CONTROL_HEADERS: 1710 * MS,
    }
)


def test_every_duration_of_a_whole_attempt():
    """Each phase between its two marks, ttft and ttfo from the start, control outside the total."""
    phases = {phase: WHOLE.phase(phase) for phase in Phase}
    assert phases == {
        Phase.RESOLVE: 0.010,
        Phase.CONNECT: 0.105,
        Phase.TLS: 0.105,
        Phase.SEND: 0.001,
        Phase.WAIT: 0.300,
        Phase.GENERATE: 0.975,
    }
    assert (WHOLE.ttft, WHOLE.ttfo, WHOLE.total, WHOLE.control) == (0.7, 0.9, 1.5, 0.11)
    assert WHOLE.remainder_ns == 4 * MS
    assert WHOLE.reached() is Phase.GENERATE


def test_what_did_not_happen_is_absent():
    """A reused plain connection that died waiting: only `send`, no total; it lasted all the same."""
    line = Timeline({Mark.SEND_START: 0, Mark.SEND_END: MS, Mark.GAVE_UP: 30_000 * MS})
    assert [line.phase(p) for p in (Phase.RESOLVE, Phase.CONNECT, Phase.TLS, Phase.WAIT, Phase.GENERATE)] == [None] * 5
    assert (line.ttft, line.ttfo, line.total, line.remainder_ns, line.control) == (None,) * 5
    assert line.lasted_ns == 30_000 * MS
    assert line.reached() is Phase.WAIT
    assert Timeline().reached() is Phase.RESOLVE


@given(st.lists(st.integers(0, 10**12), min_size=12, max_size=12))
def test_phases_and_remainder_are_the_total(instants):
    """To the nanosecond, wherever the marks lie."""
    marks = list(Mark)[: list(Mark).index(Mark.HEADERS) + 1]
    line = Timeline({**dict(zip(marks, sorted(instants), strict=False)), Mark.END: max(instants)})
    assert sum(line.phase_ns(p) or 0 for p in Phase) + line.remainder_ns == line.total_ns


@pytest.mark.parametrize(
    ("ordered", "share", "expected"),
    [
        ([10, 20, 30], 0.50, 20),
        ([10, 20, 30, 40], 0.50, 20),  # the smallest with at least half at or below it
        (list(range(1, 101)), 0.95, 95),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 42)), 0.95, 39),  # 38.95 is rounded up: 38 would leave more than five in a hundred above
        ([7], 0.95, 7),
        ([1, 2], 0.95, 2),
        ([1, 2], 0.0, 1),
    ],
)
def test_percentiles_are_nearest_rank(ordered, share, expected):
    """The textbook's nearest rank, rounded up."""
    assert nearest_rank(ordered, share) == expected


def test_gaps_of_an_even_stream():
    """Three steps of 20 ms: no stall, nothing came together."""
    assert gaps([0, 20 * MS, 40 * MS, 60 * MS]) == Gaps(0.02, 0.02, 0.02, 0, 0.0)


def test_tokens_that_came_together_are_one_arrival():
    """Two of four steps were none: they count into the burst share and make no gap; a second is a stall."""
    assert gaps([0, 100, 20 * MS, 20 * MS + 100, 1020 * MS]) == Gaps(0.02, 1.0, 1.0, 1, 0.5)


def test_all_at_once_has_no_gaps():
    """Behind a buffer: a share of 1, and nothing invented."""
    assert gaps([5, 6, 7]) == Gaps(None, None, None, 0, 1.0)
    assert gaps([5]) is None
    assert gaps([]) is None
