"""Attempts into Postgres, exactly once, and out again.

Hides how: a batch travels as one JSON document and is unpacked by Postgres (`json_populate_recordset`), which costs the
same few statements for one attempt as for 500; keys decide races (`ON CONFLICT DO NOTHING`), so that the same batch may
be sent by anyone any number of times. The hours that new rows touch are marked for the rollups, and the rows for their
verdicts, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, Engine, select, text

from monitor import wire
from monitor.model import Attempt, Purpose, Series
from monitor.store import dimensions, partitions, verdicts
from monitor.store.engine import RowRefused, transaction
from monitor.store.rows import Row, series_id, to_attempt, to_row, vantage_id
from monitor.store.tables import attempts as table
from monitor.store.tables import series as series_table

MAX_BATCH = 500
RAW_DAYS = 30
FUTURE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Rejected:
    """An attempt that the store will never take, and why, in one sentence."""

    attempt: Attempt
    reason: str


@dataclass(slots=True)
class Inserted:
    """What became of a batch: each attempt given is in exactly one of these."""

    new: list[Attempt] = field(default_factory=list)
    duplicates: int = 0  # stored before with equal content
    conflicts: list[Attempt] = field(default_factory=list)  # stored before with other content: a cloned agent
    rejected: list[Rejected] = field(default_factory=list)

    def add(self, other: Inserted) -> None:
        """Take over another part's results."""
        self.new += other.new
        self.duplicates += other.duplicates
        self.conflicts += other.conflicts
        self.rejected += other.rejected


def insert(
    engine: Engine,
    series: Iterable[Series],
    attempts: Iterable[Attempt],
    received_at: datetime,
    *,
    raw_days: int = RAW_DAYS,
) -> Inserted:
    """Store attempts; each chunk of up to 500 commits as a whole. Attempts whose series is not given are stored too.

    Refused one by one, with a reason, and never in the way of the others: one-off attempts, those scheduled over a day
    ahead of `received_at` or over `raw_days` before it, and what Postgres itself refuses. Raises StoreUnavailable when
    the database cannot take rows now; chunks before that are stored, and sending all of them again does no harm.
    """
    known, result = list(series), Inserted()
    batch = _Batch(engine, known, received_at)
    for chunk in _chunks(attempts):
        acceptable = _sift(chunk, received_at, raw_days, result)
        if acceptable:
            result.add(batch.store(acceptable))
    return result


def recent(engine: Engine, limit: int = 100, *, since: datetime, until: datetime | None = None) -> list[Attempt]:
    """Stored attempts scheduled from `since` on and before `until`, newest first, as they were given."""
    names = [series_table.c.vantage, series_table.c.target, series_table.c.probe]
    query = (
        select(table, *names)
        .join(
            series_table,
            (series_table.c.vantage_id == table.c.vantage_id) & (series_table.c.series_id == table.c.series_id),
        )
        .where(table.c.scheduled_at >= since)
        .order_by(table.c.scheduled_at.desc(), table.c.series_id, table.c["try"])
        .limit(limit)
    )
    if until is not None:
        query = query.where(table.c.scheduled_at < until)
    with transaction(engine) as connection:
        return [to_attempt(row) for row in connection.execute(query).mappings()]


def _chunks(attempts: Iterable[Attempt]) -> Iterator[list[Attempt]]:
    given = list(attempts)
    for start in range(0, len(given), MAX_BATCH):
        yield given[start : start + MAX_BATCH]


def _sift(chunk: list[Attempt], received_at: datetime, raw_days: int, result: Inserted) -> list[Attempt]:
    """What may be sent to the database; the rest is noted in `result`."""
    latest, earliest = received_at + FUTURE, received_at - timedelta(days=raw_days)
    acceptable = []
    for attempt in chunk:
        if attempt.purpose is Purpose.ONE_OFF:
            result.rejected.append(Rejected(attempt, "one-off attempts stay out of the statistics"))
        elif attempt.scheduled_at > latest:
            result.rejected.append(Rejected(attempt, "scheduled more than a day in the future: is a clock wrong?"))
        elif attempt.scheduled_at < earliest:
            result.rejected.append(Rejected(attempt, f"older than the {raw_days} days for which attempts are kept"))
        else:
            acceptable.append(attempt)
    return acceptable


_COLUMNS = ", ".join(column.name for column in table.columns)
_KEY = "vantage_id, scheduled_at, series_id, try"
_INSERT = text(
    f"INSERT INTO attempts ({_COLUMNS}) "
    f"SELECT {_COLUMNS} FROM json_populate_recordset(NULL::attempts, CAST(:rows AS json)) ORDER BY {_KEY} "
    f"ON CONFLICT ({_KEY}) DO NOTHING RETURNING series_id, scheduled_at, try"
)
_STORED = text(
    "SELECT a.series_id, a.scheduled_at, a.try, a.content_hash FROM attempts a "
    "JOIN json_to_recordset(CAST(:keys AS json)) "
    "AS k(vantage_id bigint, scheduled_at timestamptz, series_id bigint, try smallint) "
    "ON a.vantage_id = k.vantage_id AND a.scheduled_at = k.scheduled_at "
    "AND a.series_id = k.series_id AND a.try = k.try "
    "WHERE a.scheduled_at BETWEEN :first AND :last"
)
_MARK = text(
    "INSERT INTO dirty_hours (vantage_id, series_id, hour, marked_at) "
    "SELECT vantage_id, series_id, hour, marked_at "
    "FROM json_populate_recordset(NULL::dirty_hours, CAST(:rows AS json)) "
    "ON CONFLICT (vantage_id, series_id, hour) DO UPDATE SET marked_at = excluded.marked_at"
)
_FLOOR = text("SELECT max(raw_from) FROM retention_floor")


