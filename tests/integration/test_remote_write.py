"""deploy/remote-write as it stands: the real Prometheus scrapes our real /metrics and hands it on to the real store."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.clock import Clock
from monitor.hub.app import create_app
from monitor.hub.server import WebServer
from monitor.metrics import Metrics
from monitor.model import DialectName, Place, Probe, Series, StoreUnavailable, Target, Vantage
from tests.integration.grafana_asks import Asking, boards
from tests.integration.running_up import until
from tests.ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
STORE = shutil.which("victoria-metrics")
pytestmark = [
    pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason="Debian package prometheus is not installed"),
    pytest.mark.skipif(STORE is None, reason="Debian package victoria-metrics is not installed"),
]


@contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


class NoRecord:
    """A page's queries where there is no database."""

    def __getattr__(self, name: str) -> object:
        raise StoreUnavailable("none")


@pytest.fixture
def our_port() -> Iterator[int]:
    """Our web server with a declared series."""
    metrics = Metrics(Clock())
    target = Target(name="chat", provider="acme", model="small", dialect=DialectName.ANTHROPIC, url="http://x.test")
    vantage = Vantage(name="lagos", place=Place(country="NG"), simulated=True)
    metrics.declare(Series(vantage=vantage, target=target, probe=Probe(name="short", prompt="hello")))
    app = create_app(metrics, NoRecord(), dict, series=list)  # type: ignore[arg-type]
    with WebServer(app, "127.0.0.1", 0) as server:
        yield server.port


def configuration(folder: Path, hub: int, store: int) -> Path:
    """The very file, with this machine's addresses and a quicker scrape."""
    written = (DEPLOY / "remote-write" / "prometheus.yml").read_text()
    for found, instead in (
        ("hub:8765", f"127.0.0.1:{hub}"),
        ("victoria-metrics:8428", f"127.0.0.1:{store}"),
        ("scrape_interval: 15s", "scrape_interval: 1s"),
        ("alertmanager:9093", "127.0.0.1:9"),
    ):
        assert found in written
        written = written.replace(found, instead)
    shutil.copy(DEPLOY / "prometheus" / "firsttoken.rules.yml", folder)
    (folder / "prometheus.yml").write_text(written)
    return folder / "prometheus.yml"


def the_store(folder: Path, port: int) -> list[str]:
    """The store's command as Debian's service would run it, with a folder and a port of ours."""
    given = re.search(r'^ARGS="(.*)"$', (DEPLOY / "remote-write" / "victoria-metrics").read_text(), re.MULTILINE)
    assert given is not None
    arguments = given[1].replace("/var/lib/victoria-metrics", str(folder / "store")).replace(":8428", f":{port}")
    assert str(folder) in arguments and str(port) in arguments
    return [str(STORE), *arguments.split(), "-search.latencyOffset=0s"]  # it else hides the last 30 seconds


def asked(port: int, path: str, **what: str) -> str:
    """What Prometheus or the store answers; nothing while it does not."""
    try:
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(what)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def found(port: int, query: str) -> list[dict[str, Any]]:
    """The series that a query gives."""
    answer = asked(port, "query", query=query)
    return list(json.loads(answer)["data"]["result"]) if answer else []


def read_yaml(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text()))


def test_the_file_is_good(tmp_path: Path) -> None:
    """Prometheus's own check takes it, rules included."""
    file = configuration(tmp_path, 1, 2)
    done = subprocess.run([str(PROMTOOL), "check", "config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_the_usual_file_and_sends_on() -> None:
    """Jobs, rules and alerting are those of deploy/prometheus: who goes over to it loses nothing."""
    ours, usual = (read_yaml(DEPLOY / name / "prometheus.yml") for name in ("remote-write", "prometheus"))
    del ours["remote_write"], ours["global"]["external_labels"]
    assert ours == usual


def test_what_dashboards_and_rules_name_is_sent_on() -> None:
    """Grafana can be pointed at the store: no metric that a panel asks for or that a rule makes stays behind."""
    (sent,) = read_yaml(DEPLOY / "remote-write" / "prometheus.yml")["remote_write"]
    (kept,) = sent["write_relabel_configs"]
    rules = read_yaml(DEPLOY / "prometheus" / "firsttoken.rules.yml")["groups"]
    names = {rule["record"] for group in rules for rule in group["rules"] if "record" in rule}
    for board in boards().values():
        for query in Asking(board, Clock().now()).queries("prometheus"):
            names |= set(re.findall(r"\b(?:ALERTS|up|(?:firsttoken|process)_\w+|\w+:\w+:\w+)\b", query.text))
    assert len(names) > 50 and {"ALERTS", "process_cpu_seconds_total"} < names
    assert [name for name in sorted(names) if not re.fullmatch(kept["regex"], name)] == []


def test_series_arrive_in_the_long_term(tmp_path: Path, our_port: int) -> None:
    """A series of ours, with its labels and the sender's, can be asked for in the store; samples of a time when the
    store was away arrive too; what is not ours stays behind.
    """
    store, prometheus = free_port(), free_port()
    file = configuration(tmp_path, our_port, store)
    own = [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{prometheus}"]
    own.append("--storage.remote.flush-deadline=1s")  # it stops after the store has
    query = 'firsttoken_attempts_total{vantage="lagos",outcome="success"}'
    with running(str(PROMETHEUS), f"--config.file={file}", *own):
        until(lambda: found(prometheus, query), "our series in Prometheus", 90)
        store_began = time.time()
        with running(*the_store(tmp_path, store)):
            (one,) = until(lambda: found(store, query), "our series in the store", 90)
            expected = {"vantage": "lagos", "target": "chat", "job": "firsttoken", "prometheus": "first"}
            assert expected.items() <= one["metric"].items()
            until(lambda: kept_at(store, query) and kept_at(store, query)[0] < store_began, "earlier samples", 90)
            assert found(store, "up") != []
            until(lambda: found(store, "process_cpu_seconds_total"), "the processes' time", 90)
            assert found(store, "process_resident_memory_bytes") == []


def kept_at(store: int, series: str) -> list[float]:
    """When the store's samples of a series were taken, in order."""
    lines = asked(store, "export", **{"match[]": series}).splitlines()
    return sorted(at / 1000 for line in lines for at in json.loads(line)["timestamps"])
