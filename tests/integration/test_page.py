"""The web application over a real socket, fed by a real Postgres and looked at with a real browser."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from monitor.clock import Clock
from monitor.detect.coldstart import USUAL_RULE, Judgement
from monitor.detect.line import Line, LineState
from monitor.hub.app import create_app
from monitor.hub.live import LiveView
from monitor.hub.server import CONNECTIONS, ListenError, WebServer
from monitor.metrics import Metrics
from monitor.model import (
    Attempt,
    DialectName,
    Doubt,
    Failure,
    FailureKind,
    Outcome,
    Place,
    Probe,
    Series,
    StoreUnavailable,
    Target,
    Vantage,
)
from monitor.store import attempts as stored
from monitor.store import verdicts
from monitor.store.engine import open_engine
from monitor.store.live import LiveQueries
from monitor.timeline import Mark, Phase, Timeline

MS = 1_000_000
HOSTILE = "busy <script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
PROBE = Probe(name="short", prompt="hello", interval_seconds=15.0, deadline_seconds=10.0)


def series(vantage: Vantage, target: str, simulated: bool = False) -> Series:
    aim = Target(
        name=target,
        provider="acme",
        model="small",
        dialect=DialectName.ANTHROPIC,
        url="http://x.test",
        simulated=simulated,
    )
    return Series(vantage=vantage, target=aim, probe=PROBE)


HERE = Vantage(name="here", place=Place(city="Berlin", country="DE"))
LAGOS = Vantage(name="lagos", place=Place(city="Lagos", country="NG"), simulated=True)
CHAT, FAR, PRETENDED = series(HERE, "chat"), series(LAGOS, "chat"), series(HERE, "pretended", simulated=True)
ALL = [CHAT, FAR, PRETENDED]


def success(of: Series, at: datetime, ttft_ms: int = 200, **changes: Any) -> Attempt:
    marks = {
        Mark.RESOLVE_START: 0,
        Mark.RESOLVE_END: 2,
        Mark.CONNECT_START: 2,
        Mark.CONNECT_END: 40,
        Mark.SEND_START: 40,
        Mark.SEND_END: 41,
        Mark.HEADERS: ttft_ms - 20,
        Mark.FIRST_TOKEN: ttft_ms,
        Mark.END: ttft_ms + 300,
    }
    attempt = Attempt(
        vantage=of.vantage.name,
        target=of.target.name,
        probe=of.probe.name,
        probe_version=of.probe.version,
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
        timeline=Timeline({mark: milliseconds * MS for mark, milliseconds in marks.items()}),
    )
    return replace(attempt, **changes)


def failed(of: Series, at: datetime, text: str = HOSTILE) -> Attempt:
    marks = Timeline({Mark.SEND_START: 0, Mark.SEND_END: MS, Mark.GAVE_UP: 400 * MS})
    failure = Failure(kind=FailureKind.OVERLOADED, phase=Phase.WAIT, text=text)
    return success(of, at, outcome=Outcome.FAILED, failure=failure, timeline=marks)


class Product:
    """A server on its own database, with what a test may change while it runs."""

    def __init__(self, engine: Engine, configured: list[Series]) -> None:
        self.clock = Clock()
        self.due = self.clock.now() + timedelta(seconds=60)
        self.engine = engine
        self.configured = configured
        self.trouble: dict[str, str | None] = {"store": None, "scheduler": None}
        self.lines: dict[str, Line] = {}
        self.metrics = Metrics()
        self.server = self.serve(port=0)

    def serve(self, port: int) -> WebServer:
        app = create_app(
            self.metrics,
            LiveQueries(self.engine, self.clock),
            lambda: self.trouble,
            series=lambda: self.configured,
            next_slot=lambda _: self.due,
            advice={"overloaded": "Wait, or ask another provider."},
            lines=lambda: self.lines,
        )
        server = WebServer(app, port=port)
        server.start()
        return server

    def ago(self, seconds: float) -> datetime:
        return self.clock.now() - timedelta(seconds=seconds)

    def store(self, *attempts: Attempt) -> None:
        done = stored.insert(self.engine, ALL, attempts, self.clock.now())
        assert not done.rejected

    def get(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=body, headers=named)
        return connection.getresponse()

    def live(self, query: str = "") -> dict[str, Any]:
        return dict(json.loads(self.get(f"/api/live{query}").read()))


@pytest.fixture
def product(store: Engine) -> Iterator[Product]:
    made = Product(store, list(ALL))
    yield made
    made.server.stop()


def test_health_is_about_the_process_and_readiness_about_its_parts(product: Product) -> None:
    """A balancer drops a process whose database is away; nobody restarts it for that."""
    assert product.get("/healthz").status == 200
    assert product.get("/readyz").status == 200
    product.trouble["store"] = "Postgres does not answer on 10.0.0.5:5432"
    answer = product.get("/readyz")
    assert answer.status == 503
    assert json.loads(answer.read()) == {
        "ready": False,
        "checks": {"store": "Postgres does not answer on 10.0.0.5:5432", "scheduler": "ok"},
    }
    assert product.get("/healthz").status == 200


def test_metrics_are_negotiated(product: Product) -> None:
    """OpenMetrics for those who ask, the old text format for all others, compressed for those who can."""
    plain = product.get("/metrics")
    assert plain.getheader("content-type", "").startswith("text/plain; version=0.0.4")
    modern = product.get("/metrics", Accept="application/openmetrics-text;version=1.0.0")
    assert modern.getheader("content-type", "").startswith("application/openmetrics-text; version=1.0.0")
    assert modern.read().endswith(b"# EOF\n")
    packed = product.get("/metrics", Accept_Encoding="gzip")
    assert b"firsttoken_build_info" in gzip.decompress(packed.read())


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/api/live", "/metrics", "/healthz", "/readyz", "/nowhere"])
def test_every_answer_is_guarded(product: Product, path: str) -> None:
    """No foreign script, no sniffing, no framing, no cookies, no server banner."""
    answer = product.get(path)
    policy = answer.getheader("content-security-policy", "")
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "unsafe" not in policy
    assert answer.getheader("x-content-type-options") == "nosniff"
    assert answer.getheader("set-cookie") is None
    assert answer.getheader("server") is None


def test_the_page_needs_nothing_from_elsewhere(product: Product) -> None:
    """Every address in its files is on this server (the SVG namespace is a name, not an address)."""
    for path in ("/", "/static/page.css", "/static/page.js", "/static/icon.svg"):
        answer = product.get(path)
        assert answer.status == 200
        text = answer.read().decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text


def test_requests_are_bounded(product: Product) -> None:
    """No bodies, no huge headers, no long parameters, no other methods."""
    assert product.get("/api/live", method="POST", body=b"x" * 100).status == 413
    assert product.get("/", method="DELETE").status == 405
    assert product.get(f"/api/live?target={'x' * 500}").status == 422
    assert product.get("/", X_Long="x" * 70_000).status in {400, 431}
    assert product.get("/healthz").status == 200


def test_too_many_connections_are_refused_and_the_server_recovers(product: Product) -> None:
    """A flood gets 503 instead of memory."""
    flood = [socket.create_connection(("127.0.0.1", product.server.port)) for _ in range(CONNECTIONS + 4)]
    try:
        assert _eventually(lambda: product.get("/healthz").status == 503)
    finally:
        for one in flood:
            one.close()
    assert _eventually(lambda: product.get("/healthz").status == 200)


def test_an_unchanged_page_costs_a_304(product: Product) -> None:
    """Polling every two seconds sends a body only when something changed."""
    product.store(success(CHAT, product.ago(5)))
    tag = product.get("/api/live").getheader("etag")
    assert tag is not None
    assert product.get("/api/live", If_None_Match=tag).status == 304
    product.store(success(CHAT, product.ago(1)))
    assert _eventually(lambda: product.get("/api/live", If_None_Match=tag).status == 200)
    page = product.get("/")
    assert product.get("/", If_None_Match=page.getheader("etag", "")).status == 304


def test_a_taken_port_is_a_sentence(product: Product) -> None:
    """It names the address and what to change, and the one who had the port keeps it."""
    app = create_app(Metrics(), LiveQueries(product.engine), dict, series=list)
    with pytest.raises(ListenError, match=r"127\.0\.0\.1:\d+: another program listens there.*web\.listen"):
        WebServer(app, port=product.server.port).start()
    assert product.get("/healthz").status == 200


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("192.0.2.1", 0, "no such address"),
        ("no.such.host.invalid", 0, "no such address"),
        ("127.0.0.1", 70_000, "port"),
    ],
)
def test_an_impossible_address_is_a_sentence(host: str, port: int, words: str) -> None:
    """Bad addresses are told, not traced."""
    with pytest.raises(ListenError, match=words):
        WebServer(create_app(Metrics(), _Away(), dict, series=list), host, port).start()


def test_stopping_frees_the_port_and_ends_the_thread(product: Product) -> None:
    """Also with a connection open, and twice."""
    port = product.server.port
    idle = socket.create_connection(("127.0.0.1", port))
    product.server.stop()
    product.server.stop()
    idle.close()
    assert "web" not in {thread.name for thread in threading.enumerate()}
    product.server = product.serve(port)
    assert product.get("/healthz").status == 200


def test_serving_does_not_use_the_loop_that_measures(product: Product) -> None:
    """Requests are answered while the caller's own loop is blocked."""

    async def blocked() -> int:
        status: list[int] = []
        asking = threading.Thread(target=lambda: status.append(product.get("/healthz").status))
        asking.start()
        asking.join(10)  # blocks this loop on purpose
        return status[0]

    assert asyncio.run(blocked()) == 200


