"""Faults of disks, clocks and databases in a fleet: rows plus counted gaps equal the slots owed, nothing twice."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import shutil
import subprocess
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from monitor.agent.spool import Spool
from monitor.cli.agent import Agent
from monitor.clock import CorrectedClock
from monitor.config.agentfile import load_agent_file
from monitor.model import Attempt, Outcome
from monitor.store import embedded
from monitor.timeline import Mark, Timeline
from monitor.wire import encode
from monitor.wire.fleet import encode_upload
from tests.integration.running_fleet import SIM_KEY, Fleet, running, wait
from tests.integration.running_up import until
from tests.integration.test_fleet_faults import balanced
from tests.ports import free_port

pytestmark = pytest.mark.timeout(300)
AGENT = "0123456789abcdef" * 2


@pytest.fixture
def fleet(tmp_path: Path, database_url: str) -> Iterator[Fleet]:
    with running(tmp_path, database_url) as one:
        yield one


def attempt(at: datetime, vantage: str = "lagos", target: str = "t", ttft_ns: int = 20_000_000) -> Attempt:
    return Attempt(
        vantage=vantage,
        target=target,
        probe="p",
        probe_version="v",
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
        timeline=Timeline({Mark.FIRST_TOKEN: ttft_ns, Mark.END: ttft_ns + 1_000_000}),
        finish_reason="stop",
    )


@contextmanager
def mounted(arguments: list[str], at: Path) -> Iterator[Path]:
    """A file system of its own at a folder; skips where that is not allowed."""
    at.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(at)], capture_output=True, text=True, check=False)
    if done.returncode and "loop" in arguments:
        pytest.skip(f"no file can be mounted as a disk here: {done.stderr.strip()}")
    if done.returncode:
        pytest.skip(f"needs root to mount a small file system: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False)


# -------------------------------------------------------------------------------------------------------- disks


def test_a_full_disk(fleet: Fleet, tmp_path: Path) -> None:
    """What cannot be written is lost and counted as `disk_full`; when there is room again, all goes on by itself."""
    with mounted(["-t", "tmpfs", "-o", "size=1m", "none"], tmp_path / "small") as small:
        agent = fleet.agent("lagos", state=small / "state")
        agent.start()
        fleet.until_rows(3)
        filler = small / "filler"
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4096"], capture_output=True, check=False)
        agent.until_said("the spool cannot be written")
        wait(3.0)
        filler.unlink()
        agent.until_said("the spool can be written again")
        fleet.until_rows(4)
        fleet.settled()
        account = balanced(fleet, "disk_full")
        assert account.missed["disk_full"] >= 2


def test_a_power_cut(fleet: Fleet, tmp_path: Path) -> None:
    """Writes that had not reached the disk are gone; what was said to be written is there, and the rest is an outage.

    The state folder is a file system in a file. What the file holds at one moment is what a disk holds when the power
    fails: everything that was fsynced, and nothing that only the kernel's cache knew.
    """
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(24_000_000)
    made = subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(image)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no file can be mounted as a disk here: there is no mkfs.ext4")
    agent = None
    for cut in range(4):
        with mounted(["-o", "loop", str(image)], tmp_path / "disk") as disk:
            agent = agent or fleet.agent("lagos", state=disk / "state")
            agent.start()
            fleet.until_rows(3)
            if cut == 3:
                fleet.settled()
                break
            if cut == 1:
                fleet.hub.kill()
            wait(random.uniform(0.6, 2.0))
            survived = tmp_path / "survived.img"
            shutil.copyfile(image, survived)
            agent.kill()
        if cut == 1:
            fleet.start_hub()
        subprocess.run(["fsck.ext4", "-p", "-f", str(survived)], capture_output=True, check=False)
        survived.replace(image)
    balanced(fleet, "agent_off", "power", "spool_corrupt")


# -------------------------------------------------------------------------------------------------------- clocks


class SteppingClock(CorrectedClock):
    """A machine whose wall clock somebody moves."""

    def __init__(self) -> None:
        super().__init__()
        self.step_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.step_ns


@pytest.mark.parametrize("hours", [2, -2])
def test_a_wall_clock_that_jumps(fleet: Fleet, hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours on or back: the schedule neither stalls nor repeats itself, and slots follow the hub's clock soon."""
    monkeypatch.setenv("SIM_KEY", SIM_KEY)
    fleet.agent("lagos")
    clock = SteppingClock()

    async def live() -> None:
        own = load_agent_file(fleet.folder / "agent-lagos" / "agent.yaml")
        agent = Agent(own, clock, heartbeat_seconds=1.0)
        await agent.start()
        try:
            await more(5)
            clock.step_ns = hours * 3600 * 1_000_000_000
            await more(5)
            await eventually(lambda: abs(clock.correction_seconds + hours * 3600) < 1, "the clock is put right")
            await more(6)
            await eventually(lambda: fleet.waiting("lagos") == 0, "an empty spool")
            fleet.ended["lagos"] = datetime.now(UTC)
        finally:
            await agent.stop()

    async def more(rows: int) -> None:
        await asyncio.to_thread(fleet.until_rows, rows)

    async def eventually(condition: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(until, condition, what, 60)

    asyncio.run(live())
    account = fleet.account()
    assert account.balanced(), account
    assert account.measured >= 10
    with fleet.engine.connect() as connection:
        recent = text("SELECT count(*) FROM attempts WHERE scheduled_at BETWEEN now() - interval '2 min' AND now()")
        assert connection.execute(recent).scalar_one() >= 10


# -------------------------------------------------------------------------------------------------------- database


def test_a_database_that_restarts(tmp_path: Path, server_folder: Path) -> None:
    """Postgres is away for a while: agents wait, the hub says why it is not ready, and everything arrives once."""
    data = server_folder / "postgres"
    server = embedded.start(data)
    try:
        with running(tmp_path, server.url) as fleet:
            fleet.agent("lagos").start()
            fleet.until_rows(3)
            fleet.engine.dispose()
            server.stop()
            until(lambda: not json.loads(ready(fleet))["ready"], "the hub is not ready", 60)
            wait(2.0)
            server = embedded.start(data)
            fleet.until_rows(6)
            fleet.settled()
            balanced(fleet)
    finally:
        server.stop()


def ready(fleet: Fleet) -> str:
    try:
        return fleet.get("/readyz")
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


# -------------------------------------------------------------------------------------------------------- batches


def test_the_same_batch_to_two_hubs_at_once(fleet: Fleet) -> None:
    """Whoever is second finds duplicates: every row is there once, and each hub counts what it took in."""
    second_port = free_port()
    fleet.start_hub(fleet.child("hub-2", ["hub", str(fleet.file), "--listen", f"127.0.0.1:{second_port}"]))
    token = fleet.enrol("lagos")
    start = datetime.now(UTC) - timedelta(minutes=30)
    batch = [encode(attempt(start + timedelta(seconds=n))) for n in range(300)]
    body = gzip.compress(encode_upload(AGENT, batch))

    def send(port: int) -> tuple[int, dict[str, int]]:
        return fleet.post("attempts", token, body, port, **{"content-encoding": "gzip"})

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(send, [fleet.port, second_port] * 3))
    assert {status for status, _ in answers} == {200}
    assert sum(answer["stored"] for _, answer in answers) == 300
    assert sum(answer["duplicates"] for _, answer in answers) == 5 * 300
    assert fleet.rows() == 300
    name, ports = "firsttoken_ingest_attempts_total", (fleet.port, second_port)
    assert sum(fleet.metric(name, port, result="new") for port in ports) == 300


