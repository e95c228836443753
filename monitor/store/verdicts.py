"""Verdicts about attempts: which wait for one, the evidence that each is given on, and the rows that keep them.

Hides the queue and the neighbourhood. `insert` asks for a verdict on every new row (`ask`); `sweep` claims some, looks
up what a verdict needs (the other try at the slot, how long the target had been idle over all vantage points and
probes, the warm samples before it) and writes them. A row that comes late changes how idle the target was before its
successors: those are judged again with it. Attempts are never touched; a newer rule writes rows of its own version.
Any number of processes may sweep at once: a claim is a row lock that others skip.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, TextClause, text

from monitor import wire
from monitor.detect.coldstart import HISTORY, VERSION, Judgement, Reason, Sample, Verdict, judge, sample
from monitor.model import Attempt, ColdStartRule, Outcome
from monitor.model import VerdictKind as Kind
from monitor.store import verdict_sql as sql
from monitor.store.engine import transaction
from monitor.store.rows import series_id, to_attempt, vantage_id

CLAIM = 200
"""Attempts in one transaction."""
FRESH = timedelta(minutes=10)
"""What was planned within this goes before any backlog."""
CONFIRM_WAIT = timedelta(seconds=120)
"""How long after its end a slow attempt's second try may still arrive; then the verdict stands without it."""
LATE = timedelta(seconds=120)
"""As for metrics: what was received later than that after its end tells of the past."""
LOOK_BACK = timedelta(days=7)
"""How far back earlier attempts are looked for, for idleness and for history."""
START_SLACK = timedelta(seconds=15)
"""An attempt starts that much after its planned instant at most."""
SUCCESSORS = 8
"""Of each series of the target, after one late attempt."""

Key = tuple[int, int, datetime, int]  # vantage_id, series_id, scheduled_at, try
Rules = Callable[[str], ColdStartRule]
"""Target name -> its rule."""

log = structlog.get_logger("firsttoken.verdicts")

# ------------------------------------------------------------------------------------------------ asking


def ask(connection: Connection, attempts: Iterable[Attempt], now: datetime) -> None:
    """Queue attempts for a verdict, in the caller's transaction. Missed slots have none."""
    keys = [_key_of(attempt) for attempt in attempts if attempt.outcome is not Outcome.MISSED]
    if keys:
        connection.execute(sql.ASK, {"keys": _document(keys), "due": now})


def ask_again(engine: Engine, since: datetime, until: datetime, now: datetime) -> int:
    """Queue attempts planned in [since, until) that have no verdict of this rule's version; how many there were.

    After an upgrade: rows of an earlier release, or verdicts of an earlier rule.
    """
    with transaction(engine) as connection:
        asked = {"since": since, "until": until, "now": now, "version": VERSION}
        return int(connection.execute(sql.ASK_AGAIN, asked).rowcount)


def waiting(engine: Engine) -> int:
    """How many attempts wait for a verdict."""
    with transaction(engine) as connection:
        return int(connection.execute(text("SELECT count(*) FROM unjudged")).scalar_one())


def due(engine: Engine, now: datetime) -> bool:
    """Whether any attempt's verdict could be given now."""
    with transaction(engine) as connection:
        asked = text("SELECT EXISTS (SELECT FROM unjudged WHERE due_at <= :now)")
        return bool(connection.execute(asked, {"now": now}).scalar_one())


def forget(engine: Engine, before: datetime) -> None:
    """Drop verdicts, and questions, about attempts planned before an instant."""
    with transaction(engine) as connection:
        for table in ("verdicts", "unjudged"):
            connection.execute(text(f"DELETE FROM {table} WHERE scheduled_at < :before"), {"before": before})


# ------------------------------------------------------------------------------------------------ reading


def latest(engine: Engine, per_series: int, since: datetime) -> list[Judgement]:
    """The verdicts about the newest attempts of each series planned from `since` on."""
    return _read(engine, sql.LATEST, since, per_series)


def judged_since(engine: Engine, moment: datetime, limit: int = 2000) -> list[Judgement]:
    """Verdicts that were written or changed at or after `moment`, newest first."""
    return _read(engine, sql.SINCE, moment, limit)


def _read(engine: Engine, query: TextClause, since: datetime, limit: int) -> list[Judgement]:
    with transaction(engine) as connection:
        asked = {"since": since, "limit": limit, "version": VERSION}
        return [_judged(row) for row in connection.execute(query, asked).mappings()]


def _judged(row: Mapping[Any, Any]) -> Judgement:
    verdict = Verdict(
        kind=Kind(row["kind"]),
        reasons=tuple(Reason(reason) for reason in row["reasons"]),
        penalty_seconds=row["penalty_seconds"],
        version=row["version"],
    )
    key = (row["vantage"], row["scheduled_at"].astimezone(UTC), row["target"], row["probe"], row["try"])
    return Judgement(key=key, verdict=verdict, idle_before=row["idle_before_seconds"])


# ------------------------------------------------------------------------------------------------ judging