class _Away:
    """Queries on a database that is away; tests of the view while it is."""

    def latest(self, per_series: int) -> Sequence[Attempt]:
        raise StoreUnavailable("Postgres does not answer")

    def received_since(self, moment: datetime) -> Sequence[Attempt]:
        raise StoreUnavailable("Postgres does not answer")

    def latest_verdicts(self, per_series: int) -> Sequence[Judgement]:
        raise StoreUnavailable("Postgres does not answer")

    def judged_since(self, moment: datetime) -> Sequence[Judgement]:
        raise StoreUnavailable("Postgres does not answer")

    def failing_since(self, vantage: str, target: str, probe: str) -> tuple[datetime, bool] | None:
        raise StoreUnavailable("Postgres does not answer")


def test_new_and_late_attempts_reach_the_view(product: Product) -> None:
    """What arrives later than its neighbours stands in its right place."""
    product.store(success(CHAT, product.ago(60)), success(CHAT, product.ago(20), 230))
    assert _eventually(lambda: len(product.live()["attempts"]) == 2)
    product.store(success(CHAT, product.ago(40), 220))
    assert _eventually(lambda: len(product.live()["attempts"]) == 3)
    points = [point for point, _ in product.live()["cells"][0]["points"]]
    assert points == [0.2, 0.22, 0.23]


