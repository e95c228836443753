"""A whole chain of alerting in short time: our metrics, a real Prometheus, a real Alertmanager, a webhook of our own.

Nothing stands in: the rules are those of the product with shorter thresholds, Alertmanager's configuration is what
`firsttoken alertmanager` writes, and attempts are counted by the product's own `Metrics`.
"""

from __future__ import annotations

import json
import shutil
import socketserver
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monitor.clock import Clock
from monitor.hub.app import create_app
from monitor.hub.server import WebServer
from monitor.metrics import Metrics
from monitor.model import Attempt, DialectName, Failure, FailureKind, Outcome, Place, Probe, Series, Target, Vantage
from monitor.rules import Links, Thresholds, every_alert, rule_file
from monitor.rules.alertmanager import Pace, configuration
from monitor.rules.groups import to_yaml
from monitor.rules.receivers import from_environment
from monitor.timeline import Mark, Phase, Timeline
from tests.ports import free_port

PROMETHEUS, ALERTMANAGER = shutil.which("prometheus"), shutil.which("prometheus-alertmanager")
TEMPLATES = Path(__file__).resolve().parents[2] / "deploy" / "alertmanager" / "firsttoken.tmpl"
TICK_SECONDS = 0.5
MS = 1_000_000
SHORT = Thresholds().with_set(
    [
        "evaluation=1s", "vote_grace=5s", "alive=20s", "down_for=2s", "down_keep=6s",
        "target_down_keep=3s", "down_from_vantage_for=6s",
        "line_window=15s", "line_for=1s",
        "latency_window=5s", "latency_baseline=90s", "latency_gap=10s", "latency_history=3s", "latency_samples=3",
        "latency_for=2s", "latency_keep=8s",
        "target_latency_keep=5s", "latency_from_vantage_for=6s", "latency_from_vantage_keep=2s",
        "no_data_for=5s",
    ]
)  # fmt: skip
"""A probe a second and rules each second, in the proportions of a probe a minute."""


@dataclass(frozen=True)
class Behaviour:
    """What attempts of a series come to: `ttft_ms` of a success, or a failure."""

    ttft_ms: int = 400
    kind: FailureKind | None = None
    phase: Phase = Phase.WAIT


def series(vantage: str, target: str, provider: str) -> Series:
    """One series that is asked each second."""
    country = {"lagos": "NG", "london": "GB", "virginia": "US"}[vantage]
    return Series(
        vantage=Vantage(name=vantage, place=Place(country=country)),
        target=Target(
            name=target, provider=provider, model="small", dialect=DialectName.ANTHROPIC, url="http://x.test"
        ),
        probe=Probe(name="short", prompt="hello", interval_seconds=1.0, deadline_seconds=0.5),
    )


def attempt(of: Series, behaviour: Behaviour) -> Attempt:
    """An attempt that was made just now."""
    at, ttft = Clock().now(), behaviour.ttft_ms
    marks = {Mark.RESOLVE_START: 0, Mark.RESOLVE_END: 1, Mark.SEND_START: 9, Mark.SEND_END: 10, Mark.HEADERS: ttft - 1}
    marks |= {Mark.FIRST_TOKEN: ttft, Mark.LAST_TOKEN: ttft + 50, Mark.END: ttft + 50}
    made = Attempt(
        vantage=of.vantage.name, target=of.target.name, probe=of.probe.name, probe_version=of.probe.version,
        scheduled_at=at, started_at=at, outcome=Outcome.SUCCESS,
        timeline=Timeline({mark: milliseconds * MS for mark, milliseconds in marks.items()}),
    )  # fmt: skip
    if behaviour.kind is None:
        return made
    failure = Failure(kind=behaviour.kind, phase=behaviour.phase, text="as this test wants it")
    return replace(made, outcome=Outcome.FAILED, failure=failure, timeline=Timeline())


