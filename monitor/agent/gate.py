"""Whether a slot may be asked now, beyond free places: its budget, the provider's pace, and its wish to be left alone.

A monitor must show an outage, but must not hammer. So after a 429 that says how long to wait, the target is left alone
for that long, and its slots are missed with the reason `retry_after`: the 429 itself is on record, and what would
follow is known. Other failures change nothing about the schedule: a 503 that asks to wait is the outage that is to
be shown. No wait is longer than `LONGEST_WAIT_SECONDS`, so that the record never falls silent for hours.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import structlog

from monitor.agent.pace import Pace
from monitor.agent.pricing import used
from monitor.agent.spending import Spending
from monitor.agent.unmeasured import missed
from monitor.clock import NS, Clock
from monitor.model import Attempt, MissReason, Series, Slot

LONGEST_WAIT_SECONDS = 900.0
TOO_MANY_REQUESTS = 429
log = structlog.get_logger("firsttoken.limits")


class Run(Protocol):
    """`Prober.run`."""

    def __call__(self, slot: Slot, series: Series, *, try_number: int = 0) -> Awaitable[Attempt]:
        """Make one attempt."""


class Gate:
    """Runs an attempt, or gives the missed slot with its reason."""

    def __init__(self, run: Run, spending: Spending, pace: Pace, clock: Clock | None = None) -> None:
        self._run = run
        self._spending = spending
        self._pace = pace
        self._clock = clock or Clock()
        self._waits: dict[tuple[str, str], int] = {}  # (provider, target) -> monotonic ns until which it is left alone

    async def run(self, slot: Slot, series: Series, *, try_number: int = 0) -> Attempt:
        """As `Prober.run`; an attempt that may not be made has the outcome `missed`.

        Confirming attempts count against budget and pace, and never wait. What a broken or cancelled attempt may have
        used stays booked.
        """
        reason = self._refused(series, try_number)
        booking = None if reason else await self._spending.book(series)
        if booking is None:
            return missed(slot, series, reason or MissReason.BUDGET, self._clock.now(), try_number)
        attempt = await self._run(slot, series, try_number=try_number)
        self._spending.settle(booking, used(attempt, series))
        self._note(attempt, series)
        return attempt

    def _refused(self, series: Series, try_number: int) -> MissReason | None:
        until_ns = self._waits.get(_key(series))
        if until_ns is not None and self._clock.monotonic_ns() < until_ns:
            return MissReason.RETRY_AFTER
        if try_number and not self._pace.take(series.target.provider):
            return MissReason.CAPACITY
        return None

    def _note(self, attempt: Attempt, series: Series) -> None:
        """Remember for how long the provider wants to be left alone."""
        wanted = attempt.service.retry_after_seconds
        if attempt.http.status != TOO_MANY_REQUESTS or wanted is None or wanted <= 0:
            self._waits.pop(_key(series), None)
            return
        seconds = min(wanted, LONGEST_WAIT_SECONDS)
        self._waits[_key(series)] = self._clock.monotonic_ns() + round(seconds * NS)
        log.warning(
            "the provider asks to wait; slots until then are missed",
            provider=series.target.provider,
            target=series.target.name,
            seconds=round(seconds, 3),
            asked_seconds=round(wanted, 3),
        )


def _key(series: Series) -> tuple[str, str]:
    return series.target.provider, series.target.name
