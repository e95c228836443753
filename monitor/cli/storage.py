"""The database of one process: brought up in the background, used from worker threads, tended every minute.

Hides whether it is the embedded server or another, and that it may be away: until it can be used every call raises
StoreUnavailable, and a call tries again to start, connect and migrate, once in a second at most: those that queued up
behind a server that does not answer are told what the first of them was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from monitor.clock import Clock
from monitor.detect.coldstart import Judgement
from monitor.model import Attempt, MonitorError, Series, StoreRefuses, StoreUnavailable, Vantage
from monitor.notes import Note
from monitor.store import attempts as stored
from monitor.store import coverage, coverage_hours, embedded, migrate, reading, retention, rollups, verdicts, witness
from monitor.store import notes as noted
from monitor.store.engine import Engine, describe, open_engine
from monitor.store.live import LiveQueries
from monitor.store.wheel import wheel_binaries
from monitor.witness import Sighting

P = ParamSpec("P")
T = TypeVar("T")

BRING_UP_EVERY_SECONDS = 1.0
RETENTION_EVERY = timedelta(hours=1)
COVER_EVERY = timedelta(hours=1)
COVER_BACK = timedelta(days=8)
"""How far back hours are looked at again: late rows and notes come within a spool's age, which is usually a week."""
COVER_RECENT = timedelta(hours=2)
"""How far back they are looked at every minute."""
JUDGE_AT_ONCE = 600
"""Attempts with each call: half a second of work beside the measuring loop at most."""
JUDGE_BACK = timedelta(days=7)
"""After an upgrade, attempts of that long are judged by the new rule."""


