"""Agents in the database: who may speak for which vantage point, how each agent is, and what only one hub may do.

Hides tokens: 256 random bits each, of which only the SHA-256 is kept, so that a copy of the database lets nobody in.
A token is looked up at every request; revoking one takes effect at once.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import Connection, Engine, text

from monitor.model import MonitorError, Place, Vantage
from monitor.store.engine import transaction
from monitor.store.rows import vantage_id
from monitor.wire.fleet import Heartbeat, encode_heartbeat, read_heartbeat

PREFIX = "ftv_"
TOKEN_BYTES = 32
MAX_TOKEN = 100
USED_EVERY = timedelta(minutes=1)
"""How exactly the last use of a token is known: writing it at each request would cost more than the request."""

_PLAIN = (
    "agent", "version", "config_digest", "config_error", "booted_at", "started_at", "sent_at", "clock_offset_seconds",
)  # fmt: skip
_SPOOL = {
    "spool_depth": "spool_attempts",
    "spool_bytes": "spool_bytes",
    "spool_oldest_at": "spool_oldest_at",
    "spool_lost": "spool_lost",
}


class FleetError(MonitorError):
    """A vantage point or its token is not as a command takes it to be; the sentence says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolled:
    """A vantage point that has, or had, a token."""

    vantage: Vantage
    tokens: int  # that let an agent in now
    created_at: datetime  # of the newest
    last_used_at: datetime | None
    beat: Heartbeat | None  # of the agent heard of last
    heard_at: datetime | None


def enrol(engine: Engine, vantage: Vantage, now: datetime) -> str:
    """Remember where a vantage point is and make its token, which is returned and cannot be had again.

    Raises FleetError when it has one already, StoreUnavailable.
    """
    with transaction(engine) as connection:
        if _good_tokens(connection, vantage.name, now):
            raise FleetError(
                f"{vantage.name} has a token already: `firsttoken vantage rotate {vantage.name}` makes a new one"
            )
        return _issue(connection, vantage, now)


def rotate(engine: Engine, name: str, now: datetime, grace: timedelta = timedelta()) -> str:
    """A new token; earlier ones end after `grace`. Raises FleetError for a name without any, StoreUnavailable."""
    with transaction(engine) as connection:
        vantage = _newest(connection, name)
        connection.execute(
            text(
                "UPDATE agent_tokens SET expires_at = least(coalesce(expires_at, :end), :end) "
                "WHERE vantage_id = :id AND revoked_at IS NULL"
            ),
            {"id": vantage_id(name), "end": now + grace},
        )
        return _issue(connection, vantage, now)


def revoke(engine: Engine, name: str, now: datetime) -> int:
    """No agent speaks for this vantage point any more; how many tokens that ended.

    Raises FleetError, StoreUnavailable.
    """
    with transaction(engine) as connection:
        _newest(connection, name)
        ended = connection.execute(
            text(
                "UPDATE agent_tokens SET revoked_at = :now WHERE vantage_id = :id AND revoked_at IS NULL "
                "AND (expires_at IS NULL OR expires_at > :now)"
            ),
            {"id": vantage_id(name), "now": now},
        )
        return int(ended.rowcount)


def whose(engine: Engine, token: str, now: datetime) -> str | None:
    """The vantage point that a token speaks for, None when it speaks for none (any more). Raises StoreUnavailable.

    Nothing compares secrets here: an index finds a hash, or does not.
    """
    if not token.startswith(PREFIX) or len(token) > MAX_TOKEN:
        return None
    found = text(
        "SELECT vantage, last_used_at FROM agent_tokens WHERE token_hash = :hash AND revoked_at IS NULL "
        "AND (expires_at IS NULL OR expires_at > :now)"
    )
    with transaction(engine) as connection:
        row = connection.execute(found, {"hash": _hash(token), "now": now}).one_or_none()
        if row is None:
            return None
        if row.last_used_at is None or now - row.last_used_at >= USED_EVERY:
            used = text("UPDATE agent_tokens SET last_used_at = :now WHERE token_hash = :hash")
            connection.execute(used, {"hash": _hash(token), "now": now})
        return str(row.vantage)


def enrolled(engine: Engine, now: datetime) -> Sequence[Enrolled]:
    """All that have, or had, a token, by name. Raises StoreUnavailable."""
    query = text(
        "SELECT n.*, t.tokens, t.last_used_at AS used_at, a.body, a.received_at FROM ("
        "  SELECT DISTINCT ON (vantage_id) vantage_id, vantage, city, country, latitude, longitude, network, created_at"
        "  FROM agent_tokens ORDER BY vantage_id, created_at DESC) n "
        "JOIN (SELECT vantage_id, max(last_used_at) AS last_used_at, count(*) FILTER (WHERE revoked_at IS NULL "
        "  AND (expires_at IS NULL OR expires_at > :now)) AS tokens FROM agent_tokens GROUP BY vantage_id) t "
        "USING (vantage_id) "
        "LEFT JOIN LATERAL (SELECT * FROM agents WHERE vantage_id = n.vantage_id ORDER BY received_at DESC LIMIT 1) a "
        "ON true ORDER BY n.vantage"
    )
    with transaction(engine) as connection:
        return [_enrolled(cast("Mapping[str, Any]", row)) for row in connection.execute(query, {"now": now}).mappings()]


