"""Delivery: from the spool to the store, at least once and deleted only when acknowledged.

Hides order, pace and patience. Fresh attempts go first and at once, or with others when they come in quick succession;
what an outage left behind follows in small, spaced batches, newest first, so that it never delays fresh ones. A store
that is away is asked again with growing, jittered pauses and told about twice: when it goes and when it is back. What
the store refuses for good is set aside in the spool with its reason; a batch that breaks the delivery as a whole is
halved until the bad attempt stands alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import structlog

from monitor.agent.spool import Spool
from monitor.agent.spoolrows import SpooledNote, SpooledRow
from monitor.clock import NS, Clock
from monitor.model import Attempt, SpoolFull, StoreRefuses, StoreUnavailable
from monitor.witness import Sighting

FRESH_BATCH = 500
BACKLOG_BATCH = 100
BACKLOG_PAUSE_SECONDS = 0.2
"""A backlog moves at 500 attempts a second at most, and a fresh attempt waits for 100 others at most."""
GATHER_SECONDS = 2.0
"""Between deliveries of fresh attempts: a transaction costs the same for one attempt as for ten."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
DELIVERY_SECONDS = 60.0
IDLE_SECONDS = 30.0
LATE_AFTER_SECONDS = 120.0
"""Two scrape intervals of a minute: what arrives later than that after its end tells of the past, not of now."""

NOTES_AT_ONCE = 50
SIGHTINGS_AT_ONCE = 200
SIGHTINGS_EVERY_SECONDS = 10.0
"""Sightings wait for each other, unless many wait: nothing depends on their being known at once."""
PUT_OFF_SECONDS = 30.0
FRUITLESS_ROUNDS = 5
"""A delivery that breaks for every attempt is more likely our fault than theirs: tried that often before set aside."""


class PutOff(str):
    """A reason why an attempt is not taken now: it stays in the spool, and is offered again later."""

    __slots__ = ()


Refusal = tuple[Attempt, str]
"""An attempt that the store will never take, and why; with `PutOff` as the reason: not now."""
Deliver = Callable[[Sequence[Attempt]], Awaitable[Sequence[Refusal]]]
DeliverNotes = Callable[[Sequence[SpooledNote]], Awaitable[Sequence[tuple[int, str]]]]
"""Takes notes; gives the ids of those that will never be taken, and why."""
DeliverSightings = Callable[[Sequence[Sighting]], Awaitable[Sequence[tuple[Sighting, str]]]]
"""Takes sightings; gives those that will never be taken, and why."""
REFUSES = "the store takes nothing until this is mended; attempts wait in the spool"
T = TypeVar("T")
log = structlog.get_logger("firsttoken.uplink")


def is_late(attempt: Attempt, now: datetime) -> bool:
    """Whether an attempt that arrives at `now` ended more than `LATE_AFTER_SECONDS` ago."""
    return (now - attempt.started_at).total_seconds() - attempt.timeline.lasted_ns / 1e9 > LATE_AFTER_SECONDS


async def _in_time(delivery: Awaitable[T]) -> T:
    """What a delivery answers; a store that lets it wait counts as away."""
    try:
        async with asyncio.timeout(DELIVERY_SECONDS):
            return await delivery
    except TimeoutError as error:
        raise StoreUnavailable(f"no answer within {DELIVERY_SECONDS:.0f} s") from error


