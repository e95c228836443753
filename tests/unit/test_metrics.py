"""What of an attempt goes into which metric, and that nothing else gets in."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from monitor.clock import ManualClock
from monitor.metrics import SERIES_BUDGET, SERIES_LABELS, Metrics, tokens_per_second
from monitor.metrics.fleet import FleetMetrics
from monitor.model import (
    Attempt,
    DialectName,
    Doubt,
    Failure,
    FailureKind,
    HttpFacts,
    MissReason,
    Outcome,
    Place,
    Price,
    Probe,
    Purpose,
    Series,
    Target,
    TcpFacts,
    Tokens,
    Vantage,
    VerdictKind,
)
from monitor.timeline import Gaps, Mark, Phase, Timeline
from monitor.witness import Sighting

AT = datetime(2026, 1, 1, tzinfo=UTC)
MS = 1_000_000
GOOD = {
    Mark.RESOLVE_START: 0,
    Mark.RESOLVE_END: 2 * MS,
    Mark.CONNECT_START: 2 * MS,
    Mark.CONNECT_END: 60 * MS,
    Mark.SEND_START: 60 * MS,
    Mark.SEND_END: 61 * MS,
    Mark.HEADERS: 400 * MS,
    Mark.FIRST_TOKEN: 450 * MS,
    Mark.FIRST_VISIBLE: 450 * MS,
    Mark.LAST_TOKEN: 1450 * MS,
    Mark.END: 1460 * MS,
}
SERIES = Series(
    vantage=Vantage(name="lagos", place=Place(city="Lagos", country="NG")),
    target=Target(
        name="chat", provider="acme", model="small", dialect=DialectName.OPENAI_CHAT, url="https://api.acme.test/v1"
    ),
    probe=Probe(name="short", prompt="hello", interval_seconds=30.0),
)
SUCCESS = Attempt(
    vantage="lagos",
    target="chat",
    probe="short",
    probe_version=SERIES.probe.version,
    scheduled_at=AT,
    started_at=AT,
    outcome=Outcome.SUCCESS,
    timeline=Timeline(GOOD),
    gaps=Gaps(0.02, 0.03, 1.2, 1, 0.0),
    tokens=Tokens(output=51, input=12),
    tcp=TcpFacts(min_rtt=0.05, rtt=0.06, retransmits=2),
)
FAILED = replace(
    SUCCESS,
    outcome=Outcome.FAILED,
    failure=Failure(kind=FailureKind.RATE_LIMITED, phase=Phase.WAIT, text="the provider answers 429"),
    timeline=Timeline({mark: at for mark, at in GOOD.items() if at <= 400 * MS} | {Mark.GAVE_UP: 401 * MS}),
    tokens=Tokens(),
    gaps=None,
)


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(ManualClock(AT))
    made.declare(SERIES)
    return made


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """A sample of the one series."""
    return metrics.registry.get_sample_value(f"firsttoken_{name}", {**SERIES.labels, **labels})


def plain(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"firsttoken_{name}")


def changed(metrics: Metrics, attempt: Attempt, late: bool = False) -> set[str]:
    """The names of the series' samples that an observation changes."""
    before = samples(metrics)
    metrics.observe(attempt, SERIES, late)
    return {name for (name, _), number in (samples(metrics).items() - before.items()) if number is not None}


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name.removeprefix("firsttoken_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if "vantage" in sample.labels
    }


def test_counters_and_histograms_exist_at_zero_before_the_first_attempt(metrics: Metrics) -> None:
    """rate() and increase() see the first event of each kind, because its series was there before it."""
    for outcome in ("success", "failed"):
        assert value(metrics, "attempts_total", outcome=outcome) == 0
    for reason in (MissReason.LATE, MissReason.CAPACITY):
        assert value(metrics, "missed_slots_total", reason=reason) == 0
    for kind in ("rate_limited", "overloaded", "server_error", "first_token_deadline"):
        assert value(metrics, "failures_total", kind=kind, phase="wait") == 0
    assert value(metrics, "invalid_attempts_total") == 0
    for phase in Phase:
        assert value(metrics, "phase_seconds_count", phase=phase) == 0
    assert value(metrics, "ttft_seconds_bucket", le="0.05") == 0
    assert value(metrics, "ttft_seconds_bucket", le="120.0") == 0


