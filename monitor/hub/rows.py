"""Attempts in words: one attempt as the live page shows it, with its phases as bars and its facts as sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice

from monitor.detect.coldstart import Judgement, Reason
from monitor.model import Attempt, Doubt, Failure, HttpFacts, MissReason, Outcome, TcpFacts, Tokens
from monitor.timeline import NS, Mark

TEXT_LIMIT = 300
"""Characters of a foreign text that reach the page."""

BARS: Mapping[str, tuple[Mark, Mark]] = {
    "resolve": (Mark.RESOLVE_START, Mark.RESOLVE_END),
    "connect": (Mark.CONNECT_START, Mark.CONNECT_END),
    "tls": (Mark.TLS_START, Mark.TLS_END),
    "send": (Mark.SEND_START, Mark.SEND_END),
    "wait": (Mark.SEND_END, Mark.HEADERS),
    "first_token": (Mark.HEADERS, Mark.FIRST_TOKEN),
    "generate": (Mark.FIRST_TOKEN, Mark.END),
}
"""The stacked bar: the phases, with `generate` cut in two at the first token."""

DOUBTS: Mapping[Doubt, str] = {
    Doubt.LOOP_LAG: "the agent's own event loop was blocked during the attempt",
    Doubt.COALESCED: "packets merged before they were read: gaps between tokens are left out",
    Doubt.FIRST_TOKEN_COALESCED: "the packet of the first token merged with others: its time is uncertain",
    Doubt.CPU_THROTTLED: "the agent's CPU was throttled",
    Doubt.CPU_STEAL: "the host of the agent's virtual machine took the CPU away",
    Doubt.CLOCK_STEP: "the machine's clock was set during the attempt",
    Doubt.WARM_UP: "the first attempt after the agent's start",
    Doubt.RECONNECTED: "the kept connection was gone and a new one had to be opened",
}

MISSED: Mapping[MissReason, str] = {
    MissReason.OVERLAP: "the previous attempt of this series was still running",
    MissReason.LATE: "the agent's machine slept or was too busy when the slot was due",
    MissReason.CAPACITY: "the agent was at its own limit of concurrent attempts",
    MissReason.BUDGET: "the budget for this target is spent",
    MissReason.RETRY_AFTER: "the provider had answered 429 and asked to wait",
    MissReason.PAUSED: "probing was paused",
    MissReason.SHUTDOWN: "the agent was shutting down",
}


REASONS: Mapping[Reason, str] = {
    Reason.LOADING_ANSWER: "the server answered that it loads the model",
    Reason.SERVER_LOAD: "the server reports that it loaded the model",
    Reason.SLOW_FIRST_TOKEN: "far slower than the warm attempts before it",
    Reason.SLOWER_THAN_CONFIRM: "far slower than the second try straight after it",
    Reason.CONFIRM_WARM: "the second try was warm",
    Reason.CUT_BY_DEADLINE: "the deadline cut it, so it took at least that long",
    Reason.IN_BAND: "as fast as warm attempts are",
    Reason.SERVER_ACCOUNTS: "slow by the time that the server itself says it queued and read the prompt",
    Reason.SERVER_WAS_LOADED: "slow, but the server reports that it had nothing to load",
    Reason.CONFIRM_SLOW: "slow, and the second try too: overload or a regression, no cold start",
    Reason.AS_CONTROL: "no slower than the second try straight after it",
    Reason.FOLLOWS: "it followed another attempt at once",
    Reason.UNCONFIRMED: "slow, and there is no second try to compare it with",
    Reason.CONFIRM_FAILED: "slow, and the second try brought no first token",
    Reason.NO_HISTORY: "there is nothing to compare it with yet",
    Reason.NOT_IDLE: "but the target had been asked a moment before",
    Reason.SLOW_CONNECTION: "but the connection was slow too",
    Reason.SLOW_TOKENS: "but the tokens came slowly too",
    Reason.RETRANSMITTED: "but lost packets may be the whole delay",
    Reason.DOUBTFUL: "but our own slowness may be the whole delay",
    Reason.FAILED: "it failed before a first token",
}


def row(
    attempt: Attempt,
    *,
    state: str,
    median: float | None,
    idle: float | None,
    advice: str | None,
    judgement: Judgement | None = None,
) -> dict[str, object]:
    """One attempt for the page. `state` and `median` as `summary` judged it, `idle` seconds before it, or None."""
    line = attempt.timeline
    return {
        "id": json.dumps([*attempt.key[:1], iso(attempt.scheduled_at), *attempt.key[2:]]),
        "vantage": attempt.vantage,
        "target": attempt.target,
        "probe": attempt.probe,
        "confirming": attempt.try_number > 0,
        "at": iso(attempt.started_at),
        "state": state,
        "ttft": _rounded(line.ttft),
        "total": _rounded(line.total),
        "lasted": _rounded(line.lasted_ns / NS),
        "median": _rounded(median),
        "idle": _rounded(idle),
        "verdict": _verdict(judgement),
        "bars": list(bars(attempt)),
        "failure": _failure(attempt.failure, advice),
        "missed": MISSED[attempt.missed] if attempt.missed else None,
        "doubts": [{"name": doubt, "text": DOUBTS[doubt]} for doubt in attempt.validity],
        "facts": [[label, clipped(text)] for label, text in facts(attempt)],
    }


def bars(attempt: Attempt) -> Iterator[dict[str, object]]:
    """The attempt's intervals in order, seconds since its start; the one a failed attempt died in ends there."""
    marks = attempt.timeline.marks
    ended = attempt.timeline.lasted_ns
    for name, (begin, end) in BARS.items():
        if begin not in marks:
            continue
        died = end not in marks
        stop = max(marks[begin], ended if died else marks[end])
        yield {"name": name, "start": marks[begin] / NS, "seconds": (stop - marks[begin]) / NS, "died": died}
        if died:
            return


