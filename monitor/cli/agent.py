"""`firsttoken agent`: measures at one vantage point what a hub says, and gives it what it measured.

Hides that the hub may be away: the last good configuration stands on disk, attempts wait in the spool, and nothing here
waits for an answer. Also that the machine's clock may be wrong: the hub's is asked with every heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import structlog
import typer

from monitor import __version__
from monitor.agent.arrivals import settle
from monitor.agent.hub_client import Beat, Handout, HubClient, NotForUs
from monitor.agent.hub_line import HubLine, corrected
from monitor.agent.last_configuration import recall, remember
from monitor.agent.own_page import OwnPage
from monitor.agent.spoolrows import SpooledNote
from monitor.agent.uplink import Refusal
from monitor.cli import logs, terminal
from monitor.cli.leaving import leave
from monitor.cli.probing import Probing
from monitor.cli.service import DRAIN_SECONDS, Process, run
from monitor.clock import CorrectedClock
from monitor.config import Config, InvalidConfig, Witness
from monitor.config.agentfile import AgentFile, load_agent_file
from monitor.config.handout import accept
from monitor.config.types import FrozenDict
from monitor.metrics import Metrics
from monitor.model import Attempt, ConfigError, Series, StoreUnavailable
from monitor.wire.fleet import Heartbeat
from monitor.witness import Sighting

HEARTBEAT_SECONDS = 15.0
CONFIG_SECONDS = 60.0
"""A heartbeat's answer tells of a newer configuration sooner; this is for a hub whose answer was lost."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
CONFLICTS_SAID_SECONDS = 600.0
EMPTY = Config(vantages=FrozenDict(), targets=FrozenDict(), probes=FrozenDict())
log = structlog.get_logger("firsttoken")


def agent(
    file: Annotated[Path, typer.Option("--file", "-f", help="The agent's own file.", show_default=True)] = Path(
        "/etc/firsttoken/agent.yaml"
    ),
) -> None:
    """Measure what the hub says, from here, and deliver it; goes on while the hub is away.

    SIGHUP, or a change of this file or of one that it names, takes over new keys and a new token; SIGTERM finishes what
    runs, delivers and stops. Exit code 0 after a signal, 2 when the start is not possible.
    """
    try:
        own = load_agent_file(file)
    except InvalidConfig as error:
        terminal.say("\n".join(map(str, error.mistakes)), err=True)
        raise typer.Exit(2) from None
    scrubber = logs.Scrubber(own.known_secrets)
    logs.configure(own.log.level, own.log.format, scrubber)
    service = Agent(own)
    process = Process(file, service, scrubber, load_agent_file, lambda one: one.known_secrets, lambda: service.files)
    leave(run(process))


