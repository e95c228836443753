"""Delivery with a real spool: acknowledged before deleted, fresh first, patient, and unstoppable by one bad row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from monitor.agent.spool import Spool
from monitor.agent.uplink import BACKLOG_BATCH, FRUITLESS_ROUNDS, LATE_AFTER_SECONDS, Refusal, Uplink, is_late
from monitor.model import Attempt, Outcome, StoreRefuses, StoreUnavailable
from monitor.timeline import Mark, Timeline

pytestmark = pytest.mark.anyio
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    spool = Spool(tmp_path / "spool.sqlite3", 100_000_000, 86_400)
    yield spool
    await spool.close()


def attempt(number: int) -> Attempt:
    at = START + timedelta(seconds=number)
    return Attempt(
        vantage="lagos",
        target="t",
        probe="q",
        probe_version="v",
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
    )


def number(one: Attempt) -> int:
    return round((one.scheduled_at - START).total_seconds())


class Shop:
    """A store that can be away, refuse or break."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.calls = 0
        self.away = False
        self.why: StoreUnavailable = StoreUnavailable("connection refused")
        self.poison: set[int] = set()
        self.refused: set[int] = set()
        self.broken = False
        self.seconds = 0.0
        self.asked_at: list[float] = []

    async def deliver(self, attempts: Sequence[Attempt]) -> Sequence[Refusal]:
        self.calls += 1
        self.asked_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        if self.away:
            raise self.why
        if self.broken or self.poison & set(map(number, attempts)):
            raise TypeError("cannot adapt")
        self.batches.append([number(one) for one in attempts if number(one) not in self.refused])
        return [(one, "value out of range") for one in attempts if number(one) in self.refused]

    @property
    def stored(self) -> list[int]:
        return [number for batch in self.batches for number in batch]


@asynccontextmanager
async def delivering(spool: Spool, shop: Shop) -> AsyncIterator[Uplink]:
    uplink = Uplink(
        spool,
        shop.deliver,
        first_pause_seconds=0.02,
        longest_pause_seconds=0.1,
        backlog_pause_seconds=0.02,
    )
    uplink.start()
    try:
        yield uplink
    finally:
        await uplink.stop(1.0)


async def fill(spool: Spool, first: int, last: int) -> None:
    await asyncio.gather(*(spool.append(attempt(n)) for n in range(first, last)))


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # the condition is a fact of the product, not an event of ours
            await asyncio.sleep(0.005)


async def test_what_is_appended_is_delivered_and_then_deleted(spool):
    """A fresh attempt is delivered at once, and leaves the spool only afterwards."""
    shop = Shop()
    async with delivering(spool, shop) as uplink:
        shop.seconds = 0.1
        await spool.append(attempt(1))
        uplink.wake()
        await until(lambda: shop.calls)
        assert spool.depth == 1
        await until(lambda: spool.depth == 0)
        assert shop.stored == [1]


async def test_attempts_in_quick_succession_are_delivered_together(spool):
    """The first goes at once; those that come within two seconds after it share one delivery."""
    shop = Shop()
    async with delivering(spool, shop) as uplink:
        for n in range(6):
            await spool.append(attempt(n))
            uplink.wake()
            await until(lambda: shop.calls)
        await until(lambda: spool.depth == 0)
        assert shop.batches[0] == [0]
        assert sorted(shop.stored) == list(range(6))
        assert len(shop.batches) < 4


async def test_attempts_wait_while_the_store_is_away_and_it_is_said_twice(spool):
    """Away: nothing is lost, nothing hurries it, one line when it goes; back: all arrives, one more line."""
    shop = Shop()
    shop.away = True
    with capture_logs() as logs:
        async with delivering(spool, shop) as uplink:
            for n in range(20):
                await spool.append(attempt(n))
                uplink.wake()
            await until(lambda: shop.calls >= 5)
            assert uplink.away == "connection refused"
            assert spool.depth == 20
            shop.away = False
            await until(lambda: spool.depth == 0)
            assert uplink.away is None
    assert sorted(shop.stored) == list(range(20))
    events = [(line["log_level"], line["event"]) for line in logs]
    assert events == [("warning", "the store is away; attempts wait in the spool"), ("info", "the store is back")]
    assert logs[1]["waiting"] == 20
    assert logs[1]["away_seconds"] >= 0


async def test_what_somebody_has_to_do_is_an_error_said_once_each(spool):
    """A refusal is an error line with its remedy, also when the store was away before; another one is said again."""
    shop = Shop()
    shop.away = True
    causes: list[StoreUnavailable] = [
        StoreUnavailable("connection refused"),
        StoreRefuses("create the role"),
        StoreUnavailable("connection refused"),
        StoreRefuses("create the role"),
        StoreRefuses("create the database"),
    ]
    with capture_logs() as logs:
        async with delivering(spool, shop) as uplink:
            await spool.append(attempt(1))
            uplink.wake()
            for cause in causes:
                shop.why, before = cause, shop.calls
                await until(lambda: shop.calls >= before + 3)  # noqa: B023  # it is awaited at once
                assert uplink.away == str(cause)
            shop.away = False
            await until(lambda: spool.depth == 0)
    said = [(line["log_level"], line.get("cause")) for line in logs]
    assert said == [
        ("warning", "connection refused"),
        ("error", "create the role"),
        ("error", "create the database"),
        ("info", None),
    ]