def test_rare_kinds_appear_when_they_occur(metrics: Metrics) -> None:
    """They would cost more lines than all the rest; that something failed at all is counted from zero on."""
    assert value(metrics, "failures_total", kind="tls_expired", phase="tls") is None
    failure = Failure(kind=FailureKind.TLS_EXPIRED, phase=Phase.TLS, text="x")
    metrics.observe(replace(FAILED, failure=failure, validity=(Doubt.COALESCED,)), SERIES, late=False)
    assert value(metrics, "failures_total", kind="tls_expired", phase="tls") == 1
    assert value(metrics, "doubts_total", reason="coalesced") == 1
    metrics.observe(replace(SUCCESS, outcome=Outcome.MISSED, missed=MissReason.PAUSED), SERIES, late=False)
    assert value(metrics, "missed_slots_total", reason="paused") == 1


def test_last_values_are_absent_until_there_is_one(metrics: Metrics) -> None:
    """A duration of 0 s before anything was measured would be a lie."""
    assert value(metrics, "last_ttft_seconds") is None
    metrics.observe(SUCCESS, SERIES, late=False)
    assert value(metrics, "last_ttft_seconds") == 0.45
    assert value(metrics, "tcp_min_rtt_seconds") == 0.05
    assert value(metrics, "last_success_timestamp_seconds") == AT.timestamp()


def test_a_success_goes_into_every_distribution_once(metrics: Metrics) -> None:
    """TTFT, TTFO, total, speed and the phases that happened; a phase that did not happen is not counted as 0."""
    metrics.observe(SUCCESS, SERIES, late=False)
    assert value(metrics, "attempts_total", outcome="success") == 1
    assert value(metrics, "ttft_seconds_sum") == 0.45
    assert value(metrics, "ttfo_seconds_sum") == 0.45
    assert value(metrics, "total_seconds_sum") == 1.46
    assert value(metrics, "output_tokens_per_second_sum") == 50
    assert value(metrics, "phase_seconds_sum", phase="wait") == pytest.approx(0.339)
    assert value(metrics, "phase_seconds_count", phase="tls") == 0
    assert value(metrics, "tokens_total", direction="output") == 51
    assert value(metrics, "tokens_total", direction="input") == 12
    assert value(metrics, "stalls_total") == 1
    assert value(metrics, "tcp_retransmits_total") == 2


def test_a_failure_counts_by_kind_and_phase_and_only_its_line_is_measured(metrics: Metrics) -> None:
    """A quick 429 must not make a target look fast, and the line to it was still measured."""
    metrics.observe(FAILED, SERIES, late=False)
    assert value(metrics, "attempts_total", outcome="failed") == 1
    assert value(metrics, "failures_total", kind="rate_limited", phase="wait") == 1
    assert value(metrics, "phase_seconds_count", phase="connect") == 1
    assert value(metrics, "phase_seconds_count", phase="wait") == 0
    assert value(metrics, "ttft_seconds_count") == 0
    assert value(metrics, "last_attempt_success") == 0
    assert value(metrics, "last_success_timestamp_seconds") is None


