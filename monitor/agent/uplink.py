"""Delivery: from the spool to the store, at least once and deleted only when acknowledged.

Hides order, pace and patience. Fresh attempts go first and at once, or with others when they come in quick succession;
what an outage left behind follows in small, spaced batches, newest first, so that it never delays fresh ones. A store
that is away is asked again with growing, jittered pauses and told about twice: when it goes and when it is back. What
the store refuses for good is set aside in the spool with its reason; a batch that breaks the delivery as a whole is
halved until the bad attempt stands alone. What else is delivered, beside attempts, is `asides.py`'s.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from monitor.agent.asides import PUT_OFF_SECONDS, Asides, DeliverNotes, DeliverSightings, in_time
from monitor.agent.spool import Spool
from monitor.agent.spoolrows import SpooledRow
from monitor.clock import NS, Clock
from monitor.model import Attempt, SpoolFull, StoreRefuses, StoreUnavailable

FRESH_BATCH = 500
BACKLOG_BATCH = 100
BACKLOG_PAUSE_SECONDS = 0.2
"""A backlog moves at 500 attempts a second at most, and a fresh attempt waits for 100 others at most."""
GATHER_SECONDS = 2.0
"""Between deliveries of fresh attempts: a transaction costs the same for one attempt as for ten."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
IDLE_SECONDS = 30.0
LATE_AFTER_SECONDS = 120.0
"""Two scrape intervals of a minute: what arrives later than that after its end tells of the past, not of now."""

FRUITLESS_ROUNDS = 5
"""A delivery that breaks is more likely our fault than its only attempt's: tried so often before that is set aside."""


class PutOff(str):
    """A reason why an attempt is not taken now: it stays in the spool, and is offered again later."""

    __slots__ = ()


Refusal = tuple[Attempt, str]
"""An attempt that the store will never take, and why; with `PutOff` as the reason: not now."""
Deliver = Callable[[Sequence[Attempt]], Awaitable[Sequence[Refusal]]]
REFUSES = "the store takes nothing until this is mended; attempts wait in the spool"
log = structlog.get_logger("firsttoken.uplink")


def is_late(attempt: Attempt, now: datetime) -> bool:
    """Whether an attempt that arrives at `now` ended more than `LATE_AFTER_SECONDS` ago."""
    return (now - attempt.started_at).total_seconds() - attempt.timeline.lasted_ns / 1e9 > LATE_AFTER_SECONDS


@dataclass(slots=True)
class _Tally:
    """What became of one batch."""

    stored: list[int] = field(default_factory=list)  # row ids
    refused: list[tuple[SpooledRow, str]] = field(default_factory=list)
    broken: list[tuple[SpooledRow, str]] = field(default_factory=list)  # alone in a delivery that raised
    put_off: list[str] = field(default_factory=list)  # reasons; their rows stay

    @property
    def went_through(self) -> bool:
        """Whether any attempt got an answer of its own."""
        return bool(self.stored or self.refused or self.put_off)


