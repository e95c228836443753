"""The spool on a real disk: durable, bounded, private, and unbroken by broken files."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from monitor.agent.schedule import Walked
from monitor.agent.spool import Spool
from monitor.agent.spoolfile import MAX_SIGHTINGS, SpoolBusy, SpoolFile
from monitor.clock import ManualClock
from monitor.grid import microseconds
from monitor.model import Attempt, Outcome, SpoolFull
from monitor.notes import GapNote, LostNote
from monitor.witness import Sighting

pytestmark = pytest.mark.anyio
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = ("lagos", "t", "q")
SEEN = Sighting(vantage="lagos", endpoint="near", address="tcp://192.0.2.1:443", started_at=START)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def attempt(number: int, finish_reason: str = "stop") -> Attempt:
    at = START + timedelta(seconds=number)
    return Attempt(
        vantage="lagos",
        target="t",
        probe="q",
        probe_version="v",
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
        finish_reason=finish_reason,
    )


def spool(
    tmp_path: Path, max_bytes: int = 1_000_000, max_age: float = 86_400, clock: ManualClock | None = None
) -> Spool:
    return Spool(tmp_path / "state" / "spool.sqlite3", max_bytes, max_age, clock or ManualClock(START))


async def fill(store: Spool, count: int, first: int = 0) -> list[int]:
    return list(await asyncio.gather(*(store.append(attempt(first + n)) for n in range(count))))


async def test_what_was_appended_comes_back_equal_and_newest_first(tmp_path):
    """Attempts survive closing and opening again, unchanged, the newest first."""
    store = spool(tmp_path)
    await fill(store, 5)
    await store.close()
    store = spool(tmp_path)
    rows = await store.take(3)
    assert [row.attempt for row in rows] == [attempt(4), attempt(3), attempt(2)]
    assert [row.attempt for row in await store.take(2, newest_first=False)] == [attempt(0), attempt(1)]
    assert store.depth == 5
    await store.close()


async def test_an_id_is_never_used_twice(tmp_path):
    """An acknowledgement of an old row can never delete a newer one: ids go on after a delete and a restart."""
    store = spool(tmp_path)
    ids = await fill(store, 3)
    await store.delete(ids)
    await store.close()
    store = spool(tmp_path)
    assert store.depth == 0
    assert min(await fill(store, 1)) > max(ids)
    await store.delete(ids)
    assert store.depth == 1
    await store.close()


async def test_take_can_start_behind_an_id(tmp_path):
    """Fresh rows are those above the id that was seen last."""
    store = spool(tmp_path)
    ids = await fill(store, 4)
    assert [row.id for row in await store.take(10, after=ids[1])] == [ids[3], ids[2]]
    await store.close()


async def test_bytes_are_bounded_and_the_oldest_give_way(tmp_path):
    """Beyond its bound the spool drops its oldest attempts and counts them; the count survives a restart."""
    store = spool(tmp_path, max_bytes=20_000)
    await fill(store, 300)
    kept = store.depth
    assert store.size_bytes <= 20_000
    assert store.losses == {"size": 300 - kept}
    assert (await store.take(1))[0].attempt == attempt(299)
    await store.close()
    store = spool(tmp_path, max_bytes=20_000)
    assert (store.depth, store.losses) == (kept, {"size": 300 - kept})
    await store.close()


async def test_an_attempt_larger_than_the_bound_is_refused(tmp_path):
    """One that alone exceeds the bound costs no other its place."""
    store = spool(tmp_path, max_bytes=600)
    await store.append(attempt(0))
    with pytest.raises(SpoolFull, match="exceeds the spool's bound"):
        await store.append(attempt(1, finish_reason="x" * 500))
    assert (store.depth, store.losses) == (1, {"size": 1})
    await store.close()


async def test_age_is_bounded(tmp_path):
    """Attempts older than the bound are dropped and counted; younger ones stay."""
    clock = ManualClock(START)
    store = spool(tmp_path, max_age=3600, clock=clock)
    await fill(store, 10)
    clock.advance(3000)
    await fill(store, 1, first=50)
    clock.advance(1000)
    await fill(store, 1, first=51)
    assert (store.depth, store.losses) == (2, {"age": 10})
    assert store.oldest == START + timedelta(seconds=3000)
    await store.close()


@pytest.mark.parametrize(
    "damage",
    ["truncated", "cut to nothing", "zeroed", "garbage", "foreign schema", "no tables", "no tables, of version 1"],
)
async def test_a_broken_file_is_set_aside(tmp_path, damage, capsys):
    """Whatever happened to the file, the spool starts, says so once, keeps the broken file and counts the loss."""
    store = spool(tmp_path)
    await fill(store, 200)
    await store.close()
    harm(store.path, damage)
    broken = store.path.read_bytes()
    store = spool(tmp_path)
    await fill(store, 1)
    aside = list(store.path.parent.glob("*.corrupt-*"))
    assert [path.read_bytes() for path in aside] == [broken]
    assert store.depth == 1
    assert store.losses == {"corrupt": 1}
    assert capsys.readouterr().out.count("set aside") == 1
    await store.close()


def harm(path: Path, damage: str) -> None:
    size = path.stat().st_size
    if damage == "truncated":
        os.truncate(path, size // 2 + 100)
    elif damage == "cut to nothing":
        os.truncate(path, 0)
    elif damage == "zeroed":
        path.write_bytes(bytes(size))
    elif damage == "garbage":
        path.write_bytes(bytes(range(256)) * 40)
    else:
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE other (x)")
            if damage.startswith("no tables"):
                db.execute(f"PRAGMA application_id = {0x46545350}")
                db.execute(f"PRAGMA user_version = {1 if damage == 'no tables, of version 1' else 2}")
        db.close()


async def test_a_file_that_breaks_while_in_use_is_set_aside(tmp_path):
    """Damage under a running spool: later attempts are kept, the loss counted with what is known."""
    store = spool(tmp_path)
    await fill(store, 400)
    await store.close()
    store = spool(tmp_path)
    size = store.path.stat().st_size
    with store.path.open("r+b") as raw:
        raw.seek(4096)
        raw.write(os.urandom(size - 4096))
    await fill(store, 3, first=500)
    await store.delete([1, 2, 3])
    rows = await store.take(500)
    await fill(store, 1, first=600)
    assert len(rows) + store.losses.get("corrupt", 0) + store.losses.get("unreadable", 0) >= 400 - 3
    assert (await store.take(1))[0].attempt == attempt(600)
    await store.close()


async def test_only_a_few_broken_files_are_kept(tmp_path):
    """A disk that keeps breaking the file does not fill itself with the remains."""
    clock = ManualClock(START)
    for _ in range(6):
        store = spool(tmp_path, clock=clock)
        await store.close()
        harm(store.path, "garbage")
        clock.advance(1)
    assert len(list(store.path.parent.glob("*.corrupt-*"))) == 3


async def test_a_payload_that_cannot_be_read_is_set_aside_alone(tmp_path):
    """One unreadable row goes to `rejected`; the rows beside it are delivered."""
    store = spool(tmp_path)
    await fill(store, 3)
    await store.close()
    with sqlite3.connect(store.path) as db:
        db.execute("UPDATE attempts SET payload = ? WHERE id = 2", (b'{"wire":"9.0"}',))
    db.close()
    store = spool(tmp_path)
    assert [row.attempt for row in await store.take(10)] == [attempt(2), attempt(0)]
    ((row_id, reason, payload),) = await store.rejected()
    assert (row_id, payload) == (2, b'{"wire":"9.0"}')
    assert reason.startswith("unreadable")
    assert (store.depth, store.losses) == (2, {"rejected": 1})
    await store.close()


async def test_rejected_rows_are_kept_with_their_reason_and_bounded(tmp_path):
    """What the store refuses for good is kept for inspection, at most a thousand."""
    store = spool(tmp_path)
    ids = await fill(store, 1005)
    rows = await store.take(1005, newest_first=False)
    await asyncio.gather(*(store.reject(row, "numeric overflow") for row in rows))
    kept = await store.rejected()
    assert len(kept) == 1000
    assert kept[-1][:2] == (ids[-1], "numeric overflow")
    assert (store.depth, store.losses) == (0, {"rejected": 1005})
    await store.close()


async def test_marks_and_notes_survive_a_restart(tmp_path):
    """How far each series has come, what was skipped without rows, and who writes here is there after a restart."""
    walked = Walked(handled_us=10, ceiling_us=20, repeats=1)
    gap = GapNote(id=0, target="t", probe="q", first_at=START, last_at=START, slots=7, reason="late")
    store = spool(tmp_path)
    store.mark(KEY, Walked(handled_us=1, ceiling_us=1))
    store.mark(KEY, walked)
    await store.note("lagos", gap)
    agent = store.agent
    await store.mark_alive(START, "boot-1")
    await store.close()
    store = spool(tmp_path)
    assert await store.marks() == {KEY: walked}
    ((vantage, note),) = [(one.vantage, one.note) for one in await store.take_notes(10)]
    assert (vantage, replace(note, id=0)) == ("lagos", gap)
    assert (store.agent, len(agent)) == (agent, 32)
    assert store.alive_before == (microseconds(START), "boot-1")
    await store.delete_notes([note.id])
    assert (store.notes_waiting, await store.take_notes(10)) == (0, [])
    await store.close()


async def test_a_mark_is_on_disk_no_later_than_its_attempt(tmp_path):
    """It waits for the next write and goes with it; the last ones go at the end."""
    walked = Walked(handled_us=10, ceiling_us=20)
    store = spool(tmp_path)
    store.mark(KEY, walked)
    await fill(store, 1)
    with sqlite3.connect(store.path) as other:
        assert other.execute("SELECT handled_us, ceiling_us FROM walked").fetchall() == [(10, 20)]
    other.close()
    store.mark(KEY, replace(walked, handled_us=11))
    store.mark(KEY, replace(walked, handled_us=12))
    await store.close()
    store = spool(tmp_path)
    assert await store.marks() == {KEY: replace(walked, handled_us=12)}
    await store.close()


async def test_a_note_id_is_never_used_twice(tmp_path):
    """Notes are acknowledged by id: a later one must not bear the id of one that was deleted."""
    gap = GapNote(id=0, target="t", probe="q", first_at=START, last_at=START, slots=7, reason="late")
    store = spool(tmp_path)
    await store.note("lagos", gap)
    (first,) = await store.take_notes(10)
    await store.delete_notes([first.note.id])
    await store.close()
    store = spool(tmp_path)
    await store.note("lagos", gap)
    (second,) = await store.take_notes(10)
    assert second.note.id > first.note.id
    await store.close()


async def test_what_is_dropped_is_noted_with_its_slots(tmp_path):
    """Rows that give way for room, and rows that the store refuses, are notes with series, range, number and reason."""
    store = spool(tmp_path, max_bytes=20_000)
    await fill(store, 200)
    lost = 200 - store.depth
    (row,) = await store.take(1)
    await store.reject(row, "no")
    said = [one.note for one in await store.take_notes(500)]
    assert all(isinstance(note, LostNote) and (note.target, note.probe) == ("t", "q") for note in said)
    assert sum(note.slots for note in said if note.reason == "spool_full") == lost > 0
    assert min(note.first_at for note in said) == START
    rejected = [(note.slots, note.first_at) for note in said if note.reason == "rejected"]
    assert rejected == [(1, row.attempt.scheduled_at)]
    await store.close()


async def test_a_full_spool_does_not_note_each_loss_by_itself(tmp_path):
    """Room is made for several at a time, a small part of the bound, so that notes of losses never crowd out others."""
    store = spool(tmp_path, max_bytes=400_000)
    await fill(store, 2500)
    lost, notes = 2500 - store.depth, store.notes_waiting
    assert lost > 100
    assert 0 < notes <= lost / 4
    assert store.size_bytes > 390_000
    await store.close()


async def test_a_broken_file_says_between_which_instants_it_lay(tmp_path):
    """A file set aside at the start may hold anything that is young enough to be kept."""
    store = spool(tmp_path, max_age=3600)
    await fill(store, 3)
    await store.close()
    harm(store.path, "garbage")
    store = spool(tmp_path, max_age=3600)
    (broken,) = store.take_broken()
    assert (broken.first_at, broken.last_at, broken.rows) == (START - timedelta(seconds=3600), START, 0)
    assert store.take_broken() == []
    await store.close()


async def test_a_file_of_a_newer_release_is_left_alone(tmp_path):
    """After a rollback over a new format nothing is lost: the start is refused with what to do, the file stays."""
    store = spool(tmp_path)
    await fill(store, 3)
    await store.close()
    with sqlite3.connect(store.path) as db:
        db.execute("PRAGMA user_version = 3")
    db.close()
    for _ in range(2):
        with pytest.raises(SpoolBusy, match="newer release"):
            spool(tmp_path)
    assert list(store.path.parent.glob("*.corrupt-*")) == []


async def test_a_file_of_version_1_is_upgraded_in_place(tmp_path):
    """Attempts, marks and gaps of the previous release's spool stay; its gaps are notes now."""
    store = spool(tmp_path)
    ids = await fill(store, 3)
    store.mark(KEY, Walked(handled_us=10, ceiling_us=20))
    await store.close()
    with sqlite3.connect(store.path, isolation_level=None) as db:
        db.executescript(
            "DROP TABLE notes; DROP TABLE identity; PRAGMA user_version = 1; CREATE TABLE gaps (id INTEGER PRIMARY KEY "
            "AUTOINCREMENT, vantage TEXT NOT NULL, target TEXT NOT NULL, probe TEXT NOT NULL, first_at TEXT NOT NULL, "
            "last_at TEXT NOT NULL, slots INTEGER NOT NULL, reason TEXT NOT NULL);"
        )
        row = ("lagos", "t", "q", START.isoformat(), START.isoformat(), 7, "late")
        columns = "vantage, target, probe, first_at, last_at, slots, reason"
        db.execute(f"INSERT INTO gaps ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    db.close()
    store = spool(tmp_path)
    assert [one.id for one in await store.take(10, newest_first=False)] == ids
    assert await store.marks() == {KEY: Walked(handled_us=10, ceiling_us=20)}
    ((vantage, note),) = [(one.vantage, one.note) for one in await store.take_notes(10)]
    assert (vantage, note.slots, note.first_at, note.reason) == ("lagos", 7, START, "late")
    assert len(store.agent) == 32
    await store.close()


async def test_files_are_private(tmp_path):
    """Nobody else can read the spool: 0600 for files, 0700 for the directory."""
    store = spool(tmp_path)
    await fill(store, 1)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.path.parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    await store.close()


async def test_a_second_process_is_told_who_holds_the_spool(tmp_path):
    """Two owners of one spool would deliver each other's rows: the second gets a sentence with the holder's pid."""
    store = spool(tmp_path)
    with pytest.raises(SpoolBusy, match=f"in use by another process .pid {os.getpid()}."):
        spool(tmp_path)
    await store.close()
    again = spool(tmp_path)
    await again.close()


async def test_a_closed_spool_refuses(tmp_path):
    """After close nothing pretends to be stored."""
    store = spool(tmp_path)
    await store.close()
    with pytest.raises(SpoolFull, match="closed"):
        await store.append(attempt(0))


async def test_what_is_asked_while_it_closes_is_answered(tmp_path):
    """A straggler is refused at once; it does not wait for a thread that has ended."""
    store = spool(tmp_path)
    closing_down = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        with pytest.raises(SpoolFull, match="closed"):
            await store.append(attempt(0))
        await closing_down


async def test_a_defect_costs_its_own_call_only(tmp_path):
    """What cannot be stored for a reason nobody foresaw is told to whoever asked; everything else goes on."""
    store = spool(tmp_path)
    unforeseen = replace(attempt(0), started_at="yesterday")
    async with asyncio.timeout(30):
        ours, theirs = await asyncio.gather(store.append(unforeseen), store.append(attempt(1)), return_exceptions=True)
        assert isinstance(ours, Exception)
        assert theirs in [row.id for row in await store.take(9)]
        assert store.depth == 1
        await store.close()


async def test_a_cancelled_caller_loses_nothing(tmp_path):
    """Cancelling the task that appends does not take the attempt back."""
    store = spool(tmp_path)
    task = asyncio.create_task(store.append(attempt(0)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await fill(store, 1, first=1)
    assert store.depth == 2
    await store.close()


async def test_sightings_of_a_file_that_knows_none(tmp_path):
    """A spool of the release before gets their table and loses nothing; that release can read the file again."""
    store = spool(tmp_path)
    await fill(store, 1)
    await store.close()
    with closing(sqlite3.connect(store.path)) as before:
        version = before.execute("PRAGMA user_version").fetchone()
        before.execute("DROP TABLE sightings")
    newer = spool(tmp_path)
    assert (newer.depth, newer.sightings_waiting, newer.losses) == (1, 0, {})
    await newer.sight(SEEN)
    assert [one.sighting for one in await newer.take_sightings(9)] == [SEEN]
    await newer.close()
    with closing(sqlite3.connect(store.path)) as after:
        assert after.execute("PRAGMA user_version").fetchone() == version


async def test_an_unreadable_sighting_is_dropped(tmp_path):
    """What nobody can read keeps nothing back."""
    store = spool(tmp_path)
    await store.sight(SEEN)
    await store.close()
    with closing(sqlite3.connect(store.path)) as broken:
        broken.execute("INSERT INTO sightings (vantage, payload) VALUES ('lagos', '{]')")
        broken.commit()
    again = spool(tmp_path)
    assert again.sightings_waiting == 2
    assert [one.sighting for one in await again.take_sightings(9)] == [SEEN]
    assert again.sightings_waiting == 1
    await again.close()


async def test_an_unreadable_note_is_dropped(tmp_path):
    """A note of a newer release, left behind by one that was rolled back, keeps no other back and waits no longer."""
    gap = GapNote(id=0, target="t", probe="q", first_at=START, last_at=START, slots=7, reason="late")
    store = spool(tmp_path)
    await store.note("lagos", gap)
    await store.close()
    with closing(sqlite3.connect(store.path)) as broken:
        payloads = [("lagos", one) for one in ('{"kind": "of tomorrow"}', "[1]", "{]")]
        broken.executemany("INSERT INTO notes (vantage, payload) VALUES (?, ?)", payloads)
        broken.commit()
    again = spool(tmp_path)
    assert again.notes_waiting == 4
    assert [replace(one.note, id=0) for one in await again.take_notes(9)] == [gap]
    assert again.notes_waiting == 1
    await again.close()


def test_sightings_are_bounded(tmp_path):
    """Of very many the newest are kept."""
    file = SpoolFile(tmp_path / "spool.sqlite3")
    file.begin()
    for number in range(MAX_SIGHTINGS + 3):
        file.sight("lagos", str(number))
    file.commit()
    assert file.sightings_waiting == MAX_SIGHTINGS
    assert [payload for _, _, payload in file.sightings(2)] == [str(MAX_SIGHTINGS + 2), str(MAX_SIGHTINGS + 1)]
    file.refresh()
    assert file.sightings_waiting == MAX_SIGHTINGS
    file.close()
