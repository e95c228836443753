"""The metrics before their real readers: promtool's lint, and a Prometheus that scrapes and answers PromQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from monitor.clock import Clock
from monitor.detect.coldstart import Judgement
from monitor.hub.app import create_app
from monitor.hub.server import WebServer
from monitor.metrics import Metrics
from monitor.model import (
    Attempt,
    DialectName,
    Failure,
    FailureKind,
    MissReason,
    Outcome,
    Place,
    Probe,
    Series,
    Target,
    TcpFacts,
    Tokens,
    Vantage,
)
from monitor.timeline import Mark, Phase, Timeline
from monitor.witness import Sighting
from tests.ports import free_port

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
pytestmark = pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason="Debian package prometheus is not installed")

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
MS = 1_000_000


def series(vantage: str, simulated: bool) -> Series:
    target = Target(name="chat", provider="acme", model="small", dialect=DialectName.ANTHROPIC, url="http://x.test")
    place = Place(country="NG" if vantage == "lagos" else "GB")
    start = Vantage(name=vantage, place=place, simulated=simulated)
    return Series(vantage=start, target=target, probe=Probe(name="short", prompt="hello"))


def success(of: Series, at: datetime, ttft_ms: int) -> Attempt:
    ends = {Mark.SEND_END: 10, Mark.HEADERS: ttft_ms - 1, Mark.FIRST_TOKEN: ttft_ms, Mark.LAST_TOKEN: ttft_ms + 500}
    marks = {Mark.RESOLVE_START: 0, Mark.RESOLVE_END: 1, Mark.SEND_START: 9, Mark.END: ttft_ms + 500, **ends}
    return Attempt(
        vantage=of.vantage.name,
        target=of.target.name,
        probe=of.probe.name,
        probe_version=of.probe.version,
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
        timeline=Timeline({mark: milliseconds * MS for mark, milliseconds in marks.items()}),
        tokens=Tokens(output=26, input=9),
        tcp=TcpFacts(min_rtt=0.05, retransmits=0),
    )


def failure(of: Series, at: datetime) -> Attempt:
    text = Failure(kind=FailureKind.OVERLOADED, phase=Phase.WAIT, text="the provider answers 529")
    return replace(success(of, at, 100), outcome=Outcome.FAILED, failure=text, timeline=Timeline())


def missed(of: Series, at: datetime) -> Attempt:
    return replace(success(of, at, 100), outcome=Outcome.MISSED, missed=MissReason.CAPACITY, timeline=Timeline())


LAGOS, LONDON = series("lagos", simulated=True), series("london", simulated=False)


def measure_once(metrics: Metrics) -> None:
    """A round of attempts of every outcome from both vantage points."""
    at = Clock().now()
    for one, ttft_ms in ((LAGOS, 450), (LONDON, 250)):
        for made in (success(one, at, ttft_ms), failure(one, at), missed(one, at)):
            metrics.observe(made, one, late=False)


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    for one in (LAGOS, LONDON):
        made.declare(one)
    made.set_spool(2, 4096, Clock().now(), 0)
    made.set_store_up(True)
    made.set_witness([Sighting(vantage="lagos", endpoint="near", address="a", started_at=Clock().now(), seconds={})])
    made.set_coverage([(("lagos", "t"), 60, 58, {"overlap": 2})])
    made.config_reloaded(True)
    made.observe_scheduler_lag(0.002)
    made.observe_loop_lag(0.001)
    return made


class NoAttempts:
    """The page's queries, of which these tests ask nothing."""

    def latest(self, per_series: int) -> list[Attempt]:
        return []

    def received_since(self, moment: datetime) -> list[Attempt]:
        return []

    def latest_verdicts(self, per_series: int) -> list[Judgement]:
        return []

    def judged_since(self, moment: datetime) -> list[Judgement]:
        return []


