"""The demo's folder: one demo at a time, cleaned of what a killed one left, gone at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.cli.children import Ledger
from monitor.cli.demo_state import DemoFolder, DemoRunning, default_folder
from monitor.model import MonitorError


def test_it_is_gone_at_the_end(tmp_path: Path) -> None:
    """Nothing stays, not even the folder above or the lock; ending twice is harmless."""
    folder = DemoFolder(tmp_path / ".firsttoken" / "demo")
    (folder.path / "database").mkdir()
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_second_demo_is_told_where_the_first_is(tmp_path: Path) -> None:
    """Two demos never share a folder; the second names the first's process and page."""
    first = DemoFolder(tmp_path / "demo")
    with pytest.raises(DemoRunning, match="just starting"):
        DemoFolder(tmp_path / "demo")
    first.announce("http://127.0.0.1:8765/")
    with pytest.raises(DemoRunning, match=rf"process {os.getpid()}, page http://127.0.0.1:8765/"):
        DemoFolder(tmp_path / "demo")
    first.remove()
    DemoFolder(tmp_path / "demo").remove()


def test_what_a_killed_demo_left_is_ended_and_deleted(tmp_path: Path) -> None:
    """A folder without a holder is a killed demo's: its processes are ended, its files deleted, and it is said."""
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Ledger(tmp_path / "demo" / "processes").enter("postgres", left.pid)
    (tmp_path / "demo" / "old").write_text("data")
    folder = DemoFolder(tmp_path / "demo")
    assert [line for line in folder.cleaned if f"process {left.pid}" in line]
    assert not (folder.path / "old").exists()
    left.wait(5)
    folder.remove()


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
