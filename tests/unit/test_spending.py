"""The spend guard: no cap is passed, by whatever is under way; neither restart nor clock gives a second budget."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from monitor.agent.pricing import NOTHING, Use
from monitor.agent.spending import Spending
from monitor.clock import ManualClock
from monitor.config.plan import TOKENS, Allowance
from monitor.model import DialectName, Price, Probe, Series, Target, Vantage

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = 86_400.0


def series(target: str = "t", output: int = 60) -> Series:
    """Its prompt counts as 40 tokens, so its worst case is 100: 100 of the currency at these prices."""
    price = Price(input=1e6, output=1e6)
    return Series(
        vantage=Vantage(name="v"),
        target=Target(
            name=target, provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1", price=price
        ),
        probe=Probe(name="q", prompt="hi", max_output_tokens=output),
    )


MONEY = Allowance(target=None, unit="USD", limit=250)
ONE = series()


class Account:
    """A guard on a file, for tests that restart it."""

    def __init__(self, folder: Path, *caps: Allowance, clock: ManualClock | None = None) -> None:
        self.file = folder / "spending.sqlite3"
        self.caps = caps
        self.clock = clock or ManualClock(NOON)

    def run(self, body: Callable[[Spending], Awaitable[None]]) -> None:
        """One life of a process."""

        async def live() -> None:
            guard = Spending(self.file, self.caps, self.clock)
            await guard.open()
            await body(guard)
            await guard.close()

        asyncio.run(live())


async def spend(guard: Spending, use: Use = Use(input=40, output=60), one: Series = ONE) -> bool:  # noqa: B008
    booking = await guard.book(one)
    if booking is not None:
        guard.settle(booking, use)
    return booking is not None


def test_bookings_under_way_count(tmp_path: Path) -> None:
    """Attempts that run at one time cannot pass the cap together; what they did not use is free again."""

    async def life(guard: Spending) -> None:
        first, second = await guard.book(ONE), await guard.book(ONE)
        assert first is not None
        assert second is not None
        assert await guard.book(ONE) is None
        guard.settle(first, NOTHING)
        assert guard.balances()[0].remaining == 150
        assert await guard.book(ONE) is not None

    Account(tmp_path, MONEY).run(life)


def test_what_was_used_is_what_counts(tmp_path: Path) -> None:
    """Fewer tokens than feared leave room for more attempts; the cap itself may be used to its last unit."""

    async def life(guard: Spending) -> None:
        done = 0
        while await spend(guard, Use(input=25, output=25)):
            done += 1
        assert done == 4  # 200 spent, and another could cost 100
        assert guard.balances()[0].spent == 200
        guard.limit([replace(MONEY, limit=300)])
        assert await spend(guard)
        assert guard.balances()[0].remaining == 0

    Account(tmp_path, MONEY).run(life)


def test_caps_of_targets_and_of_all(tmp_path: Path) -> None:
    """Each cap counts what it covers, in its unit; a target without one is bound by the overall cap alone."""
    caps = (Allowance(target="t", unit=TOKENS, limit=100), Allowance(target=None, unit="USD", limit=250))

    async def life(guard: Spending) -> None:
        assert await spend(guard)
        assert not await spend(guard)  # its own tokens
        assert await spend(guard, one=series("other"))
        assert not await spend(guard, one=series("other"))  # the money of all
        assert [balance.spent for balance in guard.balances()] == [100, 200]

    Account(tmp_path, *caps).run(life)


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    """Not what was settled, and of an attempt that was cut off by a crash its worst case."""
    account = Account(tmp_path, MONEY)

    async def crash(guard: Spending) -> None:
        assert await spend(guard, Use(input=50))
        assert await guard.book(ONE) is not None  # never settled

    async def after(guard: Spending) -> None:
        assert guard.balances()[0].spent == 150
        assert await guard.book(ONE) is not None
        assert await guard.book(ONE) is None

    account.run(crash)
    account.run(after)


def test_the_booking_is_on_disk_before_the_attempt(tmp_path: Path) -> None:
    """Seen by another connection to the file while the attempt would run: a power cut loses nothing."""
    account = Account(tmp_path, MONEY)

    async def life(guard: Spending) -> None:
        await guard.book(ONE)
        with closing(sqlite3.connect(account.file)) as db:
            assert db.execute("SELECT target, tokens, money FROM spent").fetchall() == [("t", 100, 100.0)]

    account.run(life)
    assert account.file.stat().st_mode & 0o077 == 0


def test_a_killed_process_leaves_its_bookings(tmp_path: Path) -> None:
    """What was booked when the process died by SIGKILL is spent, as far as the next one knows."""
    script = f"""
