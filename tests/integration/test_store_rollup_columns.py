"""Every column of a rollup, against the same numbers added up by hand from the attempts: at first, and again."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from monitor.model import (
    Attempt,
    DialectName,
    Doubt,
    Failure,
    FailureKind,
    MissReason,
    Outcome,
    Probe,
    Series,
    Target,
    TcpFacts,
    Tokens,
    Vantage,
)
from monitor.store import attempts as stored
from monitor.store import rollups
from monitor.store.histogram import bin_of
from monitor.timeline import Gaps, Mark, Phase, Timeline

HOUR = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ENDED = HOUR + timedelta(hours=2)
US, MS = 1_000, 1_000_000
CUT = (FailureKind.CONNECT_TIMEOUT, FailureKind.FIRST_TOKEN_DEADLINE, FailureKind.TOTAL_DEADLINE, FailureKind.STALLED)
SPANS: dict[str, tuple[Mark | None, Mark]] = {
    "ttft": (None, Mark.FIRST_TOKEN),
    "ttfo": (None, Mark.FIRST_VISIBLE),
    "total": (None, Mark.END),
    "resolve": (Mark.RESOLVE_START, Mark.RESOLVE_END),
    "connect": (Mark.CONNECT_START, Mark.CONNECT_END),
    "tls": (Mark.TLS_START, Mark.TLS_END),
    "send": (Mark.SEND_START, Mark.SEND_END),
    "wait": (Mark.SEND_END, Mark.HEADERS),
    "generate": (Mark.HEADERS, Mark.END),
    "control": (Mark.CONTROL_SENT, Mark.CONTROL_HEADERS),
}
SERIES = Series(
    vantage=Vantage(name="lagos"),
    target=Target(name="acme", provider="acme", model="m", dialect=DialectName.ANTHROPIC, url="http://x/v1"),
    probe=Probe(name="short", prompt="Say hello."),
)
WAY = (
    Mark.RESOLVE_START, Mark.RESOLVE_END, Mark.CONNECT_START, Mark.CONNECT_END, Mark.TLS_START, Mark.TLS_END,
    Mark.SEND_START, Mark.SEND_END, Mark.HEADERS, Mark.FIRST_TOKEN, Mark.FIRST_VISIBLE, Mark.LAST_TOKEN, Mark.END,
    Mark.CONTROL_SENT, Mark.CONTROL_HEADERS,
)  # fmt: skip


def made_up(chance: random.Random, number: int) -> Attempt:
    """One attempt of an hour, of any kind; steps from nothing to half a minute, most under a millisecond."""
    at = HOUR + timedelta(seconds=7 * number, microseconds=chance.randrange(1_000_000))
    reached = chance.randrange(1, len(WAY) + 1)
    marks, now = dict[Mark, int](), 0
    for mark in WAY[:reached]:
        marks[mark] = now
        now += chance.choice([0, 1, 900, 40 * US, 700 * US, 3 * MS, 250 * MS, 30_000 * MS])
    kind = chance.choice([*CUT, FailureKind.REFUSED, FailureKind.SERVER_ERROR])
    one = Attempt(
        vantage="lagos",
        target="acme",
        probe="short",
        probe_version="v",
        scheduled_at=at,
        started_at=at,
        try_number=chance.choice([0, 0, 0, 1]),
        outcome=Outcome.SUCCESS,
        timeline=Timeline(marks),
        tokens=Tokens(
            **{name: chance.choice([None, 0, chance.randrange(500)]) for name in ("input", "cached", "reasoning")},
            output=chance.choice([None, 0, chance.randrange(500)]),
        ),
        gaps=chance.choice([None, Gaps(0.1, 0.2, chance.random(), chance.randrange(4), 0.0)]),
        tcp=TcpFacts(min_rtt=chance.choice([None, 0.0005, 0.051])),
        validity=chance.choice([(), (), (Doubt.COALESCED,), (Doubt.LOOP_LAG,), (Doubt.COALESCED, Doubt.CPU_STEAL)]),
    )
    if chance.random() < 0.15:
        return replace(
            one, outcome=Outcome.MISSED, missed=chance.choice(list(MissReason)), timeline=Timeline(), tokens=Tokens(),
            gaps=None, tcp=TcpFacts(), validity=(), try_number=0,
        )  # fmt: skip
    if reached < len(WAY) - 2:
        failure = Failure(kind=kind, phase=Phase.WAIT, text="so")
        return replace(one, outcome=Outcome.FAILED, failure=failure, timeline=Timeline({**marks, Mark.GAVE_UP: now}))
    return one


def counts(attempts: Sequence[Attempt]) -> dict[str, object]:
    """The row of `rollups`, but for whose and when."""
    planned = [one for one in attempts if one.try_number == 0]
    outcomes = Counter(one.outcome for one in planned)
    return {
        "attempts": len(planned),
        "confirming": len(attempts) - len(planned),
        "success": outcomes[Outcome.SUCCESS],
        "failed": outcomes[Outcome.FAILED],
        "missed": outcomes[Outcome.MISSED],
        "doubtful": sum(one.outcome is not Outcome.MISSED and not one.valid for one in planned),
        "failures": Counter(one.failure.kind.value for one in planned if one.failure),
        "misses": Counter(one.missed.value for one in planned if one.missed),
        "output_tokens": sum(one.tokens.output or 0 for one in attempts),
        "reasoning_tokens": sum(one.tokens.reasoning or 0 for one in attempts),
        "input_tokens": sum(one.tokens.input or 0 for one in attempts),
        "cached_tokens": sum(one.tokens.cached or 0 for one in attempts),
        "stalls": sum(one.gaps.stalls for one in planned if one.gaps),
        "slots_us": sum((one.scheduled_at - HOUR) // timedelta(microseconds=1) for one in planned),
        "refreshed_at": ENDED,
    }


def values(one: Attempt) -> Iterator[tuple[str, int, bool]]:
    """What an attempt puts into histograms: measure, nanoseconds, and whether a deadline cut it."""
    marks = one.timeline.marks
    for measure, (begin, end) in SPANS.items():
        start = 0 if begin is None else marks.get(begin)
        cut = end not in marks and one.failure is not None and one.failure.kind in CUT
        stop = marks.get(Mark.GAVE_UP if cut else end)
        if start is not None and stop is not None:
            yield measure, stop - start, cut
    if one.tcp.min_rtt is not None:
        yield "rtt", round(one.tcp.min_rtt * 1e9), False
    if one.outcome is Outcome.SUCCESS and one.gaps is not None and one.gaps.max is not None:
        yield "gap", round(one.gaps.max * 1e9), False
    streamed = (one.tokens.output or 0) - (one.tokens.reasoning or 0)
    took = (marks.get(Mark.LAST_TOKEN) or 0) - (marks.get(Mark.FIRST_TOKEN) or 0)
    if one.outcome is Outcome.SUCCESS and one.tokens.output is not None and streamed >= 2 and took >= MS:
        yield "token", took // (streamed - 1), False


def histograms(attempts: Sequence[Attempt]) -> dict[str, dict[str, object]]:
    """The rows of `rollup_histograms` by measure."""
    found: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for one in attempts:
        if one.try_number == 0 and one.outcome is not Outcome.MISSED and one.valid:
            for measure, took, cut in values(one):
                found[measure].append((took, cut))
    rows: dict[str, dict[str, object]] = {}
    for measure, seen in found.items():
        every, short = Counter(bin_of(took) for took, _ in seen), Counter(bin_of(took) for took, cut in seen if cut)
        bins, times = sorted(every), [took for took, _ in seen]
        rows[measure] = {
            "bins": bins,
            "counts": [every[number] for number in bins],
            "censored": [short[number] for number in bins],
            "sum_ns": sum(times),
            "min_ns": min(times),
            "max_ns": max(times),
        }
    return rows


def kept(store: Engine) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """What the tables hold of the hour."""
    ours = ("vantage_id", "series_id", "hour", "measure")
    with store.connect() as connection:
        (row,) = connection.execute(text("SELECT * FROM rollups")).mappings()
        drawn = connection.execute(text("SELECT * FROM rollup_histograms")).mappings().all()
    shown = {name: value for name, value in row.items() if name not in ours}
    return shown, {str(one["measure"]): {k: v for k, v in one.items() if k not in ours} for one in drawn}


@pytest.mark.parametrize("seed", range(3))
def test_every_column_of_an_hour(store: Engine, seed: int) -> None:
    """A first computation, and one after more rows have come: each column is what the attempts add up to."""
    chance = random.Random(seed)
    attempts = [made_up(chance, number) for number in range(400)]
    for few in (attempts[:90], attempts):
        stored.insert(store, [SERIES], few, ENDED)
        assert rollups.refresh(store, ENDED) == 1
        row, drawn = kept(store)
        assert row == counts(few)
        assert drawn == histograms(few)
    everything = counts(attempts)
    assert all(everything[name] for name in everything), "each column is put to the test"
    assert set(drawn) == {*SPANS, "rtt", "gap", "token"}
    assert min(one["min_ns"] for one in drawn.values()) < MS  # type: ignore[type-var]
