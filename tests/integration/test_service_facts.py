"""Facts beside the times on their whole way: from a server's headers through the probe and the wire into Postgres."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sqlalchemy import Engine, text

from monitor import wire
from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.clock import Clock
from monitor.model import (
    Attempt,
    DialectName,
    FailureKind,
    Probe,
    RateLimit,
    Secret,
    Series,
    ServiceFacts,
    Slot,
    Target,
    Vantage,
)
from monitor.simulator import Behaviour, Listener, Simulator
from monitor.store import attempts

KEY = "sk-planted-0123456789abcdef"
HEADERS = {
    "x-ratelimit-limit-requests": "5000",
    "x-ratelimit-remaining-requests": "4999",
    "x-ratelimit-reset-requests": "12ms",
    "x-groq-region": "me-central-1",
    "x-provider-name": f"echo-{KEY}",
    "retry-after": "3",
}
MODEL = Behaviour(ttft_seconds=0.01, tokens_per_second=500.0, tokens=4, headers=HEADERS, edge="LOS")
SERIES = Series(
    vantage=Vantage(name="here"),
    target=Target(name="t", provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="", api_key=Secret(KEY)),
    probe=Probe(name="q", prompt="hello", deadline_seconds=5.0),
)


def measured(model: Behaviour) -> Attempt:
    """One scheduled attempt at a simulated model."""

    async def run() -> Attempt:
        prober = Prober(Clock(), max_concurrent=2)
        await prober.start()
        try:
            async with Simulator([Listener(models={"m": model})]) as simulator:
                asked = replace(SERIES, target=replace(SERIES.target, url=simulator.url("main")))
                slot = Slot(vantage="here", target="t", probe="q", scheduled_at=prober.now(), number=0)
                return await prober.run(slot, asked)
        finally:
            await prober.close()

    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(run())


def test_facts_arrive_in_the_store_and_no_key_with_them(store: Engine) -> None:
    """What the headers said is on the attempt, on the wire and in the database; an echoed key is in none of them."""
    attempt = measured(MODEL)
    assert attempt.failure is None
    facts = attempt.service
    assert RateLimit(name="requests", limit=5000.0, remaining=4999.0, reset_seconds=0.012) in facts.limits
    assert (facts.region, facts.retry_after_seconds) == ("me-central-1", 3.0)
    assert facts.upstream is not None
    assert wire.decode(wire.encode(attempt)) == attempt
    told = wire.report(attempt, SERIES)
    http = told["http"]
    assert isinstance(http, dict)
    assert (http["edge"], http["edge_city"], http["edge_country"]) == ("LOS", "Lagos", "NG")
    attempts.insert(store, [SERIES], [attempt], attempt.scheduled_at)
    assert attempts.recent(store, since=attempt.scheduled_at) == [attempt]
    with store.connect() as connection:
        row = connection.execute(text("SELECT attempts::text FROM attempts")).scalar_one()
    assert KEY not in row + repr(attempt) + repr(told)


def test_refusals_have_facts_too(store: Engine) -> None:
    """A 429 says when to come back; a row without facts has none."""
    refused = measured(replace(MODEL, status=429))
    assert refused.failure is not None
    assert refused.failure.kind is FailureKind.RATE_LIMITED
    assert refused.service.retry_after_seconds == 3.0
    plain = replace(refused, service=ServiceFacts())
    attempts.insert(store, [SERIES], [plain], plain.scheduled_at)
    assert attempts.recent(store, since=plain.scheduled_at) == [plain]
    with store.connect() as connection:
        assert connection.execute(text("SELECT service FROM attempts")).scalar_one() is None
