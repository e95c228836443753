"""What keeps: attempts into the database, what is new of them into the metrics, verdicts, rollups and retention.

`up` and `demo` feed it from the same process, a hub from its agents. Hides the threads that wait for the database.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from monitor.agent.uplink import Refusal, is_late
from monitor.clock import Clock
from monitor.config import Config
from monitor.detect.coldstart import USUAL_RULE, Judgement
from monitor.detect.coverage import Tally
from monitor.detect.line import VOTE_INTERVALS, Line, line
from monitor.metrics import Metrics
from monitor.model import Attempt, ColdStartRule, Series, SeriesKey, StoreUnavailable
from monitor.notes import Note
from monitor.wire.fleet import Heartbeat
from monitor.witness import Sighting

if TYPE_CHECKING:
    from monitor.cli.storage import Storage
    from monitor.store.attempts import Inserted
    from monitor.store.coverage import Covered
    from monitor.store.witness import Sighted

TEND_SECONDS = 60.0
JUDGE_SECONDS = 4.0
BACKLOG_SECONDS = 0.1
RETRY_SECONDS = 5.0
LINE_BACK = timedelta(hours=1)
SIGHTING_WAYS = timedelta(seconds=30)
"""What a look may take from its vantage point into the record."""
CONFLICTS_SAID_EVERY_NS = 600 * 1_000_000_000

Known = Mapping[SeriesKey, Series]
"""What is configured now, by (vantage, target, probe); replaced as a whole, never changed."""
log = structlog.get_logger("firsttoken")


class Keeping:
    """Keeps the record in `storage`; judges and tends it from `start` to `stop`.

    `config` and `known` are asked each time, from any thread, and must return at once; so is `sweeps`: whether this
    process judges and tends now, or another one does. A backlog of verdicts is worked off in batches: `gently`, where
    the process measures, too, with the usual pause of `judge_seconds` after each.
    """

    def __init__(
        self,
        storage: Storage,
        metrics: Metrics,
        clock: Clock,
        *,
        config: Callable[[], Config],
        known: Callable[[], Known],
        sweeps: Callable[[], bool] = lambda: True,
        gently: bool = True,
        judge_seconds: float = JUDGE_SECONDS,
    ) -> None:
        self.storage = storage
        self._metrics = metrics
        self._clock = clock
        self._config = config
        self._known = known
        self._sweeps = sweeps
        self._gently = gently
        self._judge_seconds = judge_seconds
        self._writer = ThreadPoolExecutor(1, "store")
        self._tender = ThreadPoolExecutor(1, "sweep")
        self._tasks: list[asyncio.Task[None]] = []
        self._conflicts = 0
        self._conflicts_said_ns: int | None = None

    def start(self) -> None:
        """Judge and tend from now on, in the running loop."""
        self._tasks += [asyncio.create_task(self._keep_tending()), asyncio.create_task(self._keep_judging())]

    async def stop(self) -> None:
        """Stop judging and tending, close the database. May be called twice."""
        for task in self._tasks:
            task.cancel()
        for threads in (self._writer, self._tender):
            threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.storage.close)

    # ------------------------------------------------------------------------------------------------ attempts

    async def deliver(self, attempts: Sequence[Attempt]) -> Sequence[Refusal]:
        """What an uplink of the same process delivers to. Raises StoreUnavailable."""
        inserted = await asyncio.get_running_loop().run_in_executor(self._writer, self.store, attempts)
        return [(rejected.attempt, rejected.reason) for rejected in inserted.rejected]

    def store(self, attempts: Sequence[Attempt]) -> Inserted:
        """Store, then count what is new; blocks. An abandoned call still counts what it stored.

        Raises StoreUnavailable.
        """
        known = self._known()
        try:
            inserted = self.storage.insert(list(known.values()), attempts, self._config().storage.raw_days)
        except StoreUnavailable:
            self._metrics.set_store_up(False)
            raise
        self._metrics.set_store_up(True)
        self._metrics.count_delivered(len(attempts) - len(inserted.rejected))
        self._metrics.count_rejected(len(inserted.rejected))
        self._metrics.count_conflicts(len(inserted.conflicts))
        now = self._clock.now()
        for attempt in inserted.new:
            self._observe(attempt, known.get((attempt.vantage, attempt.target, attempt.probe)), is_late(attempt, now))
        if inserted.conflicts:
            self._warn_of_conflicts(inserted.conflicts)
        return inserted

    async def note(self, vantage: str, agent: str, notes: Sequence[Note]) -> Sequence[tuple[Note, str]]:
        """Keep what an agent says about slots without rows; what is refused, with reasons. Raises StoreUnavailable."""
        known, days = list(self._known().values()), self._config().storage.raw_days
        loop = asyncio.get_running_loop()
        noted = await loop.run_in_executor(self._writer, self.storage.note, vantage, agent, notes, known, days)
        return noted.refused

    async def sight(self, sightings: Sequence[Sighting]) -> Sequence[tuple[Sighting, str]]:
        """Keep what vantage points of this process saw; what is refused, with reasons. Raises StoreUnavailable."""
        refused: list[tuple[Sighting, str]] = []
        loop = asyncio.get_running_loop()
        for vantage in dict.fromkeys(one.vantage for one in sightings):
            seen = [one for one in sightings if one.vantage == vantage]
            refused += (await loop.run_in_executor(self._writer, self.store_sightings, vantage, seen)).refused
        return refused

    def store_sightings(self, vantage: str, sightings: Sequence[Sighting]) -> Sighted:
        """The same for one vantage point; blocks. Raises StoreUnavailable."""
        config = self._config()
        return self.storage.sight(vantage, sightings, config.vantages.get(vantage), config.storage.raw_days)

    def lines(self) -> Mapping[str, Line]:
        """Of each vantage point that looks at neutral endpoints, whether its line is up; blocks.

        Judged from the last hour: enough to say down and since when, not enough to say slow. Raises StoreUnavailable.
        """
        config, now = self._config(), self._clock.now()
        interval = timedelta(seconds=config.witness.interval_seconds)
        looking = [name for name in config.vantages if config.witness.seen_from(name)]
        return {name: _line(self.storage.sightings(name, now - LINE_BACK), now, interval) for name in looking}

    async def beat(self, vantage: str, heartbeat: Heartbeat) -> None:
        """Keep how far an agent of this process has delivered. Raises StoreUnavailable."""
        from monitor.store import fleet

        loop, now = asyncio.get_running_loop(), self._clock.now()
        await loop.run_in_executor(self._writer, self.storage.ask, fleet.beat, vantage, heartbeat, now)

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
            self._metrics.count_undeclared()
            return
        self._metrics.observe(attempt, series, late)

    # ------------------------------------------------------------------------------------------------ upkeep

    async def _keep_judging(self) -> None:
        """Verdicts follow their attempts within seconds: a look at an empty queue costs a millisecond."""
        loop = asyncio.get_running_loop()
        while True:
            pause = self._judge_seconds
            if not self._sweeps():
                await asyncio.sleep(pause)
                continue
            try:
                self._count_verdicts(await loop.run_in_executor(self._tender, self.storage.judge, self._rule))
                if not self._gently and await loop.run_in_executor(self._tender, self.storage.more_to_judge):
                    pause = BACKLOG_SECONDS
            except StoreUnavailable as error:
                pause = RETRY_SECONDS
                log.debug("attempts cannot be judged now", cause=str(error))
            except Exception:
                pause = TEND_SECONDS
                log.exception("attempts could not be judged; this is a defect of First Token")
            await asyncio.sleep(pause)

    def _rule(self, target: str) -> ColdStartRule:
        known = self._config().targets.get(target)
        return USUAL_RULE if known is None else known.cold_start

    def _count_verdicts(self, settled: Sequence[Judgement]) -> None:
        known = self._known()
        for one in settled:
            vantage, _, target, probe, _ = one.key
            series = known.get((vantage, target, probe))
            if series is not None:
                self._metrics.observe_verdict(series, one.verdict.kind, one.verdict.penalty_seconds)

    def _show_coverage(self, hour: Sequence[Covered]) -> None:
        sums: defaultdict[tuple[str, str], Tally] = defaultdict(Tally)
        for one in hour:
            sums[one.vantage, one.target].add(one.tally)
        self._metrics.set_coverage(
            (names, tally.owed, tally.measured, tally.missed) for names, tally in sorted(sums.items())
        )

    async def _keep_tending(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            keep, pause = self._config().storage, TEND_SECONDS
            if not self._sweeps():
                self._metrics.set_coverage(())  # the copy that sweeps says it
                await asyncio.sleep(JUDGE_SECONDS)
                continue
            try:
                await loop.run_in_executor(self._tender, self.storage.tend, keep.raw_days, keep.rollup_days)
                self._show_coverage(await loop.run_in_executor(self._tender, self.storage.cover))
            except StoreUnavailable as error:
                pause = RETRY_SECONDS
                log.debug("the database cannot be tended now", cause=str(error))
            except Exception:
                log.exception("the database could not be tended; this is a defect of First Token")
            await asyncio.sleep(pause)


def _line(seen: Sequence[Sighting], now: datetime, interval: timedelta) -> Line:
    """As of the newest look: those behind it may still be on their way, for a while."""
    newest = max((one.started_at for one in seen), default=None)
    if newest is None or now - newest > VOTE_INTERVALS * interval + SIGHTING_WAYS:
        return line((), now)
    return line(seen, newest, interval)