def test_a_long_outage_keeps_its_beginning(product: Product) -> None:
    """However many failures come after it: the store is asked for what the page no longer keeps."""
    failures = [failed(CHAT, product.ago(15 * slot + 5)) for slot in range(50)]
    product.store(success(CHAT, product.ago(15 * 50 + 5)), *failures)
    assert _eventually(lambda: product.live()["cells"][0]["points"] != [])
    cell = product.live()["cells"][0]
    assert datetime.fromisoformat(cell["since"]) - failures[-1].started_at < timedelta(milliseconds=2)
    assert cell["since_at_least"] is False


def test_a_series_that_a_reload_adds_brings_its_history(product: Product) -> None:
    """And one that it removes is gone from the page."""
    product.configured = [CHAT]
    product.store(success(CHAT, product.ago(20)), success(FAR, product.ago(20)))
    assert _eventually(lambda: len(product.live()["attempts"]) == 1)
    product.configured = [FAR]
    assert _eventually(lambda: [row["vantage"] for row in product.live()["attempts"]] == ["lagos"])
    assert [cell["vantage"] for cell in product.live()["cells"]] == ["lagos"]


def test_a_store_that_is_away_is_told_and_what_was_known_stays(store: Engine) -> None:
    """The page goes on with what it knew, and says from when it is."""
    clock = Clock()
    stored.insert(store, ALL, [success(CHAT, clock.now())], clock.now())
    queries = LiveQueries(store, clock)
    view = LiveView(queries, lambda: ALL, lambda _: None, clock)

    async def scenario() -> None:
        seen = await view.now()
        assert seen.store_error is None
        queries._engine = open_engine("postgresql://nobody@127.0.0.1:1/none")
        await asyncio.sleep(1.1)
        await view.now()
        lost = await view.now()
        assert lost.store_error
        assert lost.refreshed_at == seen.refreshed_at
        assert len(lost.attempts["here", "chat", "short"]) == 1

    asyncio.run(scenario())


