"""`firsttoken up` as a child process: what the tests of it share."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

COMMAND = Path(sys.executable).with_name("firsttoken")
PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Ask until the answer is true, and give it."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def configuration(url: str, **sections: Any) -> dict[str, Any]:
    """A small configuration with one target at `url` and one quick probe; `sections` replace whole sections."""
    return {
        "vantages": {"lagos": {"city": "Lagos", "country": "NG"}},
        "targets": {"alpha": target(url)},
        "probes": {"short": {"prompt": "hi", "interval": "1s", "deadline": "800ms"}},
        "web": {"listen": "127.0.0.1:0"},
        "log": {"format": "json"},
        "witness": "off",  # what tests look at is on this machine
        **sections,
    }


def target(url: str, **more: Any) -> dict[str, Any]:
    return {"provider": "sim", "model": "m", "dialect": "openai_chat", "url": url, **more}


class Up:
    """One running `firsttoken up`; its configuration file may be rewritten with `write`."""

    def __init__(self, folder: Path, content: Mapping[str, Any], *arguments: str, **environment: str) -> None:
        self.file = folder / "firsttoken.yaml"
        self.state = folder / "state"
        self.arguments = arguments
        self.environment = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "FIRSTTOKEN_VANTAGE")}
        self.environment |= environment
        self.lines: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self.write(content)

    def write(self, content: Mapping[str, Any] | str) -> None:
        """Replace the configuration in one step."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(content if isinstance(content, str) else json.dumps(content))
        fresh.replace(self.file)

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "up", str(self.file), "--state", str(self.state), *self.arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.raw.append(line)
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            sys.stderr.write("".join(self.raw))
        if self.process.poll() is None:
            self.stop()

    def caught_up(self) -> bool:
        """Whether nothing older waits than the one or two attempts that share the next delivery."""
        waiting = self.metric("firsttoken_spool_attempts")
        return waiting is not None and waiting <= 2

    def left_behind(self) -> int:
        """How many attempts an ended process has left in its spool."""
        with closing(sqlite3.connect(f"file:{self.state / 'spool.sqlite3'}?mode=ro", uri=True)) as spool:
            (count,) = spool.execute("SELECT count(*) FROM attempts").fetchone()
        return int(count)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 20.0) -> int:
        """End it with a signal; its exit code."""
        self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = 20.0) -> int:
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"still running after {seconds} s:\n{''.join(self.raw)}") from None
        self._reader.join(5.0)
        return code

    def said(self, message: str) -> list[dict[str, Any]]:
        """The log lines with this message."""
        return [line for line in list(self.lines) if line.get("message") == message]

    def until_said(self, message: str, count: int = 1) -> dict[str, Any]:
        return until(lambda: len(self.said(message)) >= count and self.said(message)[-1], message)

    @property
    def page(self) -> str:
        return str(self.until_said("probing")["page"])

    def get(self, path: str) -> str:
        """A body that the process serves, whatever the status."""
        try:
            with urllib.request.urlopen(self.page + path, timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def metric(self, name: str, **labels: str) -> float | None:
        """The sum of a metric's samples with these labels, None when there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in self.get("metrics").splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        found = [float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted)]
        return sum(found) if found else None
