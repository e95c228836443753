"""The demo's folder: one demo at a time, cleaned of what a killed one left, gone at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.cli import terminal
from monitor.cli.children import Ledger
from monitor.cli.demo_state import MARKER, DemoFolder, DemoRunning, default_folder
from monitor.model import MonitorError


def test_it_is_gone_at_the_end(tmp_path: Path) -> None:
    """Nothing stays, not even the folder above or the lock; ending twice is harmless."""
    folder = DemoFolder(tmp_path / ".firsttoken" / "demo")
    (folder.path / "database").mkdir()
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_would_outlive_it_is_ended(tmp_path: Path) -> None:
    """A process that did not stop when it was told to is ended with the folder."""
    folder = DemoFolder(tmp_path / "demo")
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    folder.ledger.enter("model", left.pid)
    folder.remove()
    left.wait(5)
    assert list(tmp_path.iterdir()) == []


def test_a_second_demo_is_told_where_the_first_is(tmp_path: Path) -> None:
    """Two demos never share a folder; the second names the first's process and page."""
    first = DemoFolder(tmp_path / "demo")
    with pytest.raises(DemoRunning, match="just starting"):
        DemoFolder(tmp_path / "demo")
    first.announce("http://127.0.0.1:8765/")
    with pytest.raises(DemoRunning, match=rf"process {os.getpid()}, page http://127.0.0.1:8765/") as told:
        DemoFolder(tmp_path / "demo")
    assert max(map(len, str(told.value).splitlines()[1:])) <= 80
    assert "demo --state /another/folder/demo" in str(told.value)
    first.remove()
    DemoFolder(tmp_path / "demo").remove()


def test_what_a_killed_demo_left_is_ended_and_deleted(tmp_path: Path) -> None:
    """A folder without a holder is a killed demo's: its processes are ended, its files deleted, and it is said."""
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    data = tmp_path / "demo" / "postgres"
    child, database = subprocess.Popen(sleep), subprocess.Popen([*sleep, "-D", str(data)])
    Ledger(tmp_path / "demo" / "processes").enter("model", child.pid)
    data.mkdir()
    (tmp_path / "demo" / MARKER).touch()
    (data / "postmaster.pid").write_text(f"{database.pid}\n")
    folder = DemoFolder(tmp_path / "demo")
    assert f"It had left model running (process {child.pid}); that is ended." in folder.cleaned
    assert f"It had left Postgres running (process {database.pid}); that is ended." in folder.cleaned
    assert not data.exists()
    child.wait(5)
    database.wait(5)
    folder.remove()


def test_a_strangers_process_is_left_alone(tmp_path: Path) -> None:
    """A number in an old postmaster.pid that now belongs to another program is not touched."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (tmp_path / "demo" / "postgres").mkdir(parents=True)
    (tmp_path / "demo" / MARKER).touch()
    (tmp_path / "demo" / "postgres" / "postmaster.pid").write_text(f"{stranger.pid}\n")
    DemoFolder(tmp_path / "demo").remove()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_folder_that_cannot_be_used_gets_a_sentence(tmp_path: Path) -> None:
    """A file in the way is a sentence with the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MonitorError, match=f"cannot use the folder {tmp_path}/file/demo"):
        DemoFolder(tmp_path / "file" / "demo")


def test_a_read_only_checkout_falls_back_to_the_users_state_folder(tmp_path: Path) -> None:
    """Where the current folder cannot be written, the user's state folder serves."""
    assert default_folder({}, tmp_path) == tmp_path / ".firsttoken" / "demo"
    missing = tmp_path / "missing"
    assert default_folder({"XDG_STATE_HOME": "/state"}, missing) == Path("/state/firsttoken/demo")
    assert default_folder({"HOME": "/home/u"}, missing) == Path("/home/u/.local/state/firsttoken/demo")


def test_a_terminal_or_reader_that_has_gone_is_noticed() -> None:
    """Also where no signal comes: a hung-up terminal and a pipe without a reader; then words go nowhere."""
    master, slave = os.openpty()
    reader, writer = os.pipe()
    assert terminal.gone([slave, writer]) == []
    os.close(master)
    os.close(reader)
    assert sorted(terminal.gone([slave, writer])) == sorted([slave, writer])
    terminal.silence([slave, writer])
    assert os.write(writer, b"last words") == os.write(slave, b"last words")
    os.close(slave)
    os.close(writer)


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_no_demos_is_never_deleted(tmp_path: Path, kind: str) -> None:
    """`--state` on a folder with somebody's files, a file or a link: refused in words, everything is still there."""
    precious = tmp_path / "thesis"
    (precious / "docs").mkdir(parents=True)
    (precious / "docs" / "thesis.txt").write_text("precious")
    state = precious
    if kind == "file":
        state = precious / "docs" / "thesis.txt"
    if kind == "link":
        state = tmp_path / "link"
        state.symlink_to(precious)
    with pytest.raises(MonitorError, match="--state"):
        DemoFolder(state)
    assert (precious / "docs" / "thesis.txt").read_text() == "precious"
    assert not list(tmp_path.rglob("*.lock"))


def test_an_empty_folder_may_be_named(tmp_path: Path) -> None:
    """A folder made for the demo beforehand serves."""
    state = tmp_path / "state"
    state.mkdir()
    folder = DemoFolder(state)
    assert folder.cleaned == []
    folder.remove()
    assert not state.exists()
