"""Attempts go into Postgres exactly once, and what cannot be stored stands in nobody's way."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from monitor.model import (
    Attempt,
    ClockSource,
    DialectName,
    Doubt,
    Failure,
    FailureKind,
    HttpFacts,
    MissReason,
    Outcome,
    Place,
    Probe,
    Purpose,
    Secret,
    Series,
    StoreUnavailable,
    Target,
    TcpFacts,
    Tokens,
    Vantage,
)
from monitor.store import attempts, engine
from monitor.timeline import Gaps, Mark, Phase, Timeline

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SERIES = Series(
    vantage=Vantage(name="lagos", place=Place(city="Lagos", country="NG", latitude=6.45, longitude=3.4)),
    target=Target(
        name="acme",
        provider="acme",
        model="m-1",
        dialect=DialectName.OPENAI_CHAT,
        url="https://user:sk-planted@api.acme.test:8443/v1?key=sk-planted",
        api_key=Secret("sk-planted"),
    ),
    probe=Probe(name="short", prompt="Say hello."),
)
FULL = Attempt(
    vantage="lagos",
    target="acme",
    probe="short",
    probe_version=SERIES.probe.version,
    scheduled_at=NOW,
    started_at=NOW + timedelta(microseconds=1501),
    outcome=Outcome.FAILED,
    failure=Failure(kind=FailureKind.STALLED, phase=Phase.GENERATE, text="nothing came for 15 s"),
    timeline=Timeline({mark: 1_000_003 * n for n, mark in enumerate(Mark)}),
    gaps=Gaps(0.01, 0.0235, None, 1, 0.25),
    tokens=Tokens(output=20, reasoning=0, visible=20, input=2**40),
    token_events=19,
    finish_reason="length",
    http=HttpFacts(
        status=200,
        version="2",
        remote="[2001:db8::1]:443",
        family="ipv6",
        tls_version="TLSv1.3",
        alpn="h2",
        reused=True,
        proxied=True,
        content_encoding="gzip",
        edge="LOS",
        request_id="req_1",
        served_model="m-1-2026",
        certificate_expires_at=NOW + timedelta(days=30),
    ),
    server={"prompt_seconds": 0.125, "queue": 1e-7},
    tcp=TcpFacts(min_rtt=0.1049, rtt=0.1101, retransmits=2, out_of_order=0),
    clock_source=ClockSource.KERNEL,
    validity=(Doubt.COALESCED, Doubt.LOOP_LAG),
    loop_lag_seconds=0.0613,
    coalesced_reads=3,
    reads=40,
    cost=0.000123,
)
MISSED = Attempt(
    vantage="lagos",
    target="acme",
    probe="short",
    probe_version=SERIES.probe.version,
    scheduled_at=NOW + timedelta(minutes=1),
    started_at=NOW + timedelta(minutes=1),
    outcome=Outcome.MISSED,
    missed=MissReason.OVERLAP,
)


def at(minutes: float, **changes: object) -> Attempt:
    """The full attempt at another slot."""
    moment = NOW + timedelta(minutes=minutes)
    return replace(FULL, scheduled_at=moment, started_at=moment, **changes)


def stored(store: Engine) -> list[Attempt]:
    return attempts.recent(store, 10_000, since=NOW - timedelta(days=40))


def count(store: Engine, query: str) -> int:
    with store.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())


def test_what_goes_in_comes_out(store: Engine) -> None:
    """Every field of an attempt survives Postgres exactly, absent ones included."""
    result = attempts.insert(store, [SERIES], [FULL, MISSED], NOW)
    assert result.new == [FULL, MISSED]
    assert stored(store) == [MISSED, FULL]


def test_the_same_batch_twice_is_stored_once(store: Engine) -> None:
    """A batch that is sent again, as after a lost acknowledgement, changes nothing and is counted as duplicates."""
    batch = [at(n) for n in range(10)]
    attempts.insert(store, [SERIES], batch, NOW)
    again = attempts.insert(store, [SERIES], [*batch, at(11)], NOW + timedelta(minutes=5))
    assert (again.new, again.duplicates, again.conflicts, again.rejected) == ([at(11)], 10, [], [])
    assert len(stored(store)) == 11


def test_equal_key_with_other_content_is_a_conflict(store: Engine) -> None:
    """The first record of a slot stays; a different one under its key (a cloned agent) is reported, not stored."""
    attempts.insert(store, [SERIES], [FULL], NOW)
    other = replace(FULL, finish_reason="stop")
    result = attempts.insert(store, [SERIES], [other], NOW)
    assert (result.new, result.duplicates, result.conflicts) == ([], 0, [other])
    assert stored(store) == [FULL]


def test_equal_keys_within_one_batch(store: Engine) -> None:
    """One batch may hold a slot twice: the first is new, an equal one a duplicate, another a conflict."""
    other = replace(FULL, finish_reason="stop")
    result = attempts.insert(store, [SERIES], [FULL, FULL, other], NOW)
    assert (result.new, result.duplicates, result.conflicts) == ([FULL], 1, [other])


def test_a_confirming_try_is_a_row_of_its_own(store: Engine) -> None:
    """Slot and try are the key."""
    result = attempts.insert(store, [SERIES], [FULL, replace(FULL, try_number=1)], NOW)
    assert len(result.new) == 2


def test_a_bad_row_does_not_block_its_batch(store: Engine) -> None:
    """What Postgres refuses is reported with its reason; all the others of the batch are stored."""
    bad = at(3, http=HttpFacts(status=10**12))
    result = attempts.insert(store, [SERIES], [*(at(n) for n in range(3)), bad, *(at(n) for n in range(4, 20))], NOW)
    assert [rejected.attempt for rejected in result.rejected] == [bad]
    assert "out of range" in result.rejected[0].reason
    assert len(result.new) == len(stored(store)) == 19


def test_nul_and_surrogates_do_not_break_the_insert(store: Engine) -> None:
    """Text that Postgres cannot hold is mended with U+FFFD wherever it came from."""
    dirty = replace(FULL, finish_reason="a\x00b\\u0000", server={"x\x00": 1.0})
    probe = replace(SERIES.probe, prompt="hi\x00\ud800")
    result = attempts.insert(store, [replace(SERIES, probe=probe)], [dirty, at(1, finish_reason="\ud83d x")], NOW)
    assert result.rejected == []
    assert [a.finish_reason for a in stored(store)] == ["\ufffd x", "a\ufffdb\\u0000"]


def test_numbers_that_are_not_finite_become_unknown(store: Engine) -> None:
    """NaN and infinity never reach a row."""
    odd = replace(FULL, tcp=TcpFacts(rtt=float("nan")), server={"x": float("inf")}, loop_lag_seconds=float("inf"))
    assert attempts.insert(store, [SERIES], [odd], NOW).rejected == []
    assert stored(store)[0].tcp == TcpFacts()


def test_future_and_ancient_rows_are_refused_one_by_one(store: Engine) -> None:
    """A wrong clock's rows are reported with a reason, never lost silently; rows of the allowed days are kept."""
    future, ancient = at(60 * 25), at(-60 * 24 * 31)
    soon, old = at(60 * 23), at(-60 * 24 * 29)
    result = attempts.insert(store, [SERIES], [future, soon, ancient, old], NOW, raw_days=30)
    assert result.new == [soon, old]
    assert [(r.attempt, r.reason) for r in result.rejected] == [
        (future, "scheduled more than a day in the future: is a clock wrong?"),
        (ancient, "older than the 30 days for which attempts are kept"),
    ]