async def test_pauses_grow_to_a_cap(spool):
    """A store that stays away is asked ever more rarely, up to the cap."""
    shop = Shop()
    shop.away = True
    async with delivering(spool, shop) as uplink:
        await spool.append(attempt(1))
        uplink.wake()
        await until(lambda: shop.calls >= 14, 30)  # doubled without a cap they would take minutes
    pauses = [later - earlier for earlier, later in pairwise(shop.asked_at[:14])]
    assert min(pauses[4:]) > 0.045  # half of the cap at least: chance spreads agents


async def test_fresh_attempts_overtake_a_backlog(spool):
    """With thousands waiting, a new attempt waits for one small batch at most, and the backlog goes newest first."""
    await fill(spool, 0, 3000)
    shop = Shop()
    shop.seconds = 0.005
    async with delivering(spool, shop) as uplink:
        await until(lambda: len(shop.batches) >= 3)
        calls = shop.calls
        await spool.append(attempt(9000))
        uplink.wake()
        await until(lambda: 9000 in shop.stored)
        assert shop.calls <= calls + 2
        await until(lambda: spool.depth == 0, 60)
    backlog = [batch for batch in shop.batches if 9000 not in batch]
    assert max(map(len, backlog)) <= BACKLOG_BATCH
    assert backlog == sorted(backlog, reverse=True)
    assert sorted(shop.stored) == [*range(3000), 9000]


async def test_a_refused_attempt_is_set_aside_with_its_reason(spool):
    """What the store refuses for good leaves the queue, is kept with the reason and counted; the others land once."""
    await fill(spool, 0, 50)
    shop = Shop()
    shop.refused = {7, 33}
    with capture_logs() as logs:
        async with delivering(spool, shop):
            await until(lambda: spool.depth == 0)
    assert [reason for _, reason, _ in await spool.rejected()] == ["value out of range"] * 2
    assert sorted(shop.stored) == [n for n in range(50) if n not in shop.refused]
    assert spool.losses == {"rejected": 2}
    assert len(logs) == 2


async def test_a_batch_that_breaks_the_delivery_is_halved_until_the_bad_one_stands_alone(spool):
    """One attempt that breaks every delivery it is in does not hold up the ninety-nine beside it."""
    await fill(spool, 0, 100)
    shop = Shop()
    shop.poison = {42}
    async with delivering(spool, shop):
        await until(lambda: spool.depth == 0)
    assert sorted(shop.stored) == [n for n in range(100) if n != 42]
    ((_, reason, _),) = await spool.rejected()
    assert reason == "TypeError: cannot adapt"


async def test_a_delivery_that_always_breaks_throws_nothing_away_at_once(spool):
    """When every attempt breaks the fault is not theirs: they wait as long as it lasts, and land when it is mended."""
    await fill(spool, 0, 20)
    shop = Shop()
    shop.broken = True
    async with delivering(spool, shop) as uplink:
        await until(lambda: uplink.away is not None)
        await until(lambda: shop.calls > 2 * FRUITLESS_ROUNDS * 39)  # halving twenty takes 39 calls
        assert spool.depth == 20
        shop.broken = False
        await until(lambda: spool.depth == 0)
    assert sorted(shop.stored) == list(range(20))
    assert await spool.rejected() == []


async def test_a_lone_bad_attempt_is_not_retried_for_ever(spool):
    """The only attempt there is, and it always breaks: set aside after a bounded number of rounds."""
    shop = Shop()
    shop.poison = {1}
    async with delivering(spool, shop) as uplink:
        await spool.append(attempt(1))
        uplink.wake()
        await until(lambda: spool.depth == 0)
        assert shop.calls == FRUITLESS_ROUNDS
        await asyncio.sleep(0.3)
        assert shop.calls == FRUITLESS_ROUNDS


async def test_stopping_makes_a_last_try(spool):
    """What waits at the end is delivered if the store is there, else it stays in the spool; stop is bounded."""
    shop = Shop()
    uplink = Uplink(spool, shop.deliver)
    uplink.start()
    await fill(spool, 0, 250)
    await uplink.stop(5.0)
    assert sorted(shop.stored) == list(range(250))
    shop.seconds = 60
    uplink.start()
    await fill(spool, 300, 303)
    async with asyncio.timeout(20):
        await uplink.stop(0.1)
    assert spool.depth == 3


def test_late_is_counted_from_the_attempts_end():
    """An attempt is late when it arrives more than two minutes after it ended, however long it took."""
    ended = replace(attempt(0), timeline=Timeline({Mark.END: 30_000_000_000}))
    limit = timedelta(seconds=LATE_AFTER_SECONDS)
    assert not is_late(ended, START + limit + timedelta(seconds=30))
    assert is_late(ended, START + limit + timedelta(seconds=31))
    assert is_late(attempt(0), START + limit + timedelta(seconds=1))


async def test_a_store_that_wants_to_be_left_alone(spool):
    """It is not asked before its time is over, however short our own pauses are; then it is."""
    shop = Shop()
    shop.away = True
    shop.why.retry_after_seconds = 1.0
    async with delivering(spool, shop) as uplink:
        await spool.append(attempt(1))
        uplink.wake()
        await until(lambda: uplink.away is not None)
        calls, since = shop.calls, asyncio.get_running_loop().time()
        shop.away = False
        await until(lambda: shop.calls > calls)
        assert asyncio.get_running_loop().time() - since >= 0.9
        await until(lambda: spool.depth == 0)
