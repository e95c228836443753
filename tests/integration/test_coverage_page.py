"""Coverage over HTTP and in a browser: the same numbers as JSON, as CSV and as strips that a person can read."""

from __future__ import annotations

import csv
import http.client
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Engine

from monitor.clock import ManualClock, instant
from monitor.detect.coverage import CAUSES, micros
from monitor.grid import grid
from monitor.hub.app import create_app
from monitor.hub.server import WebServer
from monitor.metrics import Metrics
from monitor.model import Attempt, DialectName, MissReason, Outcome, Probe, Series, StoreUnavailable, Target, Vantage
from monitor.notes import Note, OutageNote, PlannedSeries, PlanNote
from monitor.store import attempts, coverage, notes
from monitor.store.attempts import hour_of
from monitor.store.live import LiveQueries

HOUR = timedelta(hours=1)
VANTAGES = ("lagos", "london")
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def a_series(vantage: str, target: str, interval: float = 120.0) -> Series:
    return Series(
        vantage=Vantage(name=vantage),
        target=Target(name=target, provider="p", model="m", dialect=DialectName.ANTHROPIC, url="http://x.test"),
        probe=Probe(name="short", prompt="hi", interval_seconds=interval),
    )


class Product:
    """A server on its own database, at a quarter past the hour."""

    def __init__(self, store: Engine) -> None:
        self.store = store
        self.clock = ManualClock(datetime.fromisoformat("2026-03-02T12:15:00+00:00"))
        self.now = self.clock.now()
        self.away = False
        app = create_app(
            Metrics(self.clock),
            LiveQueries(store, self.clock),
            dict,
            series=list,
            clock=self.clock,
            coverage=self,
        )
        self.server = WebServer(app, port=0)
        self.server.start()

    def coverage(
        self, since: datetime, until: datetime, *, vantage: str | None = None, target: str | None = None
    ) -> Sequence[coverage.Covered]:
        if self.away:
            raise StoreUnavailable("Postgres is away")
        return coverage.covered(self.store, since, until, self.now, vantage=vantage, target=target)

    def say(self, vantage: str, *told: Note) -> None:
        notes.insert(self.store, vantage, vantage * 4, told, self.now)

    def plan(self, vantage: str, *targets: str, since: timedelta = 30 * HOUR) -> None:
        every = (a_series(vantage, target) for target in targets)
        planned = tuple(PlannedSeries(grid=grid(one, VANTAGES), probe_version="v") for one in every)
        self.say(vantage, PlanNote(id=1, at=self.now - since, series=planned))

    def measure(self, vantage: str, target: str, since: datetime, until: datetime, missed: str | None = None) -> None:
        one = a_series(vantage, target)
        lattice = grid(one, VANTAGES)
        made = [
            Attempt(
                vantage=vantage,
                target=target,
                probe="short",
                probe_version="v",
                scheduled_at=instant(lattice.instant_us(number) * 1_000),
                started_at=instant(lattice.instant_us(number) * 1_000),
                outcome=Outcome.MISSED if missed else Outcome.SUCCESS,
                missed=MissReason(missed) if missed else None,
            )
            for number in lattice.numbers(micros(since), micros(until))
        ]
        attempts.insert(self.store, [one], made, self.now)

    def ago(self, hours: int) -> datetime:
        return hour_of(self.now) - hours * HOUR

    def get(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        connection.request("GET", path)
        return connection.getresponse()

    def json(self, query: str = "") -> Any:
        answer = self.get(f"/api/v1/coverage{query}")
        assert answer.status == 200
        return json.loads(answer.read())


@pytest.fixture
def product(store: Engine) -> Iterator[Product]:
    made = Product(store)
    yield made
    made.server.stop()


def fill(product: Product) -> None:
    """A day of two vantage points: one complete, one with an outage, a reached cap and a stretch not delivered."""
    product.plan("london", "chat", "reason")
    product.plan("lagos", "chat", "reason")
    for target in ("chat", "reason"):
        product.measure("london", target, product.ago(31), product.now)
        product.measure("lagos", target, product.ago(31), product.ago(14))
        product.measure("lagos", target, product.ago(9) + HOUR / 2, product.ago(4))
        product.measure("lagos", target, product.ago(4), product.ago(3) + HOUR / 4, missed="budget")
        product.measure("lagos", target, product.ago(3) + HOUR / 4, product.ago(2))
    product.say("lagos", OutageNote(id=2, begin=product.ago(14), until=product.ago(9) + HOUR / 2, reason="power"))


def test_json_adds_up(product: Product) -> None:
    """Owed is measured plus every cause, in each row and in the total, which is the sum of the rows."""
    fill(product)
    said = product.json("?since=24h&by=vantage,target,hour")
    for row in [said["total"], *said["rows"]]:
        assert row["owed"] == row["measured"] + sum(row["missed"].values())
    for number in ("owed", "measured", "pending", "repeated", "unplanned"):
        assert said["total"][number] == sum(row[number] for row in said["rows"])
    assert set(said["total"]["missed"]) == {"power", "budget", "unsent"}
    assert set(said["causes"]) == set(CAUSES)


def test_groups_and_selections(product: Product) -> None:
    """`by` groups, names select; all together without `by`."""
    fill(product)
    by_vantage = product.json("?since=2026-03-02T00:00:00Z&until=2026-03-02T06:00:00Z&by=vantage")["rows"]
    assert {row["vantage"]: row["share"] for row in by_vantage} == {"lagos": pytest.approx(0.42, abs=0.05), "london": 1}
    assert product.json("?by=")["rows"] == []
    rows = product.json("?vantage=lagos&target=chat&by=target,vantage,probe,hour")["rows"]
    assert {(row["target"], row["vantage"], row["probe"]) for row in rows} == {("chat", "lagos", "short")}
    assert [row["hour"] for row in rows] == sorted(row["hour"] for row in rows)
    assert product.json("?vantage=nowhere")["total"]["owed"] == 0


def test_csv_says_the_same(product: Product) -> None:
    """One line for each row of the JSON, one column for each cause, and no name that a spreadsheet would run."""
    fill(product)
    product.plan("=HYPERLINK(1)", "chat")
    answer = product.get("/api/v1/coverage?format=csv&by=vantage,hour")
    assert answer.getheader("content-type") == "text/csv; charset=utf-8"
    lines = list(csv.DictReader(io.StringIO(answer.read().decode())))
    rows = product.json("?by=vantage,hour")["rows"]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert line["vantage"].lstrip("'") == row["vantage"]
        assert {cause: int(line[cause]) for cause in CAUSES if int(line[cause])} == row["missed"]
    assert {line["vantage"] for line in lines} == {"lagos", "london", "'=HYPERLINK(1)"}


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("since=yesterday", "since"),
        ("since=2026-03-01T00:00:00", "time zone"),
        ("since=40d", "31 days"),
        ("since=1h&until=2026-03-02T12:00:00", "until"),
        ("since=2026-03-03T00:00:00Z", "before until"),
        ("by=hour,hour", "once"),
        ("by=secret", "vantage, target, probe, hour"),
        ("since=99999999999999999999d", "since"),
    ],
)
def test_a_bad_question_gets_a_sentence(product: Product, query: str, named: str) -> None:
    """What cannot be understood is 422 with how to ask; nothing raises."""
    answer = product.get(f"/api/v1/coverage?{query}")
    assert answer.status == 422
    assert named in json.loads(answer.read())["error"]


