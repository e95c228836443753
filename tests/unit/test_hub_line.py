"""What an agent concludes from a hub's clock and from its silence."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from monitor.agent.hub_client import Beat
from monitor.agent.hub_line import HubLine, corrected
from monitor.model import StoreRefuses, StoreUnavailable


@pytest.mark.parametrize(
    ("before", "offset", "error", "after"),
    [
        (0.0, 0.0, 0.1, 0.0),
        (0.0, 1.9, 0.0, 0.0),  # drifting, not wrong
        (0.0, 3.0, 0.1, -3.0),
        (0.0, -7200.0, 0.1, 7200.0),
        (0.0, 3.0, 5.0, 0.0),  # too slow an answer to know
        (-5.0, 5.0, 4.0, -5.0),  # a slow answer takes no correction away
        (-5.0, 5.0, 0.1, -5.0),
        (-5.0, 6.5, 0.1, -5.0),  # near enough
        (-5.0, 9.0, 0.1, -9.0),  # it stepped again
        (-5.0, 0.0, 0.1, 0.0),  # somebody put it right
        (-5.0, 0.0, 20.0, -5.0),
        (2.5, -0.4, 0.0, 0.0),
    ],
)
def test_a_clock_is_corrected_when_it_is_certainly_wrong(
    before: float, offset: float, error: float, after: float
) -> None:
    """By what the hub's clock says, within what its answer's time leaves open; what holds is not touched."""
    assert corrected(before, Beat(None, offset, error)) == after


def said(calls: list[Exception | None], *, silent: bool = False, patient: bool = False) -> list[tuple[str, str]]:
    line = HubLine()
    with capture_logs() as lines:
        for error in calls:
            if error is None:
                line.answers()
            else:
                assert isinstance(error, StoreUnavailable)
                line.fails(error, silent=silent, patient=patient)
                assert line.trouble == str(error)
    return [(one["log_level"], one.get("cause", "")) for one in lines]


AWAY, TOO, BAD = StoreUnavailable("refused"), StoreUnavailable("timed out"), StoreRefuses("bad token")


def test_a_silent_hub_is_said_once() -> None:
    """Until it answers; whatever the reasons of single questions are."""
    assert said([AWAY, TOO, AWAY]) == [("warning", "refused")]
    assert said([AWAY, None, None, TOO]) == [("warning", "refused"), ("info", ""), ("warning", "timed out")]


def test_what_somebody_must_act_on_is_said_by_itself() -> None:
    """Also while the hub was away before; again only when the reason is another one."""
    assert said([AWAY, BAD, BAD]) == [("warning", "refused"), ("error", "bad token")]
    assert said([BAD, StoreRefuses("old version")]) == [("error", "bad token"), ("error", "old version")]


def test_whoever_else_says_it_is_left_to_say_it() -> None:
    """The uplink speaks of deliveries; one lost heartbeat in between is nothing."""
    assert said([AWAY, BAD], silent=True) == []
    assert said([AWAY, None, AWAY], patient=True) == []
    assert said([AWAY, AWAY], patient=True) == [("warning", "refused")]