class _Batch:
    """What all chunks of one call share."""

    def __init__(self, engine: Engine, known: Sequence[Series], received_at: datetime) -> None:
        self._engine = engine
        self._known = known
        self._received_at = received_at
        self._simulated = {s.key: s.simulated for s in known}

    def store(self, attempts: Sequence[Attempt]) -> Inserted:
        """One transaction; when Postgres refuses its content, halves of it, until the bad row stands alone."""
        pairs: list[tuple[Attempt, Row]] = []
        result = Inserted()
        for attempt in attempts:
            try:
                pairs.append((attempt, self._row(attempt)))
            except (wire.WireError, ValueError, TypeError) as error:
                result.rejected.append(Rejected(attempt, f"cannot be stored: {error}"))
        if pairs:
            result.add(self._store(pairs))
        return result

    def _row(self, attempt: Attempt) -> Row:
        simulated = self._simulated.get((attempt.vantage, attempt.target, attempt.probe), False)
        return to_row(attempt, self._received_at, simulated=simulated)

    def _store(self, pairs: list[tuple[Attempt, Row]]) -> Inserted:
        try:
            return self._commit(pairs)
        except RowRefused as error:
            if len(pairs) == 1:
                return Inserted(rejected=[Rejected(pairs[0][0], f"Postgres refused it: {error}")])
        middle = len(pairs) // 2
        result = self._store(pairs[:middle])
        result.add(self._store(pairs[middle:]))
        return result

    def _commit(self, pairs: list[tuple[Attempt, Row]]) -> Inserted:
        result = Inserted()
        news = dimensions.pending(self._engine, self._known, [attempt for attempt, _ in pairs], self._received_at)
        with transaction(self._engine) as connection:
            pairs = self._above_floor(connection, pairs, result)
            if not pairs:
                return result
            partitions.create(connection, {partitions.day_of(attempt.scheduled_at) for attempt, _ in pairs})
            dimensions.write(connection, news, self._received_at)
            self._insert(connection, pairs, result)
            _mark_dirty(connection, result.new, self._received_at)
            verdicts.ask(connection, result.new, self._received_at)
        dimensions.remember(self._engine, news, self._received_at)
        return result

    def _above_floor(
        self, connection: Connection, pairs: list[tuple[Attempt, Row]], result: Inserted
    ) -> list[tuple[Attempt, Row]]:
        """Leave out what belongs to days that retention has dropped: their rollups are final."""
        floor = connection.execute(_FLOOR).scalar()
        if floor is None:
            return pairs
        too_old = [attempt for attempt, _ in pairs if attempt.scheduled_at < floor]
        result.rejected += [
            Rejected(attempt, "the attempts of its day have been dropped already") for attempt in too_old
        ]
        return [pair for pair in pairs if pair[0].scheduled_at >= floor]

    def _insert(self, connection: Connection, pairs: list[tuple[Attempt, Row]], result: Inserted) -> None:
        rows = wire.dumps([row for _, row in pairs]).decode()
        fresh = {_key(*row) for row in connection.execute(_INSERT, {"rows": rows})}
        known: list[tuple[Attempt, Row]] = []
        for attempt, row in pairs:
            key = _key(row["series_id"], attempt.scheduled_at, row["try"])
            if key in fresh:
                fresh.discard(key)
                result.new.append(attempt)
            else:
                known.append((attempt, row))
        if known:
            _tell_apart(connection, known, result)


def _key(series_id: object, scheduled_at: datetime, try_number: object) -> tuple[object, datetime, object]:
    return (series_id, scheduled_at, try_number)


def _tell_apart(connection: Connection, known: list[tuple[Attempt, Row]], result: Inserted) -> None:
    """Sort attempts whose keys are taken into plain duplicates and conflicts, by what is stored under their keys."""
    instants = [attempt.scheduled_at for attempt, _ in known]
    keys = [{name: row[name] for name in ("vantage_id", "scheduled_at", "series_id", "try")} for _, row in known]
    said = {"keys": wire.dumps(keys).decode(), "first": min(instants), "last": max(instants)}
    stored = {_key(*row[:3]): row[3] for row in connection.execute(_STORED, said)}
    for attempt, row in known:
        if stored.get(_key(row["series_id"], attempt.scheduled_at, row["try"])) == row["content_hash"]:
            result.duplicates += 1
        else:
            result.conflicts.append(attempt)


def _mark_dirty(connection: Connection, new: list[Attempt], now: datetime) -> None:
    """Ask for the rollups of the touched hours.

    In key order, so that two batches never wait for each other in a circle; by an update, so that a refresh which has
    claimed the hour is waited for and the mark outlives it.
    """
    touched = {(vantage_id(a.vantage), series_id(a.vantage, a.target, a.probe), hour_of(a.scheduled_at)) for a in new}
    marked_at = wire.rfc3339(now)
    rows = [
        {"vantage_id": vantage, "series_id": series, "hour": wire.rfc3339(hour), "marked_at": marked_at}
        for vantage, series, hour in sorted(touched)
    ]
    if rows:
        connection.execute(_MARK, {"rows": wire.dumps(rows).decode()})


def hour_of(moment: datetime) -> datetime:
    """The start of the UTC hour that holds an instant."""
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