def beat(engine: Engine, vantage: str, heartbeat: Heartbeat, now: datetime) -> None:
    """Remember how an agent is. Raises StoreUnavailable."""
    body = encode_heartbeat(heartbeat).decode()
    row = {
        "vantage_id": vantage_id(vantage),
        "received_at": now,
        "body": body,
        **{name: getattr(heartbeat, name) for name in _PLAIN},
        **{column: getattr(heartbeat, name) for column, name in _SPOOL.items()},
    }
    changing = ", ".join(f"{name} = excluded.{name}" for name in row if name not in ("vantage_id", "agent"))
    names = ", ".join(row)
    values = ", ".join("CAST(:body AS jsonb)" if name == "body" else f":{name}" for name in row)
    upsert = f"INSERT INTO agents ({names}) VALUES ({values}) ON CONFLICT (vantage_id, agent) DO UPDATE SET {changing}"
    with transaction(engine) as connection:
        connection.execute(text(upsert), row)


def starvation(engine: Engine, since: datetime) -> Mapping[str, float]:
    """For each vantage point with attempts since then: the share of them that lacked a processor here and there."""
    query = text(
        "SELECT v.name, avg(CASE WHEN a.validity && ARRAY['loop_lag', 'cpu_throttled', 'cpu_steal'] THEN 1.0 ELSE 0.0 "
        "END) AS share FROM attempts a JOIN vantages v ON v.vantage_id = a.vantage_id "
        "WHERE a.scheduled_at >= :since AND a.outcome <> 'missed' GROUP BY v.name"
    )
    with transaction(engine) as connection:
        return {row.name: float(row.share) for row in connection.execute(query, {"since": since})}


def series_of(engine: Engine, vantage: str) -> frozenset[tuple[str, str]]:
    """(target, probe) of everything that was ever measured or planned from there. Raises StoreUnavailable."""
    query = text("SELECT target, probe FROM series WHERE vantage_id = :id")
    with transaction(engine) as connection:
        return frozenset((row.target, row.probe) for row in connection.execute(query, {"id": vantage_id(vantage)}))


def hold(engine: Engine, lease: str, holder: str, seconds: float) -> bool:
    """Take or keep a lease for so long; whether it is ours. By the database's clock. Raises StoreUnavailable."""
    take = text(
        "INSERT INTO leases (name, holder, expires_at) VALUES (:name, :holder, now() + :seconds * interval '1 second') "
        "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at "
        "WHERE leases.holder = excluded.holder OR leases.expires_at < now()"
    )
    with transaction(engine) as connection:
        done = connection.execute(take, {"name": lease, "holder": holder, "seconds": seconds})
        return done.rowcount == 1


def release(engine: Engine, lease: str, holder: str) -> None:
    """Let another copy have it at once. Raises StoreUnavailable."""
    with transaction(engine) as connection:
        connection.execute(
            text("DELETE FROM leases WHERE name = :name AND holder = :holder"), {"name": lease, "holder": holder}
        )


def _issue(connection: Connection, vantage: Vantage, now: datetime) -> str:
    token, place = PREFIX + secrets.token_urlsafe(TOKEN_BYTES), vantage.place
    row = {
        "token_hash": _hash(token),
        "vantage_id": vantage_id(vantage.name),
        "vantage": vantage.name,
        "city": place.city,
        "country": place.country,
        "latitude": place.latitude,
        "longitude": place.longitude,
        "network": vantage.network,
        "created_at": now,
    }
    names, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(text(f"INSERT INTO agent_tokens ({names}) VALUES ({values})"), row)
    return token


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _good_tokens(connection: Connection, name: str, now: datetime) -> int:
    query = text(
        "SELECT count(*) FROM agent_tokens WHERE vantage_id = :id AND revoked_at IS NULL "
        "AND (expires_at IS NULL OR expires_at > :now)"
    )
    return int(connection.execute(query, {"id": vantage_id(name), "now": now}).scalar_one())


def _newest(connection: Connection, name: str) -> Vantage:
    """The vantage point as its newest token has it. Raises FleetError for one that never had any."""
    query = text("SELECT * FROM agent_tokens WHERE vantage_id = :id ORDER BY created_at DESC LIMIT 1")
    row = connection.execute(query, {"id": vantage_id(name)}).mappings().one_or_none()
    if row is None:
        raise FleetError(f"{name} has no token: `firsttoken vantage add {name}` makes one")
    return _vantage(cast("Mapping[str, Any]", row))


def _vantage(row: Mapping[str, Any]) -> Vantage:
    place = Place(**{name: row[name] for name in ("city", "country", "latitude", "longitude")})
    return Vantage(name=row["vantage"], place=place, network=row["network"])


def _enrolled(row: Mapping[str, Any]) -> Enrolled:
    return Enrolled(
        vantage=_vantage(row),
        tokens=row["tokens"],
        created_at=row["created_at"],
        last_used_at=row["used_at"],
        beat=None if row["body"] is None else read_heartbeat(row["body"]),
        heard_at=row["received_at"],
    )
