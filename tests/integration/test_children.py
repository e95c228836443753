"""Processes of our own end with us, and a later start ends those that did not; never anybody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.cli import model_server
from monitor.cli.children import Child, Identity, Ledger, end, identify

PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from monitor.cli.children import Child, Ledger
folder = Path({folder!r})
child = Child("sleeper", "sleeper", [], log=folder / "log", ledger=Ledger(folder / "ledger"))
child.read_line()
print(child.pid, flush=True)
sys.stdin.read()
"""
SLEEPER = """
import signal, sys, time
from monitor.cli.children import leave_with_parent
def main():
    leave_with_parent()
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Path:
    """A folder with a module `sleeper` that children can run."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    return tmp_path


def path_to(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{folder}:{Path(model_server.__file__).parents[2]}"}


def eventually(check: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not check() and time.monotonic() < deadline:
        time.sleep(0.02)
    return check()


def test_a_child_leaves_when_its_parent_is_killed(sleeper: Path) -> None:
    """kill -9 of the parent leaves no child behind."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(folder=str(sleeper))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **path_to(sleeper)},
    )
    assert parent.stdout is not None
    child = identify(int(parent.stdout.readline()))
    assert child is not None
    assert child.alive
    assert Ledger(sleeper / "ledger").running() == {"sleeper": child}
    parent.kill()
    parent.communicate()
    assert eventually(lambda: not child.alive)
    assert Ledger(sleeper / "ledger").running() == {}


def test_a_stubborn_child_is_killed(sleeper: Path) -> None:
    """A child that ignores SIGTERM does not hold up the end for longer than the patience."""
    ledger = Ledger(sleeper / "ledger")
    child = Child("s", "sleeper", ["stubborn"], log=sleeper / "log", ledger=ledger, environment=path_to(sleeper))
    assert child.read_line() == "ready"
    child.stop(patience_seconds=0.2)
    assert child.exit_code == -signal.SIGKILL
    assert not list((sleeper / "ledger").iterdir())


def test_what_a_killed_start_left_is_ended(sleeper: Path) -> None:
    """A process that outlived its parent is found by the ledger and ended."""
    orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ledger = Ledger(sleeper / "ledger")
    ledger.enter("orphan", orphan.pid)
    for left in Ledger(sleeper / "ledger").running().values():
        end(left)
    assert orphan.wait(5) in (-signal.SIGTERM, 0)


def test_a_recycled_process_number_is_never_killed(tmp_path: Path) -> None:
    """The ledger names a process by number and start: a stranger with the same number is left alone."""
    ledger = Ledger(tmp_path)
    (tmp_path / "old.json").write_text(json.dumps({"pid": os.getpid(), "started": "another boot:1"}))
    (tmp_path / "torn.json").write_text('{"pid": 1')
    assert ledger.running() == {}
    end(Identity(os.getpid(), "another boot:1"))


REAL_MODEL = pytest.mark.skipif(model_server.why_not() is not None, reason="no real model installed (MODEL=none)")


@REAL_MODEL
def test_the_real_model_answers_those_with_the_key(tmp_path: Path) -> None:
    """The model server says where it listens, asks for its key, answers a prompt and leaves when told."""
    ledger = Ledger(tmp_path / "ledger")
    child = model_server.start(tmp_path / "log", ledger, key="the-key", sleep_idle_seconds=20)
    try:
        url = child.read_line()
        assert url.startswith("http://127.0.0.1:"), child.last_words()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(url, "another-key")
        assert ask(url, "the-key")["usage"]["completion_tokens"] == 4
    finally:
        child.stop()
    assert child.exit_code == 0


def ask(url: str, key: str) -> dict[str, dict[str, int]]:
    body = {"model": model_server.MODEL_NAME, "max_tokens": 4, "messages": [{"role": "user", "content": "Say hello"}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, dict[str, int]] = json.load(answer)
    return found
