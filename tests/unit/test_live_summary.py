"""Is anything wrong, where, since when: what the live page says of a state of affairs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from monitor.detect.coldstart import Judgement, Reason, Verdict
from monitor.hub import pages
from monitor.hub.live import PER_SERIES, View
from monitor.hub.rows import REASONS, bars, clipped, duration
from monitor.hub.summary import State, cells, headline, idle_gaps, is_slow, judge
from monitor.model import (
    Attempt,
    DialectName,
    Doubt,
    Failure,
    FailureKind,
    MissReason,
    Outcome,
    Probe,
    Series,
    Target,
    Vantage,
    VerdictKind,
)
from monitor.timeline import Mark, Phase, Timeline

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
MS = 1_000_000
PROBE = Probe(name="short", prompt="hello", interval_seconds=15.0, deadline_seconds=10.0)


def series(vantage: str, target: str) -> Series:
    start = Vantage(name=vantage, simulated=vantage == "lagos")
    aim = Target(name=target, provider="acme", model="small", dialect=DialectName.ANTHROPIC, url="http://x.test")
    return Series(vantage=start, target=aim, probe=PROBE)


ALL = [series(vantage, target) for target in ("chat", "code") for vantage in ("lagos", "london")]


def success(of: Series, slot: int, ttft_ms: int = 200, **changes: object) -> Attempt:
    at = START + timedelta(seconds=15 * slot)
    marks = {Mark.SEND_START: 0, Mark.HEADERS: ttft_ms, Mark.FIRST_TOKEN: ttft_ms, Mark.END: ttft_ms + 300}
    attempt = Attempt(
        vantage=of.vantage.name,
        target=of.target.name,
        probe=of.probe.name,
        probe_version="v",
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
        timeline=Timeline({mark: milliseconds * MS for mark, milliseconds in marks.items()}),
    )
    return replace(attempt, **changes)


def failed(of: Series, slot: int, kind: FailureKind = FailureKind.RATE_LIMITED) -> Attempt:
    failure = Failure(kind=kind, phase=Phase.WAIT, text="no")
    marks = Timeline({Mark.SEND_START: 0, Mark.SEND_END: MS, Mark.GAVE_UP: 400 * MS})
    return success(of, slot, outcome=Outcome.FAILED, failure=failure, timeline=marks)


def view(attempts: list[Attempt], slots: int = 10, **changes: object) -> View:
    by_key = {one.key: [a for a in attempts if (a.vantage, a.target, a.probe) == one.key] for one in ALL}
    now = START + timedelta(seconds=15 * slots)
    seen = View(now=now, series=tuple(ALL), attempts=by_key, next_slot={}, store_error=None, refreshed_at=now)
    return replace(seen, **changes)


def said(seen: View) -> tuple[str, str]:
    """Level and sentence, instants as hours and minutes."""
    judged = {key: judge(attempts, seen.verdicts) for key, attempts in seen.attempts.items()}
    level, parts = headline(cells(seen, judged), seen)
    words = [part if isinstance(part, str) else next(iter(part.values()))[11:19] for part in parts]
    return level, "".join(words)


def healthy(slots: int = 10, but: Series | None = None) -> list[Attempt]:
    return [success(one, slot) for one in ALL if one is not but for slot in range(slots)]


def test_all_well_is_said_in_one_sentence() -> None:
    """How many series answer, and how fast."""
    assert said(view(healthy())) == ("good", "All 4 series answer; the median first token takes 200 ms.")


def test_before_the_first_attempt_the_page_says_when_it_comes() -> None:
    """An empty state is explained."""
    seen = view([], 0, next_slot={ALL[0].key: START + timedelta(seconds=7)})
    assert said(seen) == ("none", "No attempt yet; the first slot is due in 12:00:07.")


def test_nothing_configured_is_said() -> None:
    """So that nobody waits in vain."""
    assert said(replace(view([]), series=(), attempts={})) == ("none", "No series is configured: nothing is measured.")


def test_one_failing_series_is_named_with_since_when_and_why() -> None:
    """What, where, since when."""
    broken = [success(ALL[0], slot) for slot in range(7)] + [failed(ALL[0], slot) for slot in (7, 8, 9)]
    level, words = said(view(healthy(but=ALL[0]) + broken))
    assert (level, words) == ("bad", "chat from lagos has failed since 12:01:45 (rate limited, 3 times in a row).")


def test_a_long_outage_is_told_with_its_true_beginning_or_as_at_least() -> None:
    """The oldest attempt that the page keeps is no beginning; a missed slot within it is none either."""
    lost = [failed(ALL[0], slot) for slot in range(PER_SERIES)]
    lost[20] = success(ALL[0], 20, outcome=Outcome.MISSED, missed=MissReason.LATE, timeline=Timeline())
    seen = view(healthy(PER_SERIES, but=ALL[0]) + lost, PER_SERIES)
    assert said(seen)[1].startswith("chat from lagos has failed since at least 12:00:00 (")
    began = datetime(2026, 1, 1, 3, 4, 5, tzinfo=UTC)
    known = replace(seen, failing_since={ALL[0].key: (began, True)})
    assert said(known)[1].startswith("chat from lagos has failed since 03:04:05 (")
    bounded = replace(seen, failing_since={ALL[0].key: (began, False)})
    assert said(bounded)[1].startswith("chat from lagos has failed since at least 03:04:05 (")


def test_a_place_from_which_everything_fails_is_blamed_as_a_whole() -> None:
    """A dead line is one thing, not one for each target."""
    attempts = [
        failed(one, slot) if one.vantage.name == "lagos" else success(one, slot) for one in ALL for slot in (8, 9)
    ]
    assert said(view(attempts))[1].startswith("Everything from lagos has failed since 12:02:00")


def test_a_target_that_fails_from_everywhere_is_blamed_as_a_whole() -> None:
    """A provider's trouble is told from a line's."""
    attempts = [
        failed(one, slot) if one.target.name == "chat" else success(one, slot) for one in ALL for slot in (8, 9)
    ]
    assert said(view(attempts))[1].startswith("chat from every vantage point has failed since")


def test_unrelated_troubles_are_counted() -> None:
    """The newest is named, the rest is counted."""
    attempts = [success(ALL[1], 9), success(ALL[2], 9), failed(ALL[0], 8), failed(ALL[0], 9), failed(ALL[3], 9)]
    level, words = said(view(attempts))
    assert level == "bad"
    assert words == "code from london failed at 12:02:15 (rate limited); 1 more needs a look."


def test_a_slow_first_token_is_a_warning_with_its_comparison() -> None:
    """Against the recent median of the same series."""
    slow = [success(ALL[0], slot, 900 if slot == 9 else 200) for slot in range(10)]
    level, words = said(view(healthy(but=ALL[0]) + slow))
    assert level == "warn"
    assert words == "chat from lagos had a slow first token at 12:02:15 (900 ms, usually 200 ms)."


def judged(
    attempt: Attempt, kind: VerdictKind, *reasons: Reason, penalty: float | None = None
) -> dict[tuple[str, datetime, str, str, int], Judgement]:
    verdict = Verdict(kind=kind, reasons=reasons, penalty_seconds=penalty)
    return {attempt.key: Judgement(key=attempt.key, verdict=verdict, idle_before=180.0)}


def row_of(seen: View, attempt: Attempt) -> dict[str, Any]:
    rows = json.loads(pages.live(seen, {}, pages.Choice(attempt.key[0:1] + attempt.key[2:4])))["attempts"]
    return dict(rows[0])


def test_a_cold_start_is_called_by_its_name() -> None:
    """Once the verdict is there; until then it is a slow first token."""
    cold = success(ALL[0], 9, 900)
    found = judged(cold, VerdictKind.COLD, Reason.SLOW_FIRST_TOKEN, Reason.CONFIRM_WARM, penalty=0.7)
    attempts = [*healthy(but=ALL[0]), *[success(ALL[0], slot) for slot in range(9)], cold]
    assert "had a slow first token" in said(view(attempts))[1]
    seen = view(attempts, verdicts=found)
    assert said(seen) == ("warn", "chat from lagos had a cold start at 12:02:15 (900 ms, usually 200 ms).")
    row = row_of(seen, cold)
    assert (row["state"], row["idle"], row["verdict"]["kind"], row["verdict"]["penalty"]) == ("cold", 180, "cold", 0.7)
    assert row["verdict"]["why"] == "far slower than the warm attempts before it, the second try was warm"


def test_a_slow_first_token_that_was_no_cold_start_stays_slow() -> None:
    """It is as slow for its users as before; the verdict says what it was not."""
    slow = success(ALL[0], 9, 900)
    attempts = [*healthy(but=ALL[0]), *[success(ALL[0], slot) for slot in range(9)], slow]
    seen = view(attempts, verdicts=judged(slow, VerdictKind.WARM, Reason.CONFIRM_SLOW))
    row = row_of(seen, slow)
    assert (row["state"], row["verdict"]["kind"]) == ("slow", "warm")
    assert "no cold start" in row["verdict"]["why"]


def test_a_loading_answer_is_a_failure_and_a_cold_start() -> None:
    """Its users were refused: the failure stays, the verdict stands beside it."""
    refused = failed(ALL[0], 9, FailureKind.LOADING)
    seen = view([refused], verdicts=judged(refused, VerdictKind.COLD, Reason.LOADING_ANSWER))
    row = row_of(seen, refused)
    assert (row["state"], row["verdict"]["kind"]) == ("failed", "cold")


def test_every_reason_has_words() -> None:
    """No verdict shows a code."""
    assert set(REASONS) == set(Reason)


def test_silence_is_trouble_after_three_intervals_and_a_deadline() -> None:
    """A series that stopped reporting does not look healthy for ever."""
    assert said(view(healthy(), 12))[0] == "good"
    level, words = said(view([success(ALL[0], 2), *healthy(20, but=ALL[0])], 20))
    assert (level, words) == ("bad", "chat from lagos has been silent since 12:00:30.")


def test_absence_while_the_store_is_away_is_no_silence() -> None:
    """What came later waits in a spool: its absence is not the targets' fault."""
    seen = view(healthy(), 400, store_error="refused", refreshed_at=START + timedelta(seconds=150))
    assert said(seen)[0] == "good"