def test_one_off_probes_stay_out(store: Engine) -> None:
    """`firsttoken probe` never enters the statistics, even when something hands its attempts over."""
    result = attempts.insert(store, [SERIES], [replace(FULL, purpose=Purpose.ONE_OFF)], NOW)
    assert result.new == []
    assert "one-off" in result.rejected[0].reason


def test_more_than_a_batch_is_stored_in_chunks(store: Engine) -> None:
    """Any number may be given; every attempt is accounted for."""
    result = attempts.insert(store, [SERIES], [at(n / 60) for n in range(1203)], NOW)
    assert len(result.new) == 1203


def test_an_unknown_series_is_stored_and_described_later(store: Engine) -> None:
    """Spooled attempts of a target that left the configuration are kept under their names."""
    attempts.insert(store, [], [FULL], NOW)
    assert stored(store) == [FULL]
    attempts.insert(store, [SERIES], [at(1)], NOW)
    assert count(store, "SELECT count(*) FROM targets WHERE provider = 'acme'") == 1
    attempts.insert(store, [], [at(2)], NOW + timedelta(hours=1))
    assert count(store, "SELECT count(*) FROM targets WHERE provider = 'acme'") == 1


def test_a_changed_description_is_taken_over_and_probe_versions_are_kept(store: Engine) -> None:
    """Dimensions follow the configuration; each version of a probe stays known."""
    attempts.insert(store, [SERIES], [FULL], NOW)
    changed = replace(
        SERIES, target=replace(SERIES.target, model="m-2"), probe=replace(SERIES.probe, prompt="Say goodbye.")
    )
    attempts.insert(store, [changed], [at(1, probe_version=changed.probe.version)], NOW)
    assert count(store, "SELECT count(*) FROM targets WHERE model = 'm-2'") == 1
    assert count(store, "SELECT count(DISTINCT prompt) FROM probes") == 2


