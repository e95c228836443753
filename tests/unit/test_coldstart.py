"""The cold-start verdict: a folder of cases with the verdict they must get, and what holds for all cases."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.detect.coldstart import ENOUGH, HISTORY, Reason, Sample, judge, looks_cold, sample
from monitor.model import (
    Attempt,
    ColdStartRule,
    Doubt,
    Failure,
    FailureKind,
    HttpFacts,
    Outcome,
    TcpFacts,
)
from monitor.model import VerdictKind as Kind
from monitor.timeline import Mark, Phase, Timeline

CASES = sorted((Path(__file__).parents[1] / "golden" / "coldstart").glob("*.json"))
AT = datetime(2026, 1, 1, tzinfo=UTC)
MS = 1_000_000


def attempt(said: dict[str, Any]) -> Attempt:
    """An attempt from the few facts that a case names; milliseconds."""
    connect, tls = said.get("connect_ms", 0), said.get("tls_ms", 0)
    marks: dict[Mark, float] = {Mark.CONNECT_START: 0, Mark.CONNECT_END: connect} if connect else {}
    if tls:
        marks |= {Mark.TLS_START: connect, Mark.TLS_END: connect + tls}
    marks |= {Mark.SEND_START: connect + tls, Mark.SEND_END: connect + tls}
    tokens = 0
    if "ttft_ms" in said:
        tokens = 11
        last = said["ttft_ms"] + 10 * said.get("token_ms", 10)
        marks |= {Mark.FIRST_TOKEN: said["ttft_ms"], Mark.LAST_TOKEN: last, Mark.END: last}
    if "failure" in said:
        marks[Mark.GAVE_UP] = said.get("lasted_ms", 50)
        marks.pop(Mark.END, None)
    failure = Failure(kind=FailureKind(said["failure"]), phase=Phase.WAIT, text="so") if "failure" in said else None
    return Attempt(
        vantage="here",
        target="chat",
        probe="short",
        probe_version="1",
        scheduled_at=AT,
        started_at=AT,
        try_number=said.get("try", 0),
        outcome=Outcome.FAILED if failure else Outcome.SUCCESS,
        failure=failure,
        timeline=Timeline({mark: round(at * MS) for mark, at in marks.items()}),
        token_events=tokens,
        http=HttpFacts(proxied=said.get("proxied", False)),
        server=said.get("server", {}),
        tcp=TcpFacts(
            min_rtt=said["rtt_ms"] / 1000 if "rtt_ms" in said else None, retransmits=said.get("retransmits", 0)
        ),
        validity=tuple(Doubt(doubt) for doubt in said.get("doubts", ())),
        loop_lag_seconds=said.get("lag_ms", 0) / 1000,
    )


def samples(said: list[dict[str, Any]]) -> list[Sample]:
    found = [sample(attempt(one)) for one in said]
    return [one for one in found if one is not None]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden_cases(path: Path) -> None:
    """Each case of the folder gets the verdict that stands in it."""
    case = json.loads(path.read_text(encoding="utf-8"))
    confirming = attempt({**case["confirming"], "try": 1}) if case["confirming"] else None
    rule = ColdStartRule(**case.get("rule", {}))
    verdict = judge(attempt(case["attempt"]), confirming, samples(case["history"]), case["idle_before"], rule)
    expected = case["expected"]
    assert (verdict.kind, list(verdict.reasons)) == (expected["kind"], expected["reasons"]), case["promise"]
    penalty = None if verdict.penalty_seconds is None else pytest.approx(verdict.penalty_seconds * 1000)
    assert expected["penalty_ms"] == penalty


def test_every_reason_has_a_case() -> None:
    """The list of reasons is closed, and each of them happens."""
    seen = {reason for path in CASES for reason in json.loads(path.read_text())["expected"]["reasons"]}
    assert seen == {str(reason) for reason in Reason}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_agent_suspects_whatever_may_be_cold(path: Path) -> None:
    """No cold verdict lacks its confirming attempt because the agent's eye was narrower than the verdict's."""
    case = json.loads(path.read_text(encoding="utf-8"))
    recent = samples(case["history"]) or samples([case["confirming"]] if case["confirming"] else [])
    if case["expected"]["kind"] == "cold" and recent:
        assert looks_cold(attempt(case["attempt"]), recent, ColdStartRule(**case.get("rule", {})))


def test_noise_is_not_suspected() -> None:
    """Neither the usual, nor many times the usual when that is milliseconds, nor a failure without a time."""
    recent = samples([{"ttft_ms": 10 + n} for n in range(5)])
    assert not looks_cold(attempt({"ttft_ms": 12}), recent)
    assert not looks_cold(attempt({"ttft_ms": 90}), recent)
    assert not looks_cold(attempt({"failure": "rate_limited"}), recent)
    assert not looks_cold(attempt({"ttft_ms": 9000}), [])
    assert looks_cold(attempt({"failure": "loading"}), [])
    assert looks_cold(attempt({"ttft_ms": 9000, "server": {"load": 8.0}}), [])


def test_what_was_not_reached_gives_no_sample() -> None:
    """A failure is never coded as a number, unless a deadline says how long it waited at least."""
    assert sample(attempt({"failure": "dns"})) is None
    cut = sample(attempt({"failure": "first_token_deadline", "lasted_ms": 5000, "connect_ms": 100}))
    assert cut is not None
    assert cut.server_part == pytest.approx(4.9)


TIMES = st.floats(1, 20_000)
HISTORIES = st.lists(TIMES, max_size=2 * HISTORY)
SAID = st.fixed_dictionaries(
    {"ttft_ms": TIMES},
    optional={
        "connect_ms": st.floats(0, 2000),
        "token_ms": st.floats(0, 500),
        "retransmits": st.integers(0, 40),
        "server": st.fixed_dictionaries({}, optional={"load": st.floats(0, 30), "prefill": st.floats(0, 30)}),
    },
)
IDLE = st.none() | st.floats(0, 1e6)


@settings(max_examples=60, deadline=None)
@given(SAID, st.none() | SAID, HISTORIES, IDLE)
def test_a_verdict_is_whole(one: Any, other: Any, usual: Any, idle: Any) -> None:
    """Whatever comes: one kind, at least one reason, no penalty but of a cold start, and the same verdict again."""
    history, confirming = samples([{"ttft_ms": t} for t in usual]), attempt({**other, "try": 1}) if other else None
    verdict = judge(attempt(one), confirming, history, idle)
    assert verdict.reasons
    assert verdict.penalty_seconds is None or (verdict.kind is Kind.COLD and verdict.penalty_seconds >= 0)
    assert judge(attempt(one), confirming, history, idle) == verdict


@settings(max_examples=60, deadline=None)
@given(SAID, HISTORIES, IDLE)
def test_never_cold_without_proof(one: Any, usual: Any, idle: Any) -> None:
    """Without a second attempt only the server's own word makes a cold start."""
    verdict = judge(attempt(one), None, samples([{"ttft_ms": t} for t in usual]), idle)
    assert verdict.kind is not Kind.COLD or verdict.reasons == (Reason.SERVER_LOAD,)