class Webhook:
    """Keeps what Alertmanager posts, in order: to `/hook` as its own JSON, to `/slack` as Slack's."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.slack: list[dict[str, Any]] = []
        kept = {"/hook": self.posts, "/slack": self.slack}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kept[self.path].append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        """Its address for Alertmanager."""
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def told(self) -> list[tuple[str, str, list[str]]]:
        """(status, incident, names of the alerts in it) of each notification."""
        return [
            (
                post["status"],
                post["groupLabels"]["incident"],
                sorted({a["labels"]["alertname"] for a in post["alerts"]}),
            )
            for post in list(self.posts)
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Mailbox:
    """A mail server that keeps what it is sent, in order."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        mails = self.mails

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(b"220 here\r\n")
                while line := self.rfile.readline():
                    verb = line[:4].upper().strip()
                    if verb == b"DATA":
                        self.wfile.write(b"354 go on\r\n")
                        mails.append(message_from_bytes(b"".join(iter(self.rfile.readline, b".\r\n"))))
                    self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Chain:
    """The running chain. Use as a context manager; `behave` changes what attempts come to from now on."""

    def __init__(self, folder: Path, watched: list[Series]) -> None:
        self.folder, self.watched = folder, watched
        self.behaviours: Mapping[tuple[str, str], Behaviour] = {}
        self.webhook, self.mailbox = Webhook(), Mailbox()
        self.metrics = Metrics()
        self._stop = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []

    def behave(self, behaviour: Behaviour, chosen: Callable[[Series], bool]) -> None:
        """The chosen series from now on; all others are well."""
        self.behaviours = {(s.vantage.name, s.target.name): behaviour for s in self.watched if chosen(s)}

    def recover(self) -> None:
        """All is well from now on."""
        self.behaviours = {}

    def __enter__(self) -> Self:
        for one in self.watched:
            self.metrics.declare(one)
        self._web = WebServer(create_app(self.metrics, Nothing(), dict, series=lambda: self.watched), port=0)
        self._web.start()
        self.alertmanager = f"127.0.0.1:{free_port()}"
        self.prometheus = f"127.0.0.1:{free_port()}"
        self._write()
        self._start(
            str(ALERTMANAGER), f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'am'}", f"--web.listen-address={self.alertmanager}",
            "--cluster.listen-address=",
        )  # fmt: skip
        self._start(
            str(PROMETHEUS), f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}", f"--web.listen-address={self.prometheus}",
            "--rules.alert.resend-delay=1s",
        )  # fmt: skip
        self._probing = threading.Thread(target=self._probe, daemon=True)
        self._probing.start()
        return self

    def _write(self) -> None:
        (self.folder / "firsttoken.rules.yml").write_text(to_yaml(rule_file(SHORT, Links())))
        (self.folder / "slack").write_text(self.webhook.url("/slack"))
        receivers = from_environment(
            {
                "FIRSTTOKEN_ALERT_WEBHOOK_URL": self.webhook.url("/hook"),
                "FIRSTTOKEN_ALERT_SLACK_URL_FILE": str(self.folder / "slack"),
                "FIRSTTOKEN_ALERT_EMAIL_TO": "ops@example.com",
                "FIRSTTOKEN_ALERT_EMAIL_FROM": "firsttoken@example.com",
                "FIRSTTOKEN_ALERT_SMTP_HOST": self.mailbox.address,
                "FIRSTTOKEN_ALERT_SMTP_TLS": "false",
            }
        )
        pace = Pace(wait="2s", interval="2s", repeat="1h")
        tree = configuration(every_alert(SHORT), receivers, str(TEMPLATES), pace)
        (self.folder / "alertmanager.yml").write_text(to_yaml(tree))
        scraped = [{"job_name": "firsttoken", "static_configs": [{"targets": [self._web.address]}]}]
        told = {"alertmanagers": [{"static_configs": [{"targets": [self.alertmanager]}]}]}
        pace_of_scrapes = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"}
        (self.folder / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": pace_of_scrapes,
                    "rule_files": ["firsttoken.rules.yml"],
                    "alerting": told,
                    "scrape_configs": scraped,
                }
            )
        )

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{Path(command[0]).name}.log").open("wb")
        self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder))
        log.close()

    def _probe(self) -> None:
        """An attempt of each series each second, as quick as they come; a scrape sees all of a round or none."""
        while not self._stop.wait(2 * TICK_SECONDS):
            behaviours = self.behaviours
            for one in self.watched:
                behaviour = behaviours.get((one.vantage.name, one.target.name), Behaviour())
                self.metrics.observe(attempt(one, behaviour), one, late=False)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What Prometheus answers; empty while it is not up."""
        url = f"http://{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return list(json.load(answer)["data"]["result"])
        except OSError:
            return []

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 90.0) -> Any:
        """Ask until the answer is true, and give it."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if found := condition():
                return found
            time.sleep(0.2)
        firing = [one["metric"] for one in self.query("ALERTS")]
        raise AssertionError(f"not within {seconds:.0f} s: {what}\ntold: {self.webhook.told()}\nalerts: {firing}")

    def fires(self, name: str) -> bool:
        """Whether an alert of that name fires in Prometheus now."""
        return bool(self.query(f'ALERTS{{alertname="{name}",alertstate="firing"}}'))

    def settle(self) -> None:
        """Wait for as many evaluations as any alert or notification would need to come forth."""
        (now,) = self.query("vector(time())")
        later = float(now["value"][1]) + 10 * SHORT.evaluation
        self.until(lambda: self.query(f"vector(time()) > {later}"), "time to go by")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._probing.join(10)
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(20)
        self._web.stop()
        self.webhook.close()
        self.mailbox.close()


class Nothing:
    """The page's queries, of which these tests ask nothing."""

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        return lambda *arguments: []
