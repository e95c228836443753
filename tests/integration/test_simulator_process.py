"""The simulator as a process of its own, and `firsttoken simulate`: ready lines, send logs, clean ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from monitor.model import MonitorError
from monitor.simulator import SimulatorProcess

SCENARIO: dict[str, Any] = {
    "listeners": [
        {"name": "main", "models": {"m": {"ttft_seconds": 0.01, "tokens": 4, "tokens_per_second": 400}}},
        {"name": "tls", "tls": "good"},
    ],
    "distances": {"far": {"rtt_ms": 20}},
}
ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
FIRSTTOKEN = [str(Path(sys.executable).with_name("firsttoken")), "simulate"]


def gone(pid: int) -> bool:
    """Whether a process ended (a child's unread exit status counts as ended)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not gone(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return gone(pid)


def test_a_process_serves_logs_and_ends(tmp_path: Path) -> None:
    """Ready means ready; after the end the log holds every send, on the clock that all processes share."""
    begun = time.monotonic_ns()
    with SimulatorProcess(SCENARIO, send_log=tmp_path / "sends.jsonl") as sim:
        reply = httpx.post(sim.url() + "/chat/completions", json=ASK)
        assert reply.text.endswith("[DONE]\n\n")
        assert sim.proxy("far").startswith("http://127.0.0.1:")
        assert Path(sim.ca_file or "").exists()
    log = sim.log()[reply.headers["x-request-id"]]
    assert [sent.token for sent in log if sent.kind == "token"] == [0, 1, 2, 3]
    assert all(begun < sent.before_ns <= sent.after_ns < time.monotonic_ns() for sent in log)
    assert gone(sim.pid)
    assert not Path(sim.ca_file or "").parent.exists()


def test_it_ends_with_streams_still_open() -> None:
    """Whatever is under way, the end comes at once and without a kill."""
    hanging = {"listeners": [{"models": {"m": {"fault": "silence"}}}]}
    with SimulatorProcess(hanging) as sim:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(sim.url() + "/chat/completions", json=ASK, timeout=0.2)
        connection = httpx.Client()
        connection.get(sim.url() + "/models")
        sim.stop()
        assert sim._process.returncode == 0
        connection.close()


def test_it_does_not_outlive_its_parent() -> None:
    """A parent that is killed leaves no simulator behind."""
    code = (
        "import sys, time; from monitor.simulator import SimulatorProcess; sim = SimulatorProcess({}); sim.start();"
        "print(sim.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    assert wait_until_gone(pid)


def test_what_is_wrong_with_a_scenario_is_the_error() -> None:
    """The parent gets the process's own sentence, not a traceback or a hang."""
    with pytest.raises(MonitorError, match="unknown key 'listenres'"):
        SimulatorProcess({"listenres": []}).start()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_tells_what_it_serves_and_ends_well(number: signal.Signals, tmp_path: Path) -> None:
    """A table, an example to copy, exit code 0 after Ctrl-C, and no file left in the temporary folder."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    with subprocess.Popen(
        [*FIRSTTOKEN, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as command:
        assert command.stdout is not None
        shown = ""
        while "Ctrl-C" not in shown:
            line = command.stdout.readline()
            assert line, command.communicate()[1]
            shown += line
        command.send_signal(number)
        assert command.wait(10) == 0
        assert command.stderr is not None
        assert command.stderr.read() == ""
    assert f"{FIRSTTOKEN[0]} probe --url http://127.0.0.1:" in shown  # to be typed as it stands, in any folder
    assert "adds 150 ms of round trip (simulated distance)" in shown
    assert "fault: truncated" in shown
    assert list(tmp_path.iterdir()) == []


def test_the_command_serves_a_file_and_prints_one_json_line(tmp_path: Path) -> None:
    """`--scenario FILE --json` is for programs: one line, and the send log beside it."""
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(SCENARIO))
    arguments = ["--scenario", str(file), "--json", "--send-log", str(tmp_path / "sends.jsonl")]
    with subprocess.Popen([*FIRSTTOKEN, *arguments], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        ready = json.loads(command.stdout.readline())
        url = ready["listeners"]["main"]["url"]
        assert httpx.post(url + "/chat/completions", json=ASK).status_code == 200
        command.terminate()
        assert command.wait(10) == 0
    assert (tmp_path / "sends.jsonl").read_text().count('"kind":"token"') == 4


def test_bad_scenarios_and_taken_ports_are_exit_code_2(tmp_path: Path) -> None:
    """One sentence on stderr, exit code 2, no traceback."""
    file = tmp_path / "bad.yaml"
    file.write_text("listeners: 5")
    bad = subprocess.run([*FIRSTTOKEN, "--scenario", str(file)], capture_output=True, text=True, timeout=30)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert f"{file}: listeners is 5; it must be a list" in bad.stderr
    with SimulatorProcess({}) as sim:
        port = str(sim.description["listeners"]["main"]["port"])
        taken = subprocess.run([*FIRSTTOKEN, "--port", port], capture_output=True, text=True, timeout=30)
    assert taken.returncode == 2
    assert f"127.0.0.1:{port}: Address already in use" in taken.stderr
    assert "Traceback" not in taken.stderr
