"""What a scrape costs: bytes, lines and time of `/metrics` with many vantage points and targets.

    python benchmarks/scrape.py [--vantages 10] [--targets 50] [--rounds 15]

Serves the product's own application by the product's own server, after every series has seen successes, a frequent
failure, a rare one, a miss and a verdict, and asks for it over a socket as Prometheus does. One JSON object at the end;
exit code 1 when the budget (500 ms, 5 MB uncompressed) is not kept. Times are of this machine; the median counts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import sys
import time
import urllib.request
from dataclasses import replace
from datetime import datetime, timedelta

from monitor.clock import Clock
from monitor.hub.app import create_app
from monitor.hub.server import WebServer
from monitor.metrics import Metrics
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
    Series,
    Target,
    TcpFacts,
    Tokens,
    Vantage,
    VerdictKind,
)
from monitor.timeline import Gaps, Mark, Phase, Timeline

BUDGET_SECONDS = 0.5
BUDGET_BYTES = 5_000_000
MS = 1_000_000
CITIES = ("lagos", "london", "virginia", "frankfurt", "singapore", "sao-paulo", "mumbai", "tokyo", "sydney", "oregon")
COUNTRIES = ("NG", "GB", "US", "DE", "SG", "BR", "IN", "JP", "AU", "US")
MODELS = (
    ("openai", "gpt-4.1-mini"),
    ("anthropic", "claude-sonnet-4-5"),
    ("google", "gemini-2.5-flash"),
    ("mistral", "mistral-small-latest"),
    ("groq", "llama-3.3-70b-versatile"),
)


def all_series(vantages: int, targets: int) -> list[Series]:
    """Series with names as people give them, one probe each."""
    found = []
    for v in range(vantages):
        name = CITIES[v % len(CITIES)] + (f"-{v // len(CITIES) + 1}" if v >= len(CITIES) else "")
        vantage = Vantage(name=name, place=Place(country=COUNTRIES[v % len(COUNTRIES)]))
        for t in range(targets):
            provider, model = MODELS[t % len(MODELS)]
            target = Target(
                name=f"{provider}-{t + 1}",
                provider=provider,
                model=model,
                dialect=DialectName.OPENAI_CHAT,
                url="https://api.example.com/v1",
                price=Price(input=0.4, output=1.6),
            )
            found.append(Series(vantage=vantage, target=target, probe=Probe(name="short", prompt="Say hello.")))
    return found


def success(of: Series, chance: random.Random, at: datetime) -> Attempt:
    """One with every mark, fact and number."""
    steps = (1, 20, 40, 41, 80, 81, 82, 300 + chance.random() * 900)
    names = (Mark.RESOLVE_END, Mark.CONNECT_END, Mark.TLS_START, Mark.TLS_END, Mark.SEND_START, Mark.SEND_END)
    marks = {
        Mark.RESOLVE_START: 0,
        Mark.CONNECT_START: MS,
        **dict(zip(names, (round(s * MS) for s in steps), strict=False)),
    }
    first = round(steps[-1] * MS)
    marks |= {Mark.HEADERS: first - MS, Mark.FIRST_TOKEN: first, Mark.FIRST_VISIBLE: first}
    marks |= {Mark.LAST_TOKEN: first + 900 * MS, Mark.END: first + 901 * MS}
    marks |= {Mark.CONTROL_SENT: first + 910 * MS, Mark.CONTROL_HEADERS: first + 930 * MS}
    return Attempt(
        vantage=of.vantage.name,
        target=of.target.name,
        probe=of.probe.name,
        probe_version=of.probe.version,
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
        timeline=Timeline(marks),
        gaps=Gaps(0.01, 0.02, 0.03, 0, 0.0),
        tokens=Tokens(output=64, input=40),
        http=HttpFacts(certificate_expires_at=at + timedelta(days=60)),
        tcp=TcpFacts(min_rtt=0.019 + chance.random() / 100, rtt=0.03, retransmits=0),
        cost=0.0001,
    )


def filled(series: list[Series]) -> Metrics:
    """Metrics after a while: every usual time series of every series exists, and some rare ones."""
    metrics, chance, now = Metrics(), random.Random(7), Clock().now()
    for one in series:
        metrics.declare(one)
        for _ in range(20):
            metrics.observe(success(one, chance, now), one, late=False)
        good = success(one, chance, now)
        for kind in (FailureKind.RATE_LIMITED, chance.choice(list(FailureKind))):
            failure = Failure(kind=kind, phase=Phase.WAIT, text="x")
            metrics.observe(replace(good, outcome=Outcome.FAILED, failure=failure), one, late=False)
        metrics.observe(replace(good, outcome=Outcome.MISSED, missed=MissReason.CAPACITY), one, late=False)
        metrics.observe(replace(good, validity=(Doubt.LOOP_LAG,)), one, late=False)
        metrics.observe_verdict(one, VerdictKind.COLD, 1.5)
    return metrics


def scrape(url: str, *, compressed: bool) -> tuple[float, int, bytes]:
    """Seconds, bytes on the wire and the text of one scrape."""
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    headers = {"Accept": accept, **({"Accept-Encoding": "gzip"} if compressed else {})}
    began = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        body = answer.read()
    took = time.perf_counter() - began
    return took, len(body), gzip.decompress(body) if compressed else body


class NoAttempts:
    """The page's queries, of which a scrape asks nothing."""

    def latest(self, per_series: int) -> list[Attempt]:
        return []

    def received_since(self, moment: datetime) -> list[Attempt]:
        return []

    def latest_verdicts(self, per_series: int) -> list[object]:
        return []

    def judged_since(self, moment: datetime) -> list[object]:
        return []


def main() -> int:
    """Run it; returns the exit code."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--vantages", type=int, default=10)
    asked.add_argument("--targets", type=int, default=50)
    asked.add_argument("--rounds", type=int, default=15)
    options = asked.parse_args()
    series = all_series(options.vantages, options.targets)
    app = create_app(filled(series), NoAttempts(), dict, series=lambda: series)  # type: ignore[arg-type]
    report: dict[str, object] = {"vantages": options.vantages, "targets": options.targets}
    with WebServer(app, port=0) as server:
        url = f"http://{server.address}/metrics"
        for name, compressed in (("plain", False), ("gzip", True)):
            rounds = [scrape(url, compressed=compressed) for _ in range(options.rounds)]
            times = [took for took, _, _ in rounds]
            report[name] = {
                "bytes": rounds[-1][1],
                "seconds_median": round(statistics.median(times), 3),
                "seconds_max": round(max(times), 3),
            }
        text = rounds[-1][2].decode()
    lines = [line for line in text.splitlines() if 'vantage="' in line]
    report |= {
        "lines": len(lines),
        "lines_a_series": round(len(lines) / len(series), 1),
        "bytes_uncompressed": len(text),
    }
    slowest = max(report[name]["seconds_median"] for name in ("plain", "gzip"))  # type: ignore[index]
    report["kept"] = bool(slowest <= BUDGET_SECONDS and len(text) <= BUDGET_BYTES)
    print(json.dumps(report, indent=2))
    return 0 if report["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