import asyncio, os, signal
from pathlib import Path
from tests.unit.test_spending import MONEY, NOON, ONE, Spending, spend, Use
from monitor.clock import ManualClock
async def life():
    guard = Spending(Path({str(tmp_path / "spending.sqlite3")!r}), [MONEY], ManualClock(NOON))
    assert await spend(guard, Use(input=30))
    assert await guard.book(ONE) is not None
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(life())
"""
    root = Path(__file__).parents[2]
    died = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr

    async def after(guard: Spending) -> None:
        assert guard.balances()[0].spent == 130

    Account(tmp_path, MONEY).run(after)


def test_a_new_day_renews(tmp_path: Path) -> None:
    """At midnight UTC, in the same process and across a restart; said once, if a cap had been reached."""
    account = Account(tmp_path, replace(MONEY, limit=100))

    async def day(guard: Spending) -> None:
        assert await spend(guard)
        assert not await spend(guard)
        assert not await spend(guard)

    async def two_days(guard: Spending) -> None:
        await day(guard)
        account.clock.advance(DAY / 2 - 1)
        assert not await spend(guard)
        account.clock.advance(1)
        await day(guard)

    with capture_logs() as logs:
        account.run(two_days)
    said = [line["event"] for line in logs]
    reached = "the day's budget is reached: slots are missed until it renews at midnight UTC"
    assert said == [reached, "the day's budget renews", reached]
    assert (logs[0]["target"], logs[0]["limit"], logs[0]["spent"], logs[0]["unit"]) == ("all", 100, 100, "USD")
    account.clock.advance(DAY)
    account.run(day)


def test_an_attempt_across_midnight(tmp_path: Path) -> None:
    """What was booked yesterday is settled yesterday: the new day begins at nothing and stays there."""
    account = Account(tmp_path, MONEY)

    async def life(guard: Spending) -> None:
        booking = await guard.book(ONE)
        assert booking is not None
        account.clock.advance(DAY)
        assert guard.balances()[0].spent == 0
        guard.settle(booking, Use(output=10))
        assert guard.balances()[0].spent == 0

    account.run(life)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_steps_back_gives_no_second_budget(tmp_path: Path, restarted: bool) -> None:
    """Neither at once nor when it comes forward again; only when 24 hours have really passed."""
    account = Account(tmp_path, replace(MONEY, limit=100))

    async def before(guard: Spending) -> None:
        assert await spend(guard)

    async def after(guard: Spending) -> None:
        account.clock.step_wall(-3 * DAY)
        assert not await spend(guard)
        account.clock.advance(DAY / 2)
        assert not await spend(guard)
        account.clock.step_wall(3 * DAY - DAY / 2)  # NTP has come
        assert not await spend(guard)
        account.clock.step_wall(-3 * DAY)
        assert not await spend(guard)
        account.clock.advance(DAY + 1)
        assert await spend(guard)
        assert not await spend(guard)

    async def both(guard: Spending) -> None:
        await before(guard)
        await after(guard)

    if restarted:
        account.run(before)
        account.run(after)
    else:
        account.run(both)


def test_a_broken_file_is_set_aside_and_stops_spending_until_tomorrow(tmp_path: Path) -> None:
    """What was spent is unknown, so nothing more is, today; a restart changes nothing about that."""
    account = Account(tmp_path, MONEY)
    account.file.write_bytes(b"no database " * 1000)

    async def today(guard: Spending) -> None:
        assert not await spend(guard)

    async def tomorrow(guard: Spending) -> None:
        await today(guard)
        account.clock.advance(DAY)
        assert await spend(guard)

    with capture_logs() as logs:
        account.run(today)
    assert "the account of today's spending was broken and is set aside" in [line["event"] for line in logs]
    assert list(tmp_path.glob("spending.sqlite3.corrupt-*"))
    account.run(tomorrow)


def test_a_disk_that_refuses_is_said_once_and_caps_hold(tmp_path: Path) -> None:
    """Probing goes on from memory."""
    account = Account(tmp_path / "nowhere", MONEY)

    async def life(guard: Spending) -> None:
        assert [await spend(guard) for _ in range(4)] == [True, True, False, False]

    with capture_logs() as logs:
        account.run(life)
    assert [line["log_level"] for line in logs] == ["error", "warning"]
    assert "a restart would forget it" in logs[0]["event"]


def test_without_caps_there_is_no_file(tmp_path: Path) -> None:
    """Who sets no budget pays nothing for it; a cap that comes by a reload counts what this process has spent."""
    account = Account(tmp_path)

    async def life(guard: Spending) -> None:
        assert await spend(guard)
        assert not account.file.exists()
        guard.limit([replace(MONEY, limit=150)])
        assert not await spend(guard)
        guard.limit([])
        assert await spend(guard)

    account.run(life)
