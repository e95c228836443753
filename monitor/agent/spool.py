"""The spool: every attempt rests on disk before anything else sees it, until its delivery was acknowledged.

Bounded in bytes and age: the oldest attempts give way and are counted. A file that cannot be read is set aside under a
dated name; a disk that refuses makes `append` raise SpoolFull, counted, until it has room again. Hides how calls reach
the disk (`spoolwriter.py`: a thread of its own), what rows mean (`spoolrows.py`) and their tables (`spoolfile.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from monitor.agent import spoolrows
from monitor.agent.schedule import Walked
from monitor.agent.spoolfile import SpoolFile
from monitor.agent.spoolrows import SpooledNote, SpooledRow, SpooledSighting
from monitor.agent.spoolwriter import Broken, SpoolWriter
from monitor.clock import Clock, instant, wall_ns
from monitor.model import Attempt, SeriesKey, SpoolFull
from monitor.notes import Note
from monitor.wire import dumps, encode_sighting
from monitor.witness import Sighting


class Spool:
    """Attempts on disk, newest first. `Spool(...)` opens it (synchronous, some milliseconds), `close` closes it."""

    def __init__(self, path: Path, max_bytes: int, max_age_seconds: float, clock: Clock | None = None) -> None:
        """Open or create the spool at `path`; missing directories are made private (0700).

        Raises SpoolBusy when another process holds it or the directory cannot be used. A broken file is set aside.
        """
        self.path = path
        self.max_bytes = max_bytes
        self._clock = clock or Clock()
        self._writer = SpoolWriter(path, max_age_seconds, self._clock)

    # ------------------------------------------------------------------------------------------------ facts

    @property
    def depth(self) -> int:
        """How many attempts wait."""
        return self._writer.depth

    @property
    def size_bytes(self) -> int:
        """What they take, encoded, with a fixed overhead for each."""
        return self._writer.facts.size_bytes

    @property
    def oldest(self) -> datetime | None:
        """When the oldest waiting attempt was appended; None when none waits."""
        oldest = self._writer.facts.oldest_us
        return None if oldest is None else instant(oldest * 1_000)

    @property
    def trouble(self) -> str | None:
        """Why the spool cannot be written now; None while it can."""
        return self._writer.trouble

    @property
    def last_id(self) -> int:
        """The id of the newest attempt ever appended."""
        return self._writer.facts.last_id

    @property
    def notes_waiting(self) -> int:
        """How many notes wait."""
        return self._writer.facts.notes

    @property
    def sightings_waiting(self) -> int:
        """How many results of looks at neutral endpoints wait."""
        return self._writer.facts.sightings

    @property
    def alive_before(self) -> tuple[int | None, str | None]:
        """Up to when everything was on disk in an earlier life (microseconds), and in which boot; None: not known."""
        return self._writer.alive_before

    @property
    def agent(self) -> str:
        """Who writes here: 32 hex digits, made with the file; empty while the disk refuses to make one."""
        return self._writer.facts.agent

    @property
    def losses(self) -> Mapping[str, int]:
        """Attempts lost since the spool was created, by reason: `size`, `age`, `disk_full`, `corrupt`, `unreadable`,
        `unwritable`, `rejected`. A file found broken at the start counts once, as nobody knows how much it held.
        """
        return dict(self._writer.facts.losses)

    # ------------------------------------------------------------------------------------------------ calls

    async def append(self, attempt: Attempt) -> int:
        """Store an attempt; on return it has reached the disk. Returns its row id.

        Raises SpoolFull when the disk refuses or the attempt alone exceeds the bound (both counted as losses), and
        WireError for an attempt that cannot be encoded.
        """
        return await self._writer.ask(
            lambda file: spoolrows.append(file, attempt, self.max_bytes, self._now_us()), appends=attempt
        )

    async def take(self, limit: int, *, newest_first: bool = True, after: int = 0) -> list[SpooledRow]:
        """Up to `limit` waiting attempts with ids above `after`. They stay until deleted."""
        return await self._writer.ask(
            lambda file: spoolrows.take(
                file,
                limit,
                newest_first=newest_first,
                after=after,
                delivered=self._writer.delivered(),
                now_us=self._now_us(),
            ),
            reads=True,
        )

    async def delete(self, ids: Sequence[int]) -> None:
        """Forget delivered attempts. On a full disk they are remembered as delivered and deleted later."""
        try:
            await self._writer.delete(ids)
        except SpoolFull:
            return

    async def reject(self, row: SpooledRow, reason: str) -> None:
        """Set one attempt aside for good, with the reason; counted as `rejected`, and noted as lost."""
        await self._writer.ask(lambda file: spoolrows.reject(file, row, reason, self._now_us()))

    async def rejected(self) -> list[tuple[int, str, bytes]]:
        """What was set aside: (id, reason, encoded attempt), oldest first, at most a thousand."""
        return await self._writer.ask(SpoolFile.rejected, reads=True)

    async def note(self, vantage: str, note: Note) -> None:
        """Keep what is to be said about slots of a vantage point; it gets an id of this file's own."""
        payload = spoolrows.written(note)
        await self._writer.ask(lambda file: file.note(vantage, payload))

    async def take_notes(self, limit: int) -> list[SpooledNote]:
        """The oldest notes that wait; one that cannot be read is dropped. They stay until deleted."""
        return await self._writer.ask(lambda file: spoolrows.take_notes(file, limit), reads=True)

    async def delete_notes(self, ids: Sequence[int]) -> None:
        """Forget notes that were acknowledged."""
        await self._writer.ask(lambda file: file.delete_notes(ids))

    async def sight(self, sighting: Sighting) -> None:
        """Keep what a look saw; on return it has reached the disk. Raises SpoolFull."""
        payload = dumps(encode_sighting(sighting)).decode()
        await self._writer.ask(lambda file: file.sight(sighting.vantage, payload))

    async def take_sightings(self, limit: int) -> list[SpooledSighting]:
        """The newest that wait; one that cannot be read is dropped. They stay until deleted."""
        return await self._writer.ask(lambda file: spoolrows.take_sightings(file, limit), reads=True)

    async def delete_sightings(self, ids: Sequence[int]) -> None:
        """Forget sightings that were acknowledged."""
        await self._writer.ask(lambda file: file.delete_sightings(ids))

    async def mark_alive(self, until: datetime, boot: str) -> None:
        """Everything up to this instant is on disk."""
        await self._writer.ask(lambda file: file.mark_alive(wall_ns(until) // 1_000, boot))

    def take_broken(self) -> list[Broken]:
        """Files that were set aside since the last call."""
        return self._writer.take_broken()

    def mark(self, series: SeriesKey, walked: Walked) -> None:
        """Remember how far a series has come: on disk together with whatever is asked next, at the latest at `close`.

        So a slot's mark costs no write of its own, and is there whenever its attempt is.
        """
        self._writer.mark(series, walked)

    async def marks(self) -> Mapping[SeriesKey, Walked]:
        """How far each series had come."""
        return await self._writer.ask(SpoolFile.marks, reads=True)

    async def close(self) -> None:
        """Finish what was asked, close the file and let others have it."""
        await self._writer.close()

    def _now_us(self) -> int:
        return self._clock.wall_ns() // 1_000
