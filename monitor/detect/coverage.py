"""What became of every slot that a plan owed: measured, or missed with exactly one cause. Nothing is counted twice.

Pure: plans, rows and notes go in, counts come out. Slots are numbers on a grid, so that whole ranges of them are told
apart without walking them. The rules, which docs/coverage.md explains to operators:

* A slot belongs to the hour in which its planned instant lies, and to the plan in force at that instant: the slots
  strictly behind a plan's `at`, up to and including the next plan's.
* A row (first try) answers for its slot: `success` and `failed` are measurements, `missed` names its reason. After a
  step of the clock backwards a grid is walked again, a few microseconds behind: such a row answers for the same slot,
  which is measured if any of its rows is. The rows beyond the first are `repeated`; rows that no plan owed are
  `unplanned`. Neither is part of what was owed.
* A slot without a row is explained by the most particular note: a gap of its series, else an outage, else a loss.
* A slot without row and note is `pending` (not owed yet) while it may still run, `unsent` while its agent may still
  have it, and `lost` when it will not come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from monitor.clock import wall_ns
from monitor.grid import US, Grid
from monitor.model import MissReason
from monitor.notes import GapNote, LossReason, LostNote, Note, OutageNote, OutageReason, PlanNote

HOUR_US = 3600 * US
REACH_US = 500
"""How far behind its slot a repetition may stand: below half of the shortest interval."""
GIVEN_UP_US = 7 * 24 * HOUR_US
"""What is that old and unaccounted for is lost: a spool keeps nothing longer unless it is told to (`max_age`)."""
UNSENT, LOST, OTHER = "unsent", "lost", "other"
CAUSES: tuple[str, ...] = (*MissReason, *OutageReason, *LossReason, UNSENT, LOST, OTHER)
"""Why a slot was missed (closed list); what an agent of another version says beyond it counts as `other`."""

Key = tuple[str, str]
"""(target, probe) at one vantage."""
AgentId = str


@dataclass(frozen=True, slots=True)
class Segment:
    """A grid while it was in force: the slots strictly after `after_us`, up to and including `until_us`."""

    grid: Grid
    after_us: int
    until_us: int | None  # None: still in force
    agent: AgentId

    def numbers(self, from_us: int, until_us: int) -> range:
        """Numbers of its slots in the half-open window [from_us, until_us)."""
        end = until_us if self.until_us is None else min(until_us, self.until_us + 1)
        return self.grid.numbers(max(from_us, self.after_us + 1), end)

    def owns(self, number: int) -> bool:
        """Whether the slot was owed while it was in force."""
        at = self.grid.instant_us(number)
        return self.after_us < at and (self.until_us is None or at <= self.until_us)


@dataclass(frozen=True, slots=True)
class Span:
    """A time whose slots without rows have a cause; no names: those of every series."""

    rank: int  # the most particular first
    from_us: int
    until_us: int  # inclusive
    reason: str
    target: str | None = None
    probe: str | None = None

    def order(self) -> tuple[int, int, int, str]:
        """Whose turn it is to explain."""
        return (self.rank, self.from_us, self.until_us, self.reason)

    def concerns(self, key: Key) -> bool:
        """Whether it speaks of that series."""
        return self.target in (None, key[0]) and self.probe in (None, key[1])


@dataclass(frozen=True, slots=True)
class Row:
    """The first try at a slot, as stored."""

    at_us: int  # planned
    missed: str | None = None  # its reason; None: measured, successfully or not


@dataclass(slots=True)
class Tally:
    """What became of some slots: `owed` is always `measured` plus the sum of `missed`."""

    owed: int = 0
    measured: int = 0
    missed: Counter[str] = field(default_factory=Counter)  # cause -> slots
    pending: int = 0  # not owed yet: due, and perhaps still running
    repeated: int = 0  # rows beyond the first of their slot
    unplanned: int = 0  # rows that no plan owed

    def add(self, other: Tally) -> None:
        """Take in what another one counted."""
        self.owed += other.owed
        self.measured += other.measured
        self.missed.update(other.missed)
        self.pending += other.pending
        self.repeated += other.repeated
        self.unplanned += other.unplanned

    def miss(self, cause: str, slots: int) -> None:
        """Count slots as owed and missed."""
        if slots:
            self.owed += slots
            self.missed[_cause(cause)] += slots

    @property
    def share(self) -> float | None:
        """Measured of owed; None when nothing was owed."""
        return self.measured / self.owed if self.owed else None


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long slots without rows are waited for."""

    now_us: int
    patience_us: int  # from a slot's instant until its row must have been written and sent
    settled_us: Mapping[AgentId, int] = field(default_factory=dict)
    """For each agent: what it wrote before this has been delivered, or never will be."""


