"""Every query of every dashboard, run as Grafana runs it, on what the product measured of the simulator.

A short run of `firsttoken up` on the demo's providers and distances, a real Postgres that keeps it, a real Prometheus
that scrapes it; then each PromQL and SQL of the generated JSON. An error fails, and so does an empty answer that is not
in `MAY_BE_EMPTY` with its reason. With GRAFANA_URL (and GRAFANA_TOKEN) set, a running Grafana is asked the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from sqlalchemy import Engine, text

from monitor.cli import demo_plan
from monitor.clock import Clock
from monitor.hub.app import create_app
from monitor.hub.server import WebServer
from monitor.metrics import Metrics
from monitor.metrics.fleet import AgentState, FleetMetrics
from monitor.simulator.process import SimulatorProcess
from monitor.store import coverage_hours, engine, rollups
from tests.integration.grafana_asks import Asking, Query, boards
from tests.integration.running_up import Up, until
from tests.ports import free_port

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="Debian package prometheus is not installed")

MEASURED_SECONDS = 40
POSTGRES_KIND = "grafana-postgresql-datasource"
MAY_BE_EMPTY = {
    "First Token / Overview: What failed, by kind (A)": "a kind has a line once it occurs; a short run may see none",
    "First Token / Fleet: Doubts an hour, by reason (A)": "a run without any doubt about itself has none",
}
"""Panel -> why no answer is right for it."""
RULES = {
    "groups": [
        {
            "name": "test",
            "rules": [
                {
                    "alert": "TargetDown",
                    "expr": 'firsttoken_interval_seconds{target="flaky"} > 0',
                    "labels": {"severity": "page"},
                }
            ],
        }
    ]
}
"""An alert that fires, for the panels of alerts; the product's own rules have tests of their own."""


def plan(simulator: dict[str, Any], database_url: str) -> dict[str, Any]:
    """The demo's configuration on quicker schedules, with prices, and with a target that is asleep now and then."""
    written = json.loads(demo_plan.configuration(simulator, None, 0))
    written["storage"] = {"database_url": database_url}
    written["log"] = {"format": "json"}
    written["prices"] = {"per_target": {name: {"input": 1, "output": 4} for name in written["targets"]}}
    written["budget"] = {"money_per_day": 100}
    for probe in written["probes"].values():
        probe.update(interval="4s", deadline="3s")
    written["probes"]["after-idle"].update(interval="10s", deadline="8s")
    return dict(written)


def scenario() -> dict[str, Any]:
    """The demo's, with a model that sleeps sooner and a provider that fails more often."""
    played = demo_plan.scenario()
    for listener in played["listeners"]:
        for behaviour in listener["models"].values():
            behaviour.update({"sleeps_after_seconds": 5} if "sleeps_after_seconds" in behaviour else {})
            behaviour.update({"fault_share": 0.4} if "fault" in behaviour else {})
    return played


@dataclass(frozen=True, slots=True)
class Measured:
    """What a look at a dashboard asks."""

    prometheus: str
    store: Engine

    def ask_prometheus(self, query: Query) -> list[Any]:
        """Series or vector; an error of Prometheus is an error here."""
        assert query.begins is not None
        assert query.ends is not None
        begins, ends = query.begins.timestamp(), query.ends.timestamp()
        if query.label is not None:
            found = self._get(f"label/{query.label}/values", {"match[]": query.text, "start": begins, "end": ends})
        elif query.instant:
            found = self._get("query", {"query": query.text, "time": ends})["result"]
        else:
            # Grafana ends at a multiple of the step; here the step's grid is laid so that this is such a moment
            begins = ends - (ends - begins) // query.step_seconds * query.step_seconds
            asked = {"query": query.text, "start": begins, "end": ends, "step": query.step_seconds}
            found = self._get("query_range", asked)["result"]
        return [one for one in found if not _is_nothing(one)]

    def _get(self, path: str, asked: dict[str, Any]) -> Any:
        url = f"http://{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{asked}: {error.read().decode()}") from error
        assert body["status"] == "success", body
        return body["data"]

    def ask_postgres(self, query: Query) -> list[dict[str, Any]]:
        """Rows, as the role that Grafana has."""
        with self.store.connect() as connection:
            connection.execute(text("SET ROLE firsttoken_reader"))
            connection.execute(text("SET TRANSACTION READ ONLY"))
            found = [dict(row) for row in connection.exec_driver_sql(query.text.replace("%", "%%")).mappings()]
        return [row for row in found if any(value is not None for value in row.values())]


