"""Coverage over HTTP: `/api/v1/coverage` as JSON or CSV, asked one at a time and remembered for a few seconds.

How questions are spelled stands in `coverage_answers`. The page `/coverage` draws what this answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from monitor.clock import NS, Clock
from monitor.hub.answering import RESPONSES, Answer, Format, Name, Since, Until, form_of, only_known, reply
from monitor.hub.coverage_answers import Question, as_csv, as_json
from monitor.store.coverage import Covered

FRESH_SECONDS = 5
REMEMBERED = 16


class CoverageQueries(Protocol):
    """What is asked, in a worker thread; raises StoreUnavailable."""

    def coverage(
        self, since: datetime, until: datetime, *, vantage: str | None = None, target: str | None = None
    ) -> Sequence[Covered]:
        """What became of the slots of the hours that touch [since, until)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageRow:
    """Slots of a group in an hour: `owed` is `measured` plus the sum of `missed`."""

    vantage: str | None = None
    target: str | None = None
    probe: str | None = None
    hour: datetime | None = None
    simulated: bool  # any of it: a provider, or a distance
    owed: int
    measured: int
    share: float | None
    missed: dict[str, int]
    pending: int
    repeated: int
    unplanned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageAnswer:
    """Coverage of a range, and what its causes mean."""

    since: datetime
    until: datetime
    total: CoverageRow
    rows: list[CoverageRow]
    causes: dict[str, dict[str, str]]


class CoverageBodies:
    """Answers, made one at a time and kept for some seconds. For one event loop."""

    def __init__(self, queries: CoverageQueries, clock: Clock) -> None:
        self._queries, self._clock = queries, clock
        self._made: dict[tuple[Any, ...], tuple[int, bytes]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def get(self, spelled: tuple[str | None, ...], form: str) -> bytes:
        """The body for (since, until, vantage, target, by) as given. Raises BadQuestion, StoreUnavailable."""
        since, until, vantage, target, by = spelled
        asked = Question.read(self._clock.now(), since or "", until, vantage, target, by or "")
        async with self._one_at_a_time:
            made_ns, body = self._made.get((*spelled, form), (None, b""))
            if made_ns is None or self._clock.monotonic_ns() - made_ns >= FRESH_SECONDS * NS:
                body = await asyncio.to_thread(self._make, asked, form)
                if len(self._made) >= REMEMBERED:
                    self._made.clear()
                self._made[(*spelled, form)] = (self._clock.monotonic_ns(), body)
            return body

    def _make(self, asked: Question, form: str) -> bytes:
        found = self._queries.coverage(asked.since, asked.until, vantage=asked.vantage, target=asked.target)
        return as_csv(asked, found) if form == "csv" else as_json(asked, found)


def routes(queries: CoverageQueries, clock: Clock, answer: Answer) -> APIRouter:
    """The read API's part about coverage."""
    router, bodies = APIRouter(dependencies=[Depends(only_known)]), CoverageBodies(queries, clock)

    @router.get(
        "/api/v1/coverage",
        summary="Slots owed, measured and missed, with causes",
        response_model=CoverageAnswer,
        responses=RESPONSES,
    )
    async def coverage(
        request: Request,
        since: Since = "24h",
        until: Until = None,
        vantage: Name = None,
        target: Name = None,
        by: Annotated[
            str, Query(max_length=60, description="Some of vantage, target, probe, hour; empty: all together.")
        ] = "vantage,target,hour",
        format: Format = None,
    ) -> Response:
        """What became of the slots of the hours that touch [since, until)."""
        form = form_of(request, format)
        return reply(request, answer, await bodies.get((since, until, vantage, target, by), form), form)

    return router