def test_an_instant_in_another_zone(product: Product) -> None:
    """Any offset is understood, a plus sign that nobody encoded too."""
    fill(product)
    utc = product.json("?since=2026-03-02T00:00:00Z&until=2026-03-02T06:00:00Z")
    for spelled in (quote("2026-03-02T01:00:00+01:00"), "2026-03-02T01:00:00+01:00"):
        assert product.json(f"?since={spelled}&until=2026-03-02T06:00:00Z") == utc


def test_a_database_that_is_away(product: Product) -> None:
    """503 with a sentence and when to ask again."""
    product.away = True
    answer = product.get("/api/v1/coverage")
    assert (answer.status, answer.getheader("retry-after")) == (503, "5")
    assert "Postgres is away" in json.loads(answer.read())["error"]


def test_nothing_planned_is_said_in_words(product: Product, browse: Any) -> None:
    """Before the first plan the page says when coverage begins, instead of showing an empty table."""
    page = browse()
    page.open(f"{product.server.url}coverage")
    page.wait_for("!document.getElementById('empty').hidden")
    assert "No plan is known yet" in page.evaluate("document.body.innerText")
    assert page.complaints == []


def test_strips_are_read_by_eye_keyboard_and_reader(product: Product, browse: Any) -> None:
    """A strip for each target and vantage, a sign in each hour, its words for screen readers, causes for a choice."""
    fill(product)
    page = browse(width=1280)
    page.open(f"{product.server.url}coverage")
    page.wait_for("document.querySelectorAll('#hours tbody tr').length === 4")
    signs = page.evaluate(
        "[...document.querySelectorAll('#hours tbody tr')].map((r) => r.innerText.replace(/\\s+/g, ' '))"
    )
    assert "100 %" in signs[1] and "the machine was off" in signs[0]
    assert "were measured in the last 24 hours" in page.evaluate("document.getElementById('sentence').innerText")
    label = page.evaluate("document.querySelector('#hours .slot.zero').getAttribute('aria-label')")
    assert "0 of 30 slots measured; missed: 30 (the machine was off)" in label
    page.evaluate("document.querySelector('#hours .slot.zero').click()")
    told = page.wait_for("document.getElementById('told').innerText.includes('look at its power') && told.innerText")
    assert "0 of 30 slots measured (0.0 %)." in told
    page.evaluate("document.activeElement.blur(); document.querySelector('.slot[tabindex=\"0\"]').focus()")
    before = page.evaluate("document.activeElement.dataset.key")
    for key in ("ArrowDown", "ArrowLeft"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    assert page.evaluate("document.activeElement.dataset.key") != before
    assert page.evaluate("document.querySelectorAll('.slot[tabindex=\"0\"]').length") == 1
    page.evaluate("document.getElementById('gaps').click()")
    assert page.evaluate("document.querySelectorAll('#hours tbody tr').length") == 2
    page.evaluate("document.getElementById('two-days').click()")
    page.wait_for("document.querySelectorAll('#hours thead th').length === 50")
    assert page.complaints == []


@pytest.mark.parametrize("width", [320, 1280])
def test_it_fits_a_phone_and_a_desk(product: Product, browse: Any, width: int) -> None:
    """Nothing but the strips' own frame is wider than the screen."""
    fill(product)
    page = browse(width=width, height=800)
    page.open(f"{product.server.url}coverage")
    page.wait_for("document.querySelectorAll('#hours tbody tr').length === 4")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_foreign_names_are_text(product: Product, browse: Any) -> None:
    """A target's name from an upload is shown, never run."""
    product.plan("lagos", HOSTILE)
    page = browse()
    page.open(f"{product.server.url}coverage")
    page.wait_for("document.querySelectorAll('#hours tbody tr').length === 1")
    assert page.evaluate("document.title") == "Coverage · First Token"
    assert HOSTILE in page.evaluate("document.body.innerText")


def test_a_lost_database_keeps_what_was_shown(product: Product, browse: Any) -> None:
    """The page says what is wrong and goes on showing what it knew."""
    fill(product)
    page = browse()
    page.open(f"{product.server.url}coverage")
    page.wait_for("document.querySelectorAll('#hours tbody tr').length === 4")
    product.away = True
    product.clock.advance(60)
    page.evaluate("refresh()")
    page.wait_for("document.getElementById('notices').innerText.includes('Postgres is away')")
    assert page.evaluate("document.querySelectorAll('#hours tbody tr').length") == 4


def test_the_live_page_leads_here(product: Product, browse: Any) -> None:
    """One click from the first page, and back."""
    page = browse()
    page.open(f"{product.server.url}")
    page.wait_for("!!document.querySelector('nav a[href=\"/coverage\"]')")
    page.evaluate("document.querySelector('nav a[href=\"/coverage\"]').click()")
    page.wait_for("location.pathname === '/coverage' && !!document.querySelector('nav a[href=\"/\"]')")


def test_what_is_simulated_says_so(product: Product, browse: Any) -> None:
    """Rows of simulated providers or distances carry it in JSON, CSV and on the page; others do not."""
    fill(product)
    pretended = replace(a_series("lagos", "chat"), target=replace(a_series("lagos", "chat").target, simulated=True))
    planned = PlannedSeries(grid=grid(pretended, VANTAGES), probe_version="v")
    again = PlanNote(id=9, at=product.now - HOUR, series=(planned,))
    notes.insert(product.store, "lagos", "lagos" * 4, [again], product.now, known=[pretended])
    said = product.json("?by=vantage,target")
    assert said["total"]["simulated"]
    assert {(row["vantage"], row["target"]) for row in said["rows"] if row["simulated"]} >= {("lagos", "chat")}
    assert not any(row["simulated"] for row in said["rows"] if row["target"] == "reason")
    lines = csv.DictReader(io.StringIO(product.get("/api/v1/coverage?format=csv&by=target").read().decode()))
    assert {line["target"]: line["simulated"] for line in lines} == {"chat": "true", "reason": "false"}
    page = browse()
    page.open(f"{product.server.url}coverage")
    page.wait_for("document.querySelectorAll('#hours tbody tr').length === 4")
    marked = "[...document.querySelectorAll('#hours .pill.simulated')].map((p) => p.closest('th').innerText)"
    assert all("chat" in words for words in page.evaluate(marked)) and page.evaluate(marked)
    assert "simulated" in page.evaluate("document.querySelector('footer').innerText")