def test_no_secret_reaches_the_database(store: Engine) -> None:
    """Keys in a URL, in headers or as the API key are not stored anywhere."""
    attempts.insert(store, [SERIES], [FULL], NOW)
    for table in ("attempts", "vantages", "targets", "probes", "series", "dirty_hours"):
        assert count(store, f"SELECT count(*) FROM {table} t WHERE t::text LIKE '%sk-planted%'") == 0
    assert count(store, "SELECT count(*) FROM targets WHERE endpoint = 'https://api.acme.test:8443/v1'") == 1


def test_the_touched_hours_are_marked(store: Engine) -> None:
    """New rows mark their hour in the same transaction; duplicates mark nothing."""
    attempts.insert(store, [SERIES], [at(0), at(59), at(60)], NOW)
    assert count(store, "SELECT count(*) FROM dirty_hours") == 2
    with store.begin() as connection:
        connection.execute(text("DELETE FROM dirty_hours"))
    attempts.insert(store, [SERIES], [at(0)], NOW)
    assert count(store, "SELECT count(*) FROM dirty_hours") == 0


def test_the_view_derives_what_the_timeline_defines(store: Engine) -> None:
    """Durations in the view `measurements` are those of `timeline.py`, null where a phase did not happen."""
    partial = at(
        1, timeline=Timeline({Mark.RESOLVE_START: 0, Mark.RESOLVE_END: 5_000_000, Mark.CONNECT_START: 6_000_000})
    )
    backwards = at(2, timeline=Timeline({Mark.TLS_START: 9, Mark.TLS_END: 4, Mark.GAVE_UP: 7}))
    batch = [FULL, partial, backwards, MISSED]
    attempts.insert(
        store, [SERIES], [replace(a, scheduled_at=NOW + timedelta(minutes=n)) for n, a in enumerate(batch)], NOW
    )
    with store.connect() as connection:
        rows = connection.execute(text("SELECT * FROM measurements ORDER BY scheduled_at")).mappings().all()
    for attempt, row in zip(batch, rows, strict=True):
        line = attempt.timeline
        for phase in Phase:
            assert row[f"{phase}_seconds"] == pytest.approx(line.phase(phase))
        assert row["ttft_seconds"] == pytest.approx(line.ttft)
        assert row["ttfo_seconds"] == pytest.approx(line.ttfo)
        assert row["total_seconds"] == pytest.approx(line.total)
        assert row["control_seconds"] == pytest.approx(line.control)
        assert row["lasted_seconds"] == pytest.approx(line.lasted_ns / 1e9)
        assert row["valid"] == attempt.valid
        assert row["cost"] == attempt.cost


def test_a_database_that_is_away_is_told_apart_from_bad_rows() -> None:
    """Nothing listens: StoreUnavailable with its cause, and no password in the text."""
    away = engine.open_engine("postgresql://u:sk-planted@127.0.0.1:1/nothing")
    with pytest.raises(StoreUnavailable, match="refused") as caught:
        attempts.insert(away, [SERIES], [FULL], NOW)
    assert caught.value.__cause__ is not None
    assert "sk-planted" not in str(caught.value)


def test_a_database_without_tables_says_what_to_run(empty_database_url: str) -> None:
    """Rows wait for the migration instead of being refused."""
    fresh = engine.open_engine(empty_database_url)
    with pytest.raises(StoreUnavailable, match="firsttoken migrate"):
        attempts.insert(fresh, [SERIES], [FULL], NOW)
    fresh.dispose()


def test_a_read_only_database_keeps_rows_waiting(store: Engine, database_url: str) -> None:
    """A standby or a full disk set read-only is no fault of the rows."""
    read_only = engine.open_engine(database_url)
    with read_only.begin() as connection:
        connection.execute(text(f"ALTER DATABASE {read_only.url.database} SET default_transaction_read_only = on"))
    read_only.dispose()
    with pytest.raises(StoreUnavailable, match="read-only"):
        attempts.insert(read_only, [SERIES], [FULL], NOW)
    read_only.dispose()


def test_a_killed_connection_costs_nothing(store: Engine) -> None:
    """After the server has ended our connections (a restart), the next batch goes in without an error."""
    attempts.insert(store, [SERIES], [FULL], NOW)
    other = engine.open_engine(store.url.render_as_string(hide_password=False))
    with other.begin() as connection:
        ours = "datname = current_database() AND pid <> pg_backend_pid()"
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}"))
    other.dispose()
    assert attempts.insert(store, [SERIES], [at(1)], NOW).new == [at(1)]