# ---------------------------------------------------------------------------------------------------- plans


def segments(notes: Iterable[tuple[AgentId, Note]]) -> dict[Key, list[Segment]]:
    """The plans of one vantage as the time each grid was in force, ascending.

    An agent's later note overrides its earlier ones from its `at` on, also when its clock had gone back; where several
    agents have played the vantage, the plan that began last is in force.
    """
    found: dict[Key, list[Segment]] = defaultdict(list)
    plans = _in_force([(agent, note) for agent, note in notes if isinstance(note, PlanNote)])
    for place, (at, agent, plan) in enumerate(plans):
        until = plans[place + 1][0] if place + 1 < len(plans) else None
        for one in plan.series:
            _extend(found[one.grid.target, one.grid.probe], Segment(one.grid, at, until, agent))
    return dict(found)


def until_us(plans: Mapping[Key, Sequence[Segment]], end_us: int | None) -> dict[Key, list[Segment]]:
    """The plans as if everything had ended at `end_us`; None: nothing has."""
    return {
        key: [
            one
            if end_us is None or (one.until_us is not None and one.until_us <= end_us)
            else replace(one, until_us=end_us)
            for one in known
            if end_us is None or one.after_us < end_us
        ]
        for key, known in plans.items()
    }


def _in_force(notes: Sequence[tuple[AgentId, PlanNote]]) -> list[tuple[int, AgentId, PlanNote]]:
    standing: dict[AgentId, list[tuple[int, AgentId, PlanNote]]] = defaultdict(list)
    for agent, note in sorted(notes, key=lambda pair: pair[1].id):
        at, mine = micros(note.at), standing[agent]
        while mine and mine[-1][0] >= at:
            mine.pop()
        mine.append((at, agent, note))
    return sorted((plan for mine in standing.values() for plan in mine), key=lambda plan: plan[:2])


def _extend(known: list[Segment], new: Segment) -> None:
    """Append, or prolong the last one when the same agent goes on with the same grid."""
    last = known[-1] if known else None
    if last and (last.grid, last.agent, last.until_us) == (new.grid, new.agent, new.after_us):
        known[-1] = Segment(last.grid, last.after_us, new.until_us, last.agent)
    elif new.until_us is None or new.until_us > new.after_us:
        known.append(new)


def spans(notes: Iterable[Note]) -> list[Span]:
    """The notes that explain slots without rows, those of one cause and series joined where they overlap."""
    alike: dict[tuple[int, str, str | None, str | None], list[tuple[int, int]]] = defaultdict(list)
    for note in notes:
        match note:
            case GapNote():
                alike[0, _cause(note.reason), note.target, note.probe].append(_reach(note.first_at, note.last_at))
            case OutageNote():
                alike[1, _cause(note.reason), None, None].append((micros(note.begin), micros(note.until)))
            case LostNote():
                alike[2, _cause(note.reason), note.target, note.probe].append(_reach(note.first_at, note.last_at))
    return sorted(
        (
            Span(rank, begin, until, reason, target, probe)
            for (rank, reason, target, probe), times in alike.items()
            for begin, until in _joined(times)
        ),
        key=Span.order,
    )


def _cause(reason: str) -> str:
    """One of `CAUSES`: their number is what bounds labels, columns and spans."""
    return reason if reason in CAUSES else OTHER


def _reach(first: datetime, last: datetime) -> tuple[int, int]:
    """The slots of a note may be repetitions, which stand behind the instants of the grid."""
    return micros(first) - REACH_US, micros(last)


