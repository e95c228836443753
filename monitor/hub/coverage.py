"""Coverage over HTTP: `/api/v1/coverage` as JSON or CSV, asked one at a time and remembered for a few seconds.

Hides how a range and a grouping are spelled. The page `/coverage` draws what this answers.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from monitor import wire
from monitor.clock import NS, Clock
from monitor.config.kinds import parse_duration
from monitor.detect.causes import CAUSE_WORDS
from monitor.detect.coverage import CAUSES, Tally
from monitor.model import MonitorError, StoreUnavailable
from monitor.store.coverage import LONGEST, Covered, grouped

FRESH_SECONDS = 5
REMEMBERED = 16
RETRY_SECONDS = 5
BY = ("vantage", "target", "probe", "hour")
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


class BadQuestion(MonitorError):
    """The question cannot be understood; the message says how to ask."""


@dataclass(frozen=True, slots=True)
class Question:
    """A range, a selection and a grouping."""

    since: datetime
    until: datetime
    vantage: str | None
    target: str | None
    by: tuple[str, ...]

    @classmethod
    def read(
        cls, now: datetime, since: str, until: str | None, vantage: str | None, target: str | None, by: str
    ) -> Question:
        """Raises BadQuestion."""
        names = tuple(name.strip() for name in by.split(",") if name.strip())
        if not set(names) <= set(BY) or len(set(names)) != len(names):
            raise BadQuestion(f"by: a list of {', '.join(BY)}, each once")
        end = now if until is None else read_moment("until", until, now)
        begin = read_moment("since", since, end)
        if not begin < end:
            raise BadQuestion("since: must be before until")
        if end - begin > LONGEST:
            raise BadQuestion(f"since: at most {LONGEST.days} days before until")
        return cls(begin, end, vantage, target, names)


def read_moment(name: str, given: str, end: datetime) -> datetime:
    """An RFC 3339 instant, or a duration such as 24h before `end`. Raises BadQuestion."""
    try:
        return end - timedelta(seconds=parse_duration(given))
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(given.replace(" ", "+"))  # a "+" that was not percent-encoded
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise BadQuestion(f"{name}: {given[:40]!r} is neither a duration such as 24h nor an instant with its time zone")


def as_json(asked: Question, found: Sequence[Covered]) -> bytes:
    """The body of a `CoverageAnswer`."""
    total = grouped(found).get((), Tally())
    rows = [_row(dict(zip(asked.by, key, strict=True)), tally) for key, tally in grouped(found, *asked.by).items()]
    body = {
        "since": wire.rfc3339(asked.since),
        "until": wire.rfc3339(asked.until),
        "total": _row({}, total),
        "rows": rows if asked.by else [],
        "causes": {cause: {"short": words.short, "advice": words.advice} for cause, words in CAUSE_WORDS.items()},
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _row(names: Mapping[str, object], tally: Tally) -> dict[str, Any]:
    named = {key: wire.rfc3339(value) if isinstance(value, datetime) else value for key, value in names.items()}
    return {
        **named,
        "owed": tally.owed,
        "measured": tally.measured,
        "share": tally.share,
        "missed": {cause: tally.missed[cause] for cause in CAUSES if tally.missed[cause]},
        "pending": tally.pending,
        "repeated": tally.repeated,
        "unplanned": tally.unplanned,
    }


def as_csv(asked: Question, found: Sequence[Covered]) -> bytes:
    """One line for each group, one column for each cause."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\r\n")
    lines.writerow([*asked.by, "owed", "measured", "share", *CAUSES, "pending", "repeated", "unplanned"])
    for key, tally in grouped(found, *asked.by).items():
        names = [wire.rfc3339(value) if isinstance(value, datetime) else _plain(str(value)) for value in key]
        share = "" if tally.share is None else f"{tally.share:.6f}"
        counts = [tally.missed[cause] for cause in CAUSES]
        lines.writerow(
            [*names, tally.owed, tally.measured, share, *counts, tally.pending, tally.repeated, tally.unplanned]
        )
    return out.getvalue().encode()


def _plain(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


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
