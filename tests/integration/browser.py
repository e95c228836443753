"""A headless Chromium for tests of pages, driven over its debugging pipe (no further package, no port).

Hides the DevTools protocol: JSON messages that end in a NUL byte, to file descriptor 3, from file descriptor 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
MOVE = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"


class Browser:
    """One page of a fresh profile. Use it as a context manager."""

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        self._process = _launch(to_read, to_write, self._profile)
        self._buffer, self._number, self._session = b"", 0, None
        self.complaints: list[str] = []  # errors and warnings of the page's console, content security included
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Go there; returns when navigation has begun."""
        self.call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression (JSON)."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", {}).get("description", "script failed"))
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 15.0) -> Any:
        """The expression's first true value; fails with what the page shows instead."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.evaluate(f"(() => {{ try {{ return {script}; }} catch {{ return null; }} }})()")
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}; the page says: {self.evaluate('document.body.innerText')[:600]}")

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """A PNG of the view, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._note(answer)

    def close(self) -> None:
        """End the browser and remove its profile."""
        self._process.terminate()
        self._process.wait(10)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], 30.0)
            chunk = os.read(self._read, 1 << 16) if ready else b""
            if not chunk:
                raise AssertionError("the browser does not answer")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        read: dict[str, Callable[[dict[str, Any]], str]] = {
            "Log.entryAdded": lambda p: p["entry"]["text"] if p["entry"]["level"] in ("error", "warning") else "",
            "Runtime.exceptionThrown": lambda p: p["exceptionDetails"].get("exception", {}).get("description", "?"),
        }
        text = read[event["method"]](event["params"]) if event.get("method") in read else ""
        if text:
            self.complaints.append(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _launch(to_read: int, to_write: int, profile: str) -> subprocess.Popen[bytes]:
    """Chromium with the pipes as descriptors 3 and 4; Python moves them there, for sh knows one digit only."""
    assert CHROMIUM, "no Chromium here"
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_read, to_write)]  # out of the way of 3 and 4
    process = subprocess.Popen(
        [sys.executable, "-c", MOVE, *map(str, ends), CHROMIUM, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=ends,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (to_read, to_write, *ends):
        os.close(end)
    return process