@settings(max_examples=60, deadline=None)
@given(TIMES, TIMES, st.lists(TIMES, min_size=ENOUGH, max_size=HISTORY), st.floats(0, 300))
def test_distance_changes_nothing(ttft: float, confirm: float, usual: list[float], rtt: float) -> None:
    """Three more round trips on every attempt (connect, TLS, request) leave the verdict as it is."""

    def away(said: dict[str, Any]) -> dict[str, Any]:
        road = {"connect_ms": rtt + 1, "tls_ms": rtt + 1, "rtt_ms": rtt}
        return {**said, **road, "ttft_ms": said["ttft_ms"] + 3 * rtt + 2}

    def verdict(change: Any) -> Kind:
        history = samples([change({"ttft_ms": round(t)}) for t in usual])
        one, second = change({"ttft_ms": round(ttft) + 0.3}), change({"ttft_ms": round(confirm) + 0.6})
        return judge(attempt(one), attempt({**second, "try": 1}), history, 600).kind

    assert verdict(away) is verdict(lambda said: said)


@settings(max_examples=60, deadline=None)
@given(TIMES, st.lists(TIMES, min_size=ENOUGH, max_size=HISTORY), st.floats(0, 20_000))
def test_slower_is_never_warmer(ttft: float, usual: list[float], more: float) -> None:
    """Of two attempts with the same evidence beside them, the slower one is not in band when the other is not."""
    history = samples([{"ttft_ms": t} for t in usual])
    second = attempt({"ttft_ms": min(usual), "try": 1})
    first = judge(attempt({"ttft_ms": ttft}), second, history, 600).kind
    slower = judge(attempt({"ttft_ms": ttft + more}), second, history, 600).kind
    assert not (first is Kind.COLD and slower is Kind.WARM)


def test_a_new_normal_becomes_the_usual() -> None:
    """After a lasting slow-down the newest samples are what it is compared with."""
    history = samples([{"ttft_ms": 180}] * 40 + [{"ttft_ms": 2000}] * 11)
    assert judge(attempt({"ttft_ms": 2100}), None, history, 600).kind is Kind.WARM


def test_doubt_does_not_hide_the_usual() -> None:
    """Our own slowness can only lengthen a time: what is in band in spite of it was warm."""
    history = samples([{"ttft_ms": 180}] * 6)
    lagging = replace(attempt({"ttft_ms": 200, "lag_ms": 60}), validity=(Doubt.LOOP_LAG,))
    assert judge(lagging, None, history, 600).kind is Kind.WARM