def _eventually(true: Any, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.1)
    return False


# -- in a browser ------------------------------------------------------------------------------------------------------


def measured(product: Product) -> None:
    """A state of affairs with everything in it: good, slow, doubtful, failing with a hostile text, simulated."""
    steady = [success(CHAT, product.ago(15 * slot + 4), 200 + slot) for slot in range(2, 10)]
    slow = success(CHAT, product.ago(15 + 4), 1400, validity=(Doubt.COALESCED,))
    lost = [failed(FAR, product.ago(15 * slot + 2)) for slot in range(3)]
    pretended = [success(PRETENDED, product.ago(15 * slot + 1), 300) for slot in range(4)]
    product.store(*steady, slow, success(CHAT, product.ago(4)), *lost, *pretended)


def shown(browser: Any) -> str:
    return str(browser.evaluate("document.body.innerText"))


def test_the_page_says_what_is_wrong_where_and_since_when(product: Product, browse: Any, tmp_path: Path) -> None:
    """Headline, matrix, rows with their bars, badges, sentences and advice; nothing from a provider is executed."""
    measured(product)
    browser = browse()
    browser.open(product.server.url)
    browser.wait_for("document.querySelectorAll('#rows li').length >= 17")
    text = shown(browser)
    assert "chat from lagos has failed since" in text
    assert "(overloaded, 3 times or more)" in text
    assert "failing: overloaded in wait" in text
    assert "slow first token: usually 206 ms" in text
    assert "coalesced" in text
    assert "Wait, or ask another provider." in text
    assert HOSTILE in text
    assert browser.evaluate("document.title") == "✕ First Token"
    assert browser.evaluate("document.querySelectorAll('#rows script, #rows img, #matrix script').length") == 0
    assert "Simulated: the distance of lagos is simulated on this machine; pretended is a simulated provider" in text
    assert browser.evaluate("document.querySelectorAll('#matrix .pill.simulated').length") >= 2
    assert browser.evaluate("document.querySelectorAll('#rows .pill.simulated').length") == 7
    assert browser.evaluate("document.querySelectorAll('#rows .track .died.wait').length") == 3
    assert browser.complaints == []
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_the_line_of_each_place_stands_beside_its_name(product: Product, browse: Any, tmp_path: Path) -> None:
    """A dead line in Lagos is said where Lagos stands, with since when and why; a good one in two words."""
    since = product.ago(600)
    product.lines = {
        "here": Line(state=LineState.UP, voters=5),
        "lagos": Line(state=LineState.DOWN, voters=5, failing=("a", "b", "c", "d"), since=since),
    }
    measured(product)
    browser = browse()
    browser.open(product.server.url)
    browser.wait_for("document.querySelectorAll('thead .line').length === 2")
    here, lagos = browser.evaluate("[...document.querySelectorAll('thead .line')].map((one) => one.innerText)")
    assert here == "line ok"
    assert re.fullmatch(r"line down since .*\d\d:\d\d:\d\d: 4 of 5 neutral endpoints fail", lagos)
    assert browser.complaints == []
    browser.screenshot(tmp_path / "lines.png")


def test_a_new_attempt_appears_and_an_open_row_and_the_scroll_position_stay(product: Product, browse: Any) -> None:
    """Who reads is not disturbed by what arrives."""
    measured(product)
    browser = browse(height=500)
    browser.open(product.server.url)
    browser.wait_for("document.querySelectorAll('#rows li').length >= 17")
    browser.evaluate("document.querySelectorAll('#rows details')[6].open = true")
    browser.evaluate("document.querySelectorAll('#rows li')[6].scrollIntoView()")
    before = browser.evaluate("document.querySelectorAll('#rows li')[6].getBoundingClientRect().top")
    text = browser.evaluate("document.querySelectorAll('#rows li')[6].dataset.shown")
    product.store(success(CHAT, product.clock.now(), 321))
    browser.wait_for("document.querySelectorAll('#rows li')[0].innerText.includes('321 ms')")
    kept = f"[...document.querySelectorAll('#rows li')].find((row) => row.dataset.shown === {json.dumps(text)})"
    assert browser.evaluate(f"{kept}.firstChild.open") is True
    assert abs(browser.evaluate(f"{kept}.getBoundingClientRect().top") - before) < 3
    assert "new connection" not in browser.evaluate("document.querySelectorAll('#rows li')[0].innerText")


