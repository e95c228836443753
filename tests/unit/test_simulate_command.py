"""What `firsttoken simulate` prints is spelled as a scenario file spells it."""

from __future__ import annotations

from monitor.cli.simulate import told
from monitor.simulator.scenario import Change


def test_a_change_is_told_in_words_of_the_file() -> None:
    """`null` and `true`, not Python's words for them."""
    change = Change(model="m", after_seconds=5, set={"fault": None, "gzip": True, "tokens": 3})
    assert told(change) == "after 5 s m: fault = null, gzip = true, tokens = 3"
