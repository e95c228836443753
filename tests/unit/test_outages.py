"""What the log says of failing series."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from monitor.cli.outages import QUIET_SECONDS, Outages
from monitor.clock import ManualClock
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
from monitor.timeline import Phase, Timeline

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SERIES = Series(
    vantage=Vantage(name="here"),
    target=Target(name="chat", provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
    probe=Probe(name="short", prompt="Hi"),
)
FAILURE = Failure(kind=FailureKind.OVERLOADED, phase=Phase.WAIT, text="503: busy")


class Told:
    """Attempts ten seconds apart, and what the log says of them."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOON)
        self.outages = Outages(self.clock)

    def take(self, outcomes: str) -> list[dict[str, object]]:
        """`.` success, `x` failed, `-` missed."""
        with capture_logs() as lines:
            for letter in outcomes:
                self.clock.advance(10)
                self.outages.take(self._attempt(letter), SERIES)
        return list(lines)

    def _attempt(self, letter: str) -> Attempt:
        now = self.clock.now()
        return Attempt(
            vantage="here",
            target="chat",
            probe="short",
            probe_version="1",
            scheduled_at=now,
            started_at=now,
            outcome={".": Outcome.SUCCESS, "x": Outcome.FAILED, "-": Outcome.MISSED}[letter],
            failure=FAILURE if letter == "x" else None,
            missed=MissReason.LATE if letter == "-" else None,
            timeline=Timeline({}),
        )


def test_one_line_each_way_with_why_and_how_long() -> None:
    """Kind, phase and sentence when it begins; how long it was when it is over; nothing between."""
    begins, ends = Told().take("..xxx-xx..")
    assert (begins["log_level"], begins["kind"], begins["phase"], begins["cause"]) == (
        "warning", "overloaded", "wait", "503: busy",
    )  # fmt: skip
    assert (ends["log_level"], ends["after_seconds"], ends["failed"]) == ("info", 60, 5)


@pytest.mark.parametrize("pattern", ["x.", "xx...x"])
def test_a_series_that_comes_and_goes_does_not_fill_the_log(pattern: str) -> None:
    """At most one pair of lines every five minutes; what was left out is counted."""
    told = Told()
    lines = told.take(pattern * 100)
    minutes = len(pattern) * 1000 / 60
    assert len(lines) <= 2 * (minutes / (QUIET_SECONDS / 60) + 1)
    assert any(line.get("short_outages_not_said") for line in lines)


def test_an_outage_soon_after_another_is_said_once_it_lasts() -> None:
    """Quiet about blips does not hide an outage."""
    lines = Told().take("x." + "x" * (QUIET_SECONDS // 10 + 2))
    assert [line["log_level"] for line in lines] == ["warning", "info", "warning"]
    assert lines[-1]["since"] == (NOON + timedelta(seconds=30)).isoformat(timespec="seconds")
