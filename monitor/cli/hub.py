"""`firsttoken hub`: takes in what agents elsewhere measure, tells them what to measure, keeps and shows it.

Any number of copies over one database: each takes in what comes, and what only one may do (judging, tending, telling of
agents) belongs to the one that holds a lease there. Hides that lease, and where a vantage point's place comes from: the
configuration, else what `firsttoken vantage add` was told.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from monitor.cli import logs, terminal
from monitor.cli.keeping import Keeping
from monitor.cli.lease import Lease
from monitor.cli.leaving import leave
from monitor.cli.service import DRAIN_SECONDS, Process, run
from monitor.clock import Clock
from monitor.config import Config, InvalidConfig
from monitor.config.handout import Fleet, load_fleet
from monitor.config.types import FrozenDict
from monitor.detect.line import Line
from monitor.grid import grid, microseconds
from monitor.metrics import Metrics
from monitor.metrics.fleet import FleetMetrics
from monitor.model import ConfigError, Place, Series, SeriesKey

if TYPE_CHECKING:
    from monitor.cli.storage import Storage
    from monitor.hub.server import WebServer
    from monitor.store.fleet import Enrolled
    from monitor.wire.fleet import Heartbeat, Receipt, Upload

MISTAKES_SHOWN = 3

log = structlog.get_logger("firsttoken")


def hub(
    file: Annotated[Path, typer.Argument(help="The fleet's configuration file.", show_default=True)] = Path(
        "firsttoken.yaml"
    ),
    listen: Annotated[
        str | None, typer.Option("--listen", help="host:port, instead of web.listen: for several copies of a hub.")
    ] = None,
) -> None:
    """Take in what agents measure, hand out their configuration, serve page, metrics and the read API.

    The keys of targets stay `${NAME}` here: only agents have them. SIGHUP or a changed file takes over the new
    configuration. Exit code 0 after a signal, 2 when the start is not possible.
    """
    try:
        fleet = load_fleet(file)
    except InvalidConfig as error:
        terminal.say("\n".join(map(str, error.mistakes)), err=True)
        raise typer.Exit(2) from None
    config = fleet.config
    scrubber = logs.Scrubber(config.secrets())
    logs.configure(config.log.level, config.log.format, scrubber)
    for warning in config.warnings:
        log.warning("configuration", warning=str(warning))
    service = Hub(fleet, _address(listen) if listen else (config.web.host, config.web.port))
    leave(run(Process(file, service, scrubber, load_fleet, lambda one: one.config.secrets())))


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen {listen!r} is no host:port such as 127.0.0.1:8766")
    return host.strip("[]"), int(port)


class Hub:
    """One copy of the hub, from `start` to `stop`. Its Desk methods are called in worker threads."""

    def __init__(self, fleet: Fleet, address: tuple[str, int], clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or Clock()
        self._lease: Lease | None = None
        self._notices: tuple[str, ...] = ()
        self.metrics = Metrics(self._clock, last_values=False)
        self.fleet_metrics = FleetMetrics(self.metrics.registry)
        self._enrolled: Sequence[Enrolled] = ()
        self._one_at_a_time = threading.Lock()  # the loop takes configurations, the lease's thread places
        self._known: dict[SeriesKey, Series] = {}
        self._fleet = fleet
        self._config = fleet.config
        self._take(fleet, ())
        self._keeping: Keeping | None = None
        self._web: WebServer | None = None

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Listen, then use the database, which may come later: agents keep what they have meanwhile.

        Raises ListenError, ConfigError for a database that cannot be named, EmbeddedPostgresFailed.
        """
        self._keeping = await asyncio.to_thread(self._make_keeping)
        try:
            self._web = await asyncio.to_thread(self._start_web)
        except BaseException:
            await self.stop(0.0)
            raise
        self.metrics.config_reloaded(True)
        self._keeping.start()
        self._lease = self._make_lease()
        self._lease.start()

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:  # requests have their own bound
        """Answer what is being asked, let another copy sweep, stop everything."""
        if self._lease is not None:
            await self._lease.stop()
        if self._web is not None:
            await asyncio.to_thread(self._web.stop)
            self._web = None
        if self._keeping is not None:
            await self._keeping.stop()

    def greet(self) -> None:
        """Say once what runs now."""
        assert self._web is not None
        log.info(
            "the hub is up",
            series=len(self._known),
            vantages=sorted(self._config.vantages),
            page=self._web.url,
            database=self.storage.place,
        )

    def left(self) -> dict[str, object]:
        """A hub keeps nothing of its own."""
        return {}

    async def take_over(self, config: Fleet) -> dict[str, object]:
        """Hand out and expect another configuration from now on."""
        before = set(self._known)
        with self._one_at_a_time:
            self._take(config, self._enrolled)
        self.metrics.config_reloaded(True)
        self._notices = ()
        return {"added": len(set(self._known) - before), "removed": len(before - set(self._known))}

    def refuse(self, mistakes: Sequence[str]) -> None:
        """A new configuration cannot be taken over: metrics and page say so. Mistakes are free of secrets."""
        self.metrics.config_reloaded(False)
        shown = " ".join(mistakes[:MISTAKES_SHOWN])
        self._notices = (f"The new configuration is refused; the old one stays in force. {shown}",)

    @property
    def storage(self) -> Storage:
        """Where rows go."""
        assert self._keeping is not None
        return self._keeping.storage

    # ------------------------------------------------------------------------------------------------ the desk

    def whose(self, token: str) -> str | None:
        """The vantage point that a token speaks for."""
        from monitor.store import fleet

        return self.storage.ask(fleet.whose, token, self._clock.now())

    def take(self, vantage: str, upload: Upload) -> Receipt:
        """Store an upload, row by row."""
        return self._ingest.take(vantage, upload)

    def beat(self, vantage: str, heartbeat: Heartbeat) -> None:
        """Remember how an agent is."""
        from monitor.store import fleet

        self.storage.ask(fleet.beat, vantage, heartbeat, self._clock.now())

    def handout(self, vantage: str) -> bytes | None:
        """The configuration of a vantage point, None when the fleet's does not have it."""
        fleet = self._fleet
        return fleet.handout(vantage) if vantage in fleet.config.vantages else None

    # ------------------------------------------------------------------------------------------------ parts

    def _make_keeping(self) -> Keeping:
        from monitor.cli.storage import Storage
        from monitor.hub.ingest import Ingest
        from monitor.store import fleet, notes

        state = Path(self._config.spool.directory)
        storage = Storage(self._config.database_url, state / "postgres", self._clock)
        keeping = Keeping(
            storage,
            self.metrics,
            self._clock,
            config=lambda: self._config,
            known=lambda: self._known,
            sweeps=lambda: self._lease is not None and self._lease.held,
            gently=False,
        )
        self._ingest = Ingest(
            keeping.store,
            lambda vantage, agent, said: storage.ask(
                notes.insert,
                vantage,
                agent,
                said,
                self._clock.now(),
                known=list(self._known.values()),
                raw_days=self._config.storage.raw_days,
            ),
            keeping.store_sightings,
            lambda: self._known,
            lambda vantage: storage.ask(fleet.series_of, vantage),
            self._clock,
        )
        return keeping

    def _start_web(self) -> WebServer:
        from monitor.agent.failures import ADVICE
        from monitor.hub.agents import PREFIX, agents_router
        from monitor.hub.app import create_app
        from monitor.hub.server import FLEET_CONNECTIONS, WebServer

        app = create_app(
            self.metrics,
            self.storage,
            self.health,
            series=lambda: list(self._known.values()),
            next_slot=self._next_slot,
            advice={kind.value: text for kind, text in ADVICE.items()},
            clock=self._clock,
            notices=lambda: self._notices,
            coverage=self.storage,
            read=self.storage,
            lines=self._lines,
            routers=[agents_router(self, self.fleet_metrics, self._clock)],
            bodies_under=PREFIX,
        )
        server = WebServer(app, *self._address, connections=FLEET_CONNECTIONS)
        server.start()
        return server

    def _lines(self) -> Mapping[str, Line]:
        return self._keeping.lines() if self._keeping is not None else {}

    def health(self) -> Mapping[str, str | None]:
        """The database is the only part that may be away."""
        return {"store": self._lease.trouble if self._lease is not None else "not started yet"}

    def _next_slot(self, series: Series) -> datetime | None:
        lattice = grid(series, list(self._config.vantages))
        return lattice.slot(lattice.first_after(microseconds(self._clock.now()))).scheduled_at

    def _make_lease(self) -> Lease:
        return Lease(
            self.storage,
            self.metrics,
            self.fleet_metrics,
            self._clock,
            config=lambda: self._config,
            handout=self.handout,
            enrolled=self._place,
        )

    # ------------------------------------------------------------------------------------------------ configuration

    def _place(self, enrolled: Sequence[Enrolled]) -> None:
        """Vantage points were enrolled, or are elsewhere now."""
        with self._one_at_a_time:
            self._enrolled = enrolled
            self._take(self._fleet, enrolled)

    def _take(self, fleet: Fleet, enrolled: Sequence[Enrolled]) -> None:
        """Go on with a configuration, its placeless vantage points placed as they were enrolled."""
        config = _placed(fleet.config, enrolled)
        every = [one for vantage in config.vantages for one in config.series(vantage)]
        wanted = {one.key: one for one in every}
        for key, series in self._known.items():
            if key not in wanted:
                self.metrics.forget(series)
        for series in wanted.values():
            self.metrics.declare(series)
        self._fleet, self._config, self._known = fleet, config, wanted


def _placed(config: Config, enrolled: Sequence[Enrolled]) -> Config:
    told = {one.vantage.name: one.vantage for one in enrolled}
    return replace(
        config,
        vantages=FrozenDict(
            {
                name: replace(one, place=told[name].place, network=one.network or told[name].network)
                if one.place == Place() and name in told
                else one
                for name, one in config.vantages.items()
            }
        ),
    )
