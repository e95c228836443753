"""`firsttoken up`: everything in one process, until a signal ends it.

Hides signals and the reloading of the configuration; what runs is a `Station`.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import structlog
import typer

from monitor import config as configuration
from monitor.agent.arrivals import WatchedLoop
from monitor.cli import env_proxy, logs
from monitor.cli.leaving import leave
from monitor.cli.station import DRAIN_SECONDS, Station
from monitor.cli.watch import changes
from monitor.config import Config, ConfigError, InvalidConfig
from monitor.model import MonitorError

ABORTED = 130
DEFECT = 1
log = structlog.get_logger("firsttoken")


def up(
    file: Annotated[Path, typer.Argument(help="The configuration file.", show_default=True)] = Path("firsttoken.yaml"),
    vantage: Annotated[
        str | None, typer.Option("--vantage", help="Which vantage point this process is (or FIRSTTOKEN_VANTAGE).")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="Folder of spool and embedded database, instead of spool.directory.")
    ] = None,
) -> None:
    """Probe on schedule, store, serve metrics and the live page: all in one process.

    SIGHUP or a changed file takes over the new configuration; SIGTERM or Ctrl-C finishes what runs and stops, a second
    one stops at once. Exit code 0 after a signal, 2 when the start is not possible.
    """
    try:
        config = configuration.load(file)
    except InvalidConfig as error:
        typer.echo("\n".join(map(str, error.mistakes)), err=True)
        raise typer.Exit(2) from None
    scrubber = logs.Scrubber(config.secrets())
    logs.configure(config.log.level, config.log.format, scrubber)
    for warning in config.warnings:
        log.warning("configuration", warning=str(warning))
    station = Station(config, vantage=vantage, state_directory=state)
    notice = env_proxy.ignored(station.series)
    if notice is not None:
        log.warning(notice)
    leave(_run(Process(file, station, scrubber)))


def _run(process: Process) -> int:
    try:
        with asyncio.Runner(loop_factory=WatchedLoop) as runner:
            return runner.run(process.run())
    except MonitorError:
        raise
    except Exception:  # what a defect's traceback says goes through the scrubber like any other line
        log.exception("First Token ends by a defect of its own")
        return DEFECT


class Process:
    """A station under the control of signals and of its configuration file."""

    def __init__(self, file: Path, station: Station, scrubber: logs.Scrubber) -> None:
        self._file = file
        self._station = station
        self._scrubber = scrubber
        self._ended = asyncio.Event()
        self._aborted = asyncio.Event()
        self._hung_up = asyncio.Event()
        self._one_reload_at_a_time = asyncio.Lock()

    async def run(self) -> int:
        """Run until a signal; the exit code. Raises MonitorError when the start is not possible."""
        self._listen()
        starting = asyncio.create_task(self._station.start())
        if not await self._unless_ended(starting):
            return ABORTED if self._aborted.is_set() else 0
        self._greet()
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
        stopping = asyncio.create_task(self._station.stop(DRAIN_SECONDS))
        aborted = asyncio.create_task(self._aborted.wait())
        await asyncio.wait({stopping, aborted}, return_when=asyncio.FIRST_COMPLETED)
        aborted.cancel()
        if not stopping.done():
            stopping.cancel()
            await asyncio.wait({asyncio.create_task(self._station.stop(0.0))}, timeout=5.0)
            return ABORTED
        stopping.result()
        log.info("stopped", waiting=self._station.spool.depth)
        return 0

    def _greet(self) -> None:
        station = self._station
        log.info(
            "probing",
            series=len(station.series),
            vantages=sorted({series.vantage.name for series in station.series}),
            page=station.url,
            database=station.storage.place,
            state=str(station.state_directory),
        )

    # ------------------------------------------------------------------------------------------------ reloading

    async def _follow_file(self) -> None:
        async for _ in changes(self._file):
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
                config = await asyncio.to_thread(configuration.load, self._file)
                self._scrubber.know(config.secrets())
                await self._take_over(config, cause)
            except InvalidConfig as error:
                self._refuse([str(mistake) for mistake in error.mistakes])
            except ConfigError as error:
                self._refuse([str(error)])
            except Exception:
                log.exception("the new configuration could not be taken over; this is a defect of First Token")

    async def _take_over(self, config: Config, cause: str) -> None:
        changed = await self._station.reload(config)
        log.info(
            "configuration taken over",
            cause=cause,
            added=changed.added,
            removed=changed.removed,
            changed=changed.changed,
            kept=changed.kept,
        )

    def _refuse(self, mistakes: list[str]) -> None:
        self._station.refuse([self._scrubber.clean(mistake) for mistake in mistakes])
        log.error("the new configuration is refused; the old one stays", mistakes=mistakes)
