"""One process that plays all parts: schedule, probes, spool, delivery, database, metrics and page.

`up` runs a Station on a person's configuration, `demo` on its own. Hides what starts before what, what goes on while
something else is away, and what a new configuration may change while it runs. Probing starts first: the libraries of
the database and of the page take a second to load, which they do in a thread while probes run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog

from monitor.agent.arrivals import settle
from monitor.agent.confirm import Confirmer
from monitor.agent.failures import ADVICE
from monitor.agent.gate import Gate
from monitor.agent.pace import Pace
from monitor.agent.probe import Prober
from monitor.agent.runner import Changes, Outlets, Runner, SeriesKey, key_of
from monitor.agent.spending import Spending
from monitor.agent.spool import Spool
from monitor.agent.spoolfile import SkippedSlots
from monitor.agent.uplink import Refusal, Uplink, is_late
from monitor.cli.outages import Outages
from monitor.clock import Clock
from monitor.config import Config
from monitor.config.plan import Allowance, allowances
from monitor.detect.coldstart import USUAL_RULE, Judgement
from monitor.metrics import Metrics
from monitor.model import Attempt, ColdStartRule, Series, SpoolFull, StoreUnavailable
from monitor.wire import WireError

if TYPE_CHECKING:
    from monitor.cli.storage import Storage
    from monitor.hub.server import WebServer

PULSE_SECONDS = 1.0
TEND_SECONDS = 60.0
JUDGE_SECONDS = 2.0
RETRY_SECONDS = 5.0
DRAIN_SECONDS = 10.0
FINAL_DELIVERY_SECONDS = 5.0
MISTAKES_SHOWN = 3
CONFLICTS_SAID_EVERY_NS = 600 * 1_000_000_000

OnAttempt = Callable[[Attempt, Series], None]
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
        self._vantage = vantage
        self._clock = clock or Clock()
        self._on_attempt = on_attempt
        self._series: dict[SeriesKey, Series] = {}
        self._outages = Outages(self._clock)
        self._notices: tuple[str, ...] = ()
        self.metrics = Metrics(self._clock)
        self._take_series(config)
        self._writer = ThreadPoolExecutor(1, "store")
        self._tender = ThreadPoolExecutor(1, "sweep")
        self._tasks: list[asyncio.Task[None]] = []
        self._conflicts = 0
        self._conflicts_said_ns: int | None = None
        self._storage: Storage | None = None
        self._spool: Spool | None = None
        self._web: WebServer | None = None
        self._runner: Runner | None = None
        self._uplink: Uplink | None = None
        self._prober: Prober | None = None
        self._pace = Pace(config.limits.per_minute)
        self._spending: Spending | None = None

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start everything; on return probes run. The database may come later: attempts wait on disk meanwhile.

        Raises SpoolBusy, ListenError, ConfigError for a database URL that cannot be read, EmbeddedPostgresFailed when
        there is no database at all: each a sentence, with everything stopped again.
        """
        try:
            self._uplink = await self._start_probing()
            self._storage = await asyncio.to_thread(self._open_storage)
            self._web = await asyncio.to_thread(self._start_web, self._storage)
        except BaseException:
            await self.stop(0.0)
            raise
        self._uplink.start()
        self._tasks.append(asyncio.create_task(self._keep_tending(self._storage)))
        self._tasks.append(asyncio.create_task(self._keep_judging(self._storage)))
        settle()  # once more: the libraries of database and page came after probing began

    async def _start_probing(self) -> Uplink:
        config = self.config
        self._spool = await asyncio.to_thread(self._open_spool)
        self._prober = Prober(self._clock, max_concurrent=config.limits.max_concurrent)
        await self._prober.start()
        self._spending = Spending(self.state_directory / "spending.sqlite3", self._allowances(config), self._clock)
        await self._spending.open()
        self._runner = self._make_runner(self._prober, self._spending)
        self.metrics.config_reloaded(True)
        self._pulse(self._spool)
        await self._runner.start(await self._spool.marks())
        self._runner.replace(self.series, list(config.vantages))
        self._tasks.append(asyncio.create_task(self._keep_pulse()))
        failed = self.metrics.count_uplink_failure
        return Uplink(self._spool, self._deliver, clock=self._clock, on_failure=failed)

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Finish what runs within `drain_seconds`, deliver what is possible, stop everything. May be called twice."""
        for task in self._tasks:
            task.cancel()
        if self._runner is not None:
            await self._runner.stop(drain_seconds)
        if self._uplink is not None:
            await self._uplink.stop(min(drain_seconds, FINAL_DELIVERY_SECONDS))
        if self._web is not None:
            await asyncio.to_thread(self._web.stop)
        if self._prober is not None:
            await self._prober.close()
        if self._spending is not None:
            await self._spending.close()
        if self._spool is not None:
            await self._spool.close()
        for threads in (self._writer, self._tender):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._storage is not None:
            await asyncio.to_thread(self._storage.close)
        self._runner = self._uplink = self._web = self._prober = self._spending = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def reload(self, config: Config) -> Changes:
        """Take over series, labels, limits and retention; slots that did not change are neither lost nor repeated.

        Raises ConfigError, with nothing changed, when this process's vantage is gone.
        """
        assert self._runner is not None
        self._take_series(config)
        for name in self._fixed_changes(config):
            log.warning("this change takes effect at the next start", section=name)
        self.config = config
        self._runner.limit(config.limits.max_concurrent, config.limits.per_provider)
        self._pace.limit(config.limits.per_minute)
        if self._spending is not None:
            self._spending.limit(self._allowances(config))
        changes = self._runner.replace(self.series, list(config.vantages))
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
        return list(self._series.values())

    @property
    def url(self) -> str:
        """The page of this process."""
        assert self._web is not None
        return self._web.url

    @property
    def storage(self) -> Storage:
        """Where rows go."""
        assert self._storage is not None
        return self._storage

    @property
    def spool(self) -> Spool:
        """Where attempts wait."""
        assert self._spool is not None
        return self._spool

    @property
    def runner(self) -> Runner:
        """What runs the slots."""
        assert self._runner is not None
        return self._runner

    def health(self) -> Mapping[str, str | None]:
        """Each part with None, or with the sentence that says what is wrong."""
        return {
            "schedule": None if self._runner is not None else "not started yet",
            "spool": self._spool.trouble if self._spool is not None else "not opened yet",
            "store": self._uplink.away if self._uplink is not None else "not started yet",
        }

    # ------------------------------------------------------------------------------------------------ parts

    def _take_series(self, config: Config) -> None:
        wanted = {
            key_of(series): series
            for vantage in config.select_vantages(self._vantage)
            for series in config.series(vantage.name)
        }
        for key, series in self._series.items():
            if key not in wanted:
                self.metrics.forget(series)
        for series in wanted.values():
            self.metrics.declare(series)
        self._series = wanted
        self._outages.keep(set(wanted))

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

    def _open_storage(self) -> Storage:
        from monitor.cli.storage import Storage

        return Storage(self.config.database_url, self.state_directory / "postgres", self._clock)

    def _start_web(self, storage: Storage) -> WebServer:
        from monitor.hub.app import create_app
        from monitor.hub.server import WebServer

        app = create_app(
            self.metrics,
            storage,
            self.health,
            series=lambda: self.series,
            next_slot=lambda series: self._runner.next_slot(series) if self._runner is not None else None,
            advice={kind.value: text for kind, text in ADVICE.items()},
            clock=self._clock,
            notices=lambda: self._notices,
        )
        server = WebServer(app, self.config.web.host, self.config.web.port)
        server.start()
        return server

    def _open_spool(self) -> Spool:
        spool = self.config.spool
        return Spool(self.state_directory / "spool.sqlite3", spool.max_bytes, spool.max_age_seconds, self._clock)

    def _allowances(self, config: Config) -> list[Allowance]:
        played = [vantage.name for vantage in config.select_vantages(self._vantage)]
        return allowances(config, played)

    def _make_runner(self, prober: Prober, spending: Spending) -> Runner:
        gate = Gate(prober.run, spending, self._pace, self._clock)
        outlets = Outlets(
            record=self._record,
            mark=lambda key, walked: self._if_possible(self.spool.mark(key, walked)),
            skip=self._note_gap,
            lag=self.metrics.observe_scheduler_lag,
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

    async def _note_gap(self, gap: SkippedSlots) -> None:
        self.metrics.count_skipped(gap.slots)
        await self._if_possible(self.spool.skip(gap))

    # ------------------------------------------------------------------------------------------------ attempts

    async def _record(self, attempt: Attempt, series: Series) -> None:
        try:
            await self.spool.append(attempt)
        except SpoolFull:
            pass  # counted as a loss and said by the spool
        except WireError as error:
            log.warning("an attempt cannot be kept", target=attempt.target, probe=attempt.probe, cause=str(error))
        if self._uplink is not None:
            self._uplink.wake()
        self._outages.take(attempt, series)
        if self._on_attempt is not None:
            self._on_attempt(attempt, series)

    async def _deliver(self, attempts: Sequence[Attempt]) -> Sequence[Refusal]:
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._store, attempts)

    def _store(self, attempts: Sequence[Attempt]) -> Sequence[Refusal]:
        """In the writing thread: store, then count what is new. An abandoned call still counts what it stored."""
        known = self._series
        try:
            inserted = self.storage.insert(list(known.values()), attempts, self.config.storage.raw_days)
        except StoreUnavailable:
            self.metrics.set_store_up(False)
            raise
        self.metrics.set_store_up(True)
        self.metrics.count_delivered(len(attempts) - len(inserted.rejected))
        self.metrics.count_rejected(len(inserted.rejected))
        self.metrics.count_conflicts(len(inserted.conflicts))
        now = self._clock.now()
        for attempt in inserted.new:
            self._observe(attempt, known.get((attempt.vantage, attempt.target, attempt.probe)), is_late(attempt, now))
        if inserted.conflicts:
            self._warn_of_conflicts(inserted.conflicts)
        return [(rejected.attempt, rejected.reason) for rejected in inserted.rejected]

    def _warn_of_conflicts(self, conflicts: Sequence[Attempt]) -> None:
        """Equal slots with other content; said at most every ten minutes, with how many there were."""
        self._conflicts += len(conflicts)
        now_ns = self._clock.monotonic_ns()
        if self._conflicts_said_ns is not None and now_ns - self._conflicts_said_ns < CONFLICTS_SAID_EVERY_NS:
            return
        self._conflicts_said_ns = now_ns
        log.warning(
            "slots were measured twice with other results: does another process play the same vantage?",
            vantages=sorted({attempt.vantage for attempt in conflicts}),
            attempts_so_far=self._conflicts,
        )

    def _observe(self, attempt: Attempt, series: Series | None, late: bool) -> None:
        if series is None:  # of an earlier configuration
            self.metrics.count_undeclared()
            return
        self.metrics.observe(attempt, series, late)

    # ------------------------------------------------------------------------------------------------ upkeep

    async def _keep_pulse(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PULSE_SECONDS
            await asyncio.sleep(PULSE_SECONDS)
            self.metrics.observe_loop_lag(loop.time() - due)
            self._pulse(self.spool)

    def _pulse(self, spool: Spool) -> None:
        self.metrics.set_spool(spool.depth, spool.size_bytes, spool.oldest, sum(spool.losses.values()))
        balances = self._spending.balances() if self._spending is not None else []
        self.metrics.set_budget(
            [(b.allowance.target, b.allowance.unit, b.allowance.limit, b.remaining) for b in balances]
        )

    async def _keep_judging(self, storage: Storage) -> None:
        """Verdicts follow their attempts within seconds: a look at an empty queue costs a millisecond."""
        loop = asyncio.get_running_loop()
        while True:
            pause = JUDGE_SECONDS
            try:
                self._count_verdicts(await loop.run_in_executor(self._tender, storage.judge, self._rule))
            except StoreUnavailable as error:
                pause = RETRY_SECONDS
                log.debug("attempts cannot be judged now", cause=str(error))
            except Exception:
                pause = TEND_SECONDS
                log.exception("attempts could not be judged; this is a defect of First Token")
            await asyncio.sleep(pause)

    def _rule(self, target: str) -> ColdStartRule:
        known = self.config.targets.get(target)
        return USUAL_RULE if known is None else known.cold_start

    def _count_verdicts(self, settled: Sequence[Judgement]) -> None:
        for one in settled:
            vantage, _, target, probe, _ = one.key
            series = self._series.get((vantage, target, probe))
            if series is not None:
                self.metrics.observe_verdict(series, one.verdict.kind, one.verdict.penalty_seconds)

    async def _keep_tending(self, storage: Storage) -> None:
        loop = asyncio.get_running_loop()
        while True:
            keep, pause = self.config.storage, TEND_SECONDS
            try:
                await loop.run_in_executor(self._tender, storage.tend, keep.raw_days, keep.rollup_days)
            except StoreUnavailable as error:
                pause = RETRY_SECONDS
                log.debug("the database cannot be tended now", cause=str(error))
            except Exception:
                log.exception("the database could not be tended; this is a defect of First Token")
            await asyncio.sleep(pause)