@dataclass(slots=True)
class _Tally:
    """What became of one batch."""

    stored: list[int] = field(default_factory=list)  # row ids
    refused: list[tuple[SpooledRow, str]] = field(default_factory=list)
    broken: list[tuple[SpooledRow, str]] = field(default_factory=list)  # alone in a delivery that raised
    put_off: list[str] = field(default_factory=list)  # reasons; their rows stay


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
        self._deliver_sightings = deliver_sightings
        self._sighted_ns: int | None = None  # when sightings last went
        self._deliver = deliver
        self._deliver_notes = deliver_notes
        self._resting_until_ns = 0  # everything that waits was put off
        self._notes_after_ns = self._sightings_after_ns = 0  # told, but the disk could not take that they were
        self._clock = clock or Clock()
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
        self._notes_after_ns = self._sightings_after_ns = 0
        with suppress(TimeoutError, SpoolFull):
            async with asyncio.timeout(seconds):
                await self._send_notes()
                more = await self._round(BACKLOG_BATCH)  # also when the store was away: it may be back
                while more and self.away is None:
                    more = await self._round(BACKLOG_BATCH)
                if self.away is None and self._deliver_sightings is not None:
                    await self._send_sightings()

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
            await self._send_notes()
            await self._round(BACKLOG_BATCH)
            if not self._spool.depth and self._deliver_sightings is not None:
                await self._send_sightings()
        elif self._are_notes_due():
            await self._send_notes()
        elif self._spool.last_id > self._seen_id and not self._has_backlog():
            await self._gather()
            await self._fresh_round()
        elif self._are_sightings_due():
            await self._send_sightings()
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
            refusals = await _in_time(self._deliver([row.attempt for row in reversed(rows)]))
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

    def _judge(self, tally: _Tally) -> None:
        """Blame an attempt for a broken delivery only when others went through, or after several fruitless rounds."""
        fruitless = bool(tally.broken) and not (tally.stored or tally.refused or tally.put_off)
        self._fruitless = self._fruitless + 1 if fruitless else 0
        if fruitless and self._fruitless < FRUITLESS_ROUNDS:
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

    # ------------------------------------------------------------------------------------------------ notes

    def _are_notes_due(self) -> bool:
        rested = self._clock.monotonic_ns() >= self._notes_after_ns
        return self._deliver_notes is not None and self._spool.notes_waiting > 0 and rested

    async def _send_notes(self) -> None:
        """Say what there is to say about slots, oldest first: a plan before the attempts that it explains."""
        if not self._are_notes_due():
            return
        while notes := await self._spool.take_notes(NOTES_AT_ONCE):
            try:
                await self._say(notes)
            except StoreUnavailable as error:
                self._note_away(error)
                return
            except SpoolFull:  # said by the spool itself; they are told again, and hold no attempt back meanwhile
                self._notes_after_ns = self._clock.monotonic_ns() + round(PUT_OFF_SECONDS * NS)
                return
            self._note_back()

    async def _say(self, notes: Sequence[SpooledNote]) -> None:
        """Deliver notes and forget them; one that can never be taken is logged, and in nobody's way."""
        assert self._deliver_notes is not None
        refused: list[tuple[int, str]] = []
        try:
            refused += await _in_time(self._deliver_notes(notes))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  # kept as the reason
            if len(notes) > 1:
                for one in notes:
                    await self._say([one])
                return
            refused.append((notes[0].note.id, f"{type(error).__name__}: {error}"))
        for note_id, reason in refused:
            self._on_failure()
            log.error("a note about slots is refused for good", note=note_id, cause=reason[:500])
        await self._spool.delete_notes([one.note.id for one in notes])

    # ------------------------------------------------------------------------------------------------ sightings

    def _are_sightings_due(self) -> bool:
        waiting = self._spool.sightings_waiting if self._deliver_sightings is not None else 0
        since, now_ns = self._sighted_ns, self._clock.monotonic_ns()
        if now_ns < self._sightings_after_ns:
            return False
        rested = since is None or now_ns - since >= SIGHTINGS_EVERY_SECONDS * NS
        return waiting >= SIGHTINGS_AT_ONCE or (waiting > 0 and rested)

    async def _send_sightings(self) -> None:
        """Deliver the newest that wait and forget them; what is refused is said once for all of them."""
        self._sighted_ns = self._clock.monotonic_ns()
        rows = await self._spool.take_sightings(SIGHTINGS_AT_ONCE)
        if not rows:
            return
        try:
            refused = await self._show([row.sighting for row in rows])
        except StoreUnavailable as error:
            self._note_away(error)
            return
        self._note_back()
        if refused:
            log.warning("looks at neutral endpoints are refused for good", refused=len(refused), cause=refused[0][1])
        try:
            await self._spool.delete_sightings([row.id for row in rows])
        except SpoolFull:  # as with notes
            self._sightings_after_ns = self._clock.monotonic_ns() + round(PUT_OFF_SECONDS * NS)

    async def _show(self, sightings: Sequence[Sighting]) -> list[tuple[Sighting, str]]:
        """Deliver; what breaks a delivery as a whole is halved until it stands alone, and then refused."""
        assert self._deliver_sightings is not None
        try:
            return list(await _in_time(self._deliver_sightings(sightings)))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  # kept as the reason
            if len(sightings) == 1:
                return [(sightings[0], f"{type(error).__name__}: {error}")]
            middle = len(sightings) // 2
            return await self._show(sightings[:middle]) + await self._show(sightings[middle:])

    # ------------------------------------------------------------------------------------------------ away and back

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
