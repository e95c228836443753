"""The live page: its three static files, and the JSON that it polls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any

from monitor import __version__
from monitor.detect.line import Line, LineState
from monitor.hub.live import View
from monitor.hub.rows import clipped, iso, row
from monitor.hub.summary import Cell, Judged, Part, State, cells, headline, idle_gaps, judge
from monitor.model import Place, SeriesKey, Target, Vantage

NOTICE_LIMIT = 1500
LATEST = 40
"""Attempts in the list of the newest."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file as it is served."""

    content_type: str
    body: bytes

    @property
    def etag(self) -> str:
        return etag(self.body)


def _asset(name: str, content_type: str) -> Asset:
    return Asset(content_type, files("monitor.hub").joinpath("static", name).read_bytes())


ASSETS: Mapping[str, Asset] = {
    "/": _asset("page.html", "text/html; charset=utf-8"),
    "/static/page.css": _asset("page.css", "text/css; charset=utf-8"),
    "/static/page.js": _asset("page.js", "text/javascript; charset=utf-8"),
    "/coverage": _asset("coverage.html", "text/html; charset=utf-8"),
    "/static/coverage.css": _asset("coverage.css", "text/css; charset=utf-8"),
    "/static/coverage.js": _asset("coverage.js", "text/javascript; charset=utf-8"),
    "/static/icon.svg": _asset("icon.svg", "image/svg+xml"),
}


def etag(body: bytes) -> str:
    """A validator of the content; weak, because the bytes may be compressed on their way."""
    return f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


PAGE_VERSION = etag(b"".join(asset.body for asset in ASSETS.values()))
"""Tells an open page that a newer one is served."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a reader wants in the list of attempts: one series, or all; only what was not good, or everything."""

    series: SeriesKey | None = None
    trouble: bool = False


def live(view: View, advice: Mapping[str, str], choice: Choice = Choice()) -> bytes:
    """The JSON of `/api/live`, with the newest attempts of a reader's choice.

    It says nothing that changes by the mere passing of a second, so that an unchanged state has an unchanged ETag.
    """
    judged = {key: judge(attempts, view.verdicts) for key, attempts in view.attempts.items()}
    all_cells = cells(view, judged)
    level, sentence = headline(all_cells, view)
    return json.dumps(
        {
            "format": 1,
            "version": __version__,
            "page": PAGE_VERSION,
            "level": level,
            "sentence": sentence,
            "notices": _notices(view),
            "stale": view.store_error is not None,
            "vantages": [
                _vantage(one, view.lines.get(one.name))
                for one in {one.vantage.name: one.vantage for one in view.series}.values()
            ],
            "targets": [_target(one) for one in {one.target.name: one.target for one in view.series}.values()],
            "cells": [_cell(cell) for cell in all_cells],
            "attempts": _latest(view, judged, advice, choice),
        },
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    ).encode()


def _notices(view: View) -> list[list[Part]]:
    told: list[list[Part]] = [[clipped(notice, NOTICE_LIMIT)] for notice in view.notices]
    if view.store_error is None:
        return told
    shown: list[Part] = [" Nothing is shown until it is back."]
    if view.refreshed_at is not None:
        shown = [" The page shows what was known at ", {"at": iso(view.refreshed_at)}, "."]
    error = f"The database does not answer: {clipped(view.store_error.rstrip('.'))}."
    return [[error, *shown, " Attempts wait in the spool meanwhile."], *told]


def _vantage(vantage: Vantage, line: Line | None) -> dict[str, Any]:
    place = where(vantage.place)
    told = {"name": vantage.name, "where": place, "network": vantage.network, "simulated": vantage.simulated}
    return told | {"line": None if line is None or line.state is LineState.UNKNOWN else _line(line)}


def _line(line: Line) -> dict[str, Any]:
    """The words stand behind "line", and behind the state in them the time since when."""
    trouble = f"{len(line.failing)} of {line.voters} neutral endpoints fail" if line.failing else "slower than usual"
    why = "" if line.state is LineState.UP else trouble
    return {"state": line.state, "why": why, "since": iso(line.since) if line.since else None}


def _target(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "provider": target.provider,
        "model": target.model,
        "dialect": target.dialect,
        "served_from": where(target.served_from),
        "simulated": target.simulated,
    }


def where(place: Place) -> str | None:
    """City and country as far as they are known."""
    return ", ".join(filter(None, [place.city, place.country])) or None


def _cell(cell: Cell) -> dict[str, Any]:
    last = cell.judged[-1].attempt if cell.judged else None
    return {
        "vantage": cell.series.vantage.name,
        "target": cell.series.target.name,
        "probe": cell.series.probe.name,
        "state": State.OK if cell.state is State.DOUBT else cell.state,  # it answers, and the doubt stands beside that
        "words": cell.words,
        "doubt": cell.doubt,
        "since": iso(cell.since) if cell.since else None,
        "since_at_least": cell.at_least,
        "last_at": iso(last.started_at) if last else None,
        "next_at": iso(cell.next_at) if cell.next_at and not last else None,
        "last_ttft": cell.last_ttft,
        "median_ttft": cell.median,
        "points": [[one.attempt.timeline.ttft, one.state] for one in cell.judged],
        "simulated": cell.series.simulated,
    }


def _latest(
    view: View, judged: Mapping[SeriesKey, list[Judged]], advice: Mapping[str, str], choice: Choice
) -> list[dict[str, object]]:
    gaps = idle_gaps(view)
    simulated = {one.key: one.simulated for one in view.series}
    wanted = [
        (key, one)
        for key, several in judged.items()
        if choice.series in (None, key)
        for one in several
        if not choice.trouble or one.state is not State.OK
    ]
    wanted.sort(key=lambda pair: (pair[1].attempt.started_at, pair[1].attempt.key), reverse=True)
    newest = islice(wanted, LATEST)
    return [{**_row(one, gaps.get(one.attempt.key), advice), "simulated": simulated[key]} for key, one in newest]


def _row(one: Judged, idle: float | None, advice: Mapping[str, str]) -> dict[str, object]:
    kind = one.attempt.failure.kind if one.attempt.failure else ""
    found = one.judgement
    idle = idle if found is None or found.idle_before is None else found.idle_before
    return row(one.attempt, state=one.state, median=one.median, idle=idle, advice=advice.get(kind), judgement=found)
