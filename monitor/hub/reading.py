"""The read API: attempts, series and percentiles over time, as JSON or CSV. Documented in its own OpenAPI.

Hides cursors and spelling. Questions are answered one at a time, and bounded; what cannot be understood is refused in
one sentence (`answering`). Prompts, keys and answers are no part of it.
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
from typing import Annotated, Any, Literal, Protocol, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from monitor import wire
from monitor.clock import Clock
from monitor.hub.answering import RESPONSES, Answer, Format, Name, Since, Until, form_of, only_known, reply
from monitor.hub.coverage_answers import EARLIEST, LATEST, BadQuestion, plain, read_moment
from monitor.model import Outcome
from monitor.store import reading
from monitor.store.measures import NAMES
from monitor.wire import report_of

LONGEST = timedelta(days=400)
QUANTILES = ("p50", "p90", "p95", "p99")
T = TypeVar("T")


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


def reading_routes(queries: ReadQueries, clock: Clock, answer: Answer) -> APIRouter:
    """The routes, for one event loop."""
    router = APIRouter(prefix="/api/v1", tags=["reading"], dependencies=[Depends(only_known)])
    one_at_a_time = asyncio.Lock()

    async def made(make: Callable[[], T]) -> T:
        async with one_at_a_time:
            return await asyncio.to_thread(make)

    @router.get("/attempts", summary="Single attempts, newest first", response_model=Page, responses=RESPONSES)
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
        format: Format = None,
    ) -> Response:
        """Attempts whose planned instant lies in [since, until); `next`, also in the `Link` header, leads to the page
        behind and is null at the end.
        """
        form, after, (begin, end) = form_of(request, format), _after(cursor), _range(clock, since, until)
        asked = reading.Selection(since=begin, until=end, vantage=vantage, target=target, probe=probe, outcome=outcome)

        def page() -> tuple[bytes, str | None]:
            found = queries.attempts(asked, limit, after)
            rows = [report_of(one.attempt, one.facts) for one in found]
            following = _cursor(reading.sequence(found, limit))
            told = {"attempts": rows, "next": following}
            return _csv(map(_flat, rows)) if form == "csv" else _json(told), following

        body, following = await made(page)
        response = reply(request, answer, body, form)
        if following is not None:
            onwards = urlencode({**request.query_params, "cursor": following})
            response.headers["link"] = f'<?{onwards}>; rel="next"'
        return response

    @router.get("/series", summary="What is measured, and was", response_model=AllSeries, responses=RESPONSES)
    async def series(request: Request, format: Format = None) -> Response:
        """Every vantage point, target and probe that has attempts or a plan."""
        form = form_of(request, format)
        rows = list(await made(queries.all_series))
        return reply(request, answer, _csv(rows) if form == "csv" else _json({"series": rows}), form)

    @router.get("/percentiles", summary="Percentiles over time", response_model=Percentiles, responses=RESPONSES)
    async def percentiles(
        request: Request,
        measure: Annotated[str, Query(max_length=20, description=f"One of {', '.join(NAMES)}.")] = "ttft",
        since: Since = "24h",
        until: Until = None,
        step: Annotated[Literal["hour", "day"], Query()] = "hour",
        by: Annotated[Literal["vantage", "target", "series", "all"], Query()] = "vantage",
        vantage: Name = None,
        target: Name = None,
        format: Format = None,
    ) -> Response:
        """Percentiles of a measure in whole hours or days (UTC) that touch [since, until), from rollups.

        At most 20,000 rows: steps times groups.
        """
        form, (begin, end) = form_of(request, format), _range(clock, since, until)
        if measure not in NAMES:
            raise BadQuestion(f"measure: one of {', '.join(NAMES)}")

        def table() -> bytes:
            try:
                found = queries.over_time(measure, begin, end, step=step, by=by, vantage=vantage, target=target)
            except reading.TooMuch as error:
                raise BadQuestion(f"since: {error}; ask for days, for less time, or for one target") from None
            rows = [_row(one, by) for one in found]
            if form == "csv":
                return _csv({**row, "at_least": " ".join(row["at_least"])} for row in rows)
            told = {"measure": measure, "since": wire.rfc3339(begin), "until": wire.rfc3339(end), "step": step}
            return _json({**told, "rows": rows})

        return reply(request, answer, await made(table), form)

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


def _row(one: reading.Point, by: str) -> dict[str, Any]:
    found = dict(zip(QUANTILES, one.percentiles, strict=True))
    return {
        "start": wire.rfc3339(one.start),
        **dict(zip(reading.GROUPS[by], one.group, strict=True)),
        "count": one.count,
        **{name: round(percentile.seconds, 6) for name, percentile in found.items()},
        "at_least": [name for name, percentile in found.items() if percentile.at_least],
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
        if not EARLIEST <= moment <= LATEST or not all(type(one) is int and abs(one) < 2**63 for one in numbers):
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
            row[before + name] = value
    return row


def _csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    told = list(rows)
    columns = list(dict.fromkeys(name for row in told for name in row))
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\r\n")
    lines.writerow(columns)
    for row in told:
        lines.writerow([_cell(row.get(name)) for name in columns])
    return out.getvalue().encode()


def _cell(value: object) -> object:
    """As the JSON answer has it, but texts bare and lists of words with blanks between; nothing is an empty cell."""
    match value:
        case None:
            return ""
        case list() if not any(isinstance(one, list | Mapping) for one in value):
            return plain(" ".join(map(str, value)))
        case bool() | list():
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        case str():
            return plain(value)
    return value