def test_a_deadline_without_a_token_counts_as_at_least_that_long(metrics: Metrics) -> None:
    """A target that hangs does not look fast through its survivors."""
    hung = replace(
        FAILED,
        failure=Failure(kind=FailureKind.FIRST_TOKEN_DEADLINE, phase=Phase.WAIT, text="no token within 30 s"),
        timeline=Timeline({Mark.RESOLVE_START: 0, Mark.GAVE_UP: 30_000 * MS}),
    )
    metrics.observe(hung, SERIES, late=False)
    assert value(metrics, "ttft_seconds_bucket", le="10.0") == 0
    assert value(metrics, "ttft_seconds_sum") == 30
    after_a_token = replace(hung, timeline=Timeline({Mark.FIRST_TOKEN: 400 * MS, Mark.GAVE_UP: 30_000 * MS}))
    metrics.observe(after_a_token, SERIES, late=False)
    assert value(metrics, "ttft_seconds_count") == 1


def test_late_attempts_go_only_to_the_late_counter(metrics: Metrics) -> None:
    """What tells of the past never enters histograms of the present."""
    assert changed(metrics, SUCCESS, late=True) == {"late_attempts_total"}


def test_missed_slots_go_only_to_the_missed_counter(metrics: Metrics) -> None:
    """A slot that was not measured is no attempt."""
    missed = replace(SUCCESS, outcome=Outcome.MISSED, missed=MissReason.OVERLAP, timeline=Timeline(), tokens=Tokens())
    assert changed(metrics, missed) == {"missed_slots_total"}
    assert value(metrics, "missed_slots_total", reason="overlap") == 1


def test_one_off_probes_are_never_observed(metrics: Metrics) -> None:
    """`firsttoken probe` stays out of the statistics."""
    assert changed(metrics, replace(SUCCESS, purpose=Purpose.ONE_OFF)) == set()


def test_invalid_attempts_are_counted_and_kept_out_of_the_distributions(metrics: Metrics) -> None:
    """We do not blame a target for our own lag, and we do not hide that it happened."""
    touched = changed(metrics, replace(SUCCESS, validity=(Doubt.LOOP_LAG, Doubt.CPU_THROTTLED)))
    assert {"invalid_attempts_total", "doubts_total", "attempts_total", "tokens_total"} <= touched
    assert not any(name.startswith(("ttft", "phase", "total_seconds", "last_ttft")) for name in touched)
    assert value(metrics, "doubts_total", reason="loop_lag") == 1
    assert value(metrics, "doubts_total", reason="cpu_throttled") == 1


def test_a_harmless_doubt_is_counted_and_the_attempt_too(metrics: Metrics) -> None:
    """`coalesced` leaves TTFT trustworthy."""
    metrics.observe(replace(SUCCESS, validity=(Doubt.COALESCED,)), SERIES, late=False)
    assert value(metrics, "ttft_seconds_count") == 1
    assert value(metrics, "doubts_total", reason="coalesced") == 1
    assert value(metrics, "invalid_attempts_total") == 0


def test_a_confirming_attempt_costs_tokens_and_changes_nothing_else(metrics: Metrics) -> None:
    """The second, warm request does not flatter the distributions."""
    assert changed(metrics, replace(SUCCESS, try_number=1)) == {"confirming_attempts_total", "tokens_total"}


def test_retransmits_of_a_kept_connection_are_not_counted_twice(metrics: Metrics) -> None:
    """The kernel's count covers the whole life of a socket."""
    metrics.observe(replace(SUCCESS, http=HttpFacts(reused=True)), SERIES, late=False)
    assert value(metrics, "tcp_retransmits_total") is None


def test_certificate_expiry_comes_from_any_attempt(metrics: Metrics) -> None:
    """Also from one whose measurement is in doubt: the date is not."""
    expires = HttpFacts(certificate_expires_at=AT + timedelta(days=9))
    metrics.observe(replace(SUCCESS, http=expires, validity=(Doubt.WARM_UP,)), SERIES, late=False)
    assert value(metrics, "certificate_expiry_timestamp_seconds") == (AT + timedelta(days=9)).timestamp()