class Uplink:
    """Delivers what the spool holds, from `start` to `stop`.

    `deliver` takes attempts, oldest first, and returns once they are stored for good, with those that never will be;
    it may be given the same attempts again. It raises StoreUnavailable when the store cannot be reached.
    """

    def __init__(
        self,
        spool: Spool,
        deliver: Deliver,
        *,
        clock: Clock | None = None,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
        backlog_pause_seconds: float = BACKLOG_PAUSE_SECONDS,
        on_failure: Callable[[], None] = lambda: None,
        deliver_notes: DeliverNotes | None = None,
        deliver_sightings: DeliverSightings | None = None,
    ) -> None:
        self._spool = spool
        self._deliver = deliver
        self._resting_until_ns = 0  # everything that waits was put off
        self._clock = clock or Clock()
        self._asides = Asides(spool, self._clock, deliver_notes, deliver_sightings, on_failure)
        self._first_pause = first_pause_seconds
        self._longest_pause = longest_pause_seconds
        self._backlog_pause = backlog_pause_seconds
        self._on_failure = on_failure
        self._fresh = asyncio.Event()
        self._seen_id = 0
        self._delivered_ns: int | None = None  # when fresh attempts last went
        self._away_since_ns: int | None = None
        self._refusal: str | None = None  # what somebody has to do, as it was said last
        self._pause = first_pause_seconds
        self._asked_pause = 0.0  # by the store itself
        self._fruitless = 0
        self._task: asyncio.Task[None] | None = None
        self.away: str | None = None
        """Why the store cannot be reached, None while it can."""

    def wake(self) -> None:
        """Something was appended."""
        self._fresh.set()

    def start(self) -> None:
        """Begin to deliver, in the running loop; the backlog of earlier processes included."""
        self._task = asyncio.create_task(self._run(), name="uplink")

    async def stop(self, seconds: float = 5.0) -> None:
        """One last try for what waits, within `seconds`; the rest stays in the spool."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        self._asides.hurry()
        with suppress(TimeoutError, SpoolFull):
            async with asyncio.timeout(seconds):
                await self._send_aside(self._asides.send_notes)
                more = await self._round(BACKLOG_BATCH)  # also when the store was away: it may be back
                while more and self.away is None:
                    more = await self._round(BACKLOG_BATCH)
                if self.away is None:
                    await self._send_aside(self._asides.send_sightings)

    # ------------------------------------------------------------------------------------------------ the loop

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except SpoolFull:  # said by the spool itself
                await asyncio.sleep(self._longest_pause)
            except Exception:
                log.exception("delivery broke; this is a defect of First Token")
                await asyncio.sleep(self._longest_pause)

    async def _step(self) -> None:
        if self.away is not None:  # fresh attempts do not hurry a store that is away
            await asyncio.sleep(self._next_pause())
            await self._send_aside(self._asides.send_notes)
            await self._round(BACKLOG_BATCH)
            if not self._spool.depth:
                await self._send_aside(self._asides.send_sightings)
        elif self._asides.are_notes_due():
            await self._send_aside(self._asides.send_notes)
        elif self._spool.last_id > self._seen_id and not self._has_backlog():
            await self._gather()
            await self._fresh_round()
        elif self._asides.are_sightings_due():
            await self._send_aside(self._asides.send_sightings)
        elif self._spool.depth and self._clock.monotonic_ns() >= self._resting_until_ns:
            if not await self._wait_for_fresh(self._backlog_pause):
                await self._round(BACKLOG_BATCH)
        else:
            await self._wait_for_fresh(IDLE_SECONDS)

    def _has_backlog(self) -> bool:
        """Whether older ones wait behind the fresh ones; its rounds, newest first, carry the fresh ones along."""
        return self._spool.depth > self._spool.last_id - self._seen_id

    async def _wait_for_fresh(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._fresh.wait()
                self._fresh.clear()
                return True
        return False

    async def _gather(self) -> None:
        """Let fresh attempts come together while the last ones have only just gone."""
        now_ns = self._clock.monotonic_ns()
        if self._delivered_ns is not None:
            await asyncio.sleep(GATHER_SECONDS - (now_ns - self._delivered_ns) / NS)
        self._delivered_ns = self._clock.monotonic_ns()

    def _next_pause(self) -> float:
        pause, self._pause = self._pause, min(self._longest_pause, self._pause * 2)
        asked, self._asked_pause = self._asked_pause, 0.0
        return max(pause * random.uniform(0.5, 1.0), asked * random.uniform(1.0, 1.2))  # chance spreads agents

    async def _fresh_round(self) -> None:
        """What was appended since the last look; at the start that is everything, of which the newest go first."""
        seen, newest = self._seen_id, self._spool.last_id
        rows = await self._spool.take(FRESH_BATCH if seen else BACKLOG_BATCH, after=seen)
        self._seen_id = newest
        await self._send(rows)

    async def _round(self, limit: int) -> int:
        """Deliver the newest that wait; how many were taken from the spool."""
        self._seen_id = self._spool.last_id
        rows = await self._spool.take(limit)
        await self._send(rows)
        return len(rows)

    # ------------------------------------------------------------------------------------------------ one batch

    async def _send(self, rows: Sequence[SpooledRow]) -> None:
        """Deliver rows, delete the stored ones, set the refused ones aside; the rest stays for the next round."""
        if not rows:
            return
        tally = _Tally()
        try:
            await self._deliver_or_halve(rows, tally)
            await self._ask_again(tally)
        except StoreUnavailable as error:
            self._note_away(error)
        else:
            self._judge(tally)
        if tally.put_off and not tally.stored:
            self._rest(tally.put_off)
        await self._spool.delete(tally.stored)
        for row, reason in tally.refused:
            await self._set_aside(row, reason)

    async def _deliver_or_halve(self, rows: Sequence[SpooledRow], tally: _Tally) -> None:
        try:
            refusals = await in_time(self._deliver([row.attempt for row in reversed(rows)]))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  # kept as the reason, and logged when it is blamed on an attempt
            if len(rows) == 1:
                tally.broken.append((rows[0], f"{type(error).__name__}: {error}"))
                return
            middle = len(rows) // 2
            await self._deliver_or_halve(rows[:middle], tally)
            await self._deliver_or_halve(rows[middle:], tally)
        else:
            reasons = {id(attempt): reason for attempt, reason in refusals}
            for row in rows:
                reason = reasons.get(id(row.attempt))
                if reason is None:
                    tally.stored.append(row.id)
                elif isinstance(reason, PutOff):
                    tally.put_off.append(reason)
                else:
                    tally.refused.append((row, reason))

    async def _ask_again(self, tally: _Tally) -> None:
        """Those that broke a delivery before others went through: whoever answers may have been mended in between."""
        if tally.went_through and tally.broken:
            suspects, tally.broken = tally.broken, []
            for row, _ in suspects:
                await self._deliver_or_halve([row], tally)

    def _judge(self, tally: _Tally) -> None:
        """Blame an attempt for a broken delivery only when others went through, or a lone one after several rounds.

        Where each of several breaks it, whoever answers is at fault: none is given up, however long that lasts.
        """
        fruitless = bool(tally.broken) and not tally.went_through
        alone = len(tally.broken) == 1
        self._fruitless = self._fruitless + 1 if fruitless and alone else 0
        if fruitless and (not alone or self._fruitless < FRUITLESS_ROUNDS):
            self._note_away(StoreUnavailable(f"deliveries break: {tally.broken[0][1]}"))
            return
        self._fruitless = 0
        tally.refused += tally.broken
        self._note_back()

    async def _set_aside(self, row: SpooledRow, reason: str) -> None:
        self._on_failure()
        attempt = row.attempt
        log.error(
            "the store refuses an attempt for good; it is set aside in the spool",
            vantage=attempt.vantage,
            target=attempt.target,
            probe=attempt.probe,
            scheduled_at=attempt.scheduled_at.isoformat(),
            cause=reason[:500],
        )
        await self._spool.reject(row, reason)

    def _rest(self, reasons: Sequence[str]) -> None:
        """Nothing that waits is wanted now: look again in a while, unless something fresh comes."""
        log.info("attempts are put off; they stay in the spool", attempts=len(reasons), cause=reasons[0][:500])
        self._resting_until_ns = self._clock.monotonic_ns() + round(PUT_OFF_SECONDS * NS)

    # ------------------------------------------------------------------------------------------------ away and back

    async def _send_aside(self, send: Callable[[], Awaitable[bool]]) -> None:
        try:
            sent = await send()
        except StoreUnavailable as error:
            self._note_away(error)
        else:
            if sent:
                self._note_back()

    def _note_away(self, error: StoreUnavailable) -> None:
        self._on_failure()
        self._asked_pause = error.retry_after_seconds
        if self.away is None:
            self._away_since_ns, self._refusal = self._clock.monotonic_ns(), None
        if isinstance(error, StoreRefuses):
            if str(error) != self._refusal:
                log.error(REFUSES, cause=str(error), waiting=self._spool.depth)
            self._refusal = str(error)
        elif self.away is None:
            log.warning("the store is away; attempts wait in the spool", cause=str(error), waiting=self._spool.depth)
        self.away = str(error) or type(error).__name__

    def _note_back(self) -> None:
        if self.away is None:
            return
        away_ns = self._clock.monotonic_ns() - (self._away_since_ns or 0)
        self.away, self._pause = None, self._first_pause
        log.info("the store is back", away_seconds=round(away_ns / 1e9, 1), waiting=self._spool.depth)
