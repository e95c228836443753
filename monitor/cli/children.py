"""Processes of our own that must not outlive us, and the ledger by which a later start finds those that did.

Three nets below each other: a child is stopped by its parent; a child whose parent is gone sees its standard input
end (everywhere) or gets a signal (Linux) and leaves; what both missed stands in the ledger, a folder with one file
for each process: its number and the moment it started, so that a recycled number is never killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

PATIENCE_SECONDS = 5.0
"""How long a process may take to leave after SIGTERM before it is killed."""
PR_SET_PDEATHSIG = 1
ON_LINUX = platform.system() == "Linux"


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, told apart from a later one with the same number."""

    pid: int
    started: str  # opaque; equal for the same process only

    @property
    def alive(self) -> bool:
        """Whether that very process still runs (a zombie does not)."""
        return identify(self.pid) == self


def identify(pid: int) -> Identity | None:
    """The identity of a running process, None when there is none with that number."""
    started = _started_linux(pid) if ON_LINUX else _started_elsewhere(pid)
    return Identity(pid, started) if started else None


def _started_linux(pid: int) -> str | None:
    """Boot id and clock ticks since boot: a step of the wall clock changes neither."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def _started_elsewhere(pid: int) -> str | None:
    """`ps` knows the start to the second; enough for a process number to come round."""
    shown = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return None if not shown or shown.startswith("Z") else shown.partition(" ")[2].strip()


def command_line(pid: int) -> str:
    """How a process was started, as one line; empty when there is none with that number."""
    if ON_LINUX:  # where `ps` need not be installed
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return ""
    shown = subprocess.run(["ps", "-o", "args=", "-ww", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()


def end(process: Identity, patience_seconds: float = PATIENCE_SECONDS, first: int = signal.SIGTERM) -> None:
    """Make a process leave: asked with `first`, killed when it stays. Returns when it is gone."""
    for number, patience in ((first, patience_seconds), (signal.SIGKILL, patience_seconds)):
        if not process.alive:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)
        deadline = time.monotonic() + patience
        while process.alive and time.monotonic() < deadline:
            _reap(process.pid)
            time.sleep(0.02)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


class Ledger:
    """The processes that were started and not yet seen to end, one small file each in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def enter(self, name: str, pid: int) -> None:
        """Write down that `name` runs as process `pid`."""
        if identity := identify(pid):
            fresh = self._folder / f"{name}.new"
            fresh.write_text(json.dumps(asdict(identity)), encoding="utf-8")
            fresh.replace(self._folder / f"{name}.json")

    def strike(self, name: str) -> None:
        """`name` has ended."""
        (self._folder / f"{name}.json").unlink(missing_ok=True)

    def running(self) -> dict[str, Identity]:
        """Those in the ledger that still run, by name."""
        found = {path.stem: _read(path) for path in sorted(self._folder.glob("*.json"))}
        return {name: identity for name, identity in found.items() if identity and identity.alive}


def _read(path: Path) -> Identity | None:
    try:
        return Identity(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # cut off by the crash that left it


class Child:
    """One Python module of ours running as a child: told by its standard input, logging into a file."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        log: Path,
        ledger: Ledger,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `module`'s `main()` with `arguments`; `environment` is added to ours.

        Call it from the main thread: Linux ends the child with the thread that started it.
        """
        self.name = name
        self._ledger = ledger
        self.log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {module} import main; main()", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # the terminal's Ctrl-C is ours to pass on, in order
            )
        ledger.enter(name, self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def read_line(self) -> str:
        """The next line that it prints, without its end; empty when it has left. Blocks."""
        stream: IO[bytes] | None = self._process.stdout
        return stream.readline().decode(errors="replace").strip() if stream else ""

    def last_words(self) -> str:
        """The last line of its log, for the sentence about why it left."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it left no word"

    def stop(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """End it: asked first, killed after `patience_seconds`. Safe to call again."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):  # not before: another thread may be reading
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        self._ledger.strike(self.name)


def leave_with_parent() -> None:
    """For a child, first thing: leave as soon as the parent is gone, however it went."""
    if ON_LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    threading.Thread(target=_await_end_of_input, name="parent-watch", daemon=True).start()


def _await_end_of_input() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_SECONDS)
    os._exit(1)