def test_forget_leaves_nothing_of_a_series(metrics: Metrics) -> None:
    """A target that left the configuration leaves the dashboards too, its neighbours stay."""
    neighbour = replace(SERIES, probe=replace(SERIES.probe, name="long"))
    metrics.declare(neighbour)
    for attempt in (SUCCESS, FAILED):
        metrics.observe(attempt, SERIES, late=False)
    metrics.forget(SERIES)
    assert b'probe="short"' not in metrics.render()
    assert b'probe="long"' in metrics.render()
    assert metrics.declared() == {("lagos", "chat", "long")}
    assert changed(metrics, SUCCESS) == set()
    assert plain(metrics, "undeclared_attempts_total") == 1


def test_a_changed_model_replaces_the_series(metrics: Metrics) -> None:
    """Another model behind the same target starts at zero, and the old one's series are gone."""
    metrics.observe(SUCCESS, SERIES, late=False)
    metrics.declare(replace(SERIES, target=replace(SERIES.target, model="large")))
    text = metrics.render()
    assert b'model="small"' not in text
    assert b'model="large"' in text


def test_declaring_again_keeps_the_counts(metrics: Metrics) -> None:
    """A reload that changes other things does not reset anything."""
    metrics.observe(SUCCESS, SERIES, late=False)
    metrics.declare(SERIES)
    assert value(metrics, "attempts_total", outcome="success") == 1


def test_simulation_is_said_once_for_each_series(metrics: Metrics) -> None:
    """`firsttoken_series_info` says it, also after it changed, instead of one more label everywhere."""
    assert value(metrics, "series_info", simulated="false") == 1
    metrics.declare(replace(SERIES, vantage=replace(SERIES.vantage, simulated=True)))
    assert value(metrics, "series_info", simulated="true") == 1
    assert value(metrics, "series_info", simulated="false") is None


def test_a_series_stays_within_its_budget(metrics: Metrics) -> None:
    """Once everything usual has been seen. benchmarks/scrape.py says what the budget is for."""
    priced = replace(SERIES, target=replace(SERIES.target, price=Price(input=1.0, output=2.0)))
    metrics.declare(priced)
    metrics.observe(FAILED, priced, late=False)
    expires = HttpFacts(certificate_expires_at=AT)
    control = Timeline({**GOOD, Mark.CONTROL_SENT: 0, Mark.CONTROL_HEADERS: MS})
    metrics.observe(replace(SUCCESS, http=expires, timeline=control, cost=0.1), priced, late=False)
    metrics.observe(replace(SUCCESS, outcome=Outcome.MISSED, missed=MissReason.CAPACITY), priced, late=False)
    metrics.observe_verdict(priced, VerdictKind.COLD, 1.0)
    assert len(samples(metrics)) <= SERIES_BUDGET
    every_failure = [replace(FAILED, failure=Failure(kind=kind, phase=Phase.WAIT, text="x")) for kind in FailureKind]
    for failed in every_failure:
        metrics.observe(failed, priced, late=False)
    assert len(samples(metrics)) <= SERIES_BUDGET + len(FailureKind)


def test_coverage_is_of_the_last_hour_alone(metrics: Metrics) -> None:
    """Each answer replaces the one before, causes included; nothing is said where it is another copy's to say."""

    def slots(name: str, **labels: str) -> float | None:
        names = {"vantage": "lagos", "target": "chat", **labels}
        return metrics.registry.get_sample_value(f"firsttoken_coverage_{name}_slots", names)

    assert slots("owed") is None
    metrics.set_coverage([(("lagos", "chat"), 60, 58, {"overlap": 2})])
    assert (slots("owed"), slots("measured"), slots("missed", reason="overlap")) == (60, 58, 2)
    metrics.set_coverage([(("lagos", "chat"), 60, 60, {})])
    assert (slots("measured"), slots("missed", reason="overlap")) == (60, None)
    metrics.set_coverage([])
    assert slots("owed") is None