def facts(attempt: Attempt) -> Iterator[tuple[str, str]]:
    """What else is known, as (label, text); what is unknown is left out."""
    if attempt.outcome is Outcome.MISSED:
        return
    yield from _http(attempt.http)
    yield from _tcp(attempt.tcp)
    yield from _answer(attempt)
    if attempt.timeline.control is not None:
        yield "Control request", f"{duration(attempt.timeline.control)} to the API without a model at its end"
    if attempt.server:
        reported = (f"{name} {duration(value)}" for name, value in islice(attempt.server.items(), 8))
        yield "Server reports", ", ".join(reported)
    if attempt.clock_source is not None:
        yield "Clock", "the kernel's arrival stamps" if attempt.clock_source == "kernel" else "user space (less exact)"
    yield "Planned for", iso(attempt.scheduled_at)


def _http(http: HttpFacts) -> Iterator[tuple[str, str]]:
    answer = [str(http.status or ""), f"HTTP/{http.version}" if http.version else "", http.tls_version or ""]
    if any(answer):
        yield "Answer", ", ".join(filter(None, answer))
    if http.remote:
        kept = "kept connection" if http.reused else "new connection"
        yield "Address", f"{http.remote}, {kept}" + (", through a proxy" if http.proxied else "")
    if http.edge:
        yield "Edge", http.edge
    if http.served_model:
        yield "Model served", http.served_model
    if http.request_id:
        yield "Request id", http.request_id


def _tcp(tcp: TcpFacts) -> Iterator[tuple[str, str]]:
    if tcp.min_rtt is not None:
        smoothed = f", smoothed {duration(tcp.rtt)}" if tcp.rtt is not None else ""
        yield "Round trip", f"smallest {duration(tcp.min_rtt)}{smoothed}"
    if tcp.retransmits or tcp.out_of_order:
        yield "Losses", f"{tcp.retransmits or 0} segments sent again, {tcp.out_of_order or 0} arrived out of order"


def _answer(attempt: Attempt) -> Iterator[tuple[str, str]]:
    counted = ", ".join(_tokens(attempt.tokens))
    if counted:
        yield "Tokens", counted
    if attempt.timeline.ttfo is not None and attempt.timeline.ttfo != attempt.timeline.ttft:
        yield "First visible token", duration(attempt.timeline.ttfo)
    gaps = attempt.gaps
    if gaps is not None and gaps.p50 is not None and gaps.p95 is not None and gaps.max is not None:
        yield "Between tokens", f"median {duration(gaps.p50)}, p95 {duration(gaps.p95)}, longest {duration(gaps.max)}"
    if gaps is not None and gaps.burst_share:
        yield "Bursts", f"{gaps.burst_share:.0%} of the tokens arrived together with the one before"
    if attempt.finish_reason:
        yield "Finish reason", attempt.finish_reason


def _tokens(tokens: Tokens) -> Iterator[str]:
    for name in ("output", "reasoning", "input", "cached"):
        count = getattr(tokens, name)
        if count is not None:
            yield f"{count} {name}"


def _verdict(judgement: Judgement | None) -> dict[str, object] | None:
    if judgement is None:
        return None
    verdict = judgement.verdict
    why = ", ".join(REASONS[reason] for reason in verdict.reasons)
    return {"kind": verdict.kind, "why": why, "penalty": _rounded(verdict.penalty_seconds)}


def _failure(failure: Failure | None, advice: str | None) -> dict[str, str | None] | None:
    if failure is None:
        return None
    return {"kind": failure.kind, "phase": failure.phase, "text": clipped(failure.text, 500), "advice": advice}


def duration(seconds: float) -> str:
    """Seconds as people read them: `5 µs`, `0.8 ms`, `42 ms`, `1.34 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    if 0 < seconds < 0.0001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, small, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def clipped(text: str, limit: int = TEXT_LIMIT) -> str:
    """At most `limit` characters, control characters as spaces."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[: limit + 1])
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def iso(moment: datetime) -> str:
    """RFC 3339 in UTC, milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
