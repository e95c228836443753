"""One process that plays all parts: it probes, keeps the record, and serves metrics and the live page.

`up` runs a Station on a person's configuration, `demo` on its own. Hides what starts before what: first what may be
another's (spool, address of the page) or missing, so that a start that fails has asked nobody anything; then probing,
since the libraries of the database and of the page take a second to load, which they do in a thread while probes run.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog

from monitor import __version__
from monitor.agent.arrivals import settle
from monitor.agent.failures import ADVICE
from monitor.agent.runner import Changes
from monitor.agent.uplink import Refusal
from monitor.cli.keeping import Keeping
from monitor.cli.probing import OnAttempt, Probing
from monitor.cli.service import DRAIN_SECONDS
from monitor.clock import Clock
from monitor.config import Config
from monitor.detect.line import Line
from monitor.hub.listening import listen
from monitor.metrics import Metrics
from monitor.model import Attempt, Series, StoreUnavailable
from monitor.store.wheel import wheel_binaries
from monitor.wire.fleet import Heartbeat
from monitor.witness import Sighting

if TYPE_CHECKING:
    from monitor.agent.spool import Spool
    from monitor.agent.spoolrows import SpooledNote
    from monitor.cli.storage import Storage
    from monitor.hub.server import WebServer

MISTAKES_SHOWN = 3
BEAT_SECONDS = 15.0
log = structlog.get_logger("firsttoken")


class Station:
    """Probes what `config` says and keeps the record, from `start` to `stop`; also an asynchronous context manager.

    `on_attempt` is called in the loop with every attempt (missed ones too) once it is on disk; it must return at once.
    """

    def __init__(
        self,
        config: Config,
        *,
        vantage: str | None = None,
        state_directory: Path | None = None,
        clock: Clock | None = None,
        on_attempt: OnAttempt | None = None,
    ) -> None:
        """Prepare; nothing runs yet. Raises ConfigError for a vantage that cannot be chosen."""
        self.config = config
        self.state_directory = Path(state_directory or config.spool.directory)
        self._clock = clock or Clock()
        self.metrics = Metrics(self._clock)
        self._notices: tuple[str, ...] = ()
        self._probing = Probing(
            config,
            self._deliver,
            self.metrics,
            self._clock,
            deliver_notes=self._deliver_notes,
            deliver_sightings=self._deliver_sightings,
            state_directory=self.state_directory,
            vantage=vantage,
            on_attempt=on_attempt,
        )
        self._keeping: Keeping | None = None
        self._listener: socket.socket | None = None
        self._web: WebServer | None = None
        self._started_at = self._clock.now()
        self._beating: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start everything; on return probes run. The database may come later: attempts wait on disk meanwhile.

        Raises SpoolBusy, ListenError, ConfigError for a database URL that cannot be read, EmbeddedPostgresFailed when
        there is no database at all: each a sentence, with everything stopped again.
        """
        try:
            await self._probing.open()
            if self.config.database_url is None:
                wheel_binaries()
            self._listener = listen(self.config.web.host, self.config.web.port)
            await self._probing.start()
            self.metrics.config_reloaded(True)
            self._keeping = await asyncio.to_thread(self._make_keeping)
            self._web = await asyncio.to_thread(self._start_web, self._keeping.storage)
        except BaseException:
            await self.stop(0.0)
            raise
        self._probing.begin_delivery()
        self._keeping.start()
        self._beating = asyncio.create_task(self._keep_beating())
        settle()  # once more: the libraries of database and page came after probing began

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Finish what runs within `drain_seconds`, deliver what is possible, stop everything. May be called twice."""
        if self._beating is not None:
            self._beating.cancel()
        await self._probing.drain(drain_seconds)
        if self._web is not None:
            await asyncio.to_thread(self._web.stop)
        await self._probing.close()
        if self._keeping is not None:
            await self._keeping.stop()
        self._web = None
        if self._listener is not None:
            self._listener.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def greet(self) -> None:
        """Say once what runs now."""
        log.info(
            "probing",
            series=len(self.series),
            vantages=sorted({series.vantage.name for series in self.series}),
            page=self.url,
            database=self.storage.place,
            state=str(self.state_directory),
        )

    def left(self) -> dict[str, object]:
        """What stays behind: attempts that wait on disk."""
        return {"waiting": self.spool.depth}

    async def take_over(self, config: Config) -> dict[str, object]:
        """`reload`, and what it changed, for the log."""
        changes = await self.reload(config)
        return {"added": changes.added, "removed": changes.removed, "changed": changes.changed, "kept": changes.kept}

    async def reload(self, config: Config) -> Changes:
        """Take over series, labels, limits and retention; slots that did not change are neither lost nor repeated.

        Raises ConfigError, with nothing changed, when this process's vantage is gone.
        """
        changes = self._probing.reload(config)
        for name in self._fixed_changes(config):
            log.warning("this change takes effect at the next start", section=name)
        self.config = config
        self.metrics.config_reloaded(True)
        self._notices = ()
        return changes

    def refuse(self, mistakes: Sequence[str]) -> None:
        """A new configuration cannot be taken over: metrics and page say so until one is. Mistakes free of secrets."""
        self.metrics.config_reloaded(False)
        shown = " ".join(f"{one.rstrip('.')}." for one in mistakes[:MISTAKES_SHOWN])
        more = len(mistakes) - MISTAKES_SHOWN
        rest = f" And {more} more; the log has them." if more > 0 else ""
        self._notices = (f"The new configuration is refused; the old one stays in force. {shown}{rest}",)

    # ------------------------------------------------------------------------------------------------ facts

    @property
    def series(self) -> list[Series]:
        """What is probed now."""
        return self._probing.series

    @property
    def url(self) -> str:
        """The page of this process."""
        assert self._web is not None
        return self._web.url

    @property
    def storage(self) -> Storage:
        """Where rows go."""
        assert self._keeping is not None
        return self._keeping.storage

    @property
    def spool(self) -> Spool:
        """Where attempts wait."""
        return self._probing.spool

    def health(self) -> Mapping[str, str | None]:
        """Each part with None, or with the sentence that says what is wrong."""
        return self._probing.health()

    # ------------------------------------------------------------------------------------------------ parts

    async def _deliver(self, attempts: Sequence[Attempt]) -> Sequence[Refusal]:
        assert self._keeping is not None  # deliveries begin when it is there
        return await self._keeping.deliver(attempts)

    async def _deliver_notes(self, notes: Sequence[SpooledNote]) -> Sequence[tuple[int, str]]:
        assert self._keeping is not None
        refused: list[tuple[int, str]] = []
        for vantage in dict.fromkeys(one.vantage for one in notes):
            said = [one.note for one in notes if one.vantage == vantage]
            refused += [
                (note.id, reason) for note, reason in await self._keeping.note(vantage, self.spool.agent, said)
            ]
        return refused

    async def _deliver_sightings(self, sightings: Sequence[Sighting]) -> Sequence[tuple[Sighting, str]]:
        assert self._keeping is not None
        return await self._keeping.sight(sightings)

    async def _keep_beating(self) -> None:
        """Say how far everything has been delivered, as an agent says it to a hub: coverage tells lost from unsent."""
        while True:
            try:
                await self._beat()
            except StoreUnavailable as error:
                log.debug("the database cannot be told how far deliveries are", cause=str(error))
            except Exception:
                log.exception("the database could not be told how far deliveries are; a defect of First Token")
            await asyncio.sleep(BEAT_SECONDS)

    async def _beat(self) -> None:
        assert self._keeping is not None
        spool, now = self.spool, self._clock.now()
        if spool.notes_waiting or not spool.agent:  # what a note explains would look lost until it is delivered
            return
        beat = Heartbeat(
            agent=spool.agent,
            version=__version__,
            config_digest=None,
            config_error=None,
            booted_at=self._started_at,
            started_at=self._started_at,
            sent_at=now,
            spool_attempts=spool.depth,
            spool_bytes=spool.size_bytes,
            spool_limit_bytes=spool.max_bytes,
            spool_oldest_at=spool.oldest,
            spool_lost=sum(spool.losses.values()),
            clock_offset_seconds=0.0,
        )
        for vantage in self._probing.book.planned:
            await self._keeping.beat(vantage, beat)

    def _lines(self) -> Mapping[str, Line]:
        return self._keeping.lines() if self._keeping is not None else {}

    def _fixed_changes(self, config: Config) -> list[str]:
        now, then = self.config, config
        return [
            name
            for name, differs in (
                ("storage.database_url", now.database_url != then.database_url),
                ("spool", now.spool != then.spool),
                ("web", now.web != then.web),
                ("log", now.log != then.log),
            )
            if differs
        ]

    def _make_keeping(self) -> Keeping:
        from monitor.cli.storage import Storage

        storage = Storage(self.config.database_url, self.state_directory / "postgres", self._clock)
        return Keeping(
            storage, self.metrics, self._clock, config=lambda: self.config, known=lambda: self._probing.known
        )

    def _start_web(self, storage: Storage) -> WebServer:
        from monitor.hub.app import create_app
        from monitor.hub.server import WebServer

        runner = self._probing.runner
        app = create_app(
            self.metrics,
            storage,
            self.health,
            series=lambda: self.series,
            next_slot=lambda series: runner.next_slot(series) if runner is not None else None,
            advice={kind.value: text for kind, text in ADVICE.items()},
            clock=self._clock,
            notices=lambda: self._notices,
            coverage=storage,
            read=storage,
            lines=self._lines,
        )
        server = WebServer(app, self.config.web.host, self.config.web.port, self._listener)
        server.start()
        return server