def test_verdicts_count_apart_from_attempts(metrics: Metrics) -> None:
    """From zero on; a cold one counts with its penalty where that is known; a series that is gone counts nothing."""
    assert value(metrics, "verdicts_total", verdict="cold") == value(metrics, "verdicts_total", verdict="warm") == 0
    assert value(metrics, "cold_starts_total") == value(metrics, "cold_start_penalty_seconds_count") == 0
    metrics.observe_verdict(SERIES, VerdictKind.COLD, 1.5)
    metrics.observe_verdict(SERIES, VerdictKind.COLD, None)
    metrics.observe_verdict(SERIES, VerdictKind.WARM, None)
    metrics.observe_verdict(replace(SERIES, vantage=Vantage(name="gone")), VerdictKind.WARM, None)
    assert value(metrics, "verdicts_total", verdict="cold") == 2
    assert value(metrics, "verdicts_total", verdict="warm") == 1
    assert value(metrics, "cold_starts_total") == 2
    assert value(metrics, "cold_start_penalty_seconds_sum") == 1.5
    assert value(metrics, "attempts_total", outcome="success") == 0


def test_spend_begins_at_zero_and_counts_every_try() -> None:
    """Money is a counter in the price's currency; confirming tries cost too, targets without a price have no series."""
    priced = replace(SERIES, target=replace(SERIES.target, price=Price(input=1.0, output=2.0, currency="EUR")))
    metrics = Metrics(ManualClock(AT))
    metrics.declare(priced)
    assert value(metrics, "spend_total", currency="EUR") == 0
    metrics.observe(replace(SUCCESS, cost=0.25), priced, late=False)
    metrics.observe(replace(SUCCESS, cost=0.5, try_number=1), priced, late=False)
    metrics.observe(replace(FAILED, cost=0.125), priced, late=True)
    assert value(metrics, "spend_total", currency="EUR") == pytest.approx(0.875)
    metrics.declare(SERIES)
    metrics.forget(SERIES)
    assert value(metrics, "spend_total", currency="EUR") is None


def test_an_answer_that_fails_a_check_keeps_its_times(metrics: Metrics) -> None:
    """It counts as failed, and its TTFT in the histogram: a slow target must not look fast through what passes."""
    failure = Failure(kind=FailureKind.CHECK_FAILED, phase=Phase.GENERATE, text="check max_ttft")
    metrics.observe(replace(SUCCESS, outcome=Outcome.FAILED, failure=failure), SERIES, late=False)
    assert value(metrics, "ttft_seconds_count") == 1
    assert value(metrics, "attempts_total", outcome="failed") == 1
    assert value(metrics, "last_attempt_success") == 0


def test_no_text_of_an_attempt_reaches_a_label(metrics: Metrics) -> None:
    """A failure's words, an address, a request id: none of them is in the exposition."""
    planted = "sk-planted-0123456789"
    failure = Failure(kind=FailureKind.UNAUTHORIZED, phase=Phase.WAIT, text=planted)
    http = HttpFacts(request_id=planted, remote=planted, served_model=planted, edge=planted)
    metrics.observe(replace(FAILED, failure=failure, http=http, finish_reason=planted), SERIES, late=False)
    assert planted.encode() not in metrics.render()


def test_losses_of_earlier_processes_are_no_increase(metrics: Metrics) -> None:
    """The spool's count survives a restart, the counter begins anew."""
    metrics.set_spool(3, 4096, AT - timedelta(seconds=90), 5)
    assert plain(metrics, "spool_lost_attempts_total") == 0
    assert plain(metrics, "spool_oldest_age_seconds") == 90
    metrics.set_spool(0, 4096, None, 7)
    assert plain(metrics, "spool_lost_attempts_total") == 2
    assert plain(metrics, "spool_oldest_age_seconds") == 0


def test_a_refused_configuration_keeps_the_time_of_the_good_one(metrics: Metrics) -> None:
    """Prometheus's own pair of names, and its meaning."""
    metrics.config_reloaded(True)
    metrics.config_reloaded(False)
    assert plain(metrics, "config_last_reload_successful") == 0
    assert plain(metrics, "config_last_reload_success_timestamp_seconds") == AT.timestamp()


