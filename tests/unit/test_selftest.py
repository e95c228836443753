"""What `firsttoken selftest` says of its figures: no more than they show."""

from __future__ import annotations

from dataclasses import replace

from monitor.cli.accuracy import Summary
from monitor.cli.selftest import Case, Finding, advice, good, report

FIGURES = Summary(
    streams=40,
    ttft_p50=2e-5,
    ttft_p99=1e-4,
    ttft_worst=1e-4,
    sure_p99=1e-4,
    gaps_worst=1e-4,
    truth_width_p99=1e-5,
    coalesced_share=0.0,
    ttft_doubted_share=0.0,
    silently_wrong=0,
)
LATE = replace(FIGURES, sure_p99=0.012, silently_wrong=7)
KERNEL = Finding(Case("plain, kernel clock", "plain"), FIGURES, kernel_clock=True, doubts={})
USER = Finding(Case("plain, user clock", "plain", kernel_stamps=False), LATE, kernel_clock=False, doubts={})


def test_the_verdict_is_about_the_way_that_attempts_are_measured() -> None:
    """A user clock that was late changes nothing, and the object says which case is judged; a kernel clock does."""
    told = report([KERNEL, USER], [])
    assert told["good"] is True
    cases = told["cases"]
    assert isinstance(cases, list)
    assert [(case["judged"], case["acceptable"]) for case in cases] == [(True, True), (False, None)]
    wrong = [replace(KERNEL, summary=LATE), USER]
    assert not good(wrong)
    assert "please report this" in advice(wrong)[0]


def test_only_the_kernel_clock_is_said_to_tell_its_doubts() -> None:
    """The user clock's lateness is not told: the sentence about it says so."""
    with_stamps, without = advice([KERNEL, USER])
    assert "kernel" in with_stamps
    assert "in doubt" in with_stamps
    assert "does not say that it is late" in without
    no_stamps = advice([replace(KERNEL, kernel_clock=False), USER])
    assert not any("in doubt" in line for line in no_stamps)


def test_nothing_is_said_to_be_known_better_than_the_truth() -> None:
    """What lies within the simulator's own uncertainty is no error of zero: the sentence counts that in."""
    exact = replace(KERNEL, summary=replace(FIGURES, sure_p99=0.0))
    assert "right to 10 µs" in advice([exact, USER])[0]


def test_what_could_not_run_is_named() -> None:
    """A row that is missing is in the object."""
    assert report([KERNEL, USER], ["TLS, kernel clock"])["left_out"] == ["TLS, kernel clock"]
