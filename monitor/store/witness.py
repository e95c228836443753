"""What vantage points saw of neutral endpoints, kept under (vantage, endpoint, instant): twice is once.

Hides the table. Sightings come in through `insert`, from uploads and from the process itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, text

from monitor import wire
from monitor.model import Doubt, Failure, FailureKind, Vantage, stable_id
from monitor.store import dimensions
from monitor.store.engine import transaction
from monitor.store.rows import vantage_id
from monitor.store.tables import witness as table
from monitor.timeline import Phase
from monitor.witness import Sighting

FUTURE = timedelta(days=1)
RAW_DAYS = 30
MOST_READ = 50_000
FORGOTTEN_AT_ONCE = 20_000
PHASES = (Phase.RESOLVE, Phase.CONNECT, Phase.TLS)


@dataclass(frozen=True, slots=True)
class Sighted:
    """What became of sightings: each given was new, known, or is refused with a reason."""

    new: int = 0
    refused: list[tuple[Sighting, str]] = field(default_factory=list)


_COLUMNS = ", ".join(column.name for column in table.columns)
_INSERT = text(
    f"INSERT INTO witness ({_COLUMNS}) SELECT {_COLUMNS} "
    "FROM json_populate_recordset(NULL::witness, CAST(:rows AS json)) ORDER BY vantage_id, endpoint_id, started_at "
    "ON CONFLICT (vantage_id, endpoint_id, started_at) DO NOTHING RETURNING endpoint_id"
)
_BETWEEN = text(
    "SELECT * FROM witness WHERE vantage_id = :vantage_id AND started_at >= :since AND started_at < :until"
    " ORDER BY started_at DESC LIMIT :most"
)
_NEWEST = text(
    "SELECT DISTINCT ON (vantage_id, endpoint_id) * FROM witness WHERE vantage_id = ANY(:ids) AND started_at >= :since"
    " ORDER BY vantage_id, endpoint_id, started_at DESC"
)
_FORGET = text(
    "DELETE FROM witness WHERE (vantage_id, endpoint_id, started_at) IN ("
    "  SELECT vantage_id, endpoint_id, started_at FROM witness WHERE started_at < :before"
    "  ORDER BY started_at LIMIT :most)"
)


def insert(
    engine: Engine,
    vantage: str,
    sightings: Sequence[Sighting],
    now: datetime,
    *,
    known: Vantage | None = None,
    raw_days: int = RAW_DAYS,
) -> Sighted:
    """Store what was seen from one vantage point; what is known already changes nothing. Raises StoreUnavailable.

    Refused are sightings of another vantage point, and those of a clock that is obviously wrong: over a day ahead of
    `now`, or older than what is kept. `known` describes the vantage point, whose name gets its row.
    """
    result = Sighted(0, [(one, why) for one in sightings if (why := _refusal(vantage, one, now, raw_days))])
    bad = {id(one) for one, _ in result.refused}
    rows = [_row(one, now) for one in sightings if id(one) not in bad]
    if not rows:
        return result
    names = dimensions.pending_vantage(engine, vantage, known, now)
    with transaction(engine) as connection:
        dimensions.write(connection, names, now)
        stored = len(connection.execute(_INSERT, {"rows": wire.dumps(rows).decode()}).all())
    dimensions.remember(engine, names, now)
    return Sighted(stored, result.refused)


def between(engine: Engine, vantage: str, since: datetime, until: datetime) -> list[Sighting]:
    """What was seen from a vantage point in [since, until), oldest first; of very many, the newest."""
    asked = {"vantage_id": vantage_id(vantage), "since": since, "until": until, "most": MOST_READ}
    with transaction(engine) as connection:
        rows = connection.execute(_BETWEEN, asked).mappings().all()
    return _read({vantage_id(vantage): vantage}, reversed(rows))


def newest(engine: Engine, vantages: Sequence[str], since: datetime) -> list[Sighting]:
    """The last look of each of these vantage points at each endpoint, none before `since`. Raises StoreUnavailable."""
    named = {vantage_id(name): name for name in vantages}
    with transaction(engine) as connection:
        rows = connection.execute(_NEWEST, {"ids": list(named), "since": since}).mappings().all()
    return _read(named, rows)


def _read(named: Mapping[int, str], rows: Iterable[Any]) -> list[Sighting]:
    found = []
    for row in rows:
        with suppress(ValueError):  # of a newer release, with a failure or a doubt that this one does not know
            found.append(_sighting(named[row["vantage_id"]], row))
    return found


def forget(engine: Engine, before: datetime) -> int:
    """Delete what is older, a bounded number of rows in each transaction; how many there were."""
    gone = 0
    while True:
        with transaction(engine) as connection:
            deleted = int(connection.execute(_FORGET, {"before": before, "most": FORGOTTEN_AT_ONCE}).rowcount)
        gone += deleted
        if deleted < FORGOTTEN_AT_ONCE:
            return gone


def _refusal(vantage: str, one: Sighting, now: datetime, raw_days: int) -> str | None:
    if one.vantage != vantage:
        return f"it is of the vantage point {one.vantage[:60]!r}"
    if one.started_at > now + FUTURE:
        return "it is of more than a day in the future: is a clock wrong?"
    if one.started_at < now - timedelta(days=raw_days):
        return f"it is older than the {raw_days} days for which attempts are kept"
    return None


def _row(one: Sighting, now: datetime) -> dict[str, Any]:
    return {
        "vantage_id": vantage_id(one.vantage),
        "endpoint_id": stable_id("endpoint", one.endpoint),
        "started_at": wire.rfc3339(one.started_at),
        "received_at": wire.rfc3339(now),
        "endpoint": one.endpoint,
        "address": one.address,
        **{f"{phase}_seconds": one.seconds.get(phase) for phase in PHASES},
        "failure_kind": one.failure and one.failure.kind,
        "failure_phase": one.failure and one.failure.phase,
        "failure_text": one.failure and one.failure.text,
        "validity": list(one.validity),
    }


def _sighting(vantage: str, row: Mapping[str, Any]) -> Sighting:
    failure = None
    if row["failure_kind"] is not None:
        kind, phase = FailureKind(row["failure_kind"]), Phase(row["failure_phase"])
        failure = Failure(kind=kind, phase=phase, text=row["failure_text"])
    seconds = {phase: row[f"{phase}_seconds"] for phase in PHASES}
    return Sighting(
        vantage=vantage,
        endpoint=row["endpoint"],
        address=row["address"],
        started_at=row["started_at"],
        seconds={phase: value for phase, value in seconds.items() if value is not None},
        failure=failure,
        validity=tuple(Doubt(name) for name in row["validity"]),
    )
