"""HTTP/2 behind a CONNECT proxy: the proxy's answer is no part of the frames that are followed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from monitor.agent.probe import Prober
from monitor.clock import Clock
from monitor.model import DialectName, Outcome, Probe, Series, Slot, Target, Vantage
from monitor.simulator import Certificate, Distance, Listener, Simulator
from monitor.timeline import Phase

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("tls", [Certificate.GOOD, None], ids=["tls", "plain"])
def test_wait_is_seen_through_a_proxy(tls: Certificate | None) -> None:
    """The response's HEADERS frame is found after a tunnel was opened, so that `wait` is there."""
    far = {"far": Distance(rtt_ms=20)}

    async def measure() -> None:
        async with Simulator([Listener(tls=tls, http=("2",))], distances=far) as simulator:
            target = Target(
                name="t", provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url=simulator.url(),
                http_version="2", ca_file=simulator.ca_file,
            )  # fmt: skip
            vantage = Vantage(name="v", proxy=simulator.proxies["far"].url)
            series = Series(vantage=vantage, target=target, probe=Probe(name="x", prompt="Hi"))
            prober = Prober(Clock())
            await prober.start()
            slot = Slot(vantage="v", target="t", probe="x", scheduled_at=NOON, number=1)
            attempt = await prober.run(slot, series)
            await prober.close()
            assert attempt.outcome is Outcome.SUCCESS, attempt.failure
            assert attempt.http.version == "2"
            assert (attempt.timeline.phase(Phase.WAIT) or 0.0) >= 0.02

    asyncio.run(measure())
