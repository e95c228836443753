"""Is anything wrong, where, since when: pure functions over a `View`.

The rule for a slow first token is plain on purpose: more than three times the recent median of the same series, and
more than 0.3 s above it. It is a hint for a reader; whether it was a cold start is a verdict of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from statistics import median

from monitor.detect.coldstart import Judgement
from monitor.hub.live import PER_SERIES, AttemptKey, View
from monitor.hub.rows import MISSED, duration, iso
from monitor.model import HARMLESS_DOUBTS, Attempt, Outcome, Series, SeriesKey, VerdictKind
from monitor.timeline import Mark

RECENT = 20
ENOUGH = 2
"""Earlier successes that a comparison needs: few, so that a cold start in the first minutes shows."""
DOUBTS_IN_A_ROW = 3
SLOW_FACTOR = 3.0
SLOW_SECONDS = 0.3

Part = str | dict[str, str]
"""A piece of a sentence: text, or {"at": instant} that the page writes in its reader's time zone."""


class State(StrEnum):
    """How a series, or one attempt of it, stands."""

    OK = "ok"
    COLD = "cold"  # it waited for the model to be loaded
    SLOW = "slow"
    FAILED = "failed"
    MISSED = "missed"
    DOUBT = "doubt"
    SILENT = "silent"  # series only: attempts were due and none came
    WAITING = "waiting"  # series only: no attempt yet


NO_VERDICTS: Mapping[AttemptKey, Judgement] = {}
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
BAD = frozenset({State.FAILED, State.SILENT})
GOOD = frozenset({State.OK, State.WAITING})