def _is_nothing(series: Any) -> bool:
    """Whether a series or sample holds nothing but NaN, which a panel shows as no data."""
    if not isinstance(series, dict):
        return False
    values = series.get("values") or [series["value"]]
    return all(value == "NaN" for _, value in values)


@pytest.fixture(scope="module")
def measured(postgres_server: str, run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """A run of the product that has just been measured, and still goes on."""
    folder = tmp_path_factory.mktemp("dashboards")
    name = f"dashboards_{os.getpid()}"
    admin = engine.open_engine(postgres_server)
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    url = admin.url.set(database=name).render_as_string(hide_password=False)
    with SimulatorProcess(scenario()) as simulator:
        product = Up(folder, plan(simulator.description, url), **{demo_plan.KEY_VARIABLE: "unused"})
        with product:
            address = urllib.parse.urlsplit(product.page).netloc
            with a_hub() as hub, _Prometheus(folder, address, hub) as prometheus:
                store = engine.open_engine(url)
                time.sleep(MEASURED_SECONDS)
                until(lambda: _judged(store), "a cold and a warm verdict", 90)
                rollups.refresh(store, datetime.now(UTC) + timedelta(minutes=10))
                # this hour as the next one sees it: what was measured, and what nobody has delivered
                coverage_hours.sweep(store, datetime.now(UTC) + timedelta(hours=1), timedelta(hours=2))
                yield Measured(prometheus.address, store)
                store.dispose()
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


def _judged(store: Engine) -> bool:
    with store.connect() as connection:
        kinds = set(connection.execute(text("SELECT DISTINCT kind FROM judged_attempts WHERE try = 0")).scalars())
    return {"cold", "warm"} <= kinds


@contextmanager
def a_hub() -> Iterator[str]:
    """The address of a hub's metrics about two agents, made by the hub's own classes."""
    metrics = Metrics(Clock())
    now = datetime.now(UTC)
    agents = [
        AgentState(
            vantage=name,
            country=country,
            version="0.1.0",
            config_digest="0123456789abcdef",
            up_to_date=True,
            heard_at=now,
            spool_attempts=3,
            spool_bytes=4_096,
            spool_limit_bytes=256_000_000,
            oldest_unsent_at=now - timedelta(seconds=5),
            spool_lost=0,
            clock_offset_seconds=0.02,
            starved=0.0,
        )
        for name, country in (("lagos", "NG"), ("london", "GB"))
    ]
    FleetMetrics(metrics.registry).set_agents(agents, now)
    metrics.set_coverage([(("lagos", "steady"), 60, 58, {"overlap": 2}), (("london", "steady"), 60, 60, {})])
    app = create_app(metrics, None, dict, series=list)  # type: ignore[arg-type]  # nobody asks for pages
    with WebServer(app, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.port}"


class _Prometheus:
    """A real Prometheus that scrapes addresses each second and judges `RULES`."""

    def __init__(self, folder: Path, *targets: str) -> None:
        self.folder = folder / "prometheus"
        self.folder.mkdir()
        rules, config = self.folder / "rules.yml", self.folder / "prometheus.yml"
        rules.write_text(json.dumps(RULES))
        scrape = {"job_name": "firsttoken", "static_configs": [{"targets": list(targets)}]}
        settings = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config.write_text(json.dumps({"global": settings, "rule_files": [str(rules)], "scrape_configs": [scrape]}))
        self.address = f"127.0.0.1:{free_port()}"
        self.command = [
            str(PROMETHEUS),
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={self.address}",
        ]

    def __enter__(self) -> Self:
        self.log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


def problems(answers: dict[str, list[Any] | str]) -> list[str]:
    """What is wrong with answers: errors, and emptiness without a reason."""
    said = [f"{where}: {answer}" for where, answer in answers.items() if isinstance(answer, str)]
    return said + [f"{where}: empty" for where, answer in answers.items() if not answer and where not in MAY_BE_EMPTY]


def ask(measured: Measured, asking: Asking) -> dict[str, list[Any] | str]:
    """Query -> its answer, or the error as text."""
    answers: dict[str, list[Any] | str] = {}
    for kind, one in (("prometheus", measured.ask_prometheus), (POSTGRES_KIND, measured.ask_postgres)):
        for query in [*asking.variables(kind), *asking.queries(kind)]:
            try:
                answers[query.where] = one(query)
            except Exception as error:  # noqa: BLE001 (whatever it is: it is told with its query, after the others)
                answers[query.where] = f"{error}\n{query.text}"
    return answers


@pytest.mark.parametrize("name", sorted(boards()))
def test_every_query_answers(measured: Measured, name: str) -> None:
    """Variables, panels and annotations, as the dashboard opens: no error, and no empty panel without a reason."""
    assert problems(ask(measured, Asking(boards()[name], datetime.now(UTC)))) == []


@pytest.mark.parametrize("name", sorted(boards()))
def test_every_query_answers_for_one_choice(measured: Measured, name: str) -> None:
    """One vantage point, one target, by name: nothing breaks, and what was measured is still there."""
    chosen = {"vantage": "lagos", "target": "steady", "provider": "sim-steady", "probe": "short"}
    answers = ask(measured, Asking(boards()[name], datetime.now(UTC), chosen))
    assert [answer for answer in answers.values() if isinstance(answer, str)] == []
    filled = sum(bool(answer) for answer in answers.values())
    assert filled >= len(answers) // 2


def test_latency_compares_by_everything_it_offers(measured: Measured) -> None:
    """Each value of `compare by` is a column of every query that has it in its place."""
    board = boards()["latency"]
    offered = next(one for one in board["templating"]["list"] if one["name"] == "by")["options"]
    assert len(offered) == 5
    for option in offered:
        assert problems(ask(measured, Asking(board, datetime.now(UTC), {"by": option["value"]}))) == []


@pytest.mark.skipif("GRAFANA_URL" not in os.environ, reason="GRAFANA_URL is not set: no running Grafana to ask")
@pytest.mark.parametrize("name", sorted(boards()))
def test_a_running_grafana_answers_every_query(name: str) -> None:
    """GRAFANA_URL, provisioned from dashboards/, with data of its own: it knows the dashboard and answers each panel.

    GRAFANA_TOKEN is a service account's. Variables are filled here, macros and intervals by Grafana.
    """
    grafana, asking = Grafana(os.environ["GRAFANA_URL"]), Asking(boards()[name], datetime.now(UTC), macros=False)
    stored = grafana.ask(f"api/dashboards/uid/firsttoken-{name}")["dashboard"]
    assert [panel["title"] for panel in stored["panels"] if "title" in panel] == [
        panel["title"] for panel in asking.board["panels"] if "title" in panel
    ]
    errors = []
    for kind, uid in (("prometheus", "firsttoken-prometheus"), (POSTGRES_KIND, "firsttoken-postgres")):
        for query in asking.queries(kind):
            answer = grafana.query(query, kind, uid)
            errors += [f"{query.where}: {answer['error']}"] if "error" in answer else []
            if not answer.get("frames") and query.where not in MAY_BE_EMPTY:
                errors.append(f"{query.where}: empty")
    assert errors == []


@dataclass(frozen=True, slots=True)
class Grafana:
    """The HTTP API of a Grafana that runs elsewhere."""

    url: str

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {os.environ['GRAFANA_TOKEN']}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url.rstrip('/')}/{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def query(self, query: Query, kind: str, uid: str) -> dict[str, Any]:
        """The result of one query, as a panel asks for it."""
        assert query.begins is not None
        assert query.ends is not None
        text = {"expr": query.text, "instant": query.instant, "range": not query.instant}
        asked = {
            "refId": "A",
            "datasource": {"type": kind, "uid": uid},
            "format": query.form,
            "intervalMs": query.step_seconds * 1000,
            "maxDataPoints": 1000,
            **(text if kind == "prometheus" else {"rawSql": query.text, "rawQuery": True}),
        }
        begins, ends = (str(round(at.timestamp() * 1000)) for at in (query.begins, query.ends))
        return dict(self.ask("api/ds/query", {"from": begins, "to": ends, "queries": [asked]})["results"]["A"])


def test_a_name_that_nobody_has_finds_nothing(measured: Measured) -> None:
    """The variables do filter: a vantage point that does not exist empties every panel that is about one."""
    board = boards()["geography"]
    answers = ask(measured, Asking(board, datetime.now(UTC), {"vantage": "nowhere"}))
    panels = [answer for where, answer in answers.items() if "$" not in where and "Incidents" not in where]
    assert panels
    assert all(answer == [] for answer in panels)


def test_the_reader_may_read_the_views_and_nothing_else(measured: Measured) -> None:
    """Grafana's role sees no table, neither prompts nor raw rows, and changes nothing."""
    asked = Query("reader", "SELECT count(*) AS n FROM series_facts", "table")
    assert measured.ask_postgres(asked)[0]["n"] > 0
    for forbidden in ("SELECT prompt FROM probes", "SELECT * FROM attempts", "DELETE FROM rollups"):
        with pytest.raises(Exception, match=r"permission denied|read-only"):
            measured.ask_postgres(Query("reader", forbidden, "table"))
