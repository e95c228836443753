"""Attempt -> the object that `firsttoken probe --json` prints. Hides its keys, which are a promise to scripts."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.edges import place_of
from monitor.model import Attempt, Failure, HttpFacts, Place, Series, ServiceFacts
from monitor.timeline import Phase
from monitor.wire.encoding import HTTP_TEXTS, LIMIT_NUMBERS, SERVICE_TEXTS, TOKENS, finite, gap_values, rfc3339, timings


def report(attempt: Attempt, series: Series) -> dict[str, object]:
    """The object that `firsttoken probe --json` prints: every key always there, null where nothing happened.

    Durations are seconds, derived from the marks as `timeline` defines them; all numbers are finite.
    """
    facts = {
        "provider": series.target.provider,
        "model": series.target.model,
        "dialect": series.target.dialect.value,
        "country": series.vantage.place.country,
        "simulated": series.simulated,
        "currency": None if series.target.price is None else series.target.price.currency,
    }
    return report_of(attempt, facts)


def report_of(attempt: Attempt, facts: Mapping[str, object]) -> dict[str, object]:
    """The same, where of the series some `facts` alone are known: provider, model, dialect, country and so on."""
    a, line = attempt, attempt.timeline
    return {
        "vantage": a.vantage,
        "target": a.target,
        "probe": a.probe,
        "started_at": rfc3339(a.started_at),
        "outcome": a.outcome.value,
        "failure": _reported_failure(a.failure),
        "missed": None if a.missed is None else a.missed.value,
        "seconds": {
            **{phase.value: line.phase(phase) for phase in Phase},
            "ttft": line.ttft,
            "ttfo": line.ttfo,
            "total": line.total,
            "control": line.control,
            "remainder": None if line.remainder_ns is None else line.remainder_ns / 1e9,
            "lasted": line.lasted_ns / 1e9,
        },
        "tokens": {key: getattr(a.tokens, key) for key in TOKENS},
        "gaps": gap_values(a.gaps),
        "http": _reported_http(a.http),
        "server": timings(a.server),
        "service": _reported_service(a.service),
        "tcp": {
            "min_rtt": finite(a.tcp.min_rtt),
            "rtt": finite(a.tcp.rtt),
            "retransmits": a.tcp.retransmits,
            "out_of_order": a.tcp.out_of_order,
        },
        "clock_source": None if a.clock_source is None else a.clock_source.value,
        "valid": a.valid,
        "validity": [doubt.value for doubt in a.validity],
        "scheduled_at": rfc3339(a.scheduled_at),
        "try": a.try_number,
        "purpose": a.purpose.value,
        "probe_version": a.probe_version,
        "provider": facts.get("provider"),
        "model": facts.get("model"),
        "dialect": facts.get("dialect"),
        "country": facts.get("country"),
        "simulated": facts.get("simulated"),
        "finish_reason": a.finish_reason,
        "token_events": a.token_events,
        "loop_lag_seconds": finite(a.loop_lag_seconds),
        "coalesced_reads": a.coalesced_reads,
        "reads": a.reads,
        "cost": finite(a.cost),
        "currency": facts.get("currency"),
    }


def _reported_failure(failure: Failure | None) -> dict[str, str] | None:
    if failure is None:
        return None
    return {"kind": failure.kind.value, "phase": failure.phase.value, "text": failure.text}


def _reported_service(facts: ServiceFacts) -> dict[str, object]:
    limits = [{key: getattr(limit, key) for key in ("name", *LIMIT_NUMBERS)} for limit in facts.limits]
    told = {key: getattr(facts, key) for key in ("retry_after_seconds", *SERVICE_TEXTS)}
    return {**told, "limits": limits}


def _reported_http(http: HttpFacts) -> dict[str, object]:
    expires = http.certificate_expires_at
    facts: dict[str, object] = {key: getattr(http, key) for key in ("status", *HTTP_TEXTS, "reused", "proxied")}
    edge = place_of(http.edge) or Place()
    return {
        **facts,
        "edge_city": edge.city,
        "edge_country": edge.country,
        "certificate_expires_at": None if expires is None else rfc3339(expires),
    }
