"""A long-running command and its configuration: what it takes over, and what its log knows from then on."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import structlog

from monitor.cli import logs
from monitor.cli.service import Process
from monitor.model import ConfigError, Secret

OLD, NEW, BAD = "hunter-two-hunter", "correct-horse-battery", "bad-wrong-battery"


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """Where the logs go; what the process logs through is as before afterwards."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = handlers, level
    structlog.configure(**before)


class Talkative:
    """A service whose configuration is one secret, which it blurts out."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[str] = asyncio.Queue()
        self.greeted = asyncio.Event()
        self.log = structlog.get_logger()

    async def start(self) -> None:
        self.log.info(f"started with {OLD}")

    async def stop(self, drain_seconds: float = 0.0) -> None:
        self.log.info(f"stopped with {OLD} and {NEW}")

    def greet(self) -> None:
        self.greeted.set()

    def left(self) -> dict[str, object]:
        return {}

    async def take_over(self, config: str) -> dict[str, object]:
        if config == BAD:
            raise ConfigError(f"{config} cannot be taken over")
        self.taken.put_nowait(config)
        return {"now": f"it is {config}"}

    def refuse(self, mistakes: Sequence[str]) -> None:
        self.taken.put_nowait(" ".join(mistakes))


def test_a_log_knows_the_secrets_of_each_configuration_it_was_given(tmp_path: Path, out: io.StringIO) -> None:
    """Those of a new file before it is taken over or refused, and those of all earlier ones; the page's notices too."""
    file, scrubber, service = tmp_path / "secret", logs.Scrubber([Secret(OLD)]), Talkative()
    logs.configure("info", "json", scrubber, out)
    process = Process(file, service, scrubber, lambda path: path.read_text(), lambda config: [Secret(config)])

    async def reloaded(content: str) -> str:
        file.write_text(content)
        os.kill(os.getpid(), signal.SIGHUP)
        while (taken := await asyncio.wait_for(service.taken.get(), 20)) == OLD:
            pass  # the file was seen to change as well
        return taken

    async def run() -> list[str]:
        file.write_text(OLD)
        running = asyncio.create_task(process.run())
        await asyncio.wait_for(service.greeted.wait(), 20)
        told = [await reloaded(NEW), await reloaded(BAD)]
        while told[-1] == NEW:
            told[-1] = await asyncio.wait_for(service.taken.get(), 20)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running, 20) == 0
        return told

    taken, refused = asyncio.run(run())
    assert taken == NEW
    assert refused == "*** cannot be taken over"
    said = out.getvalue()
    assert "it is ***" in said
    assert "*** cannot be taken over" in said
    assert not [secret for secret in (OLD, NEW, BAD) if secret in said]
