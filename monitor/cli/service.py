"""A long-running command under the control of signals and of its configuration file.

Hides signals, and that a new configuration is taken over while everything runs, or refused with the old one kept.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog

from monitor.agent.arrivals import WatchedLoop
from monitor.cli import logs
from monitor.cli.watch import changes
from monitor.config import ConfigError, InvalidConfig
from monitor.model import MonitorError, Secret

ABORTED = 130
DEFECT = 1
DRAIN_SECONDS = 10.0
C_contra = TypeVar("C_contra", contravariant=True)
log = structlog.get_logger("firsttoken")


class Service(Protocol[C_contra]):
    """What runs. `C_contra` is its configuration."""

    async def start(self) -> None:
        """Start everything; raises MonitorError when that is not possible, with everything stopped again."""

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Finish what runs, within that time, and stop everything. May be called twice."""

    def greet(self) -> None:
        """Say once what runs now."""

    def left(self) -> dict[str, object]:
        """What the log's last line says of what stays behind."""

    async def take_over(self, config: C_contra) -> dict[str, object]:
        """Go on with another configuration; what changed, for the log. Raises ConfigError, with nothing changed."""

    def refuse(self, mistakes: Sequence[str]) -> None:
        """A new configuration cannot be taken over; the mistakes are free of secrets."""


def run(process: Process[C_contra]) -> int:
    """Run until a signal ends it; the exit code. Raises MonitorError when the start is not possible."""
    try:
        with asyncio.Runner(loop_factory=WatchedLoop) as runner:
            return runner.run(process.run())
    except MonitorError:
        raise
    except Exception:  # what a defect's traceback says goes through the scrubber like any other line
        log.exception("First Token ends by a defect of its own")
        return DEFECT


class Process(Generic[C_contra]):
    """A service, its configuration file and the signals that it gets.

    `load` reads the file (in a thread) and raises ConfigError; `secrets` are what logs must not say from then on. The
    files that `beside` names, such as those of keys, are watched as well.
    """

    def __init__(
        self,
        file: Path,
        service: Service[C_contra],
        scrubber: logs.Scrubber,
        load: Callable[[Path], C_contra],
        secrets: Callable[[C_contra], Sequence[Secret]],
        beside: Callable[[], Sequence[Path]] = tuple,
    ) -> None:
        self._file = file
        self._service = service
        self._scrubber = scrubber
        self._load = load
        self._secrets = secrets
        self._beside = beside
        self._ended = asyncio.Event()
        self._aborted = asyncio.Event()
        self._hung_up = asyncio.Event()
        self._one_reload_at_a_time = asyncio.Lock()

    async def run(self) -> int:
        """Run until a signal; the exit code. Raises MonitorError when the start is not possible."""
        self._listen()
        starting = asyncio.create_task(self._service.start())
        if not await self._unless_ended(starting):
            return ABORTED if self._aborted.is_set() else 0
        self._service.greet()
        reloading = [asyncio.create_task(self._follow_file()), asyncio.create_task(self._follow_signal())]
        await self._ended.wait()
        for task in reloading:
            task.cancel()
        return await self._stop()

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up.set)

    def _end(self, number: int) -> None:
        if self._ended.is_set():
            log.warning("a second signal: stopping at once", signal=signal.Signals(number).name)
            self._aborted.set()
        else:
            log.info("stopping: finishing what runs", signal=signal.Signals(number).name)
        self._ended.set()

    async def _unless_ended(self, starting: asyncio.Task[None]) -> bool:
        """Wait for the start; False when a signal came first."""
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if starting.done():
            starting.result()
            return True
        starting.cancel()
        await asyncio.wait({starting})
        return False

    async def _stop(self) -> int:
        stopping = asyncio.create_task(self._service.stop(DRAIN_SECONDS))
        aborted = asyncio.create_task(self._aborted.wait())
        await asyncio.wait({stopping, aborted}, return_when=asyncio.FIRST_COMPLETED)
        aborted.cancel()
        if not stopping.done():
            stopping.cancel()
            await asyncio.wait({asyncio.create_task(self._service.stop(0.0))}, timeout=5.0)
            return ABORTED
        stopping.result()
        log.info("stopped", **self._service.left())
        return 0

    # ------------------------------------------------------------------------------------------------ reloading

    async def _follow_file(self) -> None:
        async for _ in changes(lambda: (self._file, *self._beside())):
            await self._reload("file change")

    async def _follow_signal(self) -> None:
        while True:
            await self._hung_up.wait()
            self._hung_up.clear()
            await self._reload("SIGHUP")

    async def _reload(self, cause: str) -> None:
        """Take over the file as it is now, or say once what is wrong with it and keep the old configuration."""
        async with self._one_reload_at_a_time:
            try:
                config = await asyncio.to_thread(self._load, self._file)
                self._scrubber.know(self._secrets(config))
                changed = await self._service.take_over(config)
                log.info("configuration taken over", cause=cause, **changed)
            except InvalidConfig as error:
                self._refuse([str(mistake) for mistake in error.mistakes])
            except ConfigError as error:
                self._refuse([str(error)])
            except Exception:
                log.exception("the new configuration could not be taken over; this is a defect of First Token")

    def _refuse(self, mistakes: list[str]) -> None:
        self._service.refuse([self._scrubber.clean(mistake) for mistake in mistakes])
        log.error("the new configuration is refused; the old one stays", mistakes=mistakes)
