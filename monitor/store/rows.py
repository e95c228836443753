"""An attempt as a row of `attempts`, and back: the one file that knows which field lives in which column.

Rows are JSON values (see `attempts.insert`, which sends them as one document), already bounded and finite by `wire`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from monitor import wire
from monitor.model import (
    Attempt,
    ClockSource,
    Doubt,
    Failure,
    FailureKind,
    HttpFacts,
    MissReason,
    Outcome,
    Purpose,
    ServiceFacts,
    TcpFacts,
    Tokens,
    stable_id,
)
from monitor.store.tables import MARK_COLUMNS
from monitor.timeline import Gaps, Phase, Timeline

Row = dict[str, object]

_TOKENS = {f"{name}_tokens": name for name in ("output", "reasoning", "visible", "input", "cached")}
_HTTP = {
    "http_status": "status",
    "http_version": "version",
    "remote": "remote",
    "address_family": "family",
    "tls_version": "tls_version",
    "alpn": "alpn",
    "content_encoding": "content_encoding",
    "edge": "edge",
    "request_id": "request_id",
    "served_model": "served_model",
    "certificate_expires_at": "certificate_expires_at",
}
_TCP = {
    "tcp_min_rtt_seconds": "min_rtt",
    "tcp_rtt_seconds": "rtt",
    "tcp_retransmits": "retransmits",
    "tcp_out_of_order": "out_of_order",
}
_GAPS = {"gap_p50_seconds": "p50", "gap_p95_seconds": "p95", "gap_max_seconds": "max", "burst_share": "burst_share"}
_NOTHING: Mapping[str, Any] = {}


def vantage_id(vantage: str) -> int:
    """The id of a vantage point."""
    return stable_id(vantage)


def series_id(vantage: str, target: str, probe: str) -> int:
    """The id of a series."""
    return stable_id(vantage, target, probe)


def to_row(attempt: Attempt, received_at: datetime, *, simulated: bool) -> Row:
    """The attempt as column -> JSON value; raises WireError for what has no place in a row."""
    said: dict[str, Any] = wire.document(attempt)
    failure, gaps = said.get("failure", _NOTHING), said.get("gaps", _NOTHING)
    tokens, http, tcp = (said.get(part, _NOTHING) for part in ("tokens", "http", "tcp"))
    row: Row = {MARK_COLUMNS[mark]: at for mark, at in said["marks"].items()}
    row.update((column, tokens.get(name)) for column, name in _TOKENS.items())
    row.update((column, http.get(name)) for column, name in _HTTP.items())
    row.update((column, tcp.get(name)) for column, name in _TCP.items())
    row.update((column, gaps.get(name)) for column, name in _GAPS.items())
    row |= {
        "vantage_id": vantage_id(attempt.vantage),
        "scheduled_at": said["scheduled_at"],
        "series_id": series_id(attempt.vantage, attempt.target, attempt.probe),
        "try": attempt.try_number,
        "started_at": said["started_at"],
        "received_at": wire.rfc3339(received_at),
        "content_hash": wire.fingerprint(wire.dumps(said)),
        "stalls": gaps.get("stalls"),
        "loop_lag_seconds": said.get("loop_lag_seconds", 0.0),
        "token_events": said.get("token_events", 0),
        "reads": said.get("reads", 0),
        "coalesced_reads": said.get("coalesced_reads", 0),
        "connection_reused": attempt.http.reused,
        "proxied": attempt.http.proxied,
        "simulated": simulated,
        "outcome": attempt.outcome,
        "missed_reason": attempt.missed,
        "failure_kind": failure.get("kind"),
        "failure_phase": failure.get("phase"),
        "failure_text": failure.get("text"),
        "probe_version": said["probe_version"],
        "purpose": attempt.purpose,
        "clock_source": attempt.clock_source,
        "validity": list(attempt.validity),
        "finish_reason": said.get("finish_reason"),
        "server": said.get("server", _NOTHING),
        "service": said.get("service"),
        "cost": said.get("cost"),
    }
    return {column: value for column, value in row.items() if value is not None}


def to_attempt(row: Mapping[Any, Any]) -> Attempt:
    """The attempt in a row of `attempts` joined with the names `vantage`, `target`, `probe` of its series."""
    return Attempt(
        vantage=row["vantage"],
        target=row["target"],
        probe=row["probe"],
        probe_version=row["probe_version"],
        scheduled_at=row["scheduled_at"].astimezone(UTC),
        try_number=row["try"],
        purpose=Purpose(row["purpose"]),
        started_at=row["started_at"].astimezone(UTC),
        outcome=Outcome(row["outcome"]),
        failure=_failure(row),
        missed=None if row["missed_reason"] is None else MissReason(row["missed_reason"]),
        timeline=Timeline({mark: row[column] for mark, column in MARK_COLUMNS.items() if row[column] is not None}),
        gaps=_gaps(row),
        tokens=Tokens(**{name: row[column] for column, name in _TOKENS.items()}),
        token_events=row["token_events"],
        finish_reason=row["finish_reason"],
        http=HttpFacts(
            reused=row["connection_reused"],
            proxied=row["proxied"],
            **{name: row[column] for column, name in _HTTP.items()},
        ),
        server=row["server"],
        cost=row["cost"],
        service=ServiceFacts() if row["service"] is None else wire.read_service(row["service"]),
        tcp=TcpFacts(**{name: row[column] for column, name in _TCP.items()}),
        clock_source=None if row["clock_source"] is None else ClockSource(row["clock_source"]),
        validity=tuple(Doubt(doubt) for doubt in row["validity"]),
        loop_lag_seconds=row["loop_lag_seconds"],
        coalesced_reads=row["coalesced_reads"],
        reads=row["reads"],
    )


def _failure(row: Mapping[Any, Any]) -> Failure | None:
    if row["failure_kind"] is None:
        return None
    return Failure(kind=FailureKind(row["failure_kind"]), phase=Phase(row["failure_phase"]), text=row["failure_text"])


def _gaps(row: Mapping[Any, Any]) -> Gaps | None:
    if row["stalls"] is None:
        return None
    return Gaps(stalls=row["stalls"], **{name: row[column] for column, name in _GAPS.items()})