@pytest.mark.parametrize(
    ("change", "speed"),
    [
        ({}, 50.0),
        ({"tokens": Tokens(output=None)}, None),
        ({"tokens": Tokens(output=1)}, None),
        ({"tokens": Tokens(output=151, reasoning=100)}, 50.0),
        ({"timeline": Timeline({Mark.FIRST_TOKEN: 5 * MS, Mark.LAST_TOKEN: 5 * MS + 1000})}, None),
        ({"timeline": Timeline({})}, None),
    ],
)
def test_speed_is_told_only_where_it_can_be(change: dict[str, object], speed: float | None) -> None:
    """Hidden reasoning was generated before the stream began; one arrival tells nothing of pace."""
    assert tokens_per_second(replace(SUCCESS, **change)) == speed


def test_streamed_reasoning_counts_into_the_speed() -> None:
    """When reasoning was streamed, its tokens lie between the first and the last."""
    marks = Timeline({**GOOD, Mark.FIRST_REASONING: 450 * MS})
    assert tokens_per_second(replace(SUCCESS, timeline=marks, tokens=Tokens(output=101, reasoning=90))) == 100


HOSTILE = 'a"b\\c\nd{}é,='


def hostile_metrics() -> Metrics:
    made = Metrics(ManualClock(AT))
    for name in ("plain", HOSTILE):
        series = replace(SERIES, target=replace(SERIES.target, name=name))
        made.declare(series)
        made.observe(replace(SUCCESS, target=name), series, late=False)
    return made


def parsed(families: object) -> set[tuple[str, str, tuple[tuple[str, str], ...], float]]:
    """All samples but those that change by the moment."""
    return {
        (family.name, family.type, tuple(sorted(sample.labels.items())), sample.value)
        for family in families  # type: ignore[attr-defined]
        for sample in family.samples
        if sample.name.startswith("firsttoken_")
    }


def test_the_text_format_says_what_the_library_would_say() -> None:
    """Our faster writer and prometheus_client's give the same metrics, hostile label values included."""
    made = hostile_metrics()
    ours = parsed(parse_text(made.negotiate("text/plain;version=0.0.4")[1].decode()))
    assert ours == parsed(parse_text(generate_latest(made.registry).decode()))
    assert any(HOSTILE in dict(labels).values() for _, _, labels, _ in ours)


def test_openmetrics_says_what_the_library_would_say() -> None:
    """The same in OpenMetrics, which is strict about its end and its counters' names."""
    made = hostile_metrics()
    content_type, body = made.negotiate("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text")
    ours = parsed(parse_openmetrics(body.decode()))
    assert ours == parsed(parse_openmetrics(generate_openmetrics(made.registry).decode()))


def test_the_process_is_in_its_own_registry(metrics: Metrics) -> None:
    """Nothing of ours is in the library's global registry, and process metrics are in ours."""
    assert isinstance(metrics.registry, CollectorRegistry)
    assert b"process_resident_memory_bytes" in metrics.render()
    assert b"firsttoken_build_info" in metrics.render()


