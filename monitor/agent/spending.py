"""The spend guard: hard daily caps in money and in tokens, kept by the agent alone, offline too.

Hides the account. Before an attempt its worst case is booked, on disk first; afterwards what it really used replaces
it. So neither attempts that run at one time nor a power cut can pass a cap: at most, a provider that reports more than
the worst case does, once. A day is UTC's. It renews when the clock shows a later date; a clock that goes back
gives no second budget: the day goes on until the clock has come forward again, or for 24 hours at most.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import structlog

from monitor.agent.ledger import Ledger, Page, Spent
from monitor.agent.pricing import Use, worst_case
from monitor.clock import NS, Clock
from monitor.config.plan import TOKENS, Allowance
from monitor.model import Series

DAY_NS = 24 * 3600 * NS
TOLERANCE = 1e-9
"""Sums of money are floats: a cap is not passed by their rounding."""
log = structlog.get_logger("firsttoken.budget")


@dataclass(frozen=True, slots=True)
class Booking:
    """What was set aside for one attempt."""

    day: date
    series: Series
    use: Use


@dataclass(frozen=True, slots=True)
class Balance:
    """One cap as it stands now; the remainder is never negative."""

    allowance: Allowance
    spent: float

    @property
    def remaining(self) -> float:
        return max(0.0, self.allowance.limit - self.spent)


class Spending:
    """Today's account against the caps. For one event loop, which it never blocks."""

    def __init__(self, path: Path, allowances: Iterable[Allowance] = (), clock: Clock | None = None) -> None:
        """Nothing is read and no file is made before there is a cap."""
        self._clock = clock or Clock()
        self._ledger = Ledger(path)
        self._thread = ThreadPoolExecutor(1, "budget")
        self._allowances: tuple[Allowance, ...] = tuple(allowances)
        self._page = Page(self._clock.now().date())
        self._spent: dict[str, Spent] = {}
        self._is_read = False
        self._reading = asyncio.Lock()
        self._reached: set[tuple[str | None, str]] = set()
        self._behind_since_ns: int | None = None
        self._trouble: str | None = None
        self._is_closed = False

    def limit(self, allowances: Iterable[Allowance]) -> None:
        """Other caps from now on; what was spent today counts against them."""
        new = tuple(allowances)
        if new != self._allowances:
            self._allowances = new
            self._reached.clear()

    def balances(self) -> list[Balance]:
        """Every cap with what was spent against it today, bookings included."""
        self._turn_page()
        return [Balance(each, self._against(each)) for each in self._allowances]

    async def open(self) -> None:
        """Read what the file holds, where there is a cap; `book` does it otherwise."""
        async with self._reading:
            if self._is_read or not self._allowances:
                return
            page = await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
            self._is_read = True
            if page is not None:
                self._take(page)

    async def book(self, series: Series) -> Booking | None:
        """Set aside what an attempt of `series` may use at most, durably; None when that would pass a cap."""
        await self.open()
        self._turn_page()
        worst = worst_case(series)
        concerned = [each for each in self._allowances if each.target in (None, series.target.name)]
        if concerned and self._page.unknown:
            return None
        for each in concerned:
            if self._against(each) + _amount(each, worst, series) > each.limit + TOLERANCE:
                self._say_reached(each)
                return None
        booking = Booking(self._page.day, series, worst)
        self._add(series, worst)
        if concerned:
            await self._keep()
        return booking

    def settle(self, booking: Booking, use: Use) -> None:
        """Put what was really used in the place of what was booked. Of a day that is over: nothing is to be done."""
        self._turn_page()
        if booking.day != self._page.day:
            return
        self._add(booking.series, booking.use, sign=-1)
        self._add(booking.series, use)
        if self._allowances and not self._is_closed:
            self._keep()

    async def close(self) -> None:
        """Finish writing and let go of the file. What is settled later stays booked at its worst."""
        self._is_closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._ledger.close)
        self._thread.shutdown(wait=False)

    # ------------------------------------------------------------------------------------------------ the account

    def _take(self, page: Page) -> None:
        """What the file says, with what this process has spent before it was read."""
        if page.day >= self._page.day:
            for target, spent in page.spent.items():
                self._spent[target] = self._spent.get(target, Spent()).plus(spent.tokens, spent.money)
            self._page = replace(page, spent={})
        if self._page.unknown:
            log.warning(
                "what was spent today is not known: targets with a daily cap wait until the day renews at midnight UTC;"
                " to go on before, stop First Token and remove the file",
                file=str(self._ledger.path),
            )

    def _turn_page(self) -> None:
        """Begin a new day where one has begun."""
        today = self._clock.now().date()
        if today == self._page.day:
            self._behind_since_ns = None
            return
        now_ns = self._clock.monotonic_ns()
        if today < self._page.day:
            if self._behind_since_ns is None:
                self._behind_since_ns = now_ns
            if now_ns - self._behind_since_ns < DAY_NS:
                return
        if self._reached or self._page.unknown:
            log.info("the day's budget renews", day=today.isoformat())
        self._behind_since_ns = None
        self._reached.clear()
        self._spent.clear()
        self._page = Page(today)

    def _add(self, series: Series, use: Use, sign: int = 1) -> None:
        name, money = series.target.name, use.money(series.target.price) or 0.0
        self._spent[name] = self._spent.get(name, Spent()).plus(sign * use.tokens, sign * money)

    def _against(self, allowance: Allowance) -> float:
        every = self._spent.items()
        counted = [spent for name, spent in every if allowance.target in (None, name)]
        return sum(spent.tokens if allowance.unit == TOKENS else spent.money for spent in counted)

    def _say_reached(self, allowance: Allowance) -> None:
        """Once a day for each cap."""
        key = (allowance.target, allowance.unit)
        if key in self._reached:
            return
        self._reached.add(key)
        log.warning(
            "the day's budget is reached: slots are missed until it renews at midnight UTC",
            target=allowance.target or "all",
            limit=round(allowance.limit, 6),
            spent=round(self._against(allowance), 6),
            unit=allowance.unit,
        )

    # ------------------------------------------------------------------------------------------------ the file

    def _keep(self) -> asyncio.Future[None]:
        """Write the account; done when it has reached the disk, or the disk has refused. Never raises."""
        page = replace(self._page, spent=dict(self._spent))
        return asyncio.get_running_loop().run_in_executor(self._thread, self._write, page)

    def _write(self, page: Page) -> None:
        """In the writing thread. A disk that refuses is said once and does not end probing."""
        try:
            self._ledger.write(page)
        except (OSError, sqlite3.Error) as error:
            self._say_trouble(error)
            return
        if self._trouble is not None:
            self._trouble = None
            log.info("the account of today's spending can be written again", file=str(self._ledger.path))

    def _read(self) -> Page | None:
        """In the writing thread; None when the disk refuses."""
        try:
            return self._ledger.read(self._clock.now().date())
        except (OSError, sqlite3.Error) as error:
            self._say_trouble(error)
            return None

    def _say_trouble(self, error: Exception) -> None:
        if self._trouble is None:
            log.error(
                "the account of today's spending cannot be kept on disk: caps hold, but a restart would forget it",
                file=str(self._ledger.path),
                cause=str(error),
            )
        self._trouble = str(error)


def _amount(allowance: Allowance, use: Use, series: Series) -> float:
    return use.tokens if allowance.unit == TOKENS else use.money(series.target.price) or 0.0
