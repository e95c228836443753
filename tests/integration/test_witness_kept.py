"""What is seen of neutral endpoints reaches the record and the metrics: in one process, and from an agent to a hub."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from monitor.agent.spool import Spool
from monitor.agent.uplink import Uplink
from monitor.model import StoreUnavailable
from monitor.store import engine
from monitor.timeline import Phase
from monitor.witness import Sighting
from tests.integration.running_fleet import running
from tests.integration.running_up import Up, configuration, until
from tests.ports import free_port

pytestmark = pytest.mark.anyio
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def endpoints(port: int) -> dict[str, object]:
    """One that is reached and one that nobody serves."""
    addresses = {"near": f"tcp://127.0.0.1:{port}", "gone": f"tcp://127.0.0.1:{free_port()}"}
    return {"interval": "1s", "timeout": "800ms", "endpoints": addresses}


def kept(store: Engine) -> set[tuple[str, str, bool]]:
    """(vantage, endpoint, up) of all that was seen."""
    with store.connect() as connection:
        return {tuple(row) for row in connection.execute(text("SELECT vantage, endpoint, up FROM sightings"))}


def line_of(up: Up) -> dict[str, str]:
    """What the live page says of the line in Lagos."""
    (vantage,) = json.loads(up.get("api/live"))["vantages"]
    return dict(vantage["line"] or {"state": "unknown"})


def test_one_process(database_url: str, tmp_path: Path) -> None:
    """`up` looks, keeps and tells, on the live page too; what a reload takes away is told no more."""
    store, began = engine.open_engine(database_url), datetime.now(UTC)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{free_port()}/v1"
        content = configuration(url, storage={"database_url": database_url}, witness=endpoints(port))
        with Up(tmp_path, content) as up:
            seen = {("lagos", "near", True), ("lagos", "gone", False)}
            until(lambda: kept(store) == seen, "both endpoints in the record", 60)
            assert up.metric("firsttoken_witness_up", vantage="lagos", endpoint="near") == 1
            assert up.metric("firsttoken_witness_up", vantage="lagos", endpoint="gone") == 0
            assert up.metric("firsttoken_witness_seconds", endpoint="near", phase="connect")
            assert up.metric("firsttoken_witness_seconds", endpoint="gone") is None
            until(lambda: line_of(up)["state"] == "up", "one stranger's machine is not the line", 60)
            listener.close()
            down = until(lambda: line_of(up)["state"] == "down" and line_of(up), "a line that is down", 60)
            assert down["why"] == "2 of 2 neutral endpoints fail"
            assert datetime.fromisoformat(down["since"]) > began
            up.write({**content, "witness": "off"})
            until(lambda: up.metric("firsttoken_witness_up") is None, "no metrics of what is not looked at", 60)
    store.dispose()


def test_an_agent_and_a_hub(database_url: str, tmp_path: Path) -> None:
    """An agent looks at what the hub's configuration says, and the hub that sweeps exports the last looks."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        running(tmp_path, database_url, witness=endpoints(listener.getsockname()[1])) as fleet,
    ):
        fleet.agent("lagos").start()
        seen = {("lagos", "near", True), ("lagos", "gone", False)}
        until(lambda: kept(fleet.engine) == seen, "both endpoints in the record", 90)
        lines = ('firsttoken_witness_up{vantage="lagos",endpoint="near"} 1', 'endpoint="gone"} 0')
        until(lambda: all(line in fleet.get("/metrics") for line in lines), "the hub's metrics", 60)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    spool = Spool(tmp_path / "spool.sqlite3", 100_000_000, 86_400)
    yield spool
    await spool.close()


def sighting(number: int) -> Sighting:
    return Sighting(
        vantage="lagos",
        endpoint="near",
        address="tcp://127.0.0.1:1",
        started_at=START + timedelta(seconds=number),
        seconds={Phase.CONNECT: 0.1},
    )


class Shop:
    """A hub that can be away, or break on single rows."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.away = False
        self.poison: set[int] = set()

    async def deliver(self, _: Sequence[object]) -> Sequence[object]:
        return []

    async def show(self, sightings: Sequence[Sighting]) -> Sequence[tuple[Sighting, str]]:
        if self.away:
            raise StoreUnavailable("connection refused")
        numbers = [round((one.started_at - START).total_seconds()) for one in sightings]
        if self.poison & set(numbers):
            raise TypeError("cannot adapt")
        self.seen += numbers
        return []


async def emptied(spool: Spool, shop: Shop) -> None:
    """Deliver until nothing waits."""
    uplink = Uplink(
        spool,
        shop.deliver,  # type: ignore[arg-type]
        first_pause_seconds=0.02,
        longest_pause_seconds=0.1,
        deliver_sightings=shop.show,
    )
    uplink.start()
    async with asyncio.timeout(30):
        while spool.sightings_waiting:  # a fact of the product, not an event of ours
            await asyncio.sleep(0.01)
            shop.away = False
    await uplink.stop(1.0)


async def test_they_wait_on_disk_until_they_are_taken(spool: Spool, tmp_path: Path) -> None:
    """A hub that is away gets them later, each once; a spool that is opened again still has them."""
    for number in range(3):
        await spool.sight(sighting(number))
    await spool.close()
    again = Spool(tmp_path / "spool.sqlite3", 100_000_000, 86_400)
    assert again.sightings_waiting == 3
    assert [one.sighting for one in await again.take_sightings(2)] == [sighting(2), sighting(1)]
    shop = Shop()
    shop.away = True
    await emptied(again, shop)
    assert sorted(shop.seen) == [0, 1, 2]
    await again.close()


async def test_a_bad_one_stands_in_nobodys_way(spool: Spool) -> None:
    """A row that breaks the delivery is found and dropped; the others arrive."""
    for number in range(9):
        await spool.sight(sighting(number))
    shop = Shop()
    shop.poison = {4}
    await emptied(spool, shop)
    assert sorted(shop.seen) == [0, 1, 2, 3, 5, 6, 7, 8]
