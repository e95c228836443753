"""The spool: every attempt rests on disk before anything else sees it, until its delivery was acknowledged.

Hides the writing thread. All calls queue up for one thread of its own, so that no fsync ever blocks the measuring
loop; whatever has queued up becomes one transaction. Bounded in bytes and age: the oldest attempts give way and are
counted. A file that cannot be read is set aside under a dated name; a disk that refuses makes `append` raise
SpoolFull, counted, until it has room again.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from monitor.agent.schedule import Walked
from monitor.agent.spoolfile import (
    ROW_OVERHEAD_BYTES,
    SeriesKey,
    SpoolBusy,
    SpoolCorrupt,
    SpoolFile,
    SpoolLock,
    is_corrupt,
    set_aside,
)
from monitor.clock import Clock, instant, wall_ns
from monitor.model import Attempt, SpoolFull
from monitor.notes import LossReason, LostNote, Note
from monitor.wire import WireError, decode, decode_note, decode_sighting, dumps, encode, encode_note, encode_sighting
from monitor.witness import Sighting

MOST_IN_ONE_TRANSACTION = 200
ROOM_SHARE = 200
"""A full spool makes room for a two-hundredth of its bound at a time: notes of losses then stay few."""
MOST_REMEMBERED = 10_000
"""Attempts lost on a full disk whose slots are remembered until they can be noted."""
HOUSEKEEPING_NS = 30 * 1_000_000_000
T = TypeVar("T")
log = structlog.get_logger("firsttoken.spool")


@dataclass(frozen=True, slots=True)
class SpooledRow:
    """An attempt with the id under which its delivery is acknowledged."""

    id: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class SpooledNote:
    """A note with the vantage point that it speaks of; its own id is the one under which it is acknowledged."""

    vantage: str
    note: Note


@dataclass(frozen=True, slots=True)
class SpooledSighting:
    """What a look saw, with the id under which its delivery is acknowledged."""

    id: int
    sighting: Sighting


@dataclass(frozen=True, slots=True)
class Broken:
    """A spool file that was set aside: what it held lies between these instants."""

    first_at: datetime
    last_at: datetime
    rows: int  # at least; 0 when nobody knows


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the writing thread last published: read by any thread, replaced as a whole."""

    depth: int = 0
    size_bytes: int = 0
    oldest_us: int | None = None
    last_id: int = 0
    notes: int = 0
    sightings: int = 0
    agent: str = ""
    losses: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Job(Generic[T]):
    work: Callable[[SpoolFile], T]
    appends: Attempt | None = None
    reads: bool = False  # goes on while the disk refuses writes
    done: Future[T] = field(default_factory=Future)
    outcome: Any = None


