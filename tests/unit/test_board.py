"""What the terminal's live table shows of attempts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from monitor.cli.board import KEPT, LEGEND, Board, Pair
from monitor.model import (
    Attempt,
    DialectName,
    Failure,
    FailureKind,
    MissReason,
    Outcome,
    Probe,
    Series,
    Target,
    Vantage,
)
from monitor.timeline import NS, Mark, Phase, Timeline

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TARGET = Target(
    name="harbour", provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1", simulated=True
)
SERIES = [
    Series(vantage=Vantage(name=name, simulated=name != "here"), target=TARGET, probe=Probe(name="short", prompt="Hi"))
    for name in ("here", "lagos")
]


def attempt(ttft: float | None = 0.1, *, vantage: str = "here", failure: Failure | None = None) -> Attempt:
    marks = {} if ttft is None else {Mark.FIRST_TOKEN: round(ttft * NS), Mark.END: round(ttft * NS) + NS}
    return Attempt(
        vantage=vantage,
        target="harbour",
        probe="short",
        probe_version="1",
        scheduled_at=NOON,
        started_at=NOON,
        outcome=Outcome.FAILED if failure else Outcome.SUCCESS,
        failure=failure,
        timeline=Timeline(marks),
    )


def shown(board: Board, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - closed with the process
    console.print(board.render(width))
    return console.export_text()


def test_simulated_vantages_and_targets_say_so() -> None:
    """Whatever the simulator makes is labelled wherever it shows."""
    board = Board(SERIES, "http://127.0.0.1:1/")
    board.take(attempt(vantage="lagos"))
    text = shown(board)
    assert text.count("simulated") == 3  # the target, Lagos, and the line of the attempt
    assert "real" in text
    assert "http://127.0.0.1:1/" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_fits_the_terminal(width: int) -> None:
    """No line is wider than the terminal, however narrow."""
    board = Board(SERIES, "http://127.0.0.1:1/")
    for _ in range(2 * KEPT):
        board.take(attempt())
    assert max(len(line) for line in shown(board, width).splitlines()) <= width


def test_a_pair_compares_with_its_own_past() -> None:
    """An attempt is slow against the median of those before it, and memory is bounded."""
    pair = Pair()
    assert pair.state == "waiting"
    for _ in range(3 * KEPT):
        pair.attempts.append(attempt(0.1))
    assert (pair.state, pair.median, len(pair.attempts)) == ("ok", 0.1, KEPT)
    pair.attempts.append(attempt(0.9))
    assert pair.state == "slow"
    assert pair.spark(3) == "▁▁█"


def test_failures_show_kind_and_phase() -> None:
    """A failure is a kind in the table and a sentence in the line."""
    failure = Failure(kind=FailureKind.RATE_LIMITED, phase=Phase.WAIT, text="429: slow down")
    board = Board(SERIES, "http://127.0.0.1:1/")
    board.take(attempt(None, failure=failure))
    assert "failed in wait: rate_limited: 429: slow down" in board.line(attempt(None, failure=failure)).plain
    assert "rate_limited" in shown(board)


def test_missed_slots_and_strangers() -> None:
    """A missed slot says why; an attempt of an unknown series changes nothing."""
    missed = Attempt(
        vantage="here", target="harbour", probe="short", probe_version="1", scheduled_at=NOON, started_at=NOON,
        outcome=Outcome.MISSED, missed=MissReason.OVERLAP,
    )  # fmt: skip
    board = Board(SERIES, "http://127.0.0.1:1/")
    board.take(attempt(vantage="nowhere"))
    assert board.taken == 0
    assert board.line(missed).plain.endswith("missed (overlap)")


def test_a_slow_first_token_has_a_word_and_lines_are_in_time_order() -> None:
    """The marks are explained in one line; who ended later stands below, whichever came first."""
    board = Board(SERIES, "http://127.0.0.1:1/")
    for second in (2, 1):
        board.take(replace(attempt(), started_at=NOON + timedelta(seconds=second)))
    slow = replace(attempt(0.9), started_at=NOON)
    assert board.take(slow).startswith("slow, 9.0 x the usual")
    text = shown(board, 160)
    assert LEGEND in text
    assert text.index("12:00:01Z here") < text.index("12:00:02Z here") < text.index("12:00:03Z here")
    assert "12:00:01Z here -> harbour (simulated): slow, 9.0 x the usual" in text


def test_the_demo_s_table_fits_a_small_terminal() -> None:
    """Seven targets from four places, with what the signs mean, in 80 columns and 24 lines."""
    series = [
        replace(one, target=replace(TARGET, name=f"target{number}"), vantage=replace(one.vantage, name=name))
        for number in range(7)
        for name, one in zip(("here", "lagos", "london", "virginia"), (*SERIES, *SERIES), strict=True)
    ]
    text = shown(Board(series, "http://127.0.0.1:8765/"), 80)
    assert LEGEND in text
    assert len(text.splitlines()) < 24
