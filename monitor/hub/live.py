"""The live view's memory: the newest attempts of each series, refreshed from the store while somebody looks.

Hides when the store is asked: at most once a second, in a worker thread, and not at all while no page is open.
A store that is away or slow never delays a page; the view keeps what it has and says how old it is.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from monitor.clock import NS, Clock
from monitor.detect.coldstart import Judgement
from monitor.detect.line import Line
from monitor.model import Attempt, Outcome, Purpose, Series, SeriesKey, StoreUnavailable

PER_SERIES = 30
REFRESH_SECONDS = 1.0
LINES_SECONDS = 10.0
OUTAGES_AT_ONCE = 8
"""Outages whose beginning is asked for with one refresh."""
FIRST_ANSWER_SECONDS = 3.0
LATER_ANSWER_SECONDS = 0.5
OVERLAP = timedelta(seconds=30)
"""Rows are asked for again that long after they were received: other writers' clocks and commits are not ours."""

AttemptKey = tuple[str, datetime, str, str, int]

Lines = Callable[[], Mapping[str, Line]]
"""Whether the lines of vantage points are up; called in a worker thread, raises StoreUnavailable."""
log = structlog.get_logger()


class LiveQueries(Protocol):
    """What the view asks the store; called in a worker thread, raises StoreUnavailable."""

    def latest(self, per_series: int) -> Sequence[Attempt]:
        """The newest attempts of each series, at most `per_series` of each."""

    def received_since(self, moment: datetime) -> Sequence[Attempt]:
        """Attempts that the store took in at or after `moment`, newest first, a bounded number."""

    def latest_verdicts(self, per_series: int) -> Sequence[Judgement]:
        """The verdicts about the newest attempts of each series."""

    def judged_since(self, moment: datetime) -> Sequence[Judgement]:
        """Verdicts that were written or changed at or after `moment`, a bounded number."""

    def failing_since(self, vantage: str, target: str, probe: str) -> tuple[datetime, bool] | None:
        """When a series that fails began to, and whether that is known for certain; None: it does not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a page is made from, at one instant."""

    now: datetime
    series: tuple[Series, ...]
    attempts: dict[SeriesKey, list[Attempt]]  # oldest first, at most PER_SERIES each
    next_slot: dict[SeriesKey, datetime]
    store_error: str | None  # why the store could not be asked, None when it could
    refreshed_at: datetime | None  # when the store last answered
    verdicts: Mapping[AttemptKey, Judgement] = field(default_factory=dict)  # by `Attempt.key`; it comes a little later
    failing_since: Mapping[SeriesKey, tuple[datetime, bool]] = field(
        default_factory=dict
    )  # of outages longer than that
    notices: Sequence[str] = ()  # what else readers must know, a sentence each
    lines: Mapping[str, Line] = field(default_factory=dict)  # by vantage point, of those that look at neutral endpoints

    @property
    def seen_at(self) -> datetime:
        """Until when the attempts are known: what came later may wait in a spool, and its absence is no silence."""
        return self.now if self.store_error is None else self.refreshed_at or self.now


