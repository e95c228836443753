"""Response headers as the vendors send them: request ids, rate limits, timings, the edge that served."""

from __future__ import annotations

from datetime import datetime, timedelta

from monitor.model import DialectName
from monitor.simulator.behaviour import Behaviour
from monitor.simulator.exchange import Head
from monitor.simulator.question import Request

EVENT_STREAM = "text/event-stream; charset=utf-8"
_LIMIT = 10_000


def head(
    request: Request, behaviour: Behaviour, *, status: int, content_type: str, served: int, now: datetime, took_ms: int
) -> Head:
    """The head of one response; `served` counts the listener's requests, `took_ms` is the time up to now."""
    headers = [("content-type", content_type), ("server", "firsttoken-simulator"), ("x-request-id", request.id)]
    anthropic = request.dialect is DialectName.ANTHROPIC
    headers += _anthropic_limits(request, served, now) if anthropic else _openai_limits(served)
    if behaviour.server_timings:
        headers.append(("x-envoy-upstream-service-time", str(took_ms)))
        headers.append(("server-timing", f"proxy;dur={took_ms + 1}") if anthropic else _processing(took_ms))
    if behaviour.edge:
        headers.append(("cf-ray", f"{request.id[-16:]}-{behaviour.edge}"))
    if behaviour.gzip and status == 200:
        headers.append(("content-encoding", "gzip"))
    own = {name.lower() for name in behaviour.headers}
    kept = [(name, value) for name, value in headers if name not in own]
    return Head(status, kept + [(name.lower(), value) for name, value in behaviour.headers.items()])


def _processing(took_ms: int) -> tuple[str, str]:
    return ("openai-processing-ms", str(took_ms))


def _openai_limits(served: int) -> list[tuple[str, str]]:
    return [
        ("openai-version", "2020-10-01"),
        ("x-ratelimit-limit-requests", str(_LIMIT)),
        ("x-ratelimit-remaining-requests", str(_LIMIT - 1 - served % _LIMIT)),
        ("x-ratelimit-reset-requests", "6ms"),
        ("x-ratelimit-limit-tokens", "2000000"),
        ("x-ratelimit-remaining-tokens", "1999900"),
        ("x-ratelimit-reset-tokens", "3ms"),
    ]


def _anthropic_limits(request: Request, served: int, now: datetime) -> list[tuple[str, str]]:
    reset = (now + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    limits = {"requests": _LIMIT, "input-tokens": 4_000_000, "output-tokens": 1_000_000, "tokens": 5_000_000}
    headers = [("request-id", request.id)]
    for name, limit in limits.items():
        left = limit - 1 - served % limit if name == "requests" else limit
        prefix = f"anthropic-ratelimit-{name}"
        headers += [(f"{prefix}-limit", str(limit)), (f"{prefix}-remaining", str(left)), (f"{prefix}-reset", reset)]
    return headers