def test_a_store_that_never_answered_is_the_headline() -> None:
    """Not "no attempt yet"."""
    assert said(view([], store_error="refused", refreshed_at=None))[0] == "bad"


def test_one_doubtful_measurement_is_no_news_and_three_are() -> None:
    """A doubt is about the agent, not about the target."""
    doubtful = [success(ALL[0], slot, validity=(Doubt.LOOP_LAG,)) for slot in range(10)]
    assert said(view([*healthy(but=ALL[0]), *(success(ALL[0], s) for s in range(9)), doubtful[9]]))[0] == "good"
    level, words = said(view(healthy(but=ALL[0]) + doubtful))
    assert (level, words) == ("warn", "chat from lagos has given doubtful measurements since 12:00:00.")


def test_a_doubt_stands_beside_the_answer_and_not_in_its_place() -> None:
    """On a busy machine the matrix still says that the target answers."""
    seen = view([success(ALL[0], slot, validity=(Doubt.LOOP_LAG,)) for slot in range(10)])
    cell = json.loads(pages.live(seen, {}))["cells"][0]
    assert (cell["state"], cell["words"], cell["doubt"]) == ("ok", "answers", "measurement in doubt: loop lag")


def test_what_the_process_has_to_say_is_a_notice() -> None:
    """Such as a refused configuration: it makes nothing on the page stale."""
    body = json.loads(pages.live(view(healthy(), notices=("The new configuration is refused.",)), {}))
    assert (body["notices"], body["stale"]) == ([["The new configuration is refused."]], False)


