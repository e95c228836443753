"""The read API: attempts, series and percentiles over time, as JSON or CSV. Documented in its own OpenAPI.

Hides cursors and spelling. Questions are answered one at a time, and bounded; what cannot be understood is refused in
one sentence.
Prompts, keys and answers are no part of it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from monitor import wire
from monitor.clock import Clock
from monitor.hub.coverage import Answer, Refusal
from monitor.hub.coverage_answers import BadQuestion, plain, read_moment
from monitor.model import Outcome, StoreUnavailable
from monitor.store import reading
from monitor.store.measures import NAMES
from monitor.wire import report_of

LONGEST = timedelta(days=400)
RETRY_SECONDS = 5
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
Name = Annotated[str | None, Query(max_length=200)]
Since = Annotated[str, Query(max_length=40, description="A duration such as 24h, or an instant (RFC 3339).")]
Until = Annotated[str | None, Query(max_length=40, description="An instant; now by default.")]
Format = Annotated[Literal["json", "csv"], Query(description="json or csv.")]


class ReadQueries(Protocol):
    """What is asked, in a worker thread; raises StoreUnavailable."""

    def attempts(self, asked: reading.Selection, limit: int, after: reading.Key | None) -> Sequence[reading.Told]:
        """See `store.reading.attempts`."""

    def all_series(self) -> Sequence[Mapping[str, Any]]:
        """See `store.reading.series`."""

    def over_time(self, measure: str, since: datetime, until: datetime, **how: Any) -> Sequence[reading.Point]:
        """See `store.reading.over_time`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Attempts as `firsttoken probe --json` prints them, newest first; `next` asks for the page behind."""

    attempts: list[dict[str, Any]]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSeries:
    """A vantage point, target and probe with their labels."""

    vantage: str
    target: str
    probe: str
    provider: str | None
    model: str | None
    city: str | None
    country: str | None
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSeries:
    """Everything that was ever measured or planned."""

    series: list[OneSeries]


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileRow:
    """Seconds of one group in one step; `at_least`: those that a deadline may have cut short."""

    start: datetime
    vantage: str | None = None
    target: str | None = None
    probe: str | None = None
    count: int
    p50: float
    p90: float
    p95: float
    p99: float
    at_least: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles from mergeable histograms: within 2 % of those of the attempts themselves."""

    measure: str
    since: datetime
    until: datetime
    step: str
    rows: list[PercentileRow]


REFUSALS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {}}},
    422: {"model": Refusal},
    503: {"model": Refusal},
}


