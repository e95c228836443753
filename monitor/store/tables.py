"""The tables as SQLAlchemy Core sees them; `migrations/` makes them, and a test holds the two together.

Hides column names and types. Durations are not columns: marks are (`<mark>_ns`, nanoseconds since the attempt's start),
and the view `measurements` derives seconds from them for people and dashboards.

`info["citus"]` says what each table would be on Citus, so that the schema stays distributable on `vantage_id`:
`distributed` (every key contains vantage_id, no foreign keys), `reference` (small, copied to every node) or `local`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from monitor.timeline import Mark

metadata = MetaData()

DISTRIBUTED = {"citus": "distributed"}
REFERENCE = {"citus": "reference"}
LOCAL = {"citus": "local"}


def _instant(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable, primary_key=primary_key)


def _place(prefix: str = "") -> list[Column[object]]:
    return [
        Column(f"{prefix}city", Text),
        Column(f"{prefix}country", Text),
        Column(f"{prefix}latitude", Double),
        Column(f"{prefix}longitude", Double),
    ]


MARK_COLUMNS = {mark: f"{mark.value}_ns" for mark in Mark}

attempts = Table(
    "attempts",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    _instant("scheduled_at", primary_key=True),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    Column("try", SmallInteger, primary_key=True, autoincrement=False),
    _instant("started_at"),
    _instant("received_at"),
    Column("content_hash", BigInteger, nullable=False),
    *[Column(name, BigInteger) for name in MARK_COLUMNS.values()],
    Column("gap_p50_seconds", Double),
    Column("gap_p95_seconds", Double),
    Column("gap_max_seconds", Double),
    Column("burst_share", Double),
    Column("loop_lag_seconds", Double, nullable=False),
    Column("tcp_min_rtt_seconds", Double),
    Column("tcp_rtt_seconds", Double),
    Column("output_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("visible_tokens", BigInteger),
    Column("input_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("token_events", BigInteger, nullable=False),
    Column("reads", BigInteger, nullable=False),
    Column("coalesced_reads", BigInteger, nullable=False),
    Column("stalls", BigInteger),  # null: gaps were not measured
    Column("tcp_retransmits", BigInteger),
    Column("tcp_out_of_order", BigInteger),
    _instant("certificate_expires_at", nullable=True),
    Column("http_status", Integer),
    Column("connection_reused", Boolean, nullable=False),
    Column("proxied", Boolean, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("missed_reason", Text),
    Column("failure_kind", Text),
    Column("failure_phase", Text),
    Column("failure_text", Text),
    Column("probe_version", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("clock_source", Text),
    Column("validity", ARRAY(Text), nullable=False),
    Column("finish_reason", Text),
    Column("http_version", Text),
    Column("remote", Text),
    Column("address_family", Text),
    Column("tls_version", Text),
    Column("alpn", Text),
    Column("content_encoding", Text),
    Column("edge", Text),
    Column("request_id", Text),
    Column("served_model", Text),
    Column("server", JSONB, nullable=False),  # reported timings, seconds
    Column("cost", Double),  # in the currency of the agent's prices; null: no price, or nothing was asked
    Column("service", JSONB),  # limits, version, region, upstream, tier; null: nothing was told
    Index("attempts_of_series", "vantage_id", "series_id", "scheduled_at"),
    Index("attempts_received", "received_at"),
    info=DISTRIBUTED,
    postgresql_partition_by="RANGE (scheduled_at)",
)

vantages = Table(
    "vantages",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    *_place(),
    Column("network", Text),
    Column("simulated", Boolean, nullable=False),
    _instant("first_seen_at"),
    info=REFERENCE,
)

targets = Table(
    "targets",
    metadata,
    Column("target_id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("provider", Text),  # null: only attempts of it are known, its configuration is not
    Column("model", Text),
    Column("dialect", Text),
    Column("endpoint", Text),  # the URL without user, password and query
    *_place("served_from_"),
    Column("simulated", Boolean, nullable=False),
    _instant("first_seen_at"),
    info=REFERENCE,
)

probes = Table(
    "probes",
    metadata,
    Column("probe_id", BigInteger, primary_key=True, autoincrement=False),
    Column("version", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("prompt", Text),
    Column("max_output_tokens", BigInteger),
    Column("connection", Text),
    Column("nonce", Boolean),
    _instant("first_seen_at"),
    info=REFERENCE,
)

series = Table(
    "series",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    Column("target_id", BigInteger, nullable=False),
    Column("probe_id", BigInteger, nullable=False),
    Column("vantage", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("probe", Text, nullable=False),
    Column("interval_seconds", Double),
    Column("deadline_seconds", Double),
    Column("control", Boolean),
    _instant("first_seen_at"),
    Index("series_of_target", "target_id"),
    info=REFERENCE,
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    _instant("scheduled_at", primary_key=True),
    Column("try", SmallInteger, primary_key=True, autoincrement=False),
    Column("version", SmallInteger, primary_key=True, autoincrement=False),  # of the rule
    _instant("judged_at"),
    _instant("started_at"),  # of the attempt
    Column("settled", Boolean, nullable=False),  # no confirming attempt is waited for any more
    Column("kind", Text, nullable=False),  # cold, warm, unclear
    Column("reasons", ARRAY(Text), nullable=False),
    Column("idle_before_seconds", Double),  # null: no earlier attempt is known
    Column("penalty_seconds", Double),
    Column("probe_version", Text, nullable=False),
    Column("server_part_seconds", Double),  # from here on: what later attempts are compared with
    Column("accounted_seconds", Double),
    Column("load_seconds", Double),
    Column("connect_seconds", Double),
    Column("tls_seconds", Double),
    Column("token_seconds", Double),
    Column("ttft_seconds", Double),  # of the attempt, as dashboards show it; null: none, or of an earlier release
    Index("verdicts_judged", "judged_at"),
    Index("verdicts_scheduled", "scheduled_at"),
    info=DISTRIBUTED,
)

unjudged = Table(
    "unjudged",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    _instant("scheduled_at", primary_key=True),
    Column("try", SmallInteger, primary_key=True, autoincrement=False),
    _instant("due_at"),
    Index("unjudged_scheduled", "scheduled_at"),
    info=LOCAL,
)

rollups = Table(
    "rollups",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    _instant("hour", primary_key=True),
    Column("attempts", BigInteger, nullable=False),  # planned ones (try 0), missed ones included
    Column("confirming", BigInteger, nullable=False),  # further tries; counted here and in tokens only
    Column("success", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("missed", BigInteger, nullable=False),
    Column("doubtful", BigInteger, nullable=False),  # not valid: in no histogram
    Column("failures", JSONB, nullable=False),  # failure kind -> count
    Column("misses", JSONB, nullable=False),  # reason -> count
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("stalls", BigInteger, nullable=False),
    Column("refreshed_at", DateTime(timezone=True), nullable=False),
    Column("slots_us", BigInteger),  # sum of the planned instants, behind the hour; null: an older release computed it
    Index("rollups_of_hour", "hour"),
    info=DISTRIBUTED,
)

rollup_histograms = Table(
    "rollup_histograms",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    Column("measure", Text, primary_key=True),
    _instant("hour", primary_key=True),
    Column("bins", ARRAY(SmallInteger), nullable=False),  # ascending bin numbers, see rollups.py
    Column("counts", ARRAY(BigInteger), nullable=False),  # attempts in each bin, censored ones included
    Column("censored", ARRAY(BigInteger), nullable=False),  # of them: ended by a deadline, "at least" this long
    Column("sum_ns", BigInteger, nullable=False),
    Column("min_ns", BigInteger, nullable=False),
    Column("max_ns", BigInteger, nullable=False),
    Index("rollup_histograms_of_hour", "measure", "hour"),
    info=DISTRIBUTED,
)

rollup_days = Table(
    "rollup_days",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    Column("measure", Text, primary_key=True),
    _instant("day", primary_key=True),
    Column("bins", ARRAY(SmallInteger), nullable=False),  # as those of the hours, added up
    Column("counts", ARRAY(BigInteger), nullable=False),
    Column("censored", ARRAY(BigInteger), nullable=False),
    Index("rollup_days_of_day", "measure", "day"),
    info=DISTRIBUTED,
)

dirty_days = Table(
    "dirty_days",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    _instant("day", primary_key=True),
    info=LOCAL,
)
"""Days of series whose hours have changed since: their hours count, until the day is added up again."""

dirty_hours = Table(
    "dirty_hours",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    _instant("hour", primary_key=True),
    _instant("marked_at"),
    info=LOCAL,
)

retention_floor = Table(
    "retention_floor",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default=true()),
    _instant("raw_from"),  # raw attempts before this have been dropped; their rollups are final
    info=LOCAL,
)

notes = Table(
    "notes",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("agent", Text, primary_key=True),
    Column("note_id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),  # plan, gap, outage, lost
    _instant("first_at"),
    _instant("last_at", nullable=True),  # null: a plan, which holds until the next
    _instant("received_at"),
    Column("body", JSONB, nullable=False),  # as `wire.encode_note` says it
    Index("notes_by_time", "vantage_id", "kind", "first_at"),
    info=DISTRIBUTED,
)

agents = Table(
    "agents",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("agent", Text, primary_key=True),
    _instant("sent_at"),  # of the last heartbeat, by the agent's clock
    _instant("received_at"),
    _instant("booted_at", nullable=True),
    _instant("started_at", nullable=True),
    Column("version", Text),
    Column("config_digest", Text),
    Column("config_error", Text),
    Column("spool_depth", BigInteger),
    Column("spool_bytes", BigInteger),
    _instant("spool_oldest_at", nullable=True),  # null: nothing waits
    Column("spool_lost", BigInteger),
    Column("clock_offset_seconds", Double),
    Column("body", JSONB, nullable=False),  # the heartbeat as it came
    info=DISTRIBUTED,
)

coverage = Table(
    "coverage",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("series_id", BigInteger, primary_key=True, autoincrement=False),
    _instant("hour", primary_key=True),
    Column("owed", BigInteger, nullable=False),  # measured plus all of `missed`
    Column("measured", BigInteger, nullable=False),
    Column("missed", JSONB, nullable=False),  # cause -> slots
    Column("repeated", BigInteger, nullable=False),  # rows beyond the first of their slot
    Column("unplanned", BigInteger, nullable=False),  # rows that no plan owed
    _instant("counted_at"),
    Index("coverage_of_hour", "hour"),
    info=DISTRIBUTED,
)
"""Written by the sweep for dashboards; `store.coverage` derives the same from plan, rows and notes at any time."""

agent_tokens = Table(
    "agent_tokens",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),  # SHA-256 of 256 random bits: nothing to guess or to salt
    Column("vantage_id", BigInteger, nullable=False),
    Column("vantage", Text, nullable=False),
    *_place(),  # where it was said to be when it was enrolled
    Column("network", Text),
    _instant("created_at"),
    _instant("expires_at", nullable=True),  # null: until it is revoked
    _instant("revoked_at", nullable=True),
    _instant("last_used_at", nullable=True),
    Index("agent_tokens_of_vantage", "vantage_id"),
    info=LOCAL,
)

witness = Table(
    "witness",
    metadata,
    Column("vantage_id", BigInteger, primary_key=True, autoincrement=False),
    Column("endpoint_id", BigInteger, primary_key=True, autoincrement=False),
    _instant("started_at", primary_key=True),
    _instant("received_at"),
    Column("endpoint", Text, nullable=False),
    Column("address", Text, nullable=False),  # what was looked at under that name
    Column("resolve_seconds", Double),  # null: it was not passed, or there was none
    Column("connect_seconds", Double),
    Column("tls_seconds", Double),
    Column("failure_kind", Text),  # null: it was reached
    Column("failure_phase", Text),
    Column("failure_text", Text),
    Column("validity", ARRAY(Text), nullable=False),
    Index("witness_started", "started_at"),
    info=DISTRIBUTED,
)
"""Bounded by retention (`storage.raw_days`) and deleted by range: five small rows a minute and vantage point."""

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    _instant("expires_at"),  # by the database's clock
    info=LOCAL,
)
