"""The spool's writing thread: no fsync ever blocks the loop, and whatever has queued up becomes one transaction.

Hides threads, and what is done when the disk refuses or the file is broken. What could not be written is remembered,
bounded, and written down with the next transaction that succeeds; a broken file is set aside under a dated name and a
new one takes its place. Facts are published as a whole after each transaction, for any thread to read.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from monitor.agent import spoolrows
from monitor.agent.schedule import Walked
from monitor.agent.spoolfile import SpoolBusy, SpoolCorrupt, SpoolFile, SpoolLock, is_corrupt, set_aside
from monitor.clock import Clock, instant
from monitor.model import Attempt, SeriesKey, SpoolFull
from monitor.notes import LossReason

MOST_IN_ONE_TRANSACTION = 200
MOST_REMEMBERED = 10_000
"""Attempts lost on a full disk whose slots are remembered until they can be noted."""
HOUSEKEEPING_NS = 30 * 1_000_000_000
T = TypeVar("T")
log = structlog.get_logger("firsttoken.spool")


@dataclass(frozen=True, slots=True)
class Broken:
    """A spool file that was set aside: what it held lies between these instants."""

    first_at: datetime
    last_at: datetime
    rows: int  # at least; 0 when nobody knows


@dataclass(frozen=True, slots=True)
class SpoolFacts:
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


class SpoolWriter:
    """One thread and the file that it writes, from the constructor to `close`; called from one event loop."""

    def __init__(self, path: Path, max_age_seconds: float, clock: Clock) -> None:
        """Open or create the file and start. Raises SpoolBusy as `Spool` does."""
        self.path = path
        self.facts = SpoolFacts()
        self.trouble: str | None = None
        """Why the disk refuses now; None while it does not."""
        self._max_age_seconds = max_age_seconds
        self._clock = clock
        self._uncounted: Counter[str] = Counter()  # losses that could not be written down yet
        self._acknowledged: set[int] = set()  # delivered rows that are not deleted yet
        self._forgotten: set[int] = set()  # of these, what the transaction under way deletes
        self._walked: dict[SeriesKey, Walked] = {}  # marks that wait for the next transaction
        self._marking = threading.Lock()
        self._unwritten: list[Attempt] = []  # lost on a full disk, and not yet said so
        self._broken: list[Broken] = []
        self._housekept_ns = 0
        self._replaced = False  # the file to be opened takes the place of a broken one
        self._file: SpoolFile | None = None
        self._lock = SpoolLock(path)
        self._open_at_start()
        self.alive_before = self._file.alive() if self._file is not None else (None, None)
        self._closing = False
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="spool", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------------ from the loop

    @property
    def depth(self) -> int:
        """How many attempts wait."""
        return max(0, self.facts.depth - len(self._acknowledged))

    def delivered(self) -> set[int]:
        """Rows that were acknowledged and are not deleted yet; for any thread."""
        return self._acknowledged.copy()  # atomic; the loop's thread adds to it meanwhile

    def take_broken(self) -> list[Broken]:
        """Files that were set aside since the last call."""
        broken, self._broken = self._broken, []
        return broken

    def mark(self, series: SeriesKey, walked: Walked) -> None:
        """Remember how far a series has come: on disk with the next transaction, at the latest at `close`."""
        with self._marking:
            self._walked[series] = walked

    async def delete(self, ids: Sequence[int]) -> None:
        """Forget delivered attempts. Raises SpoolFull: then they are remembered as delivered and deleted later."""
        self._acknowledged.update(ids)
        await self.ask(lambda file: self._delete(file, ids))

    async def close(self) -> None:
        """Finish what was asked, close the file and let others have it."""
        self._closing = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def ask(self, work: Callable[[SpoolFile], T], *, appends: Attempt | None = None, reads: bool = False) -> T:
        """What `work` answers, once it is on disk. Raises SpoolFull when the disk refuses, and what `work` raises."""
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
            except Exception as error:  # noqa: BLE001  # whatever it is, whoever asked is told, and the thread goes on
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
        if self.trouble is not None:
            self.trouble = None
            log.info("the spool can be written again", path=str(self.path), lost=dict(self.facts.losses))
        for job in jobs:
            if isinstance(job.outcome, Exception):
                job.done.set_exception(job.outcome)
            else:
                job.done.set_result(job.outcome)

    def _refuse(self, jobs: list[_Job[Any]], error: Exception) -> None:
        if self.trouble is None:
            log.error(
                "the spool cannot be written; attempts are lost until it can", path=str(self.path), cause=str(error)
            )
        self.trouble = f"the spool cannot be written: {error}"
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
        except Exception as error:  # noqa: BLE001  # as in `_try`
            job.done.set_exception(error)
        return True

    def _publish(self) -> None:
        file = self._file
        if file is None:
            self.facts = replace(self.facts, losses=Counter(self.facts.losses) | self._uncounted)
            return
        losses = file.losses + self._uncounted
        self.facts = SpoolFacts(
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
        if self._replaced:
            self._file.begin_ids_at(self._clock.wall_ns() // 1_000)
            self._replaced = False
        return self._file

    def _set_aside(self, error: Exception) -> bool:
        """Rename the broken file; what it held and what it had counted is carried as far as known."""
        known, self._file = self._file, None
        oldest_us = known.oldest_us if known is not None else None
        now = self._clock.now()
        first = now - timedelta(seconds=self._max_age_seconds) if oldest_us is None else instant(oldest_us * 1_000)
        self._broken.append(Broken(min(first, now), now, known.depth if known is not None else 0))
        if known is not None:
            known.close()
            self._uncounted.update(known.losses)
        self._uncounted["corrupt"] += max(1, known.depth) if known else 1
        try:
            aside = set_aside(self.path, now.strftime("%Y%m%dT%H%M%S.%fZ"))
        except OSError:
            return False
        self._replaced = True
        self._acknowledged.difference_update(self.delivered())  # gone with the file
        log.error("the spool was broken and is set aside", path=str(self.path), aside=str(aside), cause=str(error))
        return True

    def _delete(self, file: SpoolFile, ids: Sequence[int]) -> None:
        """Once the transaction is through they are neither there nor remembered, both at one moment: see `depth`."""
        file.delete(ids)
        self._forgotten.update(ids)

    def _write_marks(self, file: SpoolFile) -> dict[SeriesKey, Walked]:
        with self._marking:
            marks = dict(self._walked)
        for series, walked in marks.items():
            file.mark(series, walked)
        return marks

    def _write_uncounted(self, file: SpoolFile) -> None:
        for reason, count in self._uncounted.items():
            file.lose(reason, count)
        spoolrows.note_lost(file, map(spoolrows.slot_of, self._unwritten), LossReason.DISK_FULL)

    def _housekeep(self, file: SpoolFile) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._housekept_ns < HOUSEKEEPING_NS:
            return
        self._housekept_ns = now_ns
        spoolrows.drop_older(file, self._clock.wall_ns() // 1_000 - round(self._max_age_seconds * 1e6))
        self._forgotten = self._acknowledged.copy()
        file.delete(self._forgotten)
        file.give_back()