def _joined(times: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    times.sort()
    begin, until = times[0]
    for next_begin, next_until in times[1:]:
        if next_begin > until:
            yield begin, until
            begin = next_begin
        until = max(until, next_until)
    yield begin, until


def micros(moment: datetime) -> int:
    """Aware datetime -> microseconds since the epoch."""
    return wall_ns(moment) // 1_000


# ---------------------------------------------------------------------------------------------------- counting


def expected(plan: Sequence[Segment], hour_us: int) -> tuple[int, int]:
    """The slots owed in a whole hour: how many, and the sum of their instants, in microseconds behind the hour.

    Rows of which both agree are exactly these slots: one missing and another one too many would shift the sum.
    """
    count = total = 0
    for segment in plan:
        numbers = segment.numbers(hour_us, hour_us + HOUR_US)
        count += len(numbers)
        total += segment.grid.total_us(numbers) - len(numbers) * hour_us if numbers else 0
    return count, total


def cover(plan: Sequence[Segment], hour_us: int, rows: Iterable[Row], known: Sequence[Span], wait: Waiting) -> Tally:
    """What became of the slots of one series in the hour that begins at `hour_us`.

    `plan`: the series' segments that touch the hour. `rows`: its first tries planned from `hour_us` on, up to
    `REACH_US` behind the hour's end. `known`: the spans that concern the series, as `spans` orders them. Costs by
    rows and spans, not by slots.
    """
    tally = Tally()
    answers = _answers(plan, hour_us, rows, tally)
    for place, segment in enumerate(plan):
        answered = answers.get(place, {})
        tally.owed += len(answered)
        for reason in answered.values():
            if reason is None:
                tally.measured += 1
            else:
                tally.missed[_cause(reason)] += 1
        due = segment.numbers(hour_us, min(hour_us + HOUR_US, wait.now_us + 1))
        _explain(segment, _without(due, sorted(answered)), known, wait, tally)
    return tally


def _answers(
    plan: Sequence[Segment], hour_us: int, rows: Iterable[Row], tally: Tally
) -> dict[int, dict[int, str | None]]:
    """For each segment: slot number -> None when it was measured, else the reason of its first row."""
    found: dict[int, dict[int, str | None]] = defaultdict(dict)
    for row in sorted(rows, key=lambda one: one.at_us):
        place, number = _slot_of(plan, row.at_us)
        if number is None:
            tally.unplanned += hour_us <= row.at_us < hour_us + HOUR_US
            continue
        if not hour_us <= plan[place].grid.instant_us(number) < hour_us + HOUR_US:
            continue  # a repetition across the border: its slot's hour counts it
        said = found[place]
        tally.repeated += number in said
        if number not in said or row.missed is None:
            said[number] = row.missed
    return found


def _slot_of(plan: Sequence[Segment], at_us: int) -> tuple[int, int | None]:
    """The segment and the number of the slot that a row planned for `at_us` answers for; None: no plan owed it."""
    best: tuple[int, int, int | None] = (REACH_US, 0, None)
    for place, segment in enumerate(plan):
        number = segment.grid.window_of(at_us)
        behind = at_us - segment.grid.instant_us(number)
        if 0 <= behind < best[0] and segment.owns(number):
            best = (behind, place, number)
    return best[1:]


def _explain(segment: Segment, left: list[range], known: Sequence[Span], wait: Waiting, tally: Tally) -> None:
    """Give each slot without a row one cause."""
    for span in known:
        if not left:
            return
        taken, left = _split(left, segment.grid.numbers(span.from_us, span.until_us + 1))
        tally.miss(span.reason, taken)
    running = segment.grid.first_after(wait.now_us - wait.patience_us)
    pending, left = _split(left, range(running, max(running, segment.grid.first_after(wait.now_us))))
    tally.pending += pending
    settled = max(wait.settled_us.get(segment.agent, 0) - wait.patience_us, wait.now_us - GIVEN_UP_US)
    lost, left = _split(left, range(left[0].start, segment.grid.first_after(settled)) if left else range(0))
    tally.miss(LOST, lost)
    tally.miss(UNSENT, sum(map(len, left)))


def _without(numbers: range, gone: Sequence[int]) -> list[range]:
    """What is left of consecutive numbers, as ranges, without those in the ascending list `gone`."""
    left, begin = [], numbers.start
    for number in gone:
        if number in numbers:
            if number > begin:
                left.append(range(begin, number))
            begin = number + 1
    if begin < numbers.stop:
        left.append(range(begin, numbers.stop))
    return left


def _split(numbers: Sequence[range], taken: range) -> tuple[int, list[range]]:
    """How many of the numbers lie in `taken`, and those that do not."""
    count, left = 0, []
    for one in numbers:
        begin, end = max(one.start, taken.start), min(one.stop, taken.stop)
        if begin >= end:
            left.append(one)
            continue
        count += end - begin
        left += [part for part in (range(one.start, begin), range(end, one.stop)) if part]
    return count, left