def test_the_page_survives_a_restart_of_the_server(product: Product, browse: Any) -> None:
    """It says that the server is lost, keeps what it showed, and goes on by itself."""
    measured(product)
    browser = browse()
    browser.open(product.server.url)
    browser.wait_for("document.querySelectorAll('#rows li').length >= 17")
    port = product.server.port
    product.server.stop()
    browser.wait_for("document.querySelector('#notices').innerText.includes('The server of this page is lost')")
    assert browser.evaluate("document.querySelectorAll('#rows li').length") >= 17
    product.server = product.serve(port)
    browser.wait_for("document.querySelector('#notices').innerText === ''")
    product.store(success(CHAT, product.clock.now(), 321))
    browser.wait_for("document.querySelectorAll('#rows li')[0].innerText.includes('321 ms')")


def test_choosing_a_cell_narrows_the_list(product: Product, browse: Any) -> None:
    """By mouse or keyboard: a cell is a button that says whether it is pressed."""
    measured(product)
    browser = browse()
    browser.open(product.server.url)
    browser.wait_for("document.querySelectorAll('#rows li').length >= 17")
    browser.evaluate(
        "[...document.querySelectorAll('.cell')].find((cell) => cell.innerText.includes('failing')).click()"
    )
    browser.wait_for("document.querySelectorAll('#rows li').length === 3")
    assert browser.evaluate("document.querySelectorAll('.cell[aria-pressed=true]').length") == 1
    assert "only chat from lagos, probe short" in shown(browser)
    browser.evaluate("document.querySelector('#narrowed button').click()")
    browser.wait_for("document.querySelectorAll('#rows li').length >= 17")


def test_what_was_not_good_can_be_shown_alone(product: Product, browse: Any) -> None:
    """And where there is nothing of the kind, the page says so."""
    measured(product)
    browser = browse()
    browser.open(product.server.url)
    browser.wait_for("document.querySelectorAll('#rows li').length >= 17")
    browser.evaluate("document.querySelector('#trouble').click()")
    browser.wait_for("document.querySelectorAll('#rows li').length === 4")
    browser.evaluate("[...document.querySelectorAll('.cell')].find((one) => one.innerText.includes('300 ms')).click()")
    browser.wait_for("document.querySelector('#empty').innerText.startsWith('Nothing was cold, slow')")


def test_a_cold_start_is_shown_with_its_penalty_and_idleness(product: Product, browse: Any) -> None:
    """The verdict comes after the attempt and replaces the mark of a slow one; a slow one that was none says so."""
    steady = [success(CHAT, product.ago(15 * slot + 4), 200 + slot) for slot in range(4, 12)]
    cold, busy = success(CHAT, product.ago(34), 1400), success(FAR, product.ago(20), 1400)
    others = [success(FAR, product.ago(15 * slot + 9), 200 + slot) for slot in range(4, 12)]
    product.store(*steady, *others, steady_second(steady[-1]), steady_second(others[-1]), cold, busy)
    browser = browse()
    browser.open(product.server.url)
    browser.wait_for("document.body.innerText.includes('slow first token: usually')")
    assert "cold start" not in str(browser.evaluate("document.querySelector('#rows').innerText"))
    product.store(steady_second(cold), steady_second(busy, 1500))
    verdicts.sweep(product.engine, product.clock.now() + timedelta(seconds=1), lambda _: USUAL_RULE)
    browser.wait_for("document.querySelectorAll('#rows .pill.cold').length === 1")
    text = shown(browser)
    assert re.search(r"cold start after [\d.]+ s idle: 1\.19 s more than warm", text)
    assert "no cold start: slow, and the second try too" in text
    assert browser.evaluate("document.querySelectorAll('#matrix .spark .cold').length") == 1
    assert "The model had to be loaded" in str(browser.evaluate("document.querySelector('#legend').textContent"))
    rows = product.live("?vantage=here&target=chat&probe=short")["attempts"]
    assert {row["verdict"]["kind"] for row in rows} == {"warm", "cold"}