def reference() -> str:
    """The table of docs/metrics.md as the registry has it."""
    made = Metrics(ManualClock(AT))
    rows = ["| metric | type | labels besides those of the series | meaning |", "| --- | --- | --- | --- |"]
    for family in made.registry.collect():
        if family.name.startswith("firsttoken_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            rows.append(f"| `{name}` | {family.type} | {_labels(made, family.name)} | {family.documentation} |")
    return "\n".join(rows)


def fleet_reference() -> str:
    """The second table: what a hub's registry has more."""
    made = Metrics(ManualClock(AT))
    plain = {family.name for family in made.registry.collect()}
    FleetMetrics(made.registry)
    rows = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for family in made.registry.collect():
        if family.name not in plain:
            name = family.name + ("_total" if family.type == "counter" else "")
            rows.append(f"| `{name}` | {family.type} | {FLEET_LABELS.get(family.name, '–')} | {family.documentation} |")
    return "\n".join(rows)


FLEET_LABELS = {
    "firsttoken_ingest_batches": "`result`: stored, refused, failed",
    "firsttoken_ingest_attempts": "`vantage`, `result`: new, duplicate, conflict, rejected, deferred",
    "firsttoken_agent_info": "`vantage`, `country`, `version`, `config_digest`",
    **{
        f"firsttoken_agent_{name}": "`vantage`, `country`"
        for name in (
            "last_seen_timestamp_seconds", "up_to_date", "spool_attempts", "spool_size_bytes", "spool_limit_bytes",
            "oldest_unsent_seconds", "spool_lost_attempts", "clock_offset_seconds", "starved",
        )
    },
}  # fmt: skip


def test_the_reference_lists_every_metric_of_a_hub() -> None:
    """docs/metrics.md holds the table of a hub's own metrics, word for word."""
    page = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
    assert fleet_reference() in page.read_text(encoding="utf-8"), f"put this into docs/metrics.md:\n{fleet_reference()}"


def _labels(made: Metrics, name: str) -> str:
    instrument = made.registry._names_to_collectors[name]
    names = instrument._labelnames  # type: ignore[attr-defined]
    of_series = set(SERIES_LABELS) <= set(names)
    more = ", ".join(f"`{label}`" for label in names if not of_series or label not in SERIES_LABELS) or "–"
    return more if of_series else f"{more} (process)"


def test_last_values_of_several_hubs_come_from_the_record() -> None:
    """A hub's own counting sets no last value; the record does, newest last, whatever comes late; and they can go."""
    metrics = Metrics(ManualClock(AT), last_values=False)
    metrics.declare(SERIES)
    new, old = replace(SUCCESS, started_at=AT), replace(SUCCESS, started_at=AT - timedelta(hours=1))
    metrics.observe(new, SERIES, late=False)
    name = "firsttoken_last_attempt_timestamp_seconds{"
    assert name not in metrics.render().decode()
    metrics.note_last([new])
    metrics.note_last([old])
    (line,) = [line for line in metrics.render().decode().splitlines() if line.startswith(name)]
    assert float(line.rsplit(" ", 1)[1]) == AT.timestamp()
    metrics.forget_last()
    assert name not in metrics.render().decode()


def test_the_witness_shows_the_last_looks() -> None:
    """Each endpoint has its gauges while it is looked at; a phase that was not passed has none."""
    metrics = Metrics()
    near = Sighting(vantage="lagos", endpoint="near", address="a", started_at=AT, seconds={Phase.CONNECT: 0.1})
    failure = Failure(kind=FailureKind.DNS, phase=Phase.RESOLVE, text="")
    dead = replace(near, endpoint="dead", seconds={}, failure=failure)
    metrics.set_witness([near, dead])
    text = metrics.render().decode()
    assert 'firsttoken_witness_up{vantage="lagos",endpoint="near"} 1\n' in text
    assert 'firsttoken_witness_up{vantage="lagos",endpoint="dead"} 0\n' in text
    assert 'firsttoken_witness_seconds{vantage="lagos",endpoint="near",phase="connect"} 0.1\n' in text
    assert 'firsttoken_witness_seconds{vantage="lagos",endpoint="dead"' not in text
    metrics.set_witness([replace(near, seconds={})])
    text = metrics.render().decode()
    assert "dead" not in text
    assert "firsttoken_witness_seconds{" not in text


def test_the_reference_lists_every_metric() -> None:
    """docs/metrics.md holds the registry's own table, word for word."""
    page = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
    assert reference() in page.read_text(encoding="utf-8"), f"put this table into docs/metrics.md:\n{reference()}"
