"""`firsttoken up` within its limits: a daily budget that a restart does not renew, a provider's pace, and its 429."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from monitor.model import Attempt, FailureKind, MissReason, Outcome
from monitor.simulator import SimulatorProcess
from monitor.store.attempts import recent
from tests.integration.running_up import Up, configuration, until

QUICK = {"ttft_seconds": 0.05, "tokens": 5, "tokens_per_second": 200}
LISTENERS = [
    {"name": "main", "models": {"*": QUICK}},
    {"name": "full", "models": {"*": {**QUICK, "status": 429, "headers": {"retry-after": "40"}}}},
]
PROBES = {"short": {"prompt": "hi", "interval": "1s", "deadline": "800ms", "max_output_tokens": 200}}
WORST_TOKENS = 40 + 200
CAP_TOKENS = WORST_TOKENS + 20
REACHED = "the day's budget is reached: slots are missed until it renews at midnight UTC"


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess({"listeners": LISTENERS}) as running:
        yield running


def stored(store: Engine) -> list[Attempt]:
    return recent(store, 5000, since=datetime.now(UTC) - timedelta(hours=1))


def asked(store: Engine) -> list[Attempt]:
    return [a for a in stored(store) if a.outcome is not Outcome.MISSED]


def missed(store: Engine, reason: MissReason) -> list[Attempt]:
    return [a for a in stored(store) if a.missed is reason]


def test_a_budget_is_hard_and_survives_a_restart(tmp_path, simulator, store, database_url):
    """Attempts go on while their worst case fits; then slots are missed, said once, and nobody is unready."""
    content = configuration(
        simulator.url(),
        probes=PROBES,
        prices={"currency": "EUR", "per_target": {"alpha": {"input": 1, "output": 2}}},
        budget={"tokens_per_day": CAP_TOKENS, "per_target": {"alpha": {"money_per_day": 100}}},
    )
    with Up(tmp_path, content, DATABASE_URL=database_url) as up:
        until(lambda: len(missed(store, MissReason.BUDGET)) >= 2, "slots that the budget kept back")
        assert len(up.said(REACHED)) == 1
        assert (up.said(REACHED)[0]["target"], up.said(REACHED)[0]["unit"]) == ("all", "tokens")
        made = asked(store)
        used = sum((a.tokens.input or 0) + (a.tokens.output or 0) for a in made)
        assert made
        assert 0 < used <= CAP_TOKENS
        assert CAP_TOKENS - used < WORST_TOKENS
        assert up.metric("firsttoken_budget_limit", scope="overall", unit="tokens") == CAP_TOKENS
        assert up.metric("firsttoken_budget_remaining", scope="overall", unit="tokens") == CAP_TOKENS - used
        spent = up.metric("firsttoken_spend_total", target="alpha", currency="EUR")
        assert spent == pytest.approx(100 - up.metric("firsttoken_budget_remaining", target="alpha", unit="EUR"))
        until(lambda: up.metric("firsttoken_missed_slots_total", reason="budget") >= 2, "counted as missed")
        assert json.loads(up.get("readyz"))["ready"]
        assert up.stop() == 0
    before = len(asked(store))
    kept_back = len(missed(store, MissReason.BUDGET))
    with Up(tmp_path, content, DATABASE_URL=database_url):
        until(lambda: len(missed(store, MissReason.BUDGET)) >= kept_back + 2, "still kept back after a restart")
    assert len(asked(store)) == before


def test_a_reload_gives_more(tmp_path, simulator, store, database_url):
    """A higher cap counts at once, with what was spent before. A proxy of the environment is refused in words."""
    content = configuration(simulator.url(), probes=PROBES, budget={"tokens_per_day": WORST_TOKENS - 1})
    proxy = "http://user:planted@127.0.0.1:1"
    with Up(tmp_path, content, DATABASE_URL=database_url, HTTPS_PROXY=proxy, all_proxy=proxy) as up:
        until(lambda: missed(store, MissReason.BUDGET), "a slot that the budget kept back")
        assert not asked(store)
        up.write({**content, "budget": {"tokens_per_day": 1_000_000}})
        until(lambda: len(asked(store)) >= 2, "probing again")
    said = [line for line in up.lines if "of the environment are not used, on purpose" in line["message"]]
    assert [line["level"] for line in said] == ["warning"]
    assert "planted" not in "".join(up.raw)


def test_a_429_is_shown_and_then_left_alone(tmp_path, simulator, store, database_url):
    """The refusal is on record; while the provider wants to be left alone, slots are missed with that reason."""
    content = configuration(simulator.url("full"), probes=PROBES)
    with Up(tmp_path, content, DATABASE_URL=database_url) as up:
        until(lambda: len(missed(store, MissReason.RETRY_AFTER)) >= 3, "slots kept back")
        (refused,) = asked(store)
        assert refused.failure is not None
        assert refused.failure.kind is FailureKind.RATE_LIMITED
        said = up.said("the provider asks to wait; slots until then are missed")
        assert [(line["target"], line["seconds"]) for line in said] == [("alpha", 40)]


def test_a_pace_of_a_provider_is_kept(tmp_path, simulator, store, database_url):
    """No more attempts begin in a minute than allowed, confirming ones included; the other slots are missed."""
    content = configuration(simulator.url(), probes=PROBES, limits={"per_provider": {"sim": {"per_minute": 2}}})
    with Up(tmp_path, content, DATABASE_URL=database_url):
        until(lambda: len(missed(store, MissReason.CAPACITY)) >= 4, "slots beyond the pace")
        assert len(asked(store)) == 2