@pytest.mark.parametrize(
    ("ttft", "usual", "slow"),
    [(0.39, 0.1, False), (0.41, 0.1, True), (2.9, 1.0, False), (3.1, 1.0, True), (0.05, 0.001, False)],
)
def test_the_rule_for_slow_first_tokens(ttft: float, usual: float, slow: bool) -> None:
    """More than three times the median, and more than 0.3 s above it."""
    assert is_slow(ttft, usual) is slow


def test_an_attempt_is_compared_with_those_before_it_only() -> None:
    """A row on the page does not change its colour when later ones arrive; two are needed to compare."""
    judged = judge([success(ALL[0], slot, ttft) for slot, ttft in enumerate([900, 200, 200, 200, 900, 200, 1700])])
    assert [one.state for one in judged] == [*[State.OK] * 4, State.SLOW, State.OK, State.SLOW]
    assert [one.median for one in judged][:4] == [None, None, 0.55, 0.2]


def test_idleness_is_counted_over_all_vantage_points() -> None:
    """Probes keep a model warm for each other."""
    lagos, london = ALL[0], ALL[1]
    attempts = [success(lagos, 0), success(london, 2), success(lagos, 4)]
    gaps = idle_gaps(view(attempts))
    assert gaps == {attempts[1].key: 29.5, attempts[2].key: 29.5}