def reading_routes(queries: ReadQueries, clock: Clock, answer: Answer) -> APIRouter:
    """The routes, for one event loop."""
    router = APIRouter(prefix="/api/v1", tags=["reading"])
    one_at_a_time = asyncio.Lock()

    async def reply(request: Request, form: str, make: Callable[[], bytes]) -> Response:
        try:
            async with one_at_a_time:
                body = await asyncio.to_thread(make)
        except BadQuestion as error:
            return JSONResponse({"error": str(error)}, status_code=422)
        except StoreUnavailable as error:
            told = {"error": f"The database does not answer: {error}"}
            return JSONResponse(told, status_code=503, headers={"retry-after": str(RETRY_SECONDS)})
        return answer(request, body, "application/json" if form == "json" else "text/csv; charset=utf-8")

    @router.get("/attempts", summary="Single attempts, newest first", response_model=Page, responses=REFUSALS)
    async def attempts(
        request: Request,
        since: Since = "1h",
        until: Until = None,
        vantage: Name = None,
        target: Name = None,
        probe: Name = None,
        outcome: Annotated[Outcome | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=reading.MOST_ATTEMPTS)] = 100,
        cursor: Annotated[str | None, Query(max_length=200, description="`next` of the page before.")] = None,
        format: Format = "json",
    ) -> Response:
        """Attempts whose planned instant lies in [since, until); `next` leads to the page behind, null at the end."""

        def make() -> bytes:
            begin, end = _range(clock, since, until)
            asked = reading.Selection(
                since=begin, until=end, vantage=vantage, target=target, probe=probe, outcome=outcome
            )
            found = queries.attempts(asked, limit, _after(cursor))
            rows = [report_of(one.attempt, one.facts) for one in found]
            following = _cursor(reading.sequence(found, limit))
            return _csv(_flat(row) for row in rows) if format == "csv" else _json({"attempts": rows, "next": following})

        return await reply(request, format, make)

    @router.get("/series", summary="What is measured, and was", response_model=AllSeries, responses=REFUSALS)
    async def series(request: Request, format: Format = "json") -> Response:
        """Every vantage point, target and probe that has attempts or a plan."""

        def make() -> bytes:
            rows = list(queries.all_series())
            return _csv(rows) if format == "csv" else _json({"series": rows})

        return await reply(request, format, make)

    @router.get("/percentiles", summary="Percentiles over time", response_model=Percentiles, responses=REFUSALS)
    async def percentiles(
        request: Request,
        measure: Annotated[str, Query(max_length=20, description=f"One of {', '.join(NAMES)}.")] = "ttft",
        since: Since = "24h",
        until: Until = None,
        step: Annotated[Literal["hour", "day"], Query()] = "hour",
        by: Annotated[Literal["vantage", "target", "series", "all"], Query()] = "vantage",
        vantage: Name = None,
        target: Name = None,
        format: Format = "json",
    ) -> Response:
        """Percentiles of a measure in whole hours or days (UTC) that touch [since, until), from rollups."""

        def make() -> bytes:
            begin, end = _range(clock, since, until)
            if measure not in NAMES:
                raise BadQuestion(f"measure: one of {', '.join(NAMES)}")
            if reading.points(begin, end, step) > reading.MOST_POINTS:
                raise BadQuestion("since: too many steps; ask for days")
            found = queries.over_time(measure, begin, end, step=step, by=by, vantage=vantage, target=target)
            rows = [_point(one, by) for one in found]
            if format == "csv":
                return _csv({**row, "at_least": " ".join(row["at_least"])} for row in rows)
            told = {"measure": measure, "since": wire.rfc3339(begin), "until": wire.rfc3339(end), "step": step}
            return _json({**told, "rows": rows})

        return await reply(request, format, make)

    return router


def _range(clock: Clock, since: str, until: str | None) -> tuple[datetime, datetime]:
    now = clock.now()
    end = now if until is None else read_moment("until", until, now)
    begin = read_moment("since", since, end)
    if not begin < end:
        raise BadQuestion("since: must be before until")
    if end - begin > LONGEST:
        raise BadQuestion(f"since: at most {LONGEST.days} days before until")
    return begin, end


def _point(one: reading.Point, by: str) -> dict[str, Any]:
    found = {name: one.histogram.percentile(q) for name, q in QUANTILES.items()}
    return {
        "start": wire.rfc3339(one.start.astimezone(UTC)),
        **dict(zip(reading.GROUPS[by], one.group, strict=True)),
        "count": one.histogram.count,
        **{name: round(percentile.seconds, 6) for name, percentile in found.items() if percentile is not None},
        "at_least": [name for name, percentile in found.items() if percentile is not None and percentile.at_least],
    }


def _cursor(key: reading.Key | None) -> str | None:
    if key is None:
        return None
    at, *rest = key
    return base64.urlsafe_b64encode(json.dumps([wire.rfc3339(at.astimezone(UTC)), *rest]).encode()).decode()


def _after(cursor: str | None) -> reading.Key | None:
    if cursor is None:
        return None
    try:
        at, vantage, series, try_number = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        moment = datetime.fromisoformat(at)
        numbers = (vantage, series, try_number)
        if moment.tzinfo is None or not all(type(one) is int and abs(one) < 2**63 for one in numbers):
            raise ValueError
        return (moment, vantage, series, min(try_number, 32_767))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise BadQuestion("cursor: `next` of the page before, as it was given") from None


def _json(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), default=str).encode()


def _flat(told: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested objects as columns named by their path."""
    row: dict[str, Any] = {}
    for name, value in told.items():
        if isinstance(value, Mapping):
            row |= _flat(value, f"{before}{name}.")
        else:
            row[before + name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return row


def _csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    told = list(rows)
    columns = list(dict.fromkeys(name for row in told for name in row))
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\r\n")
    lines.writerow(columns)
    for row in told:
        cells = (row.get(name) for name in columns)
        lines.writerow(["" if cell is None else plain(cell) if isinstance(cell, str) else cell for cell in cells])
    return out.getvalue().encode()