async def fill(path: Path, attempts: list[Attempt]) -> None:
    spool = Spool(path, 256_000_000, 7 * 86_400.0)
    await asyncio.gather(*(spool.append(one) for one in attempts))
    await spool.close()


def test_a_batch_that_is_half_bad(fleet: Fleet) -> None:
    """The good half lands; the bad half is answered row by row, set aside at the agent, and never sent again."""
    agent = fleet.agent("lagos")
    state = fleet.folder / "agent-lagos" / "state"
    start = datetime.now(UTC) - timedelta(minutes=30)
    good = [attempt(start + timedelta(seconds=n)) for n in range(20)]
    foreign = [attempt(start + timedelta(seconds=100 + n), vantage="paris") for n in range(10)]
    unknown = [attempt(start + timedelta(seconds=200 + n), target="nobody") for n in range(10)]
    mixed = [one for three in zip(good, foreign + unknown, strict=True) for one in three]
    asyncio.run(fill(state / "spool.sqlite3", mixed))
    agent.start()
    fleet.until_rows(23)
    fleet.settled()

    async def aside() -> list[str]:
        spool = Spool(state / "spool.sqlite3", 256_000_000, 7 * 86_400.0)
        found = await spool.rejected()
        await spool.close()
        return [reason for _, reason, _ in found]

    reasons = asyncio.run(aside())
    assert len(reasons) == 20
    assert sum("'paris'" in reason for reason in reasons) == 10
    assert sum("no target and probe" in reason for reason in reasons) == 10
    assert fleet.metric("firsttoken_ingest_attempts_total", result="rejected") == 20


def test_ten_thousand_spooled_attempts(fleet: Fleet) -> None:
    """A backlog of hours: fresh attempts go first, the rest follows, rollups of the right hours are made."""
    agent = fleet.agent("lagos")
    state = fleet.folder / "agent-lagos" / "state"
    hours = 20
    first = (datetime.now(UTC) - timedelta(hours=hours + 1)).replace(minute=0, second=0, microsecond=0)
    step = timedelta(hours=hours) / 10_000
    asyncio.run(fill(state / "spool.sqlite3", [attempt(first + n * step) for n in range(10_000)]))
    agent.start()
    fresh = text("SELECT count(*) FROM attempts WHERE scheduled_at > now() - interval '1 minute'")

    def delivered() -> tuple[int, int]:
        with fleet.engine.connect() as connection:
            return int(connection.execute(fresh).scalar_one()), fleet.rows()

    until(lambda: delivered()[0] >= 3, "fresh attempts", 60)
    assert delivered()[1] < 8_000, "fresh attempts waited for the backlog"
    until(lambda: fleet.rows() >= 10_003, "the backlog", 120)
    fleet.settled()
    want = text(
        "SELECT date_trunc('hour', scheduled_at) AS hour, count(*) AS n FROM attempts WHERE try = 0 "
        "AND scheduled_at < :end GROUP BY 1 ORDER BY 1"
    )
    have = text("SELECT hour, sum(attempts) AS n FROM rollups WHERE hour < :end GROUP BY 1 ORDER BY 1")
    end = {"end": first + timedelta(hours=hours)}

    def rolled_up() -> bool:
        with fleet.engine.connect() as connection:
            expected = [tuple(row) for row in connection.execute(want, end)]
            return len(expected) == hours and [tuple(row) for row in connection.execute(have, end)] == expected

    until(rolled_up, "rollups of every hour", 150)
    late = fleet.metric("firsttoken_late_attempts_total", vantage="lagos")
    assert late >= 10_000  # counted as of the past, and in no histogram of the present
