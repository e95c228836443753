"""The spool under real faults: a disk that is full, a process killed while it writes, many writers at once."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from monitor.agent.slotbook import SlotBook
from monitor.agent.spool import Spool
from monitor.agent.uplink import Refusal, Uplink
from monitor.clock import Clock
from monitor.model import Attempt, DialectName, Outcome, Probe, Series, SpoolFull, Target, Vantage
from monitor.notes import GapNote, LostNote, PlanNote
from monitor.witness import Sighting

pytestmark = pytest.mark.anyio
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
MIB = 2**20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def attempt(number: int, size: int = 0) -> Attempt:
    at = START + timedelta(seconds=number)
    return Attempt(
        vantage="lagos",
        target="t",
        probe="q",
        probe_version="v",
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
        finish_reason="x" * size,
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"needs root to mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_is_counted_and_left_behind(small_disk):
    """Full: append says so and counts, what is there can still be read and delivered; room again: it goes on."""
    spool = Spool(small_disk / "spool.sqlite3", 100 * MIB, 86_400)
    ballast = small_disk / "ballast"
    await spool.append(attempt(0))
    ballast.write_bytes(bytes(MIB))
    lost = kept = 0
    with capture_logs() as logs:
        for n in range(1, 3000):
            try:
                await spool.append(attempt(n, 400))
                kept += 1
            except SpoolFull:
                lost += 1
            if lost == 5:
                break
        assert lost == 5
        assert spool.trouble is not None
        assert spool.losses == {"disk_full": 5}
        newest = await spool.take(3)
        assert newest[0].attempt == attempt(kept, 400)
        await spool.delete([row.id for row in newest])
        assert not {row.id for row in newest} & {row.id for row in await spool.take(10)}
        ballast.unlink()
        await spool.append(attempt(5000))
    assert spool.trouble is None
    assert [line["log_level"] for line in logs] == ["error", "info"]
    await spool.close()
    again = Spool(small_disk / "spool.sqlite3", 100 * MIB, 86_400)
    assert again.losses == {"disk_full": 5}
    assert (await again.take(1))[0].attempt == attempt(5000)
    await again.close()


def fill_up(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(fd, bytes(4096)):
            pass
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017  # filling the disk is the point
    os.close(fd)


async def test_a_start_on_a_full_disk_waits_for_room(small_disk):
    """A disk that is full at the start keeps no process from probing: losses are counted until there is room."""
    spool = Spool(small_disk / "spool.sqlite3", 100 * MIB, 86_400)
    await spool.append(attempt(0))
    await spool.close()
    ballast = small_disk / "ballast"
    fill_up(ballast)
    spool = Spool(small_disk / "spool.sqlite3", 100 * MIB, 86_400)
    results = [await asyncio.gather(spool.append(attempt(n, 400)), return_exceptions=True) for n in range(1, 200)]
    lost = sum(isinstance(result, SpoolFull) for (result,) in results)
    assert lost > 0
    ballast.unlink()
    await spool.append(attempt(500))
    assert spool.losses == {"disk_full": lost}
    assert attempt(0) in [row.attempt for row in await spool.take(1000)]
    await spool.close()


async def test_what_cannot_be_forgotten_on_a_full_disk_holds_no_attempt_back(small_disk):
    """Notes and sightings are told, and told again later, as the disk cannot take that they were; attempts go on."""
    spool = Spool(small_disk / "spool.sqlite3", 100 * MIB, 86_400)
    await asyncio.gather(*(spool.append(attempt(n)) for n in range(300)))
    gap = GapNote(id=0, target="t", probe="q", first_at=START, last_at=START, slots=7, reason="late")
    await spool.note("lagos", gap)
    await spool.sight(Sighting(vantage="lagos", endpoint="e", address="tcp://192.0.2.1:443", started_at=START))
    told: list[str] = []
    stored: set[datetime] = set()

    async def deliver(attempts: Sequence[Attempt]) -> Sequence[Refusal]:
        stored.update(one.scheduled_at for one in attempts)
        return []

    async def deliver_notes(notes: Sequence[object]) -> Sequence[tuple[int, str]]:
        told.append("note")
        return []

    async def deliver_sightings(sightings: Sequence[Sighting]) -> Sequence[tuple[Sighting, str]]:
        told.append("sighting")
        return []

    ballast = small_disk / "ballast"
    fill_up(ballast)
    uplink = Uplink(spool, deliver, deliver_notes=deliver_notes, deliver_sightings=deliver_sightings)
    with capture_logs():
        uplink.start()
        async with asyncio.timeout(60):
            while len(stored) < 300 or "sighting" not in told:  # noqa: ASYNC110  # facts of the product
                await asyncio.sleep(0.02)
        ballast.unlink()
        await uplink.stop(30)
    assert (spool.depth, spool.notes_waiting, spool.sightings_waiting) == (0, 0, 0)
    await spool.close()


def series(*targets: str) -> list[Series]:
    return [
        Series(
            vantage=Vantage(name="lagos"),
            target=Target(name=name, provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
            probe=Probe(name="q", prompt="hi", interval_seconds=60, deadline_seconds=30),
        )
        for name in targets
    ]


async def test_what_is_to_be_said_waits_for_room_on_a_full_disk(small_disk):
    """A plan made while nothing can be written is said when there is room, before the one that came after it, and
    until then nothing claims that all is on disk.
    """
    spool = Spool(small_disk / "spool.sqlite3", 100 * MIB, 86_400)
    book = SlotBook(spool, Clock(), lambda: None)
    fill_up(small_disk / "ballast")
    for n in range(3000):  # what room there is within the file
        with suppress(SpoolFull):
            await spool.append(attempt(n, 400))
        if spool.trouble is not None:
            break
    book.plan(series("first"), ["lagos"], ["lagos"])
    await book.mark()
    book.plan(series("first", "second"), ["lagos"], ["lagos"])
    await book.mark()
    assert spool.notes_waiting == 0
    (small_disk / "ballast").unlink()
    await book.mark()
    notes = [row.note for row in await spool.take_notes(10)]
    plans = [[one.grid.target for one in note.series] for note in notes if isinstance(note, PlanNote)]
    assert plans == [["first"], ["first", "second"]]
    assert all(isinstance(note, PlanNote | LostNote) for note in notes)
    await spool.close()
    again = Spool(small_disk / "spool.sqlite3", 100 * MIB, 86_400)
    assert again.alive_before[0] is not None
    await again.close()


WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_spool_faults import Spool, attempt

async def main():
    spool = Spool(Path(sys.argv[1]), 10**9, 86_400)
    first = int(sys.argv[2])
    for n in range(first, first + 100_000):
        await asyncio.gather(spool.append(attempt(2 * n)), spool.append(attempt(2 * n + 1)))
        print(2 * n, 2 * n + 1, flush=True)

asyncio.run(main())
"""


