"""Coverage from the record: for every series and hour the slots owed, measured and missed, with their causes.

Hides where the numbers come from. An hour whose rollup agrees with the plan in number and sum of its slots is counted
from the rollup alone; an hour without rows from plan and notes alone; every other hour from its rows. All of it is read
in one snapshot, so that rows, notes and plans belong together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, text

from monitor import wire
from monitor.clock import instant
from monitor.detect.coverage import (
    CAUSES,
    HOUR_US,
    REACH_US,
    Key,
    Row,
    Segment,
    Span,
    Tally,
    Waiting,
    cover,
    expected,
    micros,
    segments,
    spans,
    until_us,
)
from monitor.grid import US
from monitor.store import notes
from monitor.store.attempts import hour_of
from monitor.store.engine import transaction
from monitor.store.rows import series_id, vantage_id

HOUR = timedelta(hours=1)
LONGEST = timedelta(days=31)
"""The widest range of one answer."""
DELIVERY_US = 15 * US
"""How long a row may be under way before its slot counts as unsent."""
ROWS_AT_ONCE = 500
"""Series-hours whose rows are read with one statement."""
UNKNOWN_DEADLINE_US = 60 * US


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """One series in one hour."""

    vantage: str
    target: str
    probe: str
    hour: datetime
    tally: Tally
    simulated: bool = False  # its provider or its distance


@dataclass(slots=True)
class _Rollup:
    attempts: int
    measured: int
    misses: Mapping[str, int]
    slots_us: int | None
    rows_changed: bool  # since it was computed


@dataclass(slots=True)
class _Vantage:
    """What is known of one vantage point in the range asked for."""

    name: str
    plan: dict[Key, list[Segment]]
    spans_of: dict[tuple[int, Key | None], list[Span]]  # (hour, series; None: any) -> those that touch it
    settled_us: dict[str, int]
    deadlines_us: dict[int, int] = field(default_factory=dict)  # series -> deadline
    simulated: set[int] = field(default_factory=set)  # series
    rollups: dict[tuple[int, int], _Rollup] = field(default_factory=dict)  # (series, hour)


def covered(
    engine: Engine,
    since: datetime,
    until: datetime,
    now: datetime,
    *,
    vantage: str | None = None,
    target: str | None = None,
) -> list[Covered]:
    """Every series that owed anything, or has rows, in the hours that touch [since, until), by vantage.

    Hours to come are left out, the running one is counted up to `now`; nothing before the first plan is owed. At most
    31 days. Raises StoreUnavailable.
    """
    first, last = hour_of(max(since, until - LONGEST)), hour_of(min(until - timedelta(microseconds=1), now))
    if last < first:
        return []
    with transaction(engine) as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        floor_us = _floor_us(connection)
        found: list[Covered] = []
        for name in _vantages(connection, vantage):
            known = _read(connection, name, first, last + HOUR)
            found += _count(connection, known, micros(first), micros(last), micros(now), target, floor_us)
    return [one for one in found if one.tally != Tally()]


def grouped(found: Iterable[Covered], *by: str) -> dict[tuple[object, ...], Tally]:
    """The tallies added up by some of `vantage`, `target`, `probe` and `hour`, in order of these."""
    sums: dict[tuple[object, ...], Tally] = defaultdict(Tally)
    for one in found:
        sums[tuple(getattr(one, name) for name in by)].add(one.tally)
    return dict(sorted(sums.items(), key=lambda pair: tuple(map(str, pair[0]))))


def simulated(found: Iterable[Covered], *by: str) -> set[tuple[object, ...]]:
    """The groups of `grouped` in which anything is simulated."""
    return {tuple(getattr(one, name) for name in by) for one in found if one.simulated}


# ---------------------------------------------------------------------------------------------------- reading


_VANTAGES = text(
    "SELECT v.name FROM vantages v WHERE (CAST(:name AS text) IS NULL OR v.name = :name)"
    " AND EXISTS (SELECT FROM notes n WHERE n.vantage_id = v.vantage_id) ORDER BY v.name"
)
_SERIES = text(
    "SELECT s.series_id, s.deadline_seconds, coalesce(v.simulated, false) OR coalesce(t.simulated, false) FROM series s"
    " LEFT JOIN vantages v ON v.vantage_id = s.vantage_id LEFT JOIN targets t ON t.target_id = s.target_id"
    " WHERE s.vantage_id = :vantage_id"
)
_TOKENS = text(
    "SELECT count(*) AS tokens, count(*) FILTER (WHERE least(revoked_at, expires_at) IS NULL) AS good,"
    " max(least(revoked_at, expires_at)) AS ended FROM agent_tokens WHERE vantage_id = :vantage_id"
)
_ROLLUPS = text(
    "SELECT coalesce(r.series_id, d.series_id), coalesce(r.hour, d.hour), r.attempts, r.success + r.failed, r.misses,"
    " r.slots_us, d.hour IS NOT NULL "
    "FROM (SELECT * FROM rollups WHERE vantage_id = :vantage_id AND hour >= :since AND hour < :until) r "
    "FULL JOIN (SELECT * FROM dirty_hours WHERE vantage_id = :vantage_id AND hour >= :since AND hour < :until) d "
    "ON d.series_id = r.series_id AND d.hour = r.hour"
)
_ROWS = text(
    "SELECT k.series_id, k.hour_us, (extract(epoch FROM a.scheduled_at) * 1000000)::bigint, a.missed_reason "
    "FROM json_to_recordset(CAST(:hours AS json))"
    " AS k(series_id bigint, hour_us bigint, since timestamptz, until timestamptz) "
    "JOIN attempts a ON a.vantage_id = :vantage_id AND a.series_id = k.series_id AND a.try = 0"
    " AND a.scheduled_at >= k.since AND a.scheduled_at < k.until "
    "WHERE a.scheduled_at >= :first AND a.scheduled_at < :last"
)


def _vantages(connection: Connection, name: str | None) -> list[str]:
    return list(connection.execute(_VANTAGES, {"name": name}).scalars())


def _floor_us(connection: Connection) -> int:
    """Rows of hours before this have been dropped."""
    floor = connection.execute(text("SELECT max(raw_from) FROM retention_floor")).scalar()
    return 0 if floor is None else micros(floor)


def _read(connection: Connection, name: str, since: datetime, until: datetime) -> _Vantage:
    said = notes.read(connection, name, since - HOUR, until)  # a repetition may stand behind its slot's hour
    asked = {"vantage_id": vantage_id(name), "since": since, "until": until}
    plan = until_us(segments(said), _retired_us(connection, name))
    known = _Vantage(name, plan, _by_hour(spans(note for _, note in said), plan, since, until), {})
    for agent, sent_at, oldest_at in connection.execute(
        text("SELECT agent, sent_at, spool_oldest_at FROM agents WHERE vantage_id = :vantage_id"), asked
    ):
        settled = micros(sent_at if oldest_at is None else min(sent_at, oldest_at))
        known.settled_us |= {agent: settled, notes.copy_of(agent): settled}
    for series, deadline, simulated in connection.execute(_SERIES, asked):
        known.deadlines_us[series] = UNKNOWN_DEADLINE_US if deadline is None else round(deadline * US)
        if simulated:
            known.simulated.add(series)
    for series, hour, attempts, measured, misses, slots_us, dirty in connection.execute(_ROLLUPS, asked):
        rollup = _Rollup(attempts or 0, measured or 0, misses or {}, slots_us, dirty)
        known.rollups[series, micros(hour)] = rollup
    return known


def _retired_us(connection: Connection, name: str) -> int | None:
    """When the last token of a vantage point ended; None while one lets an agent in, and where there never was one."""
    row = connection.execute(_TOKENS, {"vantage_id": vantage_id(name)}).one()
    return micros(row.ended) if row.tokens and not row.good else None


def _by_hour(
    known: Sequence[Span], plan: Iterable[Key], since: datetime, until: datetime
) -> dict[tuple[int, Key | None], list[Span]]:
    """Spans by what they touch, those that name what was never planned left out."""
    touching: dict[tuple[int, Key | None], list[Span]] = defaultdict(list)
    keys = list(plan)
    for span in known:
        named = span.target is not None or span.probe is not None
        concerned: list[Key | None] = [key for key in keys if span.concerns(key)] if named else [None]
        begin = max(span.from_us, micros(since)) // HOUR_US * HOUR_US
        for hour in range(begin, min(span.until_us + 1, micros(until)), HOUR_US):
            for key in concerned:
                touching[hour, key].append(span)
    return touching


# ---------------------------------------------------------------------------------------------------- counting


def _count(
    connection: Connection,
    known: _Vantage,
    first_us: int,
    last_us: int,
    now_us: int,
    target: str | None,
    floor_us: int,
) -> Iterator[Covered]:
    asked: list[tuple[Key, int, list[Segment]]] = []  # hours whose rows must be read
    for key, plan in sorted(known.plan.items()):
        if target not in (None, key[0]):
            continue
        series = series_id(known.name, *key)
        for hour_us, touching in _hours(plan, first_us, last_us):
            rollup = known.rollups.get((series, hour_us))
            tally = None
            if rollup is None:
                tally = cover(touching, hour_us, (), *_rest(known, key, hour_us, touching, now_us))
            elif not rollup.rows_changed and hour_us + HOUR_US <= now_us:
                tally = _from_rollup(touching, hour_us, rollup)
                if tally is None and hour_us < floor_us:
                    wait = _rest(known, key, hour_us, touching, now_us)
                    tally = _approximate(touching, hour_us, rollup, *wait)
            if tally is None:
                asked.append((key, hour_us, touching))
            else:
                yield _said(known, key, hour_us, tally)
    for start in range(0, len(asked), ROWS_AT_ONCE):
        chunk = asked[start : start + ROWS_AT_ONCE]
        rows = _rows(connection, known.name, [(series_id(known.name, *key), hour) for key, hour, _ in chunk])
        for key, hour_us, touching in chunk:
            own = rows.get((series_id(known.name, *key), hour_us), ())
            tally = cover(touching, hour_us, own, *_rest(known, key, hour_us, touching, now_us))
            yield _said(known, key, hour_us, tally)


def _said(known: _Vantage, key: Key, hour_us: int, tally: Tally) -> Covered:
    return Covered(
        vantage=known.name,
        target=key[0],
        probe=key[1],
        hour=instant(hour_us * 1_000),
        tally=tally,
        simulated=series_id(known.name, *key) in known.simulated,
    )


def _hours(plan: Sequence[Segment], first_us: int, last_us: int) -> Iterator[tuple[int, list[Segment]]]:
    """The hours in which something of a series' plan was in force, with that."""
    by_hour: dict[int, list[Segment]] = defaultdict(list)
    for segment in plan:
        begin = max(first_us, segment.after_us // HOUR_US * HOUR_US)
        end = last_us if segment.until_us is None else min(last_us, segment.until_us)
        for hour_us in range(begin, end + 1, HOUR_US):
            by_hour[hour_us].append(segment)
    yield from sorted(by_hour.items())


def _rest(known: _Vantage, key: Key, hour_us: int, plan: Sequence[Segment], now_us: int) -> tuple[list[Span], Waiting]:
    """What explains an hour's slots without rows."""
    deadline = known.deadlines_us.get(series_id(known.name, *key), UNKNOWN_DEADLINE_US)
    patience = deadline + max((one.grid.grace_us for one in plan), default=0) + DELIVERY_US
    concerned = [*known.spans_of.get((hour_us, key), ()), *known.spans_of.get((hour_us, None), ())]
    return sorted(concerned, key=Span.order), Waiting(now_us=now_us, patience_us=patience, settled_us=known.settled_us)


def _from_rollup(plan: Sequence[Segment], hour_us: int, rollup: _Rollup) -> Tally | None:
    """The hour's tally when its rows are exactly the slots owed; None when they are not."""
    if (rollup.attempts, rollup.slots_us) != expected(plan, hour_us):
        return None
    tally = Tally(owed=rollup.measured, measured=rollup.measured)
    for reason, slots in rollup.misses.items():
        tally.miss(reason, slots)
    return tally if tally.owed == rollup.attempts else None


def _approximate(plan: Sequence[Segment], hour_us: int, rollup: _Rollup, known: Sequence[Span], wait: Waiting) -> Tally:
    """The tally of an hour whose rows have been dropped: rows are taken to answer for slots that no note explains."""
    alone = cover(plan, hour_us, (), known, wait)
    owed, measured = alone.owed, min(rollup.measured, alone.owed)
    tally, left = Tally(owed=measured, measured=measured), owed - measured
    for reason, slots in rollup.misses.items():
        taken = min(left, slots)
        tally.miss(reason, taken)
        left -= taken
    for reason in sorted(alone.missed, key=lambda one: CAUSES.index(one) if one in CAUSES else len(CAUSES)):
        taken = min(left, alone.missed[reason])
        tally.miss(reason, taken)
        left -= taken
    return tally


def _rows(
    connection: Connection, vantage: str, hours: Sequence[tuple[int, int]]
) -> Mapping[tuple[int, int], list[Row]]:
    said = [
        {
            "series_id": series,
            "hour_us": hour_us,
            "since": wire.rfc3339(instant(hour_us * 1_000)),
            "until": wire.rfc3339(instant((hour_us + HOUR_US + REACH_US) * 1_000)),
        }
        for series, hour_us in hours
    ]
    begins = [hour_us for _, hour_us in hours]
    asked = {
        "vantage_id": vantage_id(vantage),
        "hours": wire.dumps(said).decode(),
        "first": instant(min(begins) * 1_000),
        "last": instant((max(begins) + HOUR_US + REACH_US) * 1_000),
    }
    found: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for series, hour_us, at_us, missed in connection.execute(_ROWS, asked):
        found[series, hour_us].append(Row(at_us, missed))
    return found
