"""How questions about the record are answered over HTTP: JSON or CSV, or one sentence about what is wrong.

Hides what a client may ask for beside the question itself (a form of the answer, by parameter or `Accept` header), and
which status each error has. A parameter that there is not, or that stands twice, is refused: ignored, `?vantag=lagos`
would be answered with every vantage point.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from monitor.hub.coverage_answers import BadQuestion
from monitor.model import StoreUnavailable
from monitor.store.engine import RowRefused

RETRY_SECONDS = 5
Answer = Callable[[Request, bytes, str], Response]
"""How the application sends a body of a type: compressed, with a validator."""
Form = Literal["json", "csv"]
TYPES: dict[Form, str] = {"json": "application/json", "csv": "text/csv"}

Name = Annotated[str | None, Query(max_length=200)]
Since = Annotated[
    str, Query(max_length=40, description="A duration before `until` such as 24h, or an instant (RFC 3339).")
]
Until = Annotated[str | None, Query(max_length=40, description="An instant, or a duration before now; now by default.")]
Format = Annotated[Form | None, Query(description="json or csv; by default what `Accept` likes better, else json.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why there is no answer."""

    error: str


RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/csv": {}}},
    422: {"model": Refusal, "description": "The question cannot be understood, or asks for too much."},
    503: {"model": Refusal, "description": "The database is away; see Retry-After."},
}


def only_known(request: Request) -> None:
    """A dependency of routes: raises BadQuestion for parameters that a route does not have, or that stand twice."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            raise BadQuestion(f"{name[:40]!r} is no parameter here; there are {', '.join(sorted(known))}")
        if times > 1:
            raise BadQuestion(f"{name}: stands there {times} times, once is enough")


def form_of(request: Request, asked: Form | None) -> Form:
    """As `format` says, else what the `Accept` header likes better."""
    if asked is not None:
        return asked
    accept = request.headers.get("accept", "")
    return "csv" if liking(accept, TYPES["csv"]) > liking(accept, TYPES["json"]) else "json"


def liking(accept: str, wanted: str) -> float:
    """How much an `Accept` header likes a media type, 0..1: by its own name, else its family's, else that of all."""
    told: dict[str, float] = {}
    for one in accept.lower().split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        told[name] = float(weight) if re.fullmatch(r"[01](\.[0-9]{0,3})?", weight) else 1.0
    names = (wanted, f"{wanted.partition('/')[0]}/*", "*/*")
    return next((told[name] for name in names if name in told), 0.0)


def reply(request: Request, answer: Answer, body: bytes, form: Form) -> Response:
    """The body, or 304 when the client has it."""
    response = answer(request, body, TYPES[form] + ("; charset=utf-8" if form == "csv" else ""))
    response.headers["vary"] = "accept, accept-encoding"
    return response


def refuse_in_words(app: FastAPI) -> None:
    """Map what may go wrong with a question to a status and a sentence, for every route of an application."""
    app.add_exception_handler(RequestValidationError, _misspelled)
    app.add_exception_handler(BadQuestion, _refused)
    app.add_exception_handler(RowRefused, _impossible)
    app.add_exception_handler(StoreUnavailable, _away)


async def _misspelled(_request: Request, error: Exception) -> Response:
    """What a question's parameters must be; the values that were given are not repeated."""
    assert isinstance(error, RequestValidationError)
    told = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg'].lower()}" for one in error.errors()]
    return JSONResponse({"error": "; ".join(told)[:500]}, status_code=422)


async def _refused(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=422)


async def _impossible(_request: Request, error: Exception) -> Response:
    """A name with a NUL in it, say: no row can have it."""
    return JSONResponse({"error": f"nothing can be called or dated like that: {error}"}, status_code=422)


async def _away(_request: Request, error: Exception) -> Response:
    told = {"error": f"The database does not answer: {error}"}
    return JSONResponse(told, status_code=503, headers={"retry-after": str(RETRY_SECONDS)})
