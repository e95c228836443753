"""Checks on real streamed answers of every dialect the simulator speaks: judged after the times, which stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.clock import Clock
from monitor.model import (
    Attempt,
    Checks,
    ConnectionPolicy,
    DialectName,
    FailureKind,
    Outcome,
    Probe,
    Series,
    Slot,
    Target,
    Vantage,
)
from monitor.simulator import Behaviour, Listener, Simulator
from monitor.timeline import Mark, Phase

T = TypeVar("T")
DIALECTS = (DialectName.OPENAI_CHAT, DialectName.OPENAI_RESPONSES, DialectName.ANTHROPIC)
MODELS = {
    "words": Behaviour(ttft_seconds=0.02, tokens_per_second=500.0, tokens=6, text="One two three four five six."),
    "thinks": Behaviour(
        ttft_seconds=0.02, tokens_per_second=500.0, tokens=3, reasoning_tokens=5, text="The needle is here"
    ),
    "json": Behaviour(ttft_seconds=0.02, tokens_per_second=500.0, tokens=4, text='{"sum": 42, "ok": true}'),
}


def in_loop(body: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(body())


def series(url: str, model: str, checks: Checks, dialect: DialectName = DialectName.OPENAI_CHAT) -> Series:
    return Series(
        vantage=Vantage(name="here"),
        target=Target(name="t", provider="sim", model=model, dialect=dialect, url=url),
        probe=Probe(name="q", prompt="hello", checks=checks),
    )


async def asked(*many: tuple[str, Checks, DialectName]) -> list[Attempt]:
    prober = Prober(Clock(), max_concurrent=4)
    await prober.start()
    try:
        async with Simulator([Listener(models=MODELS)]) as sim:
            url = sim.url("main")
            made = []
            for model, checks, dialect in many:
                one = series(url, model, checks, dialect)
                slot = Slot(vantage="here", target="t", probe="q", scheduled_at=prober.now(), number=0)
                made.append(await prober.run(slot, one))
            return made
    finally:
        await prober.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_visible_text_is_what_is_checked(dialect: DialectName) -> None:
    """In every dialect: the words arrive whole and in order, reasoning is no part of them."""
    good, wrong, thought = in_loop(
        lambda: asked(
            ("words", Checks(regex=r"^One two three four five six\.$", min_tokens=6), dialect),
            ("words", Checks(contains=("seven",)), dialect),
            ("thinks", Checks(contains=("needle",), not_contains=("step by step",)), dialect),
        )
    )
    assert good.outcome is Outcome.SUCCESS, good.failure
    assert thought.outcome is Outcome.SUCCESS, thought.failure
    assert wrong.failure is not None
    assert (wrong.failure.kind, wrong.failure.phase) == (FailureKind.CHECK_FAILED, Phase.GENERATE)
    assert wrong.failure.text == (
        'check contains: found "One two three four five six."; allowed: an answer with "seven" in it'
    )


def test_times_and_facts_of_a_failed_check_stay() -> None:
    """A check that fails leaves marks, tokens and finish reason as those of the success that it was until then."""
    late, schema = in_loop(
        lambda: asked(
            ("words", Checks(max_ttft_seconds=0.001), DialectName.OPENAI_CHAT),
            ("json", Checks(json='{"required": ["product"]}', finish_reasons=("stop",)), DialectName.OPENAI_CHAT),
        )
    )
    assert late.failure is not None
    assert late.failure.text.startswith("check max_ttft: found a first token after 0.")
    for made in (late, schema):
        line = made.timeline
        assert Mark.GAVE_UP not in line.marks
        assert line.ttft is not None
        assert line.ttft >= 0.02
        assert line.total_ns == sum(line.phase_ns(phase) or 0 for phase in Phase) + (line.remainder_ns or 0)
        assert made.finish_reason == "stop"
        assert made.tokens.output == made.token_events
    assert schema.failure is not None
    assert (
        schema.failure.text == "check json: found 'product' is a required property; allowed: JSON that fits the schema"
    )


def test_a_failed_check_keeps_a_reused_connection() -> None:
    """The connection is sound: the next attempt of a reusing series goes over it."""

    async def twice() -> list[Attempt]:
        prober = Prober(Clock(), max_concurrent=4)
        await prober.start()
        try:
            async with Simulator([Listener(models=MODELS)]) as sim:
                one = series(sim.url("main"), "words", Checks(contains=("seven",)))
                one = replace(one, probe=replace(one.probe, connection=ConnectionPolicy.REUSED))
                slot = Slot(vantage="here", target="t", probe="q", scheduled_at=prober.now(), number=0)
                return [await prober.run(slot, one) for _ in range(2)]
        finally:
            await prober.close()

    first, second = in_loop(twice)
    assert not first.http.reused
    assert second.http.reused
