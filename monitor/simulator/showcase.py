"""What `firsttoken simulate` serves when nobody says otherwise: one model for each thing that can happen."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from monitor.simulator.behaviour import Behaviour, Content, ErrorKind, Fault
from monitor.simulator.certificates import Certificate
from monitor.simulator.scenario import Change, Distance, Listener, Scenario

MODELS: Mapping[str, Behaviour] = MappingProxyType(
    {
        "fast": Behaviour(ttft_seconds=0.15, ttft_sigma=0.1, tokens_per_second=80, body_timings=True, edge="LHR"),
        "slow": Behaviour(ttft_seconds=1.5, ttft_sigma=0.3, tokens_per_second=15),
        "regressing": Behaviour(ttft_seconds=0.2, ttft_sigma=0.1),
        "early-headers": Behaviour(ttft_seconds=0.8, headers_seconds=0.05),
        "commenting": Behaviour(ttft_seconds=2.0, comments_seconds=0.3),
        "thinking": Behaviour(ttft_seconds=0.3, reasoning_tokens=40, tokens=24),
        "only-thinking": Behaviour(reasoning_tokens=32, tokens=0),
        "tool-calling": Behaviour(content=Content.TOOL_CALL, tokens=8),
        "refusing": Behaviour(content=Content.REFUSAL, tokens=7),
        "empty": Behaviour(tokens=0),
        "sleepy": Behaviour(sleeps_after_seconds=20, starts_asleep=True, load_seconds=3),
        "loading": Behaviour(sleeps_after_seconds=20, starts_asleep=True, load_seconds=10, refuses_while_loading=True),
        "crowded": Behaviour(capacity=1, queue_limit=2, tokens=64),
        "overloaded": Behaviour(capacity=1, queue_limit=0, refusal=ErrorKind.OVERLOADED),
        "buffered": Behaviour(buffered=True),
        "bursty": Behaviour(burst_tokens=8),
        "gzipped": Behaviour(gzip=True),
        "shredded": Behaviour(split_bytes=7, text="naïve café, 東京 and 🚀 in pieces "),
        "pausing": Behaviour(stall_after_tokens=10, stall_seconds=3),
        "stalling": Behaviour(stall_after_tokens=10),
        "silent": Behaviour(fault=Fault.SILENCE),
        "only-comments": Behaviour(fault=Fault.KEEP_ALIVES),
        "truncated": Behaviour(fault=Fault.TRUNCATED),
        "disconnecting": Behaviour(fault=Fault.DISCONNECTED),
        "resetting": Behaviour(fault=Fault.RESET),
        "failing-inside": Behaviour(fault=Fault.ERROR_EVENT),
        "failing-first": Behaviour(fault=Fault.ERROR_EVENT, fault_after_tokens=0),
        "left-open": Behaviour(fault=Fault.LEFT_OPEN),
        "endless-line": Behaviour(fault=Fault.ENDLESS_LINE),
        "html": Behaviour(fault=Fault.HTML_PAGE),
        "whole-json": Behaviour(fault=Fault.WHOLE_JSON),
        "redirecting": Behaviour(status=307, headers={"location": "https://elsewhere.example/v1"}, body=""),
        "broken": Behaviour(status=500),
        "flaky": Behaviour(fault=Fault.DISCONNECTED, fault_share=0.2),
    }
)

DISTANCES: Mapping[str, tuple[float, float]] = {  # to Virginia: round trip and jitter, milliseconds
    "lagos": (150.0, 8.0),
    "london": (76.0, 2.0),
    "virginia": (2.0, 0.2),
}


def showcase(host: str = "127.0.0.1", port: int = 0) -> Scenario:
    """Plain on `port`, TLS on the next one, the distances on those after it; 0: free ports."""
    ports = iter(range(port, port + 2 + len(DISTANCES)) if port else [0] * (2 + len(DISTANCES)))
    return Scenario(
        listeners=(
            Listener(name="plain", host=host, port=next(ports), models=MODELS),
            Listener(name="tls", host=host, port=next(ports), models=MODELS, tls=Certificate.GOOD),
        ),
        distances={
            name: Distance(rtt_ms=rtt, jitter_ms=jitter, port=next(ports)) for name, (rtt, jitter) in DISTANCES.items()
        },
        timeline=(
            Change(
                model="regressing", after_seconds=60, for_seconds=60, every_seconds=180, multiply={"ttft_seconds": 4}
            ),
        ),
    )