@dataclass(frozen=True, slots=True)
class Judged:
    """One attempt with its state, and the median of the successes before it that it was compared with."""

    attempt: Attempt
    state: State
    median: float | None
    judgement: Judgement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One series at a glance."""

    series: Series
    state: State
    words: str
    doubt: str | None  # about the last measurement, beside a state that it does not change
    since: datetime | None
    at_least: bool  # it may have begun before `since`
    run: int  # how many attempts in a row ended like the last one
    judged: Sequence[Judged]  # planned attempts, oldest first
    median: float | None
    next_at: datetime | None

    @property
    def last_ttft(self) -> float | None:
        """TTFT of the newest success, seconds."""
        return next((one.attempt.timeline.ttft for one in reversed(self.judged) if _counts(one.attempt)), None)


def judge(attempts: Sequence[Attempt], verdicts: Mapping[AttemptKey, Judgement] = NO_VERDICTS) -> list[Judged]:
    """Every attempt of one series (oldest first) with its state; each is compared with those before it only."""
    judged, earlier = [], list[float]()
    for attempt in attempts:
        usual = median(earlier[-RECENT:]) if len(earlier) >= ENOUGH else None
        found = verdicts.get(attempt.key)
        judged.append(Judged(attempt, _state(attempt, usual, found), usual, found))
        if _counts(attempt) and attempt.valid and attempt.try_number == 0 and attempt.timeline.ttft is not None:
            earlier.append(attempt.timeline.ttft)
    return judged


def is_slow(ttft: float, usual: float) -> bool:
    """The plain rule, seconds."""
    return ttft > max(SLOW_FACTOR * usual, usual + SLOW_SECONDS)


def cells(view: View, judged: Mapping[SeriesKey, Sequence[Judged]]) -> list[Cell]:
    """One cell for each configured series, in the order of the configuration."""
    planned = {key: [one for one in several if not one.attempt.try_number] for key, several in judged.items()}
    return [_cell(view, series, planned[series.key]) for series in view.series]


def idle_gaps(view: View) -> dict[tuple[object, ...], float]:
    """Seconds for which nobody had asked the target before each attempt (by its key): over all vantage points."""
    by_target: dict[str, list[Attempt]] = defaultdict(list)
    for attempts in view.attempts.values():
        for attempt in attempts:
            if Mark.SEND_START in attempt.timeline.marks:
                by_target[attempt.target].append(attempt)
    gaps: dict[tuple[object, ...], float] = {}
    for asked in by_target.values():
        gaps.update(_idle(sorted(asked, key=lambda one: one.started_at)))
    return gaps


def headline(all_cells: Sequence[Cell], view: View) -> tuple[str, list[Part]]:
    """(level, sentence): level is `good`, `warn`, `bad` or `none` (nothing measured yet)."""
    if view.store_error is not None and view.refreshed_at is None:
        return "bad", ["What was measured cannot be read: the database does not answer."]
    if not all_cells:
        return "none", ["No series is configured: nothing is measured."]
    bad = [cell for cell in all_cells if cell.state in BAD]
    odd = [cell for cell in all_cells if cell.state not in BAD | GOOD and not _is_passing_doubt(cell)]
    if bad or odd:
        return ("bad", _trouble(bad, all_cells)) if bad else ("warn", _trouble(odd, all_cells))
    waiting = [cell for cell in all_cells if cell.state is State.WAITING]
    if len(waiting) == len(all_cells):
        return "none", ["No attempt yet", *_first_due(waiting, view.now)]
    return "good", [_all_well(all_cells, len(waiting))]


def _is_passing_doubt(cell: Cell) -> bool:
    """One doubtful measurement says nothing about a target; several in a row mean that the agent needs a look."""
    return cell.state is State.DOUBT and cell.run < DOUBTS_IN_A_ROW


def _state(attempt: Attempt, usual: float | None, found: Judgement | None) -> State:
    if attempt.outcome is Outcome.MISSED:
        return State.MISSED
    if attempt.outcome is Outcome.FAILED:
        return State.FAILED
    if found is not None and found.verdict.kind is VerdictKind.COLD:
        return State.COLD
    if not attempt.valid:
        return State.DOUBT
    ttft = attempt.timeline.ttft
    return State.SLOW if ttft is not None and usual is not None and is_slow(ttft, usual) else State.OK


def _counts(attempt: Attempt) -> bool:
    return attempt.outcome is Outcome.SUCCESS


def _cell(view: View, series: Series, judged: Sequence[Judged]) -> Cell:
    key = series.key
    state, since, run = _standing(view.seen_at, series, judged)
    at_least = state is not State.SILENT and _reaches_back(judged) and len(view.attempts[key]) >= PER_SERIES
    if state is State.FAILED and at_least and key in view.failing_since:
        since, certain = view.failing_since[key]
        at_least = not certain
    times = [one.attempt.timeline.ttft for one in judged if _counts(one.attempt) and one.attempt.valid]
    known = [ttft for ttft in times if ttft is not None]
    return Cell(
        series=series,
        state=state,
        words=_words(state, judged, view.seen_at),
        doubt=_doubt(state, judged),
        since=since,
        at_least=at_least,
        run=run,
        judged=judged,
        median=median(known[-RECENT:]) if known else None,
        next_at=view.next_slot.get(key),
    )


def _standing(now: datetime, series: Series, judged: Sequence[Judged]) -> tuple[State, datetime | None, int]:
    """(state, since when, attempts in a row like the last one)."""
    if not judged:
        return State.WAITING, None, 0
    last = judged[-1]
    patience = timedelta(seconds=3 * series.probe.interval_seconds + series.probe.deadline_seconds)
    if now - last.attempt.scheduled_at > patience:
        return State.SILENT, last.attempt.scheduled_at, 0
    passed = takewhile(lambda one: one.state in _through(last.state), reversed(judged))
    run = [one for one in passed if one.state is last.state]
    return last.state, run[-1].attempt.started_at, len(run)


def _through(state: State) -> set[State]:
    """The states over which one that stands now goes back: a gap ends no outage."""
    return {state, State.MISSED} if state is State.FAILED else {state}


def _reaches_back(judged: Sequence[Judged]) -> bool:
    """Whether nothing that is kept came before the state of now."""
    return bool(judged) and {one.state for one in judged} <= _through(judged[-1].state)


def _words(state: State, judged: Sequence[Judged], now: datetime) -> str:
    if not judged:
        return "no attempt yet"
    last = judged[-1].attempt
    if state is State.SILENT:
        return f"silent for {duration((now - last.scheduled_at).total_seconds())}"
    if state is State.FAILED and last.failure is not None:
        kind, phase = last.failure.kind.replace("_", " "), last.failure.phase
        return f"failing: {kind}" if kind.startswith(phase) else f"failing: {kind} in {phase}"
    if state is State.MISSED:
        return f"not measured: {MISSED[last.missed]}" if last.missed else "not measured"
    return {State.SLOW: "slow first token", State.COLD: "cold start"}.get(state, "answers")


def _doubt(state: State, judged: Sequence[Judged]) -> str | None:
    if state is not State.DOUBT:
        return None
    reason = next(doubt for doubt in judged[-1].attempt.validity if doubt not in HARMLESS_DOUBTS)
    return f"measurement in doubt: {reason.replace('_', ' ')}"


def _idle(asked: Sequence[Attempt]) -> Iterator[tuple[tuple[object, ...], float]]:
    busy_until: datetime | None = None
    for attempt in asked:
        if busy_until is not None:
            yield attempt.key, max(0.0, (attempt.started_at - busy_until).total_seconds())
        ended = attempt.started_at + timedelta(microseconds=attempt.timeline.lasted_ns // 1000)
        busy_until = ended if busy_until is None else max(busy_until, ended)


def _trouble(troubled: Sequence[Cell], all_cells: Sequence[Cell]) -> list[Part]:
    """What, where, since when: of all of them where one phrase covers them, else of the one that began last."""
    alike = len({cell.state for cell in troubled}) == 1 or troubled[0].state in BAD
    scope = _scope(troubled, all_cells) if alike else None
    newest = max(troubled, key=lambda cell: cell.since or _LONG_AGO)
    if scope is not None:
        oldest = min(troubled, key=lambda cell: cell.since or _LONG_AGO)
        return [scope, *_phrase(oldest), "."]
    more = len(troubled) - 1
    rest = f"; {more} more {'needs' if more == 1 else 'need'} a look." if more else "."
    return [_name(newest), *_phrase(newest), rest]


def _phrase(cell: Cell) -> list[Part]:
    """The predicate of a sentence about a series in trouble."""
    began: Part = {"at": iso(cell.since)} if cell.since else "an unknown time"
    since = "since at least " if cell.at_least else "since "
    if cell.state is State.SILENT:
        return [" has been silent since ", began]
    if cell.state is State.MISSED:
        return [f" has not been measured {since}", began]
    if cell.state is State.DOUBT:
        return [f" has given doubtful measurements {since}", began]
    if cell.state in (State.SLOW, State.COLD):
        usual, what = cell.judged[-1].median, "slow first token" if cell.state is State.SLOW else "cold start"
        compared = f", usually {duration(usual)}" if usual is not None else ""
        return [f" had a {what} at ", began, f" ({duration(cell.last_ttft or 0.0)}{compared})"]
    failure = cell.judged[-1].attempt.failure
    kind = failure.kind.replace("_", " ") if failure else "unknown"
    if cell.run < 2:
        return [" failed at ", began, f" ({kind})"]
    times = f"{cell.run} times or more" if _reaches_back(cell.judged) else f"{cell.run} times in a row"
    return [f" has failed {since}", began, f" ({kind}, {times})"]


def _scope(troubled: Sequence[Cell], all_cells: Sequence[Cell]) -> str | None:
    """The one sentence that covers all of them: everything, everything from one place, one target from everywhere."""
    chosen = {cell.series.key for cell in troubled}
    if len(chosen) == len(all_cells) > 1:
        return "Everything from every vantage point"
    for position, sentence in ((0, "Everything from {}"), (1, "{} from every vantage point")):
        names = {key[position] for key in chosen}
        whole = {cell.series.key for cell in all_cells if cell.series.key[position] in names}
        if len(names) == 1 and whole == chosen and len(whole) > 1:
            return sentence.format(names.pop())
    return None


def _name(cell: Cell) -> str:
    return f"{cell.series.target.name} from {cell.series.vantage.name}"


def _first_due(waiting: Sequence[Cell], now: datetime) -> list[Part]:
    due = min((cell.next_at for cell in waiting if cell.next_at), default=None)
    if due is None:
        return ["."]
    return ["; the first slot is due in ", {"until": iso(max(due, now))}, "."]


def _all_well(all_cells: Sequence[Cell], waiting: int) -> str:
    measured = [cell.median for cell in all_cells if cell.median is not None]
    usual = f"; the median first token takes {duration(median(measured))}" if measured else ""
    some = f"{len(all_cells) - waiting} of {len(all_cells)}" if waiting else f"All {len(all_cells)}"
    rest = f" {waiting} {'waits' if waiting == 1 else 'wait'} for a first attempt." if waiting else ""
    return f"{some} series answer{usual}.{rest}"