def write_until_killed(script: str, path: Path, first: int) -> set[int]:
    """The numbers that a writer had promised when it was killed at a random moment."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path), str(first)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert child.stdout is not None
    said = child.stdout.readline()
    time.sleep(random.uniform(0.0, 0.3))
    os.kill(child.pid, signal.SIGKILL)
    said += child.communicate()[0]
    whole = said[: said.rfind("\n") + 1]
    return {int(word) for word in whole.split()}


def test_killed_while_writing_nothing_acknowledged_is_lost(tmp_path):
    """kill -9 at random moments, again and again: every append that returned is there, once, in one good file."""
    path, script = tmp_path / "spool.sqlite3", WRITER.format(folder=str(Path(__file__).parent))
    promised = set().union(*(write_until_killed(script, path, n * 1_000_000) for n in range(6)))

    async def check() -> None:
        spool = Spool(path, 10**9, 86_400)
        found = [round((row.attempt.scheduled_at - START).total_seconds()) for row in await spool.take(10**6)]
        await spool.close()
        assert promised <= set(found)
        assert len(found) == len(set(found))
        assert spool.losses == {}

    asyncio.run(check())


async def test_a_file_broken_by_the_disk_while_in_use(tmp_path):
    """Garbage written over the open file: the spool goes on with a new one, and counts what the old one held."""
    spool = Spool(tmp_path / "spool.sqlite3", 100 * MIB, 86_400)
    await asyncio.gather(*(spool.append(attempt(n, 400)) for n in range(3000)))
    await spool.close()
    spool = Spool(tmp_path / "spool.sqlite3", 100 * MIB, 86_400)
    size = spool.path.stat().st_size
    with spool.path.open("r+b") as raw:
        raw.write(os.urandom(size))
    with capture_logs() as logs:
        results = await asyncio.gather(
            *(spool.append(attempt(10_000 + n, 400)) for n in range(50)), return_exceptions=True
        )
        await spool.take(5000)
        await spool.append(attempt(20_000))
    assert [result for result in results if isinstance(result, Exception)] == []
    assert spool.losses["corrupt"] >= 3000
    assert (await spool.take(1))[0].attempt == attempt(20_000)
    assert [line["event"] for line in logs] == ["the spool was broken and is set aside"]
    await spool.close()


async def test_what_is_acknowledged_of_a_broken_file_deletes_nothing_of_the_next(tmp_path):
    """A delivery that was under way when the file broke is acknowledged later: the rows of the new file stay."""
    spool = Spool(tmp_path / "spool.sqlite3", 100 * MIB, 86_400)
    under_way = await asyncio.gather(*(spool.append(attempt(n, 400)) for n in range(3000)))
    await spool.close()
    spool = Spool(tmp_path / "spool.sqlite3", 100 * MIB, 86_400)
    with spool.path.open("r+b") as raw:
        raw.write(os.urandom(spool.path.stat().st_size))
    await spool.take(5000)
    later = [await spool.append(attempt(10_000 + n)) for n in range(5)]
    assert spool.losses["corrupt"] >= 3000
    await spool.delete(under_way)
    assert [row.id for row in await spool.take(9, newest_first=False)] == later
    assert (spool.depth, spool.last_id) == (5, later[-1])
    await spool.close()