def steady_second(planned: Attempt, ttft_ms: int = 200) -> Attempt:
    """The confirming attempt of a planned one."""
    began = planned.started_at + timedelta(microseconds=planned.timeline.lasted_ns // 1000 + 1000)
    line = success(CHAT, began, ttft_ms).timeline
    return replace(planned, try_number=1, started_at=began, timeline=line)


def test_a_second_try_and_the_legend_say_what_a_reader_needs(product: Product, browse: Any) -> None:
    """A second try was sent at once, and is neither idle nor planned; the legend opens by itself once only."""
    planned = success(CHAT, product.ago(20))
    product.store(planned, steady_second(planned))
    browser = browse()
    browser.open(product.server.url)
    browser.wait_for("document.querySelectorAll('#rows li').length === 2")
    assert browser.evaluate("document.querySelector('#key').open") is True
    browser.evaluate("document.querySelectorAll('#rows details').forEach((one) => { one.open = true; })")
    browser.wait_for("document.querySelectorAll('#rows .more').length === 2")
    second, first = browser.evaluate("[...document.querySelectorAll('#rows .more')].map((one) => one.innerText)")
    assert "confirming attempt, sent at once after the first" in second
    assert "Planned for" not in second
    assert "Idle before" not in second
    assert "Planned for" in first
    browser.open(product.server.url)
    browser.wait_for("performance.now() < 5000 && document.querySelectorAll('#rows li').length === 2")
    assert browser.evaluate("document.querySelector('#key').open") is False


def test_an_empty_page_says_when_something_will_come(product: Product, browse: Any) -> None:
    """No attempt yet is a state with a sentence, not a blank."""
    browser = browse()
    browser.open(product.server.url)
    browser.wait_for(
        "document.querySelector('#sentence').innerText.startsWith('No attempt yet; the first slot is due in')"
    )
    assert "No attempt yet; the first slots are due in" in browser.evaluate(
        "document.querySelector('#empty').innerText"
    )


def test_a_store_that_is_away_is_a_banner(browse: Any) -> None:
    """The reader knows that the page cannot know."""
    app = create_app(Metrics(), _Away(), dict, series=lambda: ALL)
    with WebServer(app, port=0) as server:
        browser = browse()
        browser.open(server.url)
        browser.wait_for("document.querySelector('#notices').innerText.includes('The database does not answer')")
        assert "What was measured cannot be read" in shown(browser)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 700, 1280])
def test_the_page_fits_and_can_be_read(product: Product, browse: Any, width: int, dark: bool, tmp_path: Path) -> None:
    """On a phone and a laptop, light and dark: nothing overflows or overlaps; contrast is 4.5 to 1 (WCAG AA)."""
    measured(product)
    browser = browse(width=width, dark=dark)
    browser.open(product.server.url)
    browser.wait_for("document.querySelectorAll('#rows li').length >= 17")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width  # innerWidth grows with what overflows
    assert browser.evaluate(f"({CONTRAST})()") == []
    assert browser.evaluate(f"({OVERLAPS})()") == []
    browser.screenshot(tmp_path / "page.png", whole=True)


OVERLAPS = """() => {
  const inner = [...document.querySelectorAll("#matrix .cell, #matrix .nothing, #matrix tbody th")];
  const boxes = inner.map((one) => [one.innerText.slice(0, 20), one.getBoundingClientRect()]);
  const before = (end, begin) => end <= begin + 1;
  const beside = (a, b) => before(a.bottom, b.top) || before(a.right, b.left);
  const apart = (a, b) => beside(a, b) || beside(b, a);
  return boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([, b]) => !apart(a, b)).map(([two]) => [one, two]));
}"""


CONTRAST = """() => {
  const linear = (share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4);
  const channel = (value) => linear(value / 255);
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = parse(getComputedStyle(one).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const poor = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.offsetParent || element.closest("noscript, .skip, .fresh, .cut")) continue;
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) poor.add(`${element.className || element.tagName} ${contrast.toFixed(2)}`);
  }
  return [...poor];
}"""
