"""Coverage over HTTP: `/api/v1/coverage` as JSON or CSV, asked one at a time and remembered for a few seconds.

How questions are spelled stands in `coverage_answers`. The page `/coverage` draws what this answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from monitor.clock import NS, Clock
from monitor.hub.coverage_answers import BadQuestion, Question, as_csv, as_json
from monitor.model import StoreUnavailable
from monitor.store.coverage import Covered

FRESH_SECONDS = 5
REMEMBERED = 16
RETRY_SECONDS = 5
Name = Annotated[str | None, Query(max_length=200)]
Answer = Callable[[Request, bytes, str], Response]
"""How the application sends a body of a type: compressed, with a validator."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why there is no answer."""

    error: str


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
    router, bodies = APIRouter(), CoverageBodies(queries, clock)

    @router.get(
        "/api/v1/coverage",
        summary="Slots owed, measured and missed, with causes",
        response_model=CoverageAnswer,
        responses={
            200: {"content": {"text/csv": {}}},
            422: {"model": Refusal},
            503: {"model": Refusal},
        },
    )
    async def coverage(
        request: Request,
        since: Annotated[str, Query(max_length=40, description="A duration such as 24h, or an instant.")] = "24h",
        until: Annotated[str | None, Query(max_length=40, description="An instant; now by default.")] = None,
        vantage: Name = None,
        target: Name = None,
        by: Annotated[
            str, Query(max_length=60, description="Some of vantage, target, probe, hour; empty: all together.")
        ] = "vantage,target,hour",
        format: Annotated[Literal["json", "csv"], Query(description="json or csv.")] = "json",
    ) -> Response:
        """What became of the slots of the hours that touch [since, until)."""
        try:
            body = await bodies.get((since, until, vantage, target, by), format)
        except BadQuestion as error:
            return JSONResponse({"error": str(error)}, status_code=422)
        except StoreUnavailable as error:
            return JSONResponse(
                {"error": f"The database does not answer: {error}"},
                status_code=503,
                headers={"retry-after": str(RETRY_SECONDS)},
            )
        return answer(request, body, "application/json" if format == "json" else "text/csv; charset=utf-8")

    return router
