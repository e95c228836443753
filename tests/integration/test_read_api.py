"""The read API of a running hub: pages of attempts, series, percentiles; JSON, CSV; and what its OpenAPI says."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import text

from monitor.model import RateLimit, ServiceFacts
from monitor.store import rollups
from monitor.wire import encode
from monitor.wire.fleet import encode_upload
from tests.integration.running_fleet import Fleet, running
from tests.integration.running_up import until
from tests.integration.test_fleet_storage import AGENT, attempt

pytestmark = pytest.mark.timeout(300)
START = (datetime.now(UTC) - timedelta(hours=5)).replace(minute=0, second=0, microsecond=0)
COUNT = 250
SAID = ServiceFacts(limits=(RateLimit(name="requests", limit=10.0, remaining=7.0),))
Asked = dict[str, str] | list[tuple[str, str]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, shared_database_url: str) -> Iterator[Fleet]:
    """A hub that holds attempts of two hours, whose TTFT is known."""
    with running(tmp_path_factory.mktemp("read"), shared_database_url) as one:
        one.token = one.enrol("lagos")  # type: ignore[attr-defined]
        step = timedelta(hours=2) / COUNT
        made = [replace(attempt(START + n * step, ttft_ns=(n + 1) * 1_000_000), service=SAID) for n in range(COUNT)]
        status, answer = one.post("attempts", one.token, encode_upload(AGENT, [encode(each) for each in made]))  # type: ignore[attr-defined]
        assert (status, answer["stored"]) == (200, COUNT)
        yield one


def ask(fleet: Fleet, path: str, **asked: object) -> Any:
    return json.loads(fleet.get(f"/api/v1/{path}?{urlencode(asked)}"))


def refused(fleet: Fleet, path: str, asked: Asked) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        fleet.get(f"/api/v1/{path}?{urlencode(asked)}")
    assert caught.value.code == 422
    return str(json.loads(caught.value.read())["error"])


def test_pages_hold_every_attempt_once(fleet: Fleet) -> None:
    """From page to page, newest first, nothing twice and nothing left out."""
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = ask(fleet, "attempts", since="24h", limit=37, **cursor)
        seen += [one["scheduled_at"] for one in page["attempts"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert len(seen) == len(set(seen)) == COUNT
    assert seen == sorted(seen, reverse=True)


def test_attempts_can_be_chosen(fleet: Fleet) -> None:
    """By range, vantage point, target, probe and outcome; each as `probe --json` prints it, with its labels."""
    middle = START + timedelta(hours=1)
    half = ask(fleet, "attempts", since=START.isoformat(), until=middle.isoformat(), limit=1000)["attempts"]
    assert len(half) == COUNT / 2
    one = half[0]
    names = [one[key] for key in ("vantage", "target", "probe", "provider", "model")]
    assert names == ["lagos", "t", "p", "sim", "m"]
    assert one["seconds"]["ttft"] == pytest.approx(COUNT / 2 / 1000)
    assert one["simulated"] is True
    for name, value in (("vantage", "london"), ("target", "x"), ("probe", "x"), ("outcome", "failed")):
        assert ask(fleet, "attempts", since="24h", **{name: value})["attempts"] == []


def test_series_are_listed(fleet: Fleet) -> None:
    """What has attempts or a plan, with its labels."""
    assert {"vantage": "lagos", "target": "t", "probe": "p", "provider": "sim", "model": "m", "city": None,
            "country": "NG", "simulated": True} in ask(fleet, "series")["series"]  # fmt: skip


def test_percentiles_over_time(fleet: Fleet) -> None:
    """From rollups, by the hour: within the bins' error of the percentiles of the very attempts."""
    rows = until(
        lambda: (found := ask(fleet, "percentiles", since="24h", by="series")["rows"]) and len(found) == 2 and found,
        "two hours of rollups",
        120,
    )
    for place, row in enumerate(rows):
        exact = [(n + 1) / 1000 for n in range(COUNT) if n // (COUNT // 2) == place]
        assert row["count"] == len(exact)
        assert row["p50"] == pytest.approx(statistics.median_low(exact), rel=0.03)
        assert row["p99"] == pytest.approx(exact[int(len(exact) * 0.99)], rel=0.03)
        assert row["at_least"] == []
    (day,) = ask(fleet, "percentiles", since="24h", step="day", by="all")["rows"][-1:]
    assert day["count"] <= COUNT
    assert ask(fleet, "percentiles", since="24h", vantage="london")["rows"] == []


def test_steps_are_whole_ones(fleet: Fleet) -> None:
    """Every hour and day (UTC) that the range touches counts whole, whatever its ends and their time zone."""
    until(lambda: len(ask(fleet, "percentiles", since="24h")["rows"]) == 2, "two hours of rollups", 120)
    india = timezone(timedelta(hours=5, minutes=30))
    inside = {"since": (START + timedelta(minutes=59)).astimezone(india), "until": START + timedelta(minutes=61)}
    asked = {name: moment.isoformat() for name, moment in inside.items()}
    assert [row["count"] for row in ask(fleet, "percentiles", **asked)["rows"]] == [COUNT / 2, COUNT / 2]
    days = ask(fleet, "percentiles", step="day", **asked)["rows"]
    assert sum(row["count"] for row in days) == COUNT
    assert all(row["start"].endswith("T00:00:00.000000Z") for row in days)


def test_days_that_are_added_up_and_days_that_are_not_yet_agree(fleet: Fleet) -> None:
    """A day's percentiles come from its own rollup or from its hours, whichever is up to date, and never from both."""
    start = (now := datetime.now(UTC)).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
    asked = {"since": start.isoformat(), "until": (start + timedelta(days=1)).isoformat(), "step": "day"}

    def day() -> Any:
        rollups.refresh(fleet.engine, now + timedelta(minutes=10))
        (row,) = ask(fleet, "percentiles", **asked)["rows"]
        return row["count"], row["p50"]

    for hour, expected in ((3, (40, 0.1)), (9, (80, 0.1))):
        made = [attempt(start + timedelta(hours=hour, seconds=n), ttft_ns=100_000_000) for n in range(40)]
        fleet.post("attempts", fleet.token, encode_upload(AGENT, [encode(one) for one in made]))  # type: ignore[attr-defined]
        assert day() == (expected[0], pytest.approx(expected[1], rel=0.02))
        with fleet.engine.begin() as connection:
            marked = connection.execute(text("SELECT count(*) FROM dirty_days WHERE day = :day"), {"day": start})
            assert marked.scalar_one() == 0, "it is added up"
            connection.execute(text("INSERT INTO dirty_days SELECT DISTINCT vantage_id, series_id, day FROM rollup_days"
                                    " WHERE day = :day"), {"day": start})  # fmt: skip
            connection.execute(text("DELETE FROM rollup_days WHERE day = :day"), {"day": start})
        (row,) = ask(fleet, "percentiles", **asked)["rows"]
        assert (row["count"], row["p50"]) == (expected[0], pytest.approx(expected[1], rel=0.02))


@pytest.mark.parametrize("path", ["attempts", "series", "percentiles"])
def test_csv(fleet: Fleet, path: str) -> None:
    """The same rows for spreadsheets, names that look like formulas made harmless."""
    given = {} if path == "series" else {"since": "24h"}
    rows = list(csv.DictReader(io.StringIO(fleet.get(f"/api/v1/{path}?{urlencode({**given, 'format': 'csv'})}"))))
    assert rows
    assert all(row["vantage"] == "lagos" for row in rows)
    python = ("True", "False", "None", "[{'", "{'", "[]")
    assert not [cell for row in rows for cell in row.values() if cell.startswith(python)], "cells are JSON's"
    if path == "series":
        assert rows[0]["simulated"] == "true"
    if path == "attempts":
        (limit,) = json.loads(rows[0]["service.limits"])
        assert (limit["name"], limit["remaining"]) == ("requests", 7.0)


@pytest.mark.parametrize(
    ("accept", "asked", "given"),
    [
        ("text/csv", "", "text/csv; charset=utf-8"),
        ("text/csv;q=0.5, application/json;q=0.4", "", "text/csv; charset=utf-8"),
        ("text/csv, application/json", "", "application/json"),
        ("*/*", "", "application/json"),
        ("text/csv", "&format=json", "application/json"),
        ("application/json", "&format=csv", "text/csv; charset=utf-8"),
    ],
)
@pytest.mark.parametrize("path", ["attempts", "percentiles", "coverage"])
def test_the_form_of_an_answer(fleet: Fleet, path: str, accept: str, asked: str, given: str) -> None:
    """As `format` says; without it as the Accept header likes best, JSON when it likes both alike."""
    told, _ = headers(fleet, f"/api/v1/{path}?since=2h{asked}", accept)
    assert told["content-type"] == given
    assert "accept," in told["vary"]


def headers(fleet: Fleet, path: str, accept: str) -> tuple[Message, str]:
    asked = urllib.request.Request(f"http://127.0.0.1:{fleet.port}{path}", headers={"accept": accept})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return answer.headers, answer.read().decode()


def test_csv_has_pages_too(fleet: Fleet) -> None:
    """The `Link` header leads on, with everything that was asked; the last page has none."""
    path, seen = f"/api/v1/attempts?since={START:%Y-%m-%dT%H:%M:%SZ}&limit=100&format=csv", list[str]()
    while path:
        told, body = headers(fleet, path, "*/*")
        seen += [row["scheduled_at"] for row in csv.DictReader(io.StringIO(body))]
        link = re.fullmatch(r'<(\?[^>]+)>; rel="next"', told.get("link", ""))
        path = f"/api/v1/attempts{link[1]}" if link else ""
    assert len(seen) == len(set(seen)) == COUNT


@pytest.mark.parametrize(
    ("path", "asked", "words"),
    [
        ("attempts", {"since": "yesterday"}, "since"),
        ("attempts", {"since": "1h", "until": "2020-01-01T00:00:00Z", "limit": "0"}, "limit"),
        ("attempts", {"limit": "1001"}, "limit"),
        ("attempts", {"outcome": "good"}, "outcome"),
        ("attempts", {"cursor": "nonsense"}, "cursor"),
        ("attempts", {"cursor": "W10="}, "cursor"),
        ("attempts", {"since": "500d"}, "at most 400 days"),
        ("attempts", {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "before until"),
        ("attempts", {"format": "xml"}, "format"),
        ("attempts", {"vantag": "lagos"}, "'vantag' is no parameter here"),
        ("attempts", [("since", "1h"), ("since", "2h")], "since: stands there 2 times"),
        ("attempts", {"vantage": "a\0b"}, "nothing can be called"),
        ("attempts", {"cursor": "WyI5OTk5LTEyLTMxVDIzOjU5OjU5LjAwMDAwMCswMDowMCIsMSwyLDBd"}, "cursor"),
        ("attempts", {"until": "0001-01-01T00:00:00Z"}, "between 1970 and 2200"),
        ("attempts", {"since": "99999999d"}, "since"),
        ("percentiles", {"target": "\0"}, "nothing can be called"),
        ("percentiles", {"until": "9999-12-31T23:59:59Z", "step": "day"}, "between 1970 and 2200"),
        ("coverage", {"vantage": "\0"}, "nothing can be called"),
        ("coverage", {"until": "0001-01-01T00:30:00Z", "since": "10m"}, "between 1970 and 2200"),
        ("coverage", {"step": "day"}, "'step' is no parameter here"),
        ("series", {"since": "1h"}, "'since' is no parameter here"),
        ("percentiles", {"measure": "wisdom"}, "measure"),
        ("percentiles", {"by": "moon"}, "by"),
        ("percentiles", {"step": "year"}, "step"),
    ],
)
def test_questions_that_cannot_be_understood(fleet: Fleet, path: str, asked: Asked, words: str) -> None:
    """422 and one sentence that says which parameter, and what it may be."""
    assert words in refused(fleet, path, asked)


def test_the_examples_of_the_documentation(fleet: Fleet) -> None:
    """Every curl line of docs/api.md has an answer."""
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    asked = re.findall(r"curl -s(?: -H 'Accept: ([^']+)')? 'http://127.0.0.1:8765(/api/v1/[^']+)'", page)
    assert len(asked) == 5
    for accept, path in asked:
        _, body = headers(fleet, path, accept or "*/*")
        assert body.startswith("start,vantage,") if accept else json.loads(body)


def test_the_openapi_is_kept(fleet: Fleet, tmp_path: Path) -> None:
    """Schemathesis asks what the OpenAPI allows and what it does not: no 5xx, and every answer as it is described."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"http://127.0.0.1:{fleet.port}/api/openapi.json",
        "--max-examples", "25", "--phases", "examples,coverage,fuzzing", "--seed", "7",
        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        "--header", f"Authorization: Bearer {fleet.token}", "--request-timeout", "30", "--suppress-health-check", "all",  # type: ignore[attr-defined]
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
