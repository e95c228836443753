"""`firsttoken up`: everything in one process, until a signal ends it. What runs is a `Station`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import structlog
import typer

from monitor import config as configuration
from monitor.cli import env_proxy, logs, terminal
from monitor.cli.leaving import leave
from monitor.cli.service import Process, run
from monitor.cli.station import Station
from monitor.config import Config, InvalidConfig

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
        terminal.say("\n".join(map(str, error.mistakes)), err=True)
        raise typer.Exit(2) from None
    scrubber = logs.Scrubber(config.secrets())
    logs.configure(config.log.level, config.log.format, scrubber)
    for warning in config.warnings:
        log.warning("configuration", warning=str(warning))
    station = Station(config, vantage=vantage, state_directory=state)
    notice = env_proxy.ignored(station.series)
    if notice is not None:
        log.warning(notice)
    leave(run(Process(file, station, scrubber, configuration.load, Config.secrets)))