def test_idleness_is_none_while_another_attempt_runs() -> None:
    """And what never reached the target woke nobody."""
    long = success(ALL[0], 0, 60_000)
    dns = success(ALL[1], 1, timeline=Timeline({Mark.RESOLVE_START: 0, Mark.GAVE_UP: MS}))
    gaps = idle_gaps(view([long, success(ALL[0], 1), dns]))
    assert list(gaps.values()) == [0.0]


def test_a_failed_attempt_ends_in_the_phase_it_died_in() -> None:
    """The bar shows where, and for how long."""
    drawn = list(bars(failed(ALL[0], 0)))
    assert drawn[-1] == {"name": "wait", "start": 0.001, "seconds": 0.399, "died": True}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.000005, "5 µs"),
        (0.0001, "0.1 ms"),
        (0.0008, "0.8 ms"),
        (0.0421, "42 ms"),
        (0.9996, "1.00 s"),
        (1.342, "1.34 s"),
        (12.34, "12.3 s"),
        (59.96, "1 min"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations_read_well(seconds: float, words: str) -> None:
    """From microseconds to days, never "0.0 ms" or "60.0 s"."""
    assert duration(seconds) == words


def test_foreign_texts_are_bounded_and_plain() -> None:
    """Length and control characters of what a provider sent cannot spoil the page."""
    assert clipped("a\x00b\x1b[31mc\u202e") == "a b [31mc "
    assert clipped("x" * 1000) == "x" * 299 + "…"


def test_an_unchanged_state_is_the_same_bytes() -> None:
    """So that its ETag is the same, and polling costs next to nothing."""
    seen = view(healthy())
    later = replace(seen, now=seen.now + timedelta(seconds=3))
    assert pages.live(seen, {}) == pages.live(later, {})


def test_the_json_names_what_is_simulated_and_advises() -> None:
    """Each row and each cell says whether its series is simulated; a failure carries its advice."""
    seen = view([failed(ALL[0], 0), success(ALL[1], 1)], 1)
    body = json.loads(pages.live(seen, {"rate_limited": "Ask less often."}))
    assert {row["vantage"]: row["simulated"] for row in body["attempts"]} == {"lagos": True, "london": False}
    assert body["attempts"][1]["failure"]["advice"] == "Ask less often."
    assert body["attempts"][1]["state"] == "failed"


def test_the_list_can_be_narrowed_to_what_was_not_good() -> None:
    """A failure is not washed away by forty good attempts after it."""
    seen = view([*healthy(30, but=ALL[0]), failed(ALL[0], 0)], 30)
    assert "failed" not in {row["state"] for row in json.loads(pages.live(seen, {}))["attempts"]}
    rows = json.loads(pages.live(seen, {}, pages.Choice(trouble=True)))["attempts"]
    assert [row["state"] for row in rows] == ["failed"]


def test_missed_slots_say_why() -> None:
    """In the words of a sentence, not as a code."""
    missed = success(ALL[0], 0, outcome=Outcome.MISSED, missed=MissReason.BUDGET, timeline=Timeline())
    body = json.loads(pages.live(view([missed], 1), {}))
    assert body["attempts"][0]["missed"] == "the budget for this target is spent"
    assert body["cells"][0]["words"] == "not measured: the budget for this target is spent"


def test_the_list_can_be_narrowed_to_one_series_and_is_bounded() -> None:
    """What a reader chose in the matrix; never more than 40 rows."""
    seen = view(healthy(20), 20)
    assert len(json.loads(pages.live(seen, {}))["attempts"]) == 40
    chosen = json.loads(pages.live(seen, {}, pages.Choice(ALL[2].key)))["attempts"]
    assert {(row["vantage"], row["target"]) for row in chosen} == {("lagos", "code")}
    assert [row["at"] for row in chosen] == sorted((row["at"] for row in chosen), reverse=True)
