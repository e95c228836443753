"""The demo's one folder on disk: taken by one demo at a time, cleaned of what a killed one left, removed at the end.

Hides the lock (dropped by the kernel however its holder ends) and the search for leftovers. Everything that the demo
writes lies in this folder, and everything that it starts stands in the ledger inside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from monitor.cli import terminal
from monitor.cli.children import Identity, Ledger, command_line, end, identify
from monitor.model import MonitorError

OURS = ".firsttoken"
MARKER = "this-folder-is-a-demo-of-firsttoken"
"""A file in every demo's folder: without it nothing in a folder is ours to delete."""


class DemoRunning(MonitorError):
    """Another demo uses the folder; the message says where its page is and how to end it."""


def default_folder(environment: Mapping[str, str], here: Path) -> Path:
    """`.firsttoken/demo` under the current folder, or under the user's state folder where that cannot be written."""
    if os.access(here, os.W_OK):
        return here / OURS / "demo"
    home = environment.get("XDG_STATE_HOME") or str(Path(environment.get("HOME", ".")) / ".local" / "state")
    return Path(home) / "firsttoken" / "demo"


class DemoFolder:
    """A folder that is ours until `remove`."""

    def __init__(self, path: Path) -> None:
        """Take `path`, and end and delete what a killed demo left there. Raises DemoRunning, or MonitorError.

        `cleaned` tells what was found, one sentence each.
        """
        self.path = path
        self.cleaned: list[str] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._take()
            try:
                self.cleaned = self._clean()
            except MonitorError:
                self._let_go()
                raise
            path.mkdir(mode=0o700)
            (path / MARKER).touch()
            self.ledger = Ledger(path / "processes")
        except OSError as error:
            raise MonitorError(f"the demo cannot use the folder {path}: {error.strerror or error}") from error

    def _take(self) -> int:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise DemoRunning(self._who()) from None
            if self._still_named(lock):
                return lock
            os.close(lock)  # an ending demo has just deleted the file that we locked

    def _still_named(self, lock: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(lock), self._lock_path.stat())
        return False

    @property
    def _lock_path(self) -> Path:
        return self.path.with_name(self.path.name + ".lock")

    def _who(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            about = json.loads((self.path / "about.json").read_text(encoding="utf-8"))
            return (
                f"a demo already runs here (process {about['pid']}, page {about['page']}).\n"
                "End it with Ctrl-C in its terminal, or start a second one elsewhere:\n"
                f"  cd /another/folder && {terminal.this_program()} demo\n"
                f"  {terminal.this_program()} demo --state /another/folder/demo"
            )
        return f"a demo is just starting or ending in {self.path}: try again in a few seconds"

    def _clean(self) -> list[str]:
        if not self.path.exists() and not self.path.is_symlink():
            return []
        if self.path.is_symlink() or not self.path.is_dir():
            raise MonitorError(f"{self.path} is no folder: name a new one (--state), it is removed at the end")
        if not (self.path / MARKER).exists():
            if any(self.path.iterdir()):
                raise MonitorError(
                    f"{self.path} holds something that is no demo's, and a demo removes its folder at the end: "
                    "name a new or an empty one (--state)"
                )
            self.path.rmdir()
            return []
        ended = self._end_processes()
        shutil.rmtree(self.path)
        return [
            "An earlier demo was killed; what it left is removed.",
            *(f"It had left {name} running (process {pid}); that is ended." for name, pid in ended.items()),
        ]

    def _end_processes(self) -> dict[str, int]:
        """End whatever of ours still runs; names and process numbers."""
        left = Ledger(self.path / "processes").running()
        if database := self._database():
            left["Postgres"] = database
        for name, process in left.items():
            end(process, first=signal.SIGINT if name == "Postgres" else signal.SIGTERM)
        return {name: process.pid for name, process in left.items()}

    def _database(self) -> Identity | None:
        """The Postgres server that a killed demo left: of its process number, the one that runs on this folder."""
        data = self.path / "postgres"
        with contextlib.suppress(OSError, ValueError, IndexError):
            process = identify(int((data / "postmaster.pid").read_text(encoding="ascii").splitlines()[0]))
            if process and str(data) in command_line(process.pid):
                return process
        return None

    def _let_go(self) -> None:
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = -1

    def announce(self, page: str) -> None:
        """Let others who come here know who we are. `page`: the URL of the live page."""
        (self.path / "about.json").write_text(json.dumps({"pid": os.getpid(), "page": page}), encoding="utf-8")

    def remove(self) -> None:
        """End what should have ended, delete the folder and let go of it. May be called twice."""
        if self._lock < 0:
            return
        self._end_processes()
        shutil.rmtree(self.path, ignore_errors=True)
        self._let_go()
        if self.path.parent.name == OURS:
            with contextlib.suppress(OSError):  # not empty
                self.path.parent.rmdir()