def sweep(engine: Engine, now: datetime, rules: Rules, *, max_attempts: int = 2000) -> list[Judgement]:
    """Give the verdicts that are due: fresh attempts first, then any backlog from its oldest on.

    Returns those that were settled for the first time, about planned attempts that were not late: what counters count,
    once each. Stops after `max_attempts` claimed, so that a backlog is worked off in bounded steps. Raises
    StoreUnavailable; what was claimed then is still asked for.
    """
    settled: list[Judgement] = []
    done = 0
    while done < max_attempts:
        with transaction(engine) as connection:
            claimed = _claim_some(connection, now)
            if not claimed:
                break
            batch = _Batch(connection, now, rules)
            settled += batch.judge(claimed)
        done += len(claimed)
        if len(claimed) < CLAIM:  # nothing else is due
            break
    return settled


def _claim_some(connection: Connection, now: datetime) -> set[Key]:
    claimed: set[Key] = set()
    for query in (sql.CLAIM_FRESH, sql.CLAIM_BACKLOG):
        asked = {"now": now, "fresh": now - FRESH, "limit": CLAIM - len(claimed)}
        if asked["limit"]:
            claimed |= {_key(row) for row in connection.execute(query, asked).mappings()}
    if claimed:  # a planned attempt that waits for its confirming one is judged with it
        asked = {"keys": _document(_twins(claimed))}
        claimed |= {_key(row) for row in connection.execute(sql.CLAIM_TWINS, asked).mappings()}
    return claimed


@dataclass(slots=True)
class _Evidence:
    """An attempt to be judged, with what belongs to it."""

    key: Key
    attempt: Attempt
    received_at: datetime
    idle_before: float | None
    was_settled: bool | None  # None: it has no verdict yet
    sample: Sample | None


