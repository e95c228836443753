"""The small tables that name and place what attempts belong to: written beside the attempts, cheap while unchanged.

Hides a memory of what this process has written already, per database, renewed every few minutes so that a database
that was restored or emptied gets its names back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Table, text

from monitor import wire
from monitor.model import Attempt, Probe, Series, Target, Vantage, stable_id
from monitor.store.rows import series_id, vantage_id
from monitor.store.tables import probes, series, targets, vantages

RENEW = timedelta(minutes=10)
TABLES = (vantages, targets, probes, series)

Key = tuple[str, bool, tuple[object, ...]]  # table, described (or known by name only), primary key
Row = dict[str, Any]
Names = tuple[str, str, str, str]  # vantage, target, probe, version of the probe

_written: WeakKeyDictionary[Engine, dict[Key, tuple[Row, datetime]]] = WeakKeyDictionary()


def pending(engine: Engine, known: Iterable[Series], attempts: Sequence[Attempt], now: datetime) -> dict[Key, Row]:
    """The rows that these attempts need and that this process has not written lately."""
    return pending_names(engine, known, [(a.vantage, a.target, a.probe, a.probe_version) for a in attempts], now)


def pending_names(engine: Engine, known: Iterable[Series], names: Iterable[Names], now: datetime) -> dict[Key, Row]:
    """The same for (vantage, target, probe, probe version) of which there may be no attempts yet."""
    return _unwritten(engine, _rows(known, names), now)


def pending_vantage(engine: Engine, name: str, known: Vantage | None, now: datetime) -> dict[Key, Row]:
    """The same for a vantage point alone."""
    row = _vantage(name, known)
    return _unwritten(engine, [((vantages.name, known is not None, (row["vantage_id"],)), row)], now)


def _unwritten(engine: Engine, rows: Iterable[tuple[Key, Row]], now: datetime) -> dict[Key, Row]:
    done = _written.get(engine, {})
    return {
        key: row
        for key, row in rows
        if key not in done or done[key][0] != row or not timedelta(0) <= now - done[key][1] < RENEW
    }


def write(connection: Connection, rows: dict[Key, Row], now: datetime) -> None:
    """Upsert `rows` in the caller's transaction; what is known by name only never overwrites what is described."""
    for table in TABLES:
        for described in (False, True):
            keys = sorted(key for key in rows if key[:2] == (table.name, described))  # one order: no deadlocks
            if keys:
                said = wire.dumps([{**rows[key], "first_seen_at": wire.rfc3339(now)} for key in keys]).decode()
                connection.execute(text(_upsert(table, overwrite=described)), {"rows": said})


def remember(engine: Engine, rows: dict[Key, Row], now: datetime) -> None:
    """Call when the transaction of `write` has committed."""
    _written.setdefault(engine, {}).update((key, (row, now)) for key, row in rows.items())


def _upsert(table: Table, *, overwrite: bool) -> str:
    columns = [column.name for column in table.columns]
    key = [column.name for column in table.primary_key]
    changing = [f"{name} = excluded.{name}" for name in columns if name not in (*key, "first_seen_at")]
    action = f"UPDATE SET {', '.join(changing)}" if overwrite else "NOTHING"
    names = ", ".join(columns)
    return (
        f"INSERT INTO {table.name} ({names}) "
        f"SELECT {names} FROM json_populate_recordset(NULL::{table.name}, CAST(:rows AS json)) "
        f"ON CONFLICT ({', '.join(key)}) DO {action}"
    )


def _rows(known: Iterable[Series], names: Iterable[Names]) -> Iterator[tuple[Key, Row]]:
    described = {s.key: s for s in known}
    for vantage, target, probe, version in dict.fromkeys(names):
        given = described.get((vantage, target, probe))
        asked = given.probe if given is not None and given.probe.version == version else None
        for table, is_described, row in (
            (vantages, given is not None, _vantage(vantage, given.vantage if given else None)),
            (targets, given is not None, _target(target, given.target if given else None)),
            (probes, asked is not None, _probe(probe, version, asked)),
            (series, given is not None, _series(vantage, target, probe, given)),
        ):
            yield (table.name, is_described, tuple(row[column.name] for column in table.primary_key)), row


def _vantage(name: str, vantage: Vantage | None) -> Row:
    row: Row = {"vantage_id": vantage_id(name), "name": name, "simulated": False}
    if vantage is not None:
        place = vantage.place
        row |= {"city": place.city, "country": place.country, "latitude": place.latitude, "longitude": place.longitude}
        row |= {"network": vantage.network, "simulated": vantage.simulated}
    return row


def _target(name: str, target: Target | None) -> Row:
    row: Row = {"target_id": stable_id(name), "name": name, "simulated": False}
    if target is not None:
        place = target.served_from
        row |= {
            "provider": target.provider,
            "model": target.model,
            "dialect": target.dialect,
            "endpoint": _endpoint(target.url),
            "served_from_city": place.city,
            "served_from_country": place.country,
            "served_from_latitude": place.latitude,
            "served_from_longitude": place.longitude,
            "simulated": target.simulated,
        }
    return row


def _endpoint(url: str) -> str | None:
    """Scheme, host, port and path: what may carry a secret (user, password, query) stays out of the database."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
    except ValueError:
        return None


def _probe(name: str, version: str, probe: Probe | None) -> Row:
    row: Row = {"probe_id": stable_id(name), "version": version, "name": name}
    if probe is not None:
        row |= {"prompt": probe.prompt, "max_output_tokens": probe.max_output_tokens}
        row |= {"connection": probe.connection, "nonce": probe.nonce}
    return row


def _series(vantage: str, target: str, probe: str, given: Series | None) -> Row:
    row: Row = {
        "vantage_id": vantage_id(vantage),
        "series_id": series_id(vantage, target, probe),
        "target_id": stable_id(target),
        "probe_id": stable_id(probe),
        "vantage": vantage,
        "target": target,
        "probe": probe,
    }
    if given is not None:
        asked = given.probe
        row |= {"interval_seconds": asked.interval_seconds, "deadline_seconds": asked.deadline_seconds}
        row |= {"control": asked.control}
    return row
