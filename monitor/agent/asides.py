"""What is delivered beside attempts: notes about slots, and sightings of neutral endpoints.

Hides their batches and what becomes of a bad one: it is refused and logged, and in nobody's way. What was told but
cannot be forgotten, because the disk is full, is told again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from monitor.agent.spool import Spool
from monitor.agent.spoolrows import SpooledNote
from monitor.clock import NS, Clock
from monitor.model import SpoolFull, StoreUnavailable
from monitor.witness import Sighting

DELIVERY_SECONDS = 60.0
NOTES_AT_ONCE = 50
SIGHTINGS_AT_ONCE = 200
SIGHTINGS_EVERY_SECONDS = 10.0
"""Sightings wait for each other, unless many wait: nothing depends on their being known at once."""
PUT_OFF_SECONDS = 30.0

DeliverNotes = Callable[[Sequence[SpooledNote]], Awaitable[Sequence[tuple[int, str]]]]
"""Takes notes; gives the ids of those that will never be taken, and why."""
DeliverSightings = Callable[[Sequence[Sighting]], Awaitable[Sequence[tuple[Sighting, str]]]]
"""Takes sightings; gives those that will never be taken, and why."""
T = TypeVar("T")
log = structlog.get_logger("firsttoken.uplink")


async def in_time(delivery: Awaitable[T]) -> T:
    """What a delivery answers; a store that lets it wait counts as away."""
    try:
        async with asyncio.timeout(DELIVERY_SECONDS):
            return await delivery
    except TimeoutError as error:
        raise StoreUnavailable(f"no answer within {DELIVERY_SECONDS:.0f} s") from error


class Asides:
    """Delivers what the spool holds beside attempts, when it is told to. For one event loop."""

    def __init__(
        self,
        spool: Spool,
        clock: Clock,
        deliver_notes: DeliverNotes | None,
        deliver_sightings: DeliverSightings | None,
        on_failure: Callable[[], None],
    ) -> None:
        self._spool = spool
        self._clock = clock
        self._deliver_notes = deliver_notes
        self._deliver_sightings = deliver_sightings
        self._on_failure = on_failure
        self._sighted_ns: int | None = None  # when sightings last went
        self._notes_after_ns = self._sightings_after_ns = 0  # told, but the disk could not take that they were

    def hurry(self) -> None:
        """This is the end: nothing is put off any more."""
        self._notes_after_ns = self._sightings_after_ns = 0

    # ------------------------------------------------------------------------------------------------ notes

    def are_notes_due(self) -> bool:
        """Whether notes wait that may go now."""
        rested = self._clock.monotonic_ns() >= self._notes_after_ns
        return self._deliver_notes is not None and self._spool.notes_waiting > 0 and rested

    async def send_notes(self) -> bool:
        """Say what there is to say about slots, oldest first: a plan before the attempts that it explains.

        Whether any were taken. Raises StoreUnavailable.
        """
        sent = False
        if not self.are_notes_due():
            return False
        while notes := await self._spool.take_notes(NOTES_AT_ONCE):
            try:
                await self._say(notes)
            except SpoolFull:  # said by the spool itself; they are told again, and hold no attempt back meanwhile
                self._notes_after_ns = self._clock.monotonic_ns() + round(PUT_OFF_SECONDS * NS)
                return True
            sent = True
        return sent

    async def _say(self, notes: Sequence[SpooledNote]) -> None:
        """Deliver notes and forget them; one that can never be taken is logged, and in nobody's way."""
        assert self._deliver_notes is not None
        refused: list[tuple[int, str]] = []
        try:
            refused += await in_time(self._deliver_notes(notes))
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

    def are_sightings_due(self) -> bool:
        """Whether enough sightings wait, or any for long enough."""
        waiting = self._spool.sightings_waiting if self._deliver_sightings is not None else 0
        since, now_ns = self._sighted_ns, self._clock.monotonic_ns()
        if now_ns < self._sightings_after_ns:
            return False
        rested = since is None or now_ns - since >= SIGHTINGS_EVERY_SECONDS * NS
        return waiting >= SIGHTINGS_AT_ONCE or (waiting > 0 and rested)

    async def send_sightings(self) -> bool:
        """Deliver the newest that wait and forget them; what is refused is said once for all of them.

        Whether any were taken. Raises StoreUnavailable.
        """
        if self._deliver_sightings is None:
            return False
        self._sighted_ns = self._clock.monotonic_ns()
        rows = await self._spool.take_sightings(SIGHTINGS_AT_ONCE)
        if not rows:
            return False
        refused = await self._show([row.sighting for row in rows])
        if refused:
            log.warning("looks at neutral endpoints are refused for good", refused=len(refused), cause=refused[0][1])
        try:
            await self._spool.delete_sightings([row.id for row in rows])
        except SpoolFull:  # as with notes
            self._sightings_after_ns = self._clock.monotonic_ns() + round(PUT_OFF_SECONDS * NS)
        return True

    async def _show(self, sightings: Sequence[Sighting]) -> list[tuple[Sighting, str]]:
        """Deliver; what breaks a delivery as a whole is halved until it stands alone, and then refused."""
        assert self._deliver_sightings is not None
        try:
            return list(await in_time(self._deliver_sightings(sightings)))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  # kept as the reason
            if len(sightings) == 1:
                return [(sightings[0], f"{type(error).__name__}: {error}")]
            middle = len(sightings) // 2
            return await self._show(sightings[:middle]) + await self._show(sightings[middle:])