class LiveView:
    """Gives a `View` for now. For one event loop; the callables are called in it and must not block.

    `series` tells what is configured now, `next_slot` when a series is due.
    """

    def __init__(
        self,
        queries: LiveQueries,
        series: Callable[[], Sequence[Series]],
        next_slot: Callable[[Series], datetime | None],
        clock: Clock,
        notices: Callable[[], Sequence[str]] = tuple,
        lines: Lines = dict,
    ) -> None:
        self._ask_lines = lines
        self._lines: Mapping[str, Line] = {}
        self._lines_ns: int | None = None
        self._queries, self._series, self._next_slot, self._clock = queries, series, next_slot, clock
        self._notices = notices
        self._attempts: dict[SeriesKey, list[Attempt]] = {}
        self._verdicts: dict[AttemptKey, Judgement] = {}
        self._outages: dict[SeriesKey, tuple[datetime, bool]] = {}
        self._asked_from: datetime | None = None
        self._loaded: set[SeriesKey] = set()
        self._refreshed_at: datetime | None = None
        self._refreshed_ns: int | None = None
        self._error: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def now(self) -> View:
        """The view, at most a second old where the store answers, else what was last known."""
        if self._task is None and self._is_due():
            self._task = asyncio.create_task(self._refresh())
        if self._task is not None:
            patience = FIRST_ANSWER_SECONDS if self._refreshed_at is None else LATER_ANSWER_SECONDS
            await asyncio.wait({self._task}, timeout=patience)
        return self._view()

    def _is_due(self) -> bool:
        last = self._refreshed_ns
        return last is None or self._clock.monotonic_ns() - last >= REFRESH_SECONDS * NS

    async def _refresh(self) -> None:
        asked_at, keys = self._clock.now(), {one.key for one in self._series()}
        try:
            attempts, judged = await asyncio.to_thread(self._ask, keys)
            self._take(attempts)
            self._take_verdicts(judged)
            await self._ask_for_outages()
            await self._ask_for_lines()
            self._asked_from, self._refreshed_at, self._error = asked_at - OVERLAP, asked_at, None
            self._loaded = keys
        except StoreUnavailable as error:
            self._error = str(error)
        except Exception as error:  # a defect of ours must show on the page, not end its updates
            self._error = f"an internal error ({type(error).__name__}); the log has the details"
            log.exception("live view cannot be refreshed")
        finally:
            self._refreshed_ns = self._clock.monotonic_ns()
            self._task = None

    def _ask(self, keys: set[SeriesKey]) -> tuple[Sequence[Attempt], Sequence[Judgement]]:
        ask = self._queries
        if self._asked_from is None or not keys <= self._loaded:  # at start, or when a reload added series
            return ask.latest(PER_SERIES), ask.latest_verdicts(PER_SERIES)
        return ask.received_since(self._asked_from), ask.judged_since(self._asked_from)

    async def _ask_for_outages(self) -> None:
        """When did those begin to fail of which nothing but failures is kept?"""
        long = [key for key, attempts in self._attempts.items() if _is_long_outage(attempts)]
        self._outages = {key: began for key, began in self._outages.items() if key in long}
        for key in [key for key in long if key not in self._outages][:OUTAGES_AT_ONCE]:
            began = await asyncio.to_thread(self._queries.failing_since, *key)
            if began is not None:
                self._outages[key] = began

    async def _ask_for_lines(self) -> None:
        """Not with every refresh: a line is judged from looks that are minutes apart."""
        now_ns = self._clock.monotonic_ns()
        if self._lines_ns is None or now_ns - self._lines_ns >= LINES_SECONDS * NS:
            self._lines, self._lines_ns = await asyncio.to_thread(self._ask_lines), now_ns

    def _take_verdicts(self, judged: Iterable[Judgement]) -> None:
        """Keep the verdicts of attempts that are shown; those of others are dropped, and old ones with theirs."""
        self._verdicts.update((one.key, one) for one in judged)
        shown = {attempt.key for attempts in self._attempts.values() for attempt in attempts}
        self._verdicts = {key: one for key, one in self._verdicts.items() if key in shown}

    def _take(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if attempt.purpose is Purpose.ONE_OFF:
                continue
            kept = self._attempts.setdefault((attempt.vantage, attempt.target, attempt.probe), [])
            if all(known.key != attempt.key for known in kept):
                insort(kept, attempt, key=_order)
                del kept[:-PER_SERIES]

    def _view(self) -> View:
        series = tuple(self._series())
        keys = {one.key: one for one in series}
        for gone in self._attempts.keys() - keys.keys():
            del self._attempts[gone]
        planned = {key: self._next_slot(one) for key, one in keys.items()}
        return View(
            now=self._clock.now(),
            series=series,
            attempts={key: list(self._attempts.get(key, ())) for key in keys},
            next_slot={key: moment for key, moment in planned.items() if moment is not None},
            store_error=self._error,
            refreshed_at=self._refreshed_at,
            verdicts=dict(self._verdicts),
            failing_since=dict(self._outages),
            notices=tuple(self._notices()),
            lines=self._lines,
        )


def _is_long_outage(attempts: Sequence[Attempt]) -> bool:
    outcomes = {attempt.outcome for attempt in attempts if not attempt.try_number}
    return len(attempts) >= PER_SERIES and Outcome.FAILED in outcomes and Outcome.SUCCESS not in outcomes


def _order(attempt: Attempt) -> tuple[datetime, int]:
    return (attempt.scheduled_at, attempt.try_number)
