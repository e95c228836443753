"""A simulator in a process of its own, so that its pace does not depend on the loop that is measured."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monitor.model import MonitorError
from monitor.simulator.sendlog import Sending, read_log

_READY_SECONDS = 60.0
_END_SECONDS = 5.0


class SimulatorProcess:
    """`with SimulatorProcess(scenario, send_log=path) as sim:`; the process never outlives its parent.

    `scenario` is the content of a scenario file (see docs and `scenario_file`). Raises MonitorError with the
    process's own sentence when it does not come up.
    """

    def __init__(self, scenario: Mapping[str, Any], *, send_log: str | Path | None = None) -> None:
        self._scenario, self._send_log = scenario, send_log
        self.description: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it serves."""
        command = [sys.executable, "-m", "monitor.simulator", "--config", json.dumps(self._scenario)]
        if self._send_log is not None:
            command += ["--send-log", str(self._send_log)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*command, "--until-stdin-closes"], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        self.description = self._await_ready()

    def stop(self) -> None:
        """End it and wait for that; its send log is complete afterwards."""
        process = self._process
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def url(self, listener: str = "main") -> str:
        """The base URL of a listener, with `/v1`."""
        return str(self.description["listeners"][listener]["url"])

    def proxy(self, distance: str) -> str:
        """The URL of a distance's proxy."""
        return str(self.description["proxies"][distance]["url"])

    @property
    def ca_file(self) -> str | None:
        """What clients must trust, None when nothing listens with TLS."""
        value = self.description["ca_file"]
        return None if value is None else str(value)

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> dict[str, list[Sending]]:
        """The send log by stream: whole after `stop`, up to half a second behind before. Needs `send_log`."""
        if self._send_log is None:
            raise MonitorError("this simulator was started without a send log")
        return read_log(self._send_log)

    def _await_ready(self) -> dict[str, Any]:
        """Its ready line; what it said instead as a MonitorError."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if ready.select(_READY_SECONDS) else ""
        if line.startswith("{"):
            return dict(json.loads(line))
        self._process.kill()
        said = self._process.communicate()[1].strip()
        raise MonitorError(said or f"the simulator was not ready within {_READY_SECONDS:.0f} s")
