"""What measures: schedule, probes, spool, delivery and daily caps of one process, without knowing where attempts go.

`up` and `demo` give it the database of the same process, an agent gives it a hub. Hides what starts before what, that
an attempt is on disk before anything else sees it, and what a new configuration may change while it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from monitor.agent.asides import DeliverNotes, DeliverSightings
from monitor.agent.confirm import Confirmer
from monitor.agent.gate import Gate
from monitor.agent.pace import Pace
from monitor.agent.probe import Prober
from monitor.agent.runner import Changes, Outlets, Runner
from monitor.agent.slotbook import SlotBook
from monitor.agent.spending import Spending
from monitor.agent.spool import Spool
from monitor.agent.uplink import Deliver, Uplink
from monitor.agent.witness import Watch
from monitor.cli.outages import Outages
from monitor.clock import Clock
from monitor.config import Config
from monitor.config.plan import Allowance, allowances
from monitor.metrics import Metrics
from monitor.model import Attempt, ConfigError, Series, SeriesKey, SpoolFull
from monitor.notes import GapNote
from monitor.wire import WireError
from monitor.witness import Sighting

PULSE_SECONDS = 1.0
FINAL_DELIVERY_SECONDS = 5.0

OnAttempt = Callable[[Attempt, Series], None]
log = structlog.get_logger("firsttoken")


class Probing:
    """Probes what `config` says, from `start` to `stop`; delivers through `deliver` once `begin_delivery` was called.

    `on_attempt` is called in the loop with every attempt (missed ones too) once it is on disk; it must return at once.
    """

    def __init__(
        self,
        config: Config,
        deliver: Deliver,
        metrics: Metrics,
        clock: Clock,
        *,
        deliver_notes: DeliverNotes | None = None,
        deliver_sightings: DeliverSightings | None = None,
        state_directory: Path,
        vantage: str | None = None,
        on_attempt: OnAttempt | None = None,
    ) -> None:
        """Prepare; nothing runs yet. Raises ConfigError for a vantage that cannot be chosen."""
        self.config = config
        self._deliver = deliver
        self._deliver_notes = deliver_notes
        self._deliver_sightings = deliver_sightings
        self._metrics = metrics
        self._clock = clock
        self._state = state_directory
        self._vantage = vantage
        self._on_attempt = on_attempt
        self._outages = Outages(clock)
        self._series: dict[SeriesKey, Series] = {}
        self._take_series(config)
        self._pace = Pace(config.limits.per_minute)
        self._spool: Spool | None = None
        self._prober: Prober | None = None
        self._spending: Spending | None = None
        self._runner: Runner | None = None
        self._uplink: Uplink | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._book: SlotBook | None = None
        self._watch: Watch | None = None
        self._seen: dict[tuple[str, str], Sighting] = {}  # the last look of each vantage point at each endpoint

    # ------------------------------------------------------------------------------------------------ life

    async def open(self) -> None:
        """Take the spool; nothing is probed yet. Raises SpoolBusy."""
        self._spool = await asyncio.to_thread(self._open_spool)

    async def start(self) -> None:
        """Probe, after `open`; what was started is stopped by `drain` and `close`, also after a failure."""
        config = self.config
        assert self._spool is not None
        self._book = SlotBook(self._spool, self._clock, self._wake)
        self._prober = Prober(self._clock, max_concurrent=config.limits.max_concurrent)
        await self._prober.start()
        self._spending = Spending(self._state / "spending.sqlite3", self._allowances(config), self._clock)
        await self._spending.open()
        self._runner = self._make_runner(self._prober, self._spending)
        self._pulse(self._spool)
        await self._runner.start(await self._spool.marks())
        self._replace(self._runner, config)
        self._tasks += [asyncio.create_task(self._keep_pulse()), asyncio.create_task(self._book.keep_marking())]
        self._uplink = Uplink(
            self._spool,
            self._deliver,
            clock=self._clock,
            on_failure=self._metrics.count_uplink_failure,
            deliver_notes=self._deliver_notes,
            deliver_sightings=self._deliver_sightings,
        )
        self._watch = Watch(self._clock, self._sight)
        self._look(config)

    def begin_delivery(self) -> None:
        """Attempts go out from now on; until then they wait on disk."""
        assert self._uplink is not None
        self._uplink.start()

    async def drain(self, seconds: float) -> None:
        """No new slots; finish what runs within `seconds`, then deliver what is possible."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        if self._watch is not None:
            await self._watch.stop()
        if self._runner is not None:
            await self._runner.stop(seconds)
            await self.book.mark()
        if self._uplink is not None:
            await self._uplink.stop(min(seconds, FINAL_DELIVERY_SECONDS))
        self._runner = self._uplink = None

    async def close(self) -> None:
        """Close connections and files, after `drain`. May be called twice."""
        if self._prober is not None:
            await self._prober.close()
        if self._spending is not None:
            await self._spending.close()
        if self._spool is not None:
            await self._spool.close()
        self._prober = self._spending = None

    def reload(self, config: Config, vantage: str | None = None) -> Changes:
        """Take over series, labels and limits; slots that did not change are neither lost nor repeated.

        Raises ConfigError, with nothing changed, when this process's vantage is gone; `vantage`: it plays another one.
        """
        assert self._runner is not None
        before, self._vantage = self._vantage, vantage or self._vantage
        try:
            self._take_series(config)
        except ConfigError:
            self._vantage = before
            raise
        self.config = config
        self._runner.limit(config.limits.max_concurrent, config.limits.per_provider)
        self._pace.limit(config.limits.per_minute)
        if self._spending is not None:
            self._spending.limit(self._allowances(config))
        self._look(config)
        return self._replace(self._runner, config)

    # ------------------------------------------------------------------------------------------------ facts

    @property
    def series(self) -> list[Series]:
        """What is probed now."""
        return list(self._series.values())

    @property
    def known(self) -> Mapping[SeriesKey, Series]:
        """The same, by (vantage, target, probe); replaced as a whole, so that any thread may read it."""
        return self._series

    @property
    def spool(self) -> Spool:
        """Where attempts wait."""
        assert self._spool is not None
        return self._spool

    @property
    def book(self) -> SlotBook:
        """What is said about slots without rows."""
        assert self._book is not None
        return self._book

    @property
    def runner(self) -> Runner | None:
        """What runs the slots, while it does."""
        return self._runner

    @property
    def away(self) -> str | None:
        """Why nothing can be delivered now; None while it can, or when there was nothing to deliver."""
        return self._uplink.away if self._uplink is not None else None

    def health(self) -> dict[str, str | None]:
        """Each part with None, or with the sentence that says what is wrong."""
        return {
            "schedule": None if self._runner is not None else "not started yet",
            "spool": self._spool.trouble if self._spool is not None else "not opened yet",
            "store": self._uplink.away if self._uplink is not None else "not started yet",
        }

    # ------------------------------------------------------------------------------------------------ parts

    def _take_series(self, config: Config) -> None:
        wanted = {
            series.key: series
            for vantage in config.select_vantages(self._vantage)
            for series in config.series(vantage.name)
        }
        for key, series in self._series.items():
            if key not in wanted:
                self._metrics.forget(series)
        for series in wanted.values():
            self._metrics.declare(series)
        self._series = wanted
        self._outages.keep(set(wanted))

    def _open_spool(self) -> Spool:
        spool = self.config.spool
        return Spool(self._state / "spool.sqlite3", spool.max_bytes, spool.max_age_seconds, self._clock)

    def _allowances(self, config: Config) -> list[Allowance]:
        played = [vantage.name for vantage in config.select_vantages(self._vantage)]
        return allowances(config, played)

    def _make_runner(self, prober: Prober, spending: Spending) -> Runner:
        gate = Gate(prober.run, spending, self._pace, self._clock)
        outlets = Outlets(
            record=self._record,
            mark=self.spool.mark,
            skip=self._note_gap,
            stepped=self.book.stepped,
            owe=self.book.owe,
            lag=self._metrics.observe_scheduler_lag,
            release=prober.release,
        )
        limits = self.config.limits
        return Runner(
            gate.run,
            outlets,
            clock=self._clock,
            max_concurrent=limits.max_concurrent,
            per_provider=limits.per_provider,
            confirm=Confirmer(gate.run, self._clock).second,
            pace=self._pace,
        )

    @staticmethod
    async def _if_possible(writing: Awaitable[None]) -> None:
        with suppress(SpoolFull):  # the spool says so itself, once
            await writing

    def _replace(self, runner: Runner, config: Config) -> Changes:
        names = list(config.vantages)
        self.book.plan(self.series, names, [one.name for one in config.select_vantages(self._vantage)])
        return runner.replace(self.series, names)

    def _note_gap(self, vantage: str, gap: GapNote) -> None:
        self._metrics.count_skipped(gap.slots)
        self.book.note(vantage, gap)

    def _look(self, config: Config) -> None:
        """Watch what a configuration says; what was seen of anything else is shown no more."""
        played = config.select_vantages(self._vantage) if config.vantages else []
        if self._watch is not None:
            self._watch.take(config, played)
        shown = {(one.name, endpoint.name) for one in played for endpoint in config.witness.seen_from(one.name)}
        self._seen = {key: sighting for key, sighting in self._seen.items() if key in shown}
        self._metrics.set_witness(self._seen.values())

    async def _sight(self, sighting: Sighting) -> None:
        await self._if_possible(self.spool.sight(sighting))
        self._wake()
        self._seen[sighting.vantage, sighting.endpoint] = sighting
        self._metrics.set_witness(self._seen.values())

    async def _record(self, attempt: Attempt, series: Series) -> None:
        try:
            await self.spool.append(attempt)
        except SpoolFull:
            pass  # counted as a loss and said by the spool
        except WireError as error:
            log.warning("an attempt cannot be kept", target=attempt.target, probe=attempt.probe, cause=str(error))
        self.book.settle(attempt)
        self._wake()
        self._outages.take(attempt, series)
        if self._on_attempt is not None:
            self._on_attempt(attempt, series)

    def _wake(self) -> None:
        if self._uplink is not None:
            self._uplink.wake()

    async def _keep_pulse(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PULSE_SECONDS
            await asyncio.sleep(PULSE_SECONDS)
            self._metrics.observe_loop_lag(loop.time() - due)
            self._pulse(self.spool)

    def _pulse(self, spool: Spool) -> None:
        self.book.losses()
        self._metrics.set_spool(spool.depth, spool.size_bytes, spool.oldest, sum(spool.losses.values()))
        balances = self._spending.balances() if self._spending is not None else []
        self._metrics.set_budget(
            [(b.allowance.target, b.allowance.unit, b.allowance.limit, b.remaining) for b in balances]
        )