class Agent:
    """One agent, from `start` to `stop`."""

    def __init__(
        self, own: AgentFile, clock: CorrectedClock | None = None, *, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> None:
        """Raises StoreRefuses for a CA file that cannot be used; nothing runs yet."""
        self._own = own
        self._heartbeat_seconds = heartbeat_seconds
        self._state = Path(own.spool.directory)
        self._clock = clock or CorrectedClock()
        self.metrics = Metrics(self._clock, store=False)
        self._probing = Probing(
            replace(EMPTY, spool=own.spool),
            self._deliver,
            self.metrics,
            self._clock,
            deliver_notes=self._say,
            deliver_sightings=self._show,
            state_directory=self._state,
            on_attempt=self._observe,
        )
        self._client = self._make_client(own)
        self._page: OwnPage | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._handout: Handout | None = None  # in force
        self._refused: str | None = None  # digest of a handout that cannot be used with this file
        self._config_error: str | None = None
        self._line = HubLine()
        self._newer = asyncio.Event()
        self._offset: float | None = None
        self._started_at = self._clock.now()
        self._conflicts = 0
        self._conflicts_said = float("-inf")

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Measure by the last good configuration, if there is one; deliver and listen to the hub in the background.

        Raises SpoolBusy, OwnPageError, StoreRefuses: each a sentence, with everything stopped again.
        """
        if self._own.metrics is not None:
            self._page = OwnPage(*self._own.metrics, self.metrics.negotiate, self.health)
            self._page.start()
        try:
            await self._probing.open()
            await self._probing.start()
        except BaseException:
            await self.stop(0.0)
            raise
        known = recall(self._memory)
        if known is not None:
            self._take(known)
        self._probing.begin_delivery()
        self._tasks += [asyncio.create_task(self._keep_configured()), asyncio.create_task(self._keep_beating())]
        settle()

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Finish what runs, deliver what is possible, stop everything. May be called twice."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        await self._probing.drain(drain_seconds)
        await self._probing.close()
        await self._client.close()
        if self._page is not None:
            self._page.stop()
            self._page = None

    @property
    def files(self) -> Sequence[Path]:
        """Files beside the agent's own whose change matters."""
        return self._own.files

    def greet(self) -> None:
        """Say once what runs now."""
        log.info(
            "the agent is up",
            hub=self._own.hub,
            vantage=self._handout.vantage if self._handout else "not known yet: waiting for the hub",
            series=len(self._probing.series),
            state=str(self._state),
            metrics=self._page.port if self._page else "off",
        )

    def left(self) -> dict[str, object]:
        """What stays behind: attempts that wait on disk."""
        return {"waiting": self._probing.spool.depth}

    async def take_over(self, own: AgentFile) -> dict[str, object]:
        """Go on with other keys, another token or another hub. Raises ConfigError, with nothing changed."""
        config = None
        if self._handout is not None:
            config = self._completed(self._handout, own)
        client = self._make_client(own)
        before, self._client = self._client, client
        fixed = [name for name in ("spool", "metrics", "log") if getattr(own, name) != getattr(self._own, name)]
        for name in fixed:
            log.warning("this change takes effect at the next start", section=name)
        self._own = own
        if config is not None and self._handout is not None:
            self._probing.reload(config, self._handout.vantage)
        self._refused, self._config_error = None, None
        self._newer.set()
        await before.close()
        return {"hub": own.hub, "keys": len(own.trusted.secrets)}

    def refuse(self, mistakes: Sequence[str]) -> None:
        """The own file cannot be used as it is now; the old one stays."""
        self._config_error = " ".join(mistakes)[:2_000]

    def health(self) -> Mapping[str, str | None]:
        """Each part with None, or with the sentence that says what is wrong."""
        said = self._probing.health()
        said["hub"] = said.pop("store") or self._line.trouble
        nothing = self._config_error or "no configuration yet: the hub was never reached"
        said["configuration"] = None if self._handout is not None else nothing
        return said

    # ------------------------------------------------------------------------------------------------ delivery

    def _make_client(self, own: AgentFile) -> HubClient:
        return HubClient(
            own.hub, own.token, lambda: self._probing.spool.agent, self._clock, ca_file=own.ca_file, proxy=own.proxy
        )

    async def _deliver(self, attempts: Sequence[Attempt]) -> Sequence[Refusal]:
        refusals, receipt = await self._client.deliver(attempts)
        self.metrics.count_delivered(receipt.stored + receipt.duplicates)
        self.metrics.count_rejected(len(receipt.rejected))
        self.metrics.count_conflicts(len(receipt.conflicts))
        if receipt.conflicts:
            self._warn_of_conflicts(len(receipt.conflicts))
        return refusals

    async def _say(self, notes: Sequence[SpooledNote]) -> Sequence[tuple[int, str]]:
        return await self._client.say(notes)

    async def _show(self, sightings: Sequence[Sighting]) -> Sequence[tuple[Sighting, str]]:
        return await self._client.sight(sightings)

    def _warn_of_conflicts(self, conflicts: int) -> None:
        self._conflicts += conflicts
        now = asyncio.get_running_loop().time()
        if now - self._conflicts_said < CONFLICTS_SAID_SECONDS:
            return
        self._conflicts_said = now
        log.warning("the hub has other results for these slots: is this agent a copy?", attempts_so_far=self._conflicts)

    def _observe(self, attempt: Attempt, series: Series) -> None:
        self.metrics.observe(attempt, series, False)

    # ------------------------------------------------------------------------------------------------ configuration

    @property
    def _memory(self) -> Path:
        return self._state / "configuration.json"

    def _completed(self, handout: Handout, own: AgentFile) -> Config:
        config = accept(handout.content, handout.vantage, own.trusted)
        return replace(config, spool=own.spool, log=own.log)

    def _take(self, handout: Handout) -> bool:
        """Measure by a configuration from now on, or say why not and go on as before."""
        try:
            config = self._completed(handout, self._own)
            changes = self._probing.reload(config, handout.vantage)
        except ConfigError as error:
            mistakes = [str(one) for one in error.mistakes] or [str(error)]
            if self._refused != handout.digest:
                log.error("the hub's configuration is refused; the old one stays", mistakes=mistakes)  # noqa: TRY400
            self._refused, self._config_error = handout.digest, " ".join(mistakes)[:2_000]
            self.metrics.config_reloaded(False)
            return False
        self._handout, self._refused, self._config_error = handout, None, None
        self.metrics.config_reloaded(True)
        log.info(
            "configuration taken over",
            vantage=handout.vantage,
            digest=handout.digest,
            added=changes.added,
            removed=changes.removed,
            changed=changes.changed,
            kept=changes.kept,
        )
        return True

    async def _keep_configured(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            self._newer.clear()
            try:
                await self._fetch()
                wait, pause = CONFIG_SECONDS, FIRST_PAUSE_SECONDS
            except NotForUs as error:
                self._pause_for(error)
                wait = LONGEST_PAUSE_SECONDS
            except StoreUnavailable as error:
                self._say_trouble(error)
                wait, pause = max(pause, error.retry_after_seconds), min(LONGEST_PAUSE_SECONDS, pause * 2)
            except Exception:
                log.exception("the configuration could not be followed; this is a defect of First Token")
                wait = LONGEST_PAUSE_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._newer.wait()
            except TimeoutError:
                continue

    async def _fetch(self) -> None:
        in_force = self._handout.digest if self._handout is not None else None
        handout = await self._client.config(self._refused or in_force)
        if handout is None:
            return
        if self._take(handout):
            await asyncio.to_thread(remember, self._memory, handout)

    def _pause_for(self, error: NotForUs) -> None:
        """The fleet's configuration does not have this vantage point: nothing is owed, and nothing is asked."""
        if self._config_error != str(error):
            log.warning("nothing is probed", cause=str(error))
        if self._probing.series:
            self._probing.reload(replace(self._probing.config, probes=FrozenDict(), witness=Witness()))
        self._handout = None
        self._config_error = str(error)
        self._memory.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------------ heartbeats

    async def _keep_beating(self) -> None:
        while True:
            wait = self._heartbeat_seconds
            try:
                self._heard(await self._client.beat(self._beat()))
            except StoreUnavailable as error:
                self._say_trouble(error)
                wait = max(wait, error.retry_after_seconds)
            except Exception:
                log.exception("a heartbeat could not be made; this is a defect of First Token")
            await asyncio.sleep(wait)

    def _say_trouble(self, error: StoreUnavailable) -> None:
        """With attempts to deliver the uplink says it; without any nobody else would."""
        self._line.fails(error, silent=self._probing.away is not None, patient=self._handout is not None)

    def _beat(self) -> Heartbeat:
        spool, now = self._probing.spool, self._clock.now()
        waiting = [one for one in (spool.oldest, self._probing.book.unsaid_since) if one is not None]
        return Heartbeat(
            agent=spool.agent,
            version=__version__,
            config_digest=self._handout.digest if self._handout is not None else None,
            config_error=self._config_error,
            booted_at=_booted_at(now),
            started_at=self._started_at,
            sent_at=now,
            spool_attempts=spool.depth,
            spool_bytes=spool.size_bytes,
            spool_limit_bytes=spool.max_bytes,
            spool_oldest_at=min(waiting, default=None),  # notes explain slots as rows do
            spool_lost=sum(spool.losses.values()),
            clock_offset_seconds=self._offset,
        )

    def _heard(self, beat: Beat) -> None:
        self._offset = beat.offset_seconds
        self._line.answers()
        if beat.config_digest not in (None, self._refused, self._handout.digest if self._handout else None):
            self._newer.set()
        correction = corrected(self._clock.correction_seconds, beat)
        if correction != self._clock.correction_seconds:
            said = "this machine's clock is wrong: slots follow the hub's" if correction else "the clock is right again"
            log.warning(said, seconds=round(beat.offset_seconds, 3))
            self._clock.correct(correction)


def _booted_at(now: datetime) -> datetime:
    try:
        with Path("/proc/uptime").open(encoding="ascii") as file:
            return now - timedelta(seconds=float(file.read().split()[0]))
    except (OSError, ValueError, IndexError):
        return now