class Storage:
    """Safe to use from several threads."""

    def __init__(self, url: str | None, data: Path, clock: Clock | None = None) -> None:
        """`url` None: the embedded server, with its data in the folder `data`.

        Raises ConfigError for a URL that cannot be read, EmbeddedPostgresFailed when the embedded one is not installed.
        """
        self._url = url
        self._data = data
        self._clock = clock or Clock()
        self._server: embedded.EmbeddedPostgres | None = None
        self._engine: Engine | None = None
        self._is_up = False
        self._closed = False
        self._bringing_up = threading.Lock()
        self._failed: tuple[float, type[StoreUnavailable], str] | None = None  # the last try, when and why
        self._retained_at: datetime | None = None
        self._covered_at: datetime | None = None
        self._asked_until: datetime | None = None
        self._started_at = self._clock.now()
        if url is None:
            wheel_binaries()
        else:
            self._engine = open_engine(url)

    @property
    def place(self) -> str:
        """Where the rows go, for logs: never with a password."""
        return describe(self._engine) if self._engine is not None else f"embedded Postgres in {self._data}"

    def insert(self, series: Sequence[Series], attempts: Sequence[Attempt], raw_days: int) -> stored.Inserted:
        """Store a batch; see `store.attempts.insert`. Raises StoreUnavailable."""
        engine = self._ready()
        try:
            return stored.insert(engine, series, attempts, self._clock.now(), raw_days=raw_days)
        except StoreUnavailable:
            self._is_up = False
            raise

    def ask(self, question: Callable[Concatenate[Engine, P], T], *arguments: P.args, **named: P.kwargs) -> T:
        """What a function of `store` answers that takes the engine first. Raises StoreUnavailable, or as it does."""
        engine = self._ready()
        try:
            return question(engine, *arguments, **named)
        except StoreUnavailable:
            self._is_up = False
            raise

    def tend(self, raw_days: int, rollup_days: int) -> None:
        """Recompute rollups that new rows touched; make and drop partitions once an hour. Raises StoreUnavailable."""
        engine, now = self._ready(), self._clock.now()
        if self._retained_at is None or abs(now - self._retained_at) >= RETENTION_EVERY:
            retention.sweep(engine, now, retention.Policy(raw_days=raw_days, rollup_days=rollup_days))
            self._retained_at = now
        rollups.refresh(engine, now)

    def note(
        self, vantage: str, agent: str, notes: Sequence[Note], known: Iterable[Series], raw_days: int
    ) -> noted.Noted:
        """Store what an agent says about slots without rows; see `store.notes.insert`. Raises StoreUnavailable."""
        now = self._clock.now()
        return self.ask(noted.insert, vantage, agent, notes, now, known=known, raw_days=raw_days)

    def sight(
        self, vantage: str, sightings: Sequence[Sighting], known: Vantage | None, raw_days: int
    ) -> witness.Sighted:
        """Store what was seen of neutral endpoints; see `store.witness.insert`. Raises StoreUnavailable."""
        now = self._clock.now()
        return self.ask(witness.insert, vantage, sightings, now, known=known, raw_days=raw_days)

    def sightings(self, vantage: str, since: datetime) -> Sequence[Sighting]:
        """What was seen from a vantage point since then; see `store.witness.between`. Raises StoreUnavailable."""
        if self._engine is None or not self._is_up:
            raise StoreUnavailable("the database is not ready yet")
        return witness.between(self._engine, vantage, since, self._clock.now())

    def cover(self) -> list[coverage.Covered]:
        """Write down the coverage of ended hours, once an hour of the whole last week; that of the last whole hour.

        Raises StoreUnavailable.
        """
        engine, now = self._ready(), self._clock.now()
        whole = self._covered_at is None or abs(now - self._covered_at) >= COVER_EVERY
        coverage_hours.sweep(engine, now, COVER_BACK if whole else COVER_RECENT)
        self._covered_at = now if whole else self._covered_at
        ended = stored.hour_of(now)
        return coverage.covered(engine, ended - coverage.HOUR, ended, now)

    def coverage(
        self, since: datetime, until: datetime, *, vantage: str | None = None, target: str | None = None
    ) -> list[coverage.Covered]:
        """What became of the slots of a time; see `store.coverage.covered`. Raises StoreUnavailable."""
        return coverage.covered(self._up(), since, until, self._clock.now(), vantage=vantage, target=target)

    def attempts(
        self, asked: reading.Selection, limit: int, after: reading.Key | None = None
    ) -> Sequence[reading.Told]:
        """See `store.reading.attempts`. Raises StoreUnavailable."""
        return reading.attempts(self._up(), asked, limit, after)

    def all_series(self) -> Sequence[Mapping[str, Any]]:
        """See `store.reading.series`. Raises StoreUnavailable."""
        return reading.series(self._up())

    def over_time(self, measure: str, since: datetime, until: datetime, **how: Any) -> Sequence[reading.Point]:
        """See `store.reading.over_time`. Raises StoreUnavailable."""
        return reading.over_time(self._up(), measure, since, until, **how)

    def _up(self) -> Engine:
        """For readers, who do not wait for a database that is being brought up."""
        if self._engine is None or not self._is_up:
            raise StoreUnavailable("the database is not ready yet")
        return self._engine

    def judge(self, rules: verdicts.Rules) -> list[Judgement]:
        """Give the verdicts that are due; see `store.verdicts.sweep`. Raises StoreUnavailable.

        After a start, what has none yet is asked about too, a day with each call.
        """
        engine, now = self._ready(), self._clock.now()
        since = self._asked_until or now - JUDGE_BACK
        if since < now and (self._asked_until is None or since < self._started_at):
            until = min(now, since + timedelta(days=1))
            verdicts.ask_again(engine, since, until, now)
            self._asked_until = until
        return verdicts.sweep(engine, now, rules, max_attempts=JUDGE_AT_ONCE)

    def more_to_judge(self) -> bool:
        """Whether `judge` has left any because of its bound. Raises StoreUnavailable."""
        return verdicts.due(self._ready(), self._clock.now())

    def latest_verdicts(self, per_series: int) -> Sequence[Judgement]:
        """See `store.live.LiveQueries`."""
        return self._queries().latest_verdicts(per_series)

    def judged_since(self, moment: datetime) -> Sequence[Judgement]:
        """See `store.live.LiveQueries`."""
        return self._queries().judged_since(moment)

    def latest(self, per_series: int) -> Sequence[Attempt]:
        """See `store.live.LiveQueries`."""
        return self._queries().latest(per_series)

    def received_since(self, moment: datetime) -> Sequence[Attempt]:
        """See `store.live.LiveQueries`."""
        return self._queries().received_since(moment)

    def failing_since(self, vantage: str, target: str, probe: str) -> tuple[datetime, bool] | None:
        """See `store.live.LiveQueries`."""
        return self._queries().failing_since(vantage, target, probe)

    def _queries(self) -> LiveQueries:
        return LiveQueries(self._up(), self._clock)

    def close(self) -> None:
        """Close connections; stop the embedded server unless others use it. No later call starts it again."""
        self._closed = True
        with self._bringing_up:
            if self._engine is not None:
                self._engine.dispose()
            if self._server is not None:
                self._server.stop()

    def _ready(self) -> Engine:
        with self._bringing_up:
            if self._closed:  # a worker that came late must not bring back what was just stopped
                raise StoreUnavailable("the database has been closed")
            if not self._is_up or self._engine is None:
                self._try_to_bring_up()
                self._is_up = True
            assert self._engine is not None
            return self._engine

    def _try_to_bring_up(self) -> None:
        if self._failed is not None and time.monotonic() - self._failed[0] < BRING_UP_EVERY_SECONDS:
            _, kind, reason = self._failed
            raise kind(reason)
        try:
            self._bring_up()
        except StoreUnavailable as error:
            self._failed = (time.monotonic(), type(error), str(error))
            raise
        self._failed = None

    def _bring_up(self) -> None:
        try:
            url = self._url or self._start_embedded()
            migrate.upgrade(url)
        except StoreUnavailable:
            raise
        except migrate.SchemaNewer as error:
            raise StoreRefuses(str(error)) from error
        except MonitorError as error:
            raise StoreUnavailable(str(error)) from error

    def _start_embedded(self) -> str:
        """Start it, again if it died; the new hold on the server is taken before the old one is let go."""
        server = embedded.start(self._data)
        if self._server is not None:
            self._server.stop()
        self._server = server
        if self._engine is None:
            self._engine = open_engine(server.url)
        return server.url
