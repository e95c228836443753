"""A real nginx that compresses event streams: what it does to them shows as `burst_share`, not as a good answer."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.clock import Clock
from monitor.model import Attempt, DialectName, Outcome, Probe, Purpose, Series, Slot, Target, Vantage
from monitor.simulator import Behaviour, Listener, Simulator
from monitor.timeline import Mark
from tests.ports import free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
TOKENS, GAP_SECONDS = 30, 0.02

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

CONFIGURATION = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    gzip {gzip}; gzip_types text/event-stream; gzip_min_length 0; gzip_proxied any;
    proxy_buffering {buffering};
    location / {{ proxy_pass {upstream}; proxy_http_version 1.1; }}
  }}
}}
"""


class Nginx:
    """A process of our own in front of `upstream`, for as long as the context lasts."""

    def __init__(self, folder: Path, upstream: str, *, gzip: bool) -> None:
        self.port = free_port()
        self._file = folder / "nginx.conf"
        self._file.write_text(
            CONFIGURATION.format(
                folder=folder,
                port=self.port,
                upstream=upstream,
                gzip="on" if gzip else "off",
                buffering="on" if gzip else "off",
            )
        )
        self._folder = folder

    def __enter__(self) -> Self:
        assert NGINX is not None
        command = [NGINX, "-p", str(self._folder), "-c", str(self._file), "-e", str(self._folder / "start.log")]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(100):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=0.2):
                return self
            assert self._process.poll() is None, (self._folder / "start.log").read_text()
            time.sleep(0.05)
        raise AssertionError("nginx does not listen")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)


def measured(folder: Path, *, gzip: bool) -> Attempt:
    """The first of five attempts whose single arrivals are certain (a busy machine may read late)."""
    attempts = (_one(folder, gzip=gzip) for _ in range(5))
    return next(attempt for attempt in attempts if attempt.failure is not None or attempt.gaps is not None)


def _one(folder: Path, *, gzip: bool) -> Attempt:
    """One attempt through nginx at the simulator, by a client that says it takes gzip where nginx is to compress."""

    async def run() -> Attempt:
        behaviour = Behaviour(tokens=TOKENS, ttft_seconds=0.05, tokens_per_second=1 / GAP_SECONDS)
        async with Simulator([Listener(models={"m": behaviour})]) as simulator:
            prober = Prober(Clock(), max_concurrent=2)
            await prober.start()
            try:
                upstream = simulator.url("main").removesuffix("/v1")
                with Nginx(folder, upstream, gzip=gzip) as nginx:
                    return await prober.run(*_asked(prober, nginx.port, gzip), purpose=Purpose.ONE_OFF)
            finally:
                await prober.close()

    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(run())


def _asked(prober: Prober, port: int, gzip: bool) -> tuple[Slot, Series]:
    target = Target(
        name="t",
        provider="p",
        model="m",
        dialect=DialectName.OPENAI_CHAT,
        url=f"http://127.0.0.1:{port}/v1",
        headers={"Accept-Encoding": "gzip"} if gzip else {},
    )
    probe = Probe(name="p", prompt="Hi", max_output_tokens=TOKENS, deadline_seconds=10.0)
    slot = Slot(vantage="here", target="t", probe="p", scheduled_at=prober.now(), number=0)
    return slot, Series(vantage=Vantage(name="here"), target=target, probe=probe)


def test_a_compressing_proxy_shows_as_bursts(tmp_path: Path) -> None:
    """The answer is whole, but its tokens come at one moment: TTFT is nearly the total, and the share near 1."""
    attempt = measured(tmp_path, gzip=True)
    assert attempt.outcome is Outcome.SUCCESS, attempt.failure
    assert attempt.http.content_encoding == "gzip"
    assert attempt.token_events == TOKENS
    marks = attempt.timeline.marks
    assert marks[Mark.LAST_TOKEN] - marks[Mark.FIRST_TOKEN] < 0.2 * TOKENS * GAP_SECONDS * 1e9
    assert marks[Mark.FIRST_TOKEN] - marks[Mark.SEND_END] > 0.8 * TOKENS * GAP_SECONDS * 1e9
    assert attempt.gaps is not None
    assert attempt.gaps.burst_share is not None
    assert attempt.gaps.burst_share > 0.9


def test_the_same_proxy_without_it_streams(tmp_path: Path) -> None:
    """Identity is asked for by default, and nginx passes token by token."""
    attempt = measured(tmp_path, gzip=False)
    assert attempt.outcome is Outcome.SUCCESS, attempt.failure
    assert attempt.http.content_encoding is None
    marks = attempt.timeline.marks
    assert marks[Mark.LAST_TOKEN] - marks[Mark.FIRST_TOKEN] > 0.8 * TOKENS * GAP_SECONDS * 1e9
    assert attempt.gaps is not None
    assert attempt.gaps.burst_share is not None
    assert attempt.gaps.burst_share < 0.5
