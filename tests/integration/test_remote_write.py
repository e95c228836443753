"""deploy/remote-write as it stands: the real Prometheus scrapes our real /metrics and hands it on to the real store."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.clock import Clock
from monitor.hub.app import create_app
from monitor.hub.server import WebServer
from monitor.metrics import Metrics
from monitor.model import DialectName, Place, Probe, Series, StoreUnavailable, Target, Vantage
from tests.integration.running_up import until

ROOT = Path(__file__).parents[2]
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
STORE = shutil.which("victoria-metrics")
pytestmark = [
    pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason="Debian package prometheus is not installed"),
    pytest.mark.skipif(STORE is None, reason="Debian package victoria-metrics is not installed"),
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
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
    written = (ROOT / "deploy" / "remote-write" / "prometheus.yml").read_text()
    assert 'targets: ["hub:8765"]' in written
    written = written.replace("hub:8765", f"127.0.0.1:{hub}").replace("victoria-metrics:8428", f"127.0.0.1:{store}")
    written = written.replace("scrape_interval: 15s", "scrape_interval: 1s").replace("alertmanager:9093", "127.0.0.1:9")
    shutil.copy(ROOT / "deploy" / "prometheus" / "firsttoken.rules.yml", folder)
    (folder / "prometheus.yml").write_text(written)
    return folder / "prometheus.yml"


def found(store: int, query: str) -> list[dict[str, object]]:
    """What the store answers."""
    asked = f"http://127.0.0.1:{store}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return list(json.loads(answer.read())["data"]["result"])
    except (urllib.error.URLError, ConnectionError):
        return []


def test_the_file_is_good(tmp_path: Path) -> None:
    """Prometheus's own check takes it, rules included."""
    file = configuration(tmp_path, 1, 2)
    done = subprocess.run([str(PROMTOOL), "check", "config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_series_arrive_in_the_long_term(tmp_path: Path, our_port: int) -> None:
    """A series of ours, with its labels and the sender's, can be asked for in the store; others stay behind."""
    store, prometheus = free_port(), free_port()
    file = configuration(tmp_path, our_port, store)
    data = f"-storageDataPath={tmp_path / 'store'}"
    own = [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{prometheus}"]
    with (
        running(str(STORE), data, f"-httpListenAddr=127.0.0.1:{store}", "-search.latencyOffset=0s"),
        running(str(PROMETHEUS), f"--config.file={file}", *own),
    ):
        query = 'firsttoken_attempts_total{vantage="lagos",outcome="success"}'
        (one,) = until(lambda: found(store, query), "our series in the store", 90)
        labels = one["metric"]
        assert isinstance(labels, dict)
        expected = {"vantage": "lagos", "target": "chat", "job": "firsttoken", "prometheus": "first"}
        assert expected.items() <= labels.items()
        assert found(store, "up") != []
        assert found(store, "process_resident_memory_bytes") == []