@pytest.fixture
def server(metrics: Metrics) -> Iterator[WebServer]:
    app = create_app(metrics, NoAttempts(), dict, series=lambda: [LAGOS, LONDON])
    with WebServer(app, port=0) as running:
        yield running


class Prometheus:
    """A real Prometheus that scrapes one address each second."""

    def __init__(self, folder: Path, target: str) -> None:
        config = folder / "prometheus.yml"
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                    "scrape_configs": [{"job_name": "firsttoken", "static_configs": [{"targets": [target]}]}],
                }
            )
        )
        self.address = f"127.0.0.1:{free_port()}"
        options = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        self.log = (folder / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            [str(PROMETHEUS), *options, f"--web.listen-address={self.address}"], stdout=self.log, stderr=self.log
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression gives now; an error of Prometheus is an error here."""
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return list(body["data"]["result"])

    def wait_for(self, expression: str, seconds: float = 30.0) -> list[dict[str, Any]]:
        """The first answer that is not empty."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if found := self.query(expression):
                    return found
            except OSError:
                pass  # not up yet
            time.sleep(0.3)
        pytest.fail(f"never answered: {expression}\n{Path(self.log.name).read_text()[-2000:]}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


@pytest.fixture
def prometheus(tmp_path: Path, server: WebServer) -> Iterator[Prometheus]:
    running = Prometheus(tmp_path, server.address)
    yield running
    running.stop()


def lint(exposition: bytes) -> str:
    """What `promtool check metrics` complains about."""
    done = subprocess.run([str(PROMTOOL), "check", "metrics"], input=exposition, capture_output=True, check=False)
    return (done.stdout + done.stderr).decode() + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_promtool_has_no_complaint(metrics: Metrics) -> None:
    """Names, units, help texts and types follow Prometheus's conventions, before and after attempts."""
    assert lint(metrics.render()) == ""
    measure_once(metrics)
    assert lint(metrics.render()) == ""


def test_promtool_complains_about_what_is_wrong() -> None:
    """The test above can fail."""
    assert "milliseconds" in lint(b"# TYPE firsttoken_x_milliseconds gauge\nfirsttoken_x_milliseconds 1\n")


def examples() -> list[str]:
    """The PromQL of docs/metrics.md, one query a paragraph."""
    block = re.search(r"```promql\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    paragraphs = block.group(1).strip().split("\n\n")
    return ["\n".join(line for line in one.splitlines() if not line.startswith("#")) for one in paragraphs]


def test_a_real_prometheus_scrapes_and_answers(metrics: Metrics, prometheus: Prometheus) -> None:
    """Attempts are series in Prometheus with the right values, and every query of the documentation has an answer."""
    prometheus.wait_for('up{job="firsttoken"} == 1')
    zero = prometheus.wait_for('firsttoken_attempts_total{vantage="lagos",outcome="failed"}')
    assert zero[0]["value"][1] == "0"
    for _ in range(3):
        measure_once(metrics)
        time.sleep(1.1)
    counted = prometheus.wait_for('firsttoken_attempts_total{vantage="lagos",outcome="success"} == 3')
    assert counted[0]["metric"]["country"] == "NG"
    assert counted[0]["metric"]["model"] == "small"
    assert prometheus.query('firsttoken_last_ttft_seconds{vantage="lagos"}')[0]["value"][1] == "0.45"
    assert prometheus.wait_for('increase(firsttoken_failures_total{kind="overloaded"}[1m]) > 0')
    assert len(examples()) >= 8
    for example in examples():
        assert prometheus.wait_for(example, 5.0), example


def test_a_forgotten_series_becomes_stale(metrics: Metrics, prometheus: Prometheus) -> None:
    """A target that left the configuration leaves Prometheus's present with the next scrape."""
    prometheus.wait_for('firsttoken_attempts_total{vantage="lagos"}')
    metrics.forget(LAGOS)
    prometheus.wait_for('absent(firsttoken_attempts_total{vantage="lagos"})')
    assert prometheus.query('firsttoken_attempts_total{vantage="london"}')