class Spool:
    """Attempts on disk, newest first. `Spool(...)` opens it (synchronous, some milliseconds), `close` closes it."""

    def __init__(self, path: Path, max_bytes: int, max_age_seconds: float, clock: Clock | None = None) -> None:
        """Open or create the spool at `path`; missing directories are made private (0700).

        Raises SpoolBusy when another process holds it or the directory cannot be used. A broken file is set aside.
        """
        self.path = path
        self.max_bytes = max_bytes
        self.max_age_seconds = max_age_seconds
        self._clock = clock or Clock()
        self._uncounted: Counter[str] = Counter()  # losses that could not be written down yet
        self._acknowledged: set[int] = set()  # delivered rows that are not deleted yet
        self._forgotten: set[int] = set()  # of these, what the transaction under way deletes
        self._facts = _Facts()
        self._walked: dict[SeriesKey, Walked] = {}  # marks that wait for the next transaction
        self._marking = threading.Lock()
        self._unwritten: list[Attempt] = []  # lost on a full disk, and not yet said so
        self._broken: list[Broken] = []
        self._housekept_ns = 0
        self._file: SpoolFile | None = None
        self._trouble: str | None = None
        self._lock = SpoolLock(path)
        self._open_at_start()
        self.alive_before: tuple[int | None, str | None] = (
            self._file.alive() if self._file is not None else (None, None)
        )
        """Up to when everything was on disk in an earlier life (microseconds), and in which boot; None: not known."""
        self._closing = False
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="spool", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------------ facts

    @property
    def depth(self) -> int:
        """How many attempts wait."""
        return max(0, self._facts.depth - len(self._acknowledged))

    @property
    def size_bytes(self) -> int:
        """What they take, encoded, with a fixed overhead for each."""
        return self._facts.size_bytes

    @property
    def oldest(self) -> datetime | None:
        """When the oldest waiting attempt was appended; None when none waits."""
        oldest = self._facts.oldest_us
        return None if oldest is None else instant(oldest * 1_000)

    @property
    def trouble(self) -> str | None:
        """Why the spool cannot be written now; None while it can."""
        return self._trouble

    @property
    def last_id(self) -> int:
        """The id of the newest attempt ever appended."""
        return self._facts.last_id

    @property
    def notes_waiting(self) -> int:
        """How many notes wait."""
        return self._facts.notes

    @property
    def sightings_waiting(self) -> int:
        """How many results of looks at neutral endpoints wait."""
        return self._facts.sightings

    @property
    def agent(self) -> str:
        """Who writes here: 32 hex digits, made with the file; empty while the disk refuses to make one."""
        return self._facts.agent

    @property
    def losses(self) -> Mapping[str, int]:
        """Attempts lost since the spool was created, by reason: `size`, `age`, `disk_full`, `corrupt`, `unreadable`,
        `unwritable`, `rejected`. A file found broken at the start counts once, as nobody knows how much it held.
        """
        return dict(self._facts.losses)

    # ------------------------------------------------------------------------------------------------ calls

    async def append(self, attempt: Attempt) -> int:
        """Store an attempt; on return it has reached the disk. Returns its row id.

        Raises SpoolFull when the disk refuses or the attempt alone exceeds the bound (both counted as losses), and
        WireError for an attempt that cannot be encoded.
        """
        return await self._ask(lambda file: self._append(file, attempt), appends=attempt)

    async def take(self, limit: int, *, newest_first: bool = True, after: int = 0) -> list[SpooledRow]:
        """Up to `limit` waiting attempts with ids above `after`. They stay until deleted."""
        return await self._ask(lambda file: self._take(file, limit, newest_first, after), reads=True)

    async def delete(self, ids: Sequence[int]) -> None:
        """Forget delivered attempts. On a full disk they are remembered as delivered and deleted later."""
        self._acknowledged.update(ids)
        try:
            await self._ask(lambda file: self._delete(file, ids))
        except SpoolFull:
            return

    async def reject(self, row: SpooledRow, reason: str) -> None:
        """Set one attempt aside for good, with the reason; counted as `rejected`, and noted as lost."""
        await self._ask(lambda file: self._reject(file, row, reason))

    async def rejected(self) -> list[tuple[int, str, bytes]]:
        """What was set aside: (id, reason, encoded attempt), oldest first, at most a thousand."""
        return await self._ask(SpoolFile.rejected, reads=True)

    async def note(self, vantage: str, note: Note) -> None:
        """Keep what is to be said about slots of a vantage point; it gets an id of this file's own."""
        payload = _written(note)
        await self._ask(lambda file: file.note(vantage, payload))

    async def take_notes(self, limit: int) -> list[SpooledNote]:
        """The oldest notes that wait; one that cannot be read is dropped. They stay until deleted."""
        return await self._ask(lambda file: self._take_notes(file, limit), reads=True)

    async def delete_notes(self, ids: Sequence[int]) -> None:
        """Forget notes that were acknowledged."""
        await self._ask(lambda file: file.delete_notes(ids))

    async def sight(self, sighting: Sighting) -> None:
        """Keep what a look saw; on return it has reached the disk. Raises SpoolFull."""
        payload = dumps(encode_sighting(sighting)).decode()
        await self._ask(lambda file: file.sight(sighting.vantage, payload))

    async def take_sightings(self, limit: int) -> list[SpooledSighting]:
        """The newest that wait; one that cannot be read is dropped. They stay until deleted."""
        return await self._ask(lambda file: self._take_sightings(file, limit), reads=True)

    async def delete_sightings(self, ids: Sequence[int]) -> None:
        """Forget sightings that were acknowledged."""
        await self._ask(lambda file: file.delete_sightings(ids))

    async def mark_alive(self, until: datetime, boot: str) -> None:
        """Everything up to this instant is on disk."""
        await self._ask(lambda file: file.mark_alive(wall_ns(until) // 1_000, boot))

    def take_broken(self) -> list[Broken]:
        """Files that were set aside since the last call."""
        broken, self._broken = self._broken, []
        return broken

    def mark(self, series: SeriesKey, walked: Walked) -> None:
        """Remember how far a series has come: on disk together with whatever is asked next, at the latest at `close`.

        So a slot's mark costs no write of its own, and is there whenever its attempt is.
        """
        with self._marking:
            self._walked[series] = walked

    async def marks(self) -> Mapping[SeriesKey, Walked]:
        """How far each series had come."""
        return await self._ask(SpoolFile.marks, reads=True)

    async def close(self) -> None:
        """Finish what was asked, close the file and let others have it."""
        self._closing = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _ask(self, work: Callable[[SpoolFile], T], *, appends: Attempt | None = None, reads: bool = False) -> T:
        if self._closing:  # nothing would answer what queues up behind the end
            raise SpoolFull(f"the spool {self.path} is closed")
        job = _Job(work, appends, reads)
        self._jobs.put(job)
        return await asyncio.shield(asyncio.wrap_future(job.done))  # a caller that is cancelled undoes nothing

    # ------------------------------------------------------------------------------------------------ the thread

    def _work(self) -> None:
        open_for_business = True
        while open_for_business:
            jobs: list[_Job[Any]] = []
            open_for_business = self._collect(jobs)
            if jobs or (self._walked and not open_for_business):
                self._run(jobs)
        if self._file is not None:
            self._file.close()
        self._lock.release()

    def _collect(self, jobs: list[_Job[Any]]) -> bool:
        """Wait for a job and take all that queue behind it; False once `close` was asked."""
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) >= MOST_IN_ONE_TRANSACTION or self._jobs.empty():
                return True
            job = self._jobs.get()
        return False

    def _run(self, jobs: list[_Job[Any]]) -> None:
        for attempt_left in (True, False):
            try:
                self._transact(jobs)
            except (sqlite3.Error, SpoolCorrupt, OSError) as error:
                broken = isinstance(error, SpoolCorrupt) or (isinstance(error, sqlite3.Error) and is_corrupt(error))
                if broken and attempt_left and self._set_aside(error):
                    continue
                self._refuse(jobs, error)
            return

    def _transact(self, jobs: list[_Job[Any]]) -> None:
        file = self._file or self._open()
        try:
            file.begin()
            self._write_uncounted(file)
            marks = self._write_marks(file)
            for job in jobs:
                self._try(file, job)
            self._housekeep(file)
            file.commit()
        except BaseException:
            self._forgotten = set()
            self._roll_back(file)
            raise
        self._uncounted.clear()
        self._unwritten.clear()
        with self._marking:
            self._walked = {key: walked for key, walked in self._walked.items() if marks.get(key) != walked}
        self._acknowledged.difference_update(self._forgotten)
        self._forgotten = set()
        self._publish()
        self._accept(jobs)

    @staticmethod
    def _try(file: SpoolFile, job: _Job[Any]) -> None:
        """A job's own mistake (an attempt that cannot be encoded) is its own; the disk's errors end the transaction."""
        try:
            job.outcome = job.work(file)
        except (sqlite3.Error, SpoolCorrupt, OSError):
            raise
        except Exception as error:  # noqa: BLE001  # told to whoever asked; the thread and the other jobs go on
            job.outcome = error

    def _accept(self, jobs: list[_Job[Any]]) -> None:
        if self._trouble is not None:
            self._trouble = None
            log.info("the spool can be written again", path=str(self.path), lost=dict(self.losses))
        for job in jobs:
            if isinstance(job.outcome, Exception):
                job.done.set_exception(job.outcome)
            else:
                job.done.set_result(job.outcome)

    def _refuse(self, jobs: list[_Job[Any]], error: Exception) -> None:
        if self._trouble is None:
            log.error(
                "the spool cannot be written; attempts are lost until it can", path=str(self.path), cause=str(error)
            )
        self._trouble = f"the spool cannot be written: {error}"
        failed = [job for job in jobs if not (job.reads and self._read(job))]
        lost = [job.appends for job in failed if job.appends is not None]
        self._uncounted["disk_full"] += len(lost)
        self._unwritten = [*self._unwritten, *lost][-MOST_REMEMBERED:]
        self._publish()  # before anybody is told, so that whoever is told finds it counted
        for job in failed:
            full = SpoolFull(f"the spool {self.path} cannot be written: {error}")
            full.__cause__ = error
            job.done.set_exception(full)

    def _read(self, job: _Job[Any]) -> bool:
        """Answer a reading job outside any transaction; False when even that fails."""
        if self._file is None:
            return False
        try:
            job.done.set_result(job.work(self._file))
        except (sqlite3.Error, OSError):
            return False
        return True

    def _publish(self) -> None:
        file = self._file
        if file is None:
            self._facts = replace(self._facts, losses=Counter(self._facts.losses) | self._uncounted)
            return
        losses = file.losses + self._uncounted
        self._facts = _Facts(
            depth=file.depth,
            size_bytes=file.size_bytes,
            oldest_us=file.oldest_us,
            last_id=file.last_id,
            notes=file.notes_waiting,
            sightings=file.sightings_waiting,
            agent=file.agent,
            losses=losses,
        )

    @staticmethod
    def _roll_back(file: SpoolFile) -> None:
        try:
            file.rollback()
        except sqlite3.Error:
            return  # the same trouble again; the error under way says it already

    # ------------------------------------------------------------------------------------------------ the file

    def _open_at_start(self) -> None:
        """A full disk at the start is like one later: probes go on. Anything else that refuses ends the start."""
        try:
            self._open()
        except SpoolBusy:
            self._lock.release()
            raise
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
                self._lock.release()
                raise SpoolBusy(f"the spool {self.path} cannot be opened: {error}") from error
        self._publish()

    def _open(self) -> SpoolFile:
        """Open the file, setting a broken one aside first; raises what the disk says."""
        try:
            self._file = SpoolFile(self.path)
        except (SpoolCorrupt, sqlite3.DatabaseError) as error:
            if not isinstance(error, SpoolCorrupt) and not is_corrupt(error):
                raise
            self._set_aside(error)
            self._file = SpoolFile(self.path)
        return self._file

    def _set_aside(self, error: Exception) -> bool:
        """Rename the broken file; what it held and what it had counted is carried as far as known."""
        known, self._file = self._file, None
        oldest_us = known.oldest_us if known is not None else None
        now = self._clock.now()
        first = now - timedelta(seconds=self.max_age_seconds) if oldest_us is None else instant(oldest_us * 1_000)
        self._broken.append(Broken(min(first, now), now, known.depth if known is not None else 0))
        if known is not None:
            known.close()
            self._uncounted.update(known.losses)
        self._uncounted["corrupt"] += max(1, known.depth) if known else 1
        stamp = self._clock.now().strftime("%Y%m%dT%H%M%S.%fZ")
        try:
            aside = set_aside(self.path, stamp)
        except OSError:
            return False
        log.error("the spool was broken and is set aside", path=str(self.path), aside=str(aside), cause=str(error))
        return True

    def _append(self, file: SpoolFile, attempt: Attempt) -> int:
        try:
            payload = encode(attempt)
        except WireError:
            file.lose("unwritable", 1)
            raise
        size = len(payload) + ROW_OVERHEAD_BYTES
        if size > self.max_bytes:
            file.lose("size", 1)
            raise SpoolFull(f"an attempt of {size} bytes exceeds the spool's bound of {self.max_bytes} bytes")
        if file.size_bytes + size > self.max_bytes:
            room = max(file.size_bytes + size - self.max_bytes, self.max_bytes // ROOM_SHARE)
            gone = file.drop_oldest(room, "size")
            _note_lost(file, map(_slot_of, gone), LossReason.SPOOL_FULL)
        return file.append(payload, self._now_us())

    def _take(self, file: SpoolFile, limit: int, newest_first: bool, after: int) -> list[SpooledRow]:
        found: list[SpooledRow] = []
        delivered = self._acknowledged.copy()  # atomic; the loop's thread adds to it meanwhile
        for row_id, payload in file.take(limit + len(delivered), newest_first=newest_first, after=after):
            if row_id in delivered:
                continue
            try:
                found.append(SpooledRow(row_id, decode(payload)))
            except WireError as error:
                file.reject(row_id, f"unreadable: {error}", self._now_us())
        return found[:limit]

    @staticmethod
    def _take_notes(file: SpoolFile, limit: int) -> list[SpooledNote]:
        found, broken = [], []
        for note_id, vantage, payload in file.notes(limit):
            try:
                found.append(SpooledNote(vantage, decode_note(vantage, {**json.loads(payload), "id": note_id})))
            except (WireError, ValueError, TypeError) as error:
                log.warning("a note about slots cannot be read and is dropped", vantage=vantage, cause=str(error)[:500])
                broken.append(note_id)
        if broken:  # left where they are they would be taken again and again, and hold up whatever is behind them
            file.delete_notes(broken)
        return found

    @staticmethod
    def _take_sightings(file: SpoolFile, limit: int) -> list[SpooledSighting]:
        found, broken = [], []
        for row_id, vantage, payload in file.sightings(limit):
            try:
                found.append(SpooledSighting(row_id, decode_sighting(vantage, json.loads(payload))))
            except (WireError, ValueError):
                broken.append(row_id)
        if broken:
            file.delete_sightings(broken)
        return found

    def _delete(self, file: SpoolFile, ids: Sequence[int]) -> None:
        """Once the transaction is through they are neither there nor remembered, both at one moment: see `depth`."""
        file.delete(ids)
        self._forgotten.update(ids)

    def _reject(self, file: SpoolFile, row: SpooledRow, reason: str) -> None:
        file.reject(row.id, reason, self._now_us())
        one = row.attempt
        if not one.try_number:
            _note_lost(file, [(one.vantage, one.target, one.probe, one.scheduled_at)], LossReason.REJECTED)

    def _write_marks(self, file: SpoolFile) -> dict[SeriesKey, Walked]:
        with self._marking:
            marks = dict(self._walked)
        for series, walked in marks.items():
            file.mark(series, walked)
        return marks

    def _write_uncounted(self, file: SpoolFile) -> None:
        for reason, count in self._uncounted.items():
            file.lose(reason, count)
        lost = [(one.vantage, one.target, one.probe, one.scheduled_at) for one in self._unwritten if not one.try_number]
        _note_lost(file, lost, LossReason.DISK_FULL)

    def _housekeep(self, file: SpoolFile) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._housekept_ns < HOUSEKEEPING_NS:
            return
        self._housekept_ns = now_ns
        gone = file.drop_older(self._now_us() - round(self.max_age_seconds * 1e6), "age")
        _note_lost(file, map(_slot_of, gone), LossReason.SPOOL_AGE)
        self._forgotten = self._acknowledged.copy()
        file.delete(self._forgotten)
        file.give_back()

    def _now_us(self) -> int:
        return self._clock.wall_ns() // 1_000


SlotKey = tuple[str, str, str, datetime]
"""(vantage, target, probe, planned instant)."""


def _slot_of(payload: bytes) -> SlotKey | None:
    """The slot of an encoded attempt; None for a confirming one, which no plan owed, and for what cannot be read."""
    try:
        one = decode(payload)
    except WireError:
        return None
    return None if one.try_number else (one.vantage, one.target, one.probe, one.scheduled_at)


def _note_lost(file: SpoolFile, slots: Iterable[SlotKey | None], reason: LossReason) -> None:
    """One note for each series: how many attempts of which time are gone, and why."""
    of_series: dict[tuple[str, str, str], list[datetime]] = {}
    for slot in slots:
        if slot is not None:
            of_series.setdefault(slot[:3], []).append(slot[3])
    for (vantage, target, probe), instants in of_series.items():
        note = LostNote(
            id=0,
            target=target,
            probe=probe,
            first_at=min(instants),
            last_at=max(instants),
            slots=len(instants),
            reason=reason,
        )
        file.note(vantage, _written(note))


def _written(note: Note) -> str:
    """A note without its id, which is the row's."""
    said = encode_note(note)
    del said["id"]
    return dumps(said).decode()
