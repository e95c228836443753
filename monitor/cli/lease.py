"""What only one copy of a hub may do: who does it, and what that copy says of agents and of last values.

Hides a lease in the database, renewed every few seconds and gone by itself when its holder dies. The copy that holds it
judges and tends; what it tells of agents, of lines and of the last attempts is the record's, and so the same whichever
copy it is.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from monitor import __version__
from monitor.cli.keeping import SIGHTING_WAYS
from monitor.clock import Clock
from monitor.config import Config
from monitor.config.handout import digest
from monitor.detect.line import VOTE_INTERVALS
from monitor.metrics import Metrics
from monitor.metrics.fleet import AgentState, FleetMetrics
from monitor.model import StoreRefuses, StoreUnavailable

if TYPE_CHECKING:
    from monitor.cli.storage import Storage
    from monitor.store.fleet import Enrolled
    from monitor.witness import Sighting

NAME = "sweep"
LEASE_SECONDS = 15.0
RENEW_SECONDS = 5.0
AGENTS_SECONDS = 15.0
LAST_OF = 30
"""Attempts of a series among which its last success is looked for, when a copy begins to tell of last values."""
RECEIVED_MARGIN = timedelta(seconds=5)
log = structlog.get_logger("firsttoken")


class Lease:
    """One copy's place among the copies, from `start` to `stop`.

    `config` and `handout` are asked from worker threads; `enrolled` is called there with the vantage points that have
    tokens, whenever their places have changed.
    """

    def __init__(
        self,
        storage: Storage,
        metrics: Metrics,
        fleet_metrics: FleetMetrics,
        clock: Clock,
        *,
        config: Callable[[], Config],
        handout: Callable[[str], bytes | None],
        enrolled: Callable[[Sequence[Enrolled]], None],
    ) -> None:
        self._storage = storage
        self._metrics = metrics
        self._fleet_metrics = fleet_metrics
        self._clock = clock
        self._config = config
        self._handout = handout
        self._on_enrolled = enrolled
        self._holder = uuid.uuid4().hex
        self._enrolled: Sequence[Enrolled] = ()
        self._noted_until: datetime | None = None
        self._task: asyncio.Task[None] | None = None
        self.held = False
        """Whether this copy judges and tends."""
        self.trouble: str | None = "not started yet"
        """Why the database cannot be used, None while it can."""
        self._is_away = False
        self._refusal: str | None = None  # what somebody has to do, as it was said last

    def start(self) -> None:
        """Take the lease when it can be had, and keep it, in the running loop."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Let another copy have it at once."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        if self.held:
            await asyncio.to_thread(self._let_go)

    async def _keep(self) -> None:
        looked: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            try:
                await asyncio.to_thread(self._renew)
                if looked is None or loop.time() - looked >= AGENTS_SECONDS:
                    await asyncio.to_thread(self._look_at_agents)
                    looked = loop.time()
                self._note_back()
            except StoreUnavailable as error:
                self._note_away(error)
                self._lose()
            except Exception:
                log.exception("the lease could not be kept; this is a defect of First Token")
                self._lose()
            await asyncio.sleep(RENEW_SECONDS)

    def _note_away(self, error: StoreUnavailable) -> None:
        """Say it when the database goes, and whenever there is something else for somebody to do."""
        if not self._is_away:
            self._refusal = None
        if isinstance(error, StoreRefuses):
            if str(error) != self._refusal:
                log.error("the database takes nothing until this is mended; agents keep theirs", cause=str(error))
            self._refusal = str(error)
        elif not self._is_away:
            log.warning("the database is away; agents keep what they have", cause=str(error))
        self._is_away, self.trouble = True, str(error)

    def _note_back(self) -> None:
        if self._is_away:
            log.info("the database is back")
        self._is_away, self.trouble = False, None

    def _renew(self) -> None:
        from monitor.store import fleet

        holds = self._storage.ask(fleet.hold, NAME, self._holder, LEASE_SECONDS)
        if holds != self.held:
            log.info("this copy judges and tends now" if holds else "another copy judges and tends now")
        self.held = holds
        self._fleet_metrics.set_holder(holds)

    def _lose(self) -> None:
        self.held = False
        self._forget_last()
        self._metrics.set_witness(())
        self._fleet_metrics.set_holder(False)

    def _let_go(self) -> None:
        from monitor.store import fleet

        try:
            self._storage.ask(fleet.release, NAME, self._holder)
        except StoreUnavailable as error:
            log.debug("the lease runs out by itself", cause=str(error))

    def _look_at_agents(self) -> None:
        from monitor.store import fleet

        now = self._clock.now()
        enrolled = self._storage.ask(fleet.enrolled, now)
        if [one.vantage for one in enrolled] != [one.vantage for one in self._enrolled]:
            self._on_enrolled(enrolled)
        self._enrolled = enrolled
        self._fleet_metrics.expect(one.vantage.name for one in enrolled if one.tokens)
        if self.held:
            starved = self._storage.ask(fleet.starvation, now - timedelta(hours=1))
            self._fleet_metrics.set_agents([self._state(one, starved) for one in enrolled if one.tokens], now)
            self._metrics.set_witness(self._newest_sightings(now))
            self._note_last(now)
        else:
            self._metrics.set_witness(())  # the copy that sweeps says it
            self._forget_last()

    def _note_last(self, now: datetime) -> None:
        """Last values come from the record, so that they are the last of all copies; from one copy alone."""
        storage, since = self._storage, self._noted_until
        known = storage.latest(LAST_OF) if since is None else storage.received_since(since - RECEIVED_MARGIN)
        self._metrics.note_last(sorted(known, key=lambda one: one.started_at))
        self._noted_until = now

    def _forget_last(self) -> None:
        if self._noted_until is not None:
            self._noted_until = None
            self._metrics.forget_last()

    def _newest_sightings(self, now: datetime) -> list[Sighting]:
        """The last looks of what is configured; none that is so old that a later one must have been lost."""
        from monitor.store import witness

        rules = self._config().witness
        since = now - VOTE_INTERVALS * timedelta(seconds=rules.interval_seconds) - SIGHTING_WAYS
        configured = {(name, one.name) for name in self._config().vantages for one in rules.seen_from(name)}
        names = sorted({name for name, _ in configured})
        newest = self._storage.ask(witness.newest, names, since) if names else []
        return [one for one in newest if (one.vantage, one.endpoint) in configured]

    def _state(self, one: Enrolled, starved: Mapping[str, float]) -> AgentState:
        name = one.vantage.name
        handout, said = self._handout(name), one.beat
        newest = None if handout is None else digest(handout)
        placed = self._config().vantages.get(name, one.vantage)
        current = said is not None and _release(said.version) == _release(__version__)
        return AgentState(
            vantage=name,
            country=placed.place.country or "",
            version=said.version if said else "",
            config_digest=(said.config_digest or "") if said else "",
            up_to_date=current and said is not None and said.config_digest == newest,
            heard_at=one.heard_at or one.created_at,
            spool_attempts=said.spool_attempts if said else 0,
            spool_bytes=said.spool_bytes if said else 0,
            spool_limit_bytes=said.spool_limit_bytes if said else 0,
            oldest_unsent_at=said.spool_oldest_at if said else None,
            spool_lost=said.spool_lost if said else 0,
            clock_offset_seconds=said.clock_offset_seconds if said else None,
            starved=starved.get(name),
        )


def _release(version: str) -> str:
    """Major and minor: agents of one minor version and a hub of another may differ in what they measure."""
    return ".".join(version.split(".")[:2])