@dataclass(slots=True)
class _Batch:
    """What one transaction judges."""

    connection: Connection
    now: datetime
    rules: Rules
    warm: dict[tuple[int, int, str], dict[tuple[datetime, int], Sample]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def judge(self, claimed: set[Key]) -> list[Judgement]:
        """Judge the claimed ones, their other tries and whose idleness they change, in the order of time.

        Those that were not claimed have been judged before, or else wait for their own claim. Only who claims counts.
        """
        wanted = claimed | self._successors(claimed)
        evidence = self._evidence(wanted | _twins(wanted))
        found = {one.key: one for one in evidence}
        history = self._history(list(found))
        rows: list[dict[str, Any]] = []
        again: list[tuple[Key, datetime]] = []
        settled: list[Judgement] = []
        for one in evidence:
            is_claimed = one.key in claimed
            judged = self._verdict(one, found.get((*one.key[:3], 1)), history[one.key])
            if judged is None or not (is_claimed or one.was_settled is not None):
                continue
            due = self._due(one, judged.verdict) if is_claimed else None
            if due is not None:
                again.append((one.key, due))
            rows.append(self._row(one, judged, settled=due is None if is_claimed else bool(one.was_settled)))
            if is_claimed and due is None and not one.was_settled and _counts(one):
                settled.append(judged)
        self._write(rows, again)
        return settled

    def _verdict(
        self, one: _Evidence, second: _Evidence | None, history: dict[tuple[datetime, int], Sample]
    ) -> Judgement | None:
        attempt = one.attempt
        warm = self.warm[one.key[0], one.key[1], attempt.probe_version]
        before = {**history, **{when: seen for when, seen in warm.items() if when[0] < attempt.scheduled_at}}
        usual = [before[when] for when in sorted(before)][-HISTORY:]
        confirming = second.attempt if second is not None and not attempt.try_number else None
        try:
            verdict = judge(attempt, confirming, usual, one.idle_before, self.rules(attempt.target))
        except Exception:
            log.exception("an attempt cannot be judged; this is a defect of First Token", target=attempt.target)
            return None
        if verdict.kind is Kind.WARM and one.sample is not None:
            warm[attempt.scheduled_at, attempt.try_number] = one.sample
        else:
            warm.pop((attempt.scheduled_at, attempt.try_number), None)
        return Judgement(key=attempt.key, verdict=verdict, idle_before=one.idle_before)

    def _due(self, one: _Evidence, verdict: Verdict) -> datetime | None:
        """When to judge again because a confirming attempt may still come; None when the verdict stands."""
        if one.attempt.try_number or not {Reason.UNCONFIRMED, Reason.NO_HISTORY}.intersection(verdict.reasons):
            return None
        due = _ended(one.attempt) + CONFIRM_WAIT
        return due if due > self.now else None

    # -- evidence

    def _successors(self, claimed: set[Key]) -> set[Key]:
        """Attempts before which a claimed one may have been the last to the target."""
        if not claimed:
            return set()
        bounds = {"slack": START_SLACK, "look_back": LOOK_BACK, "limit": SUCCESSORS, "version": VERSION}
        after: dict[Key, list[tuple[datetime, datetime, Key]]] = defaultdict(list)
        for row in self.connection.execute(sql.SUCCESSORS, {**_span(claimed), **bounds}).mappings():
            of = (row["of_vantage"], row["of_series"], row["of_slot"], row["of_try"])
            after[of].append((row["started_at"], row["ended"], _key(row)))
        return {key for several in after.values() for key in _until_next(several)}

    def _evidence(self, wanted: set[Key]) -> list[_Evidence]:
        asked = {**_span(wanted), "look_back": LOOK_BACK, "version": VERSION}
        return [_evidence(row) for row in self.connection.execute(sql.EVIDENCE, asked).mappings()]

    def _history(self, keys: Sequence[Key]) -> dict[Key, dict[tuple[datetime, int], Sample]]:
        """The warm samples before each attempt, by slot and try."""
        found: dict[Key, dict[tuple[datetime, int], Sample]] = {key: {} for key in keys}
        if not keys:
            return found
        asked = {**_span(keys), "look_back": LOOK_BACK, "version": VERSION, "limit": HISTORY}
        for row in self.connection.execute(sql.HISTORY, asked).mappings():
            samples = found[row["vantage_id"], row["series_id"], row["of_slot"].astimezone(UTC), row["of_try"]]
            when = (row["scheduled_at"].astimezone(UTC), row["try"])
            samples.setdefault(when, Sample(**{name: row[column] for column, name in sql.SAMPLE.items()}))
        return found

    # -- rows

    def _row(self, one: _Evidence, judged: Judgement, *, settled: bool) -> dict[str, Any]:
        vantage, series, scheduled_at, try_number = one.key
        verdict = judged.verdict
        row = {
            "vantage_id": vantage,
            "series_id": series,
            "scheduled_at": wire.rfc3339(scheduled_at),
            "try": try_number,
            "version": verdict.version,
            "judged_at": wire.rfc3339(self.now),
            "started_at": wire.rfc3339(one.attempt.started_at),
            "settled": settled,
            "kind": verdict.kind,
            "reasons": list(verdict.reasons),
            "idle_before_seconds": judged.idle_before,
            "penalty_seconds": verdict.penalty_seconds,
            "probe_version": one.attempt.probe_version,
            "ttft_seconds": one.attempt.timeline.ttft,
        }
        if one.sample is not None:
            row |= {column: getattr(one.sample, name) for column, name in sql.SAMPLE.items()}
        return {column: value for column, value in row.items() if value is not None}

    def _write(self, rows: list[dict[str, Any]], again: list[tuple[Key, datetime]]) -> None:
        if rows:
            self.connection.execute(sql.WRITE, {"rows": wire.dumps(rows).decode()})
        for due in sorted({due for _, due in again}):
            keys = [key for key, when in again if when == due]
            self.connection.execute(sql.ASK, {"keys": _document(keys), "due": due})


def _evidence(row: Mapping[Any, Any]) -> _Evidence:
    attempt = to_attempt(row)
    until = row["busy_until"]
    return _Evidence(
        key=_key(row),
        attempt=attempt,
        received_at=row["received_at"],
        idle_before=None if until is None else max(0.0, (attempt.started_at - until).total_seconds()),
        was_settled=row["was_settled"],
        sample=sample(attempt),
    )


def _until_next(after: list[tuple[datetime, datetime, Key]]) -> set[Key]:
    """Of (start, end of the one before, key): all up to and with the first that started after that end."""
    ordered = sorted(after, key=lambda one: one[0])
    first = next((start for start, ended, _ in ordered if start >= ended), None)
    return {key for start, _, key in ordered if first is None or start <= first}


def _ended(attempt: Attempt) -> datetime:
    return attempt.started_at + timedelta(microseconds=attempt.timeline.lasted_ns // 1000)


def _counts(one: _Evidence) -> bool:
    """Whether counters of now are to hear of it: a planned attempt that was not late."""
    return not one.attempt.try_number and one.received_at - _ended(one.attempt) <= LATE


def _twins(keys: Iterable[Key]) -> set[Key]:
    """The other tries at the same slots."""
    return {(*key[:3], 1 - key[3]) for key in keys if key[3] in (0, 1)}


def _key_of(attempt: Attempt) -> Key:
    series = series_id(attempt.vantage, attempt.target, attempt.probe)
    return (vantage_id(attempt.vantage), series, attempt.scheduled_at, attempt.try_number)


def _key(row: Mapping[Any, Any]) -> Key:
    return (row["vantage_id"], row["series_id"], row["scheduled_at"].astimezone(UTC), row["try"])


def _span(keys: Iterable[Key]) -> dict[str, Any]:
    """Keys as a query takes them, with the time they span, which tells Postgres the partitions."""
    several = list(keys)
    instants = [key[2] for key in several]
    return {"keys": _document(several), "first": min(instants), "last": max(instants)}


def _document(keys: Iterable[Key]) -> str:
    return wire.dumps(
        [
            {"vantage_id": vantage, "series_id": series, "scheduled_at": wire.rfc3339(at), "try": number}
            for vantage, series, at, number in keys
        ]
    ).decode()
