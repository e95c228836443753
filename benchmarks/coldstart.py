"""Are cold starts found, and nothing else? On a real model that really unloads, with its own load log as the truth.

    python benchmarks/coldstart.py [--timeouts 5 20] [--gaps 30] [--busy N] [--quick] [--json]

llama.cpp's server unloads its model after some idle seconds. For each timeout one server is asked after planned,
jittered pauses, shorter and longer than the timeout, in turn from here and from a far place (a round trip of 105 ms in
front of the same server). Attempts are made and confirmed by the agent's own code, stored in a real Postgres and judged
by the hub's sweep. What the server's log says about each request (model loaded for it, or not) is the truth; our own
times are not asked. `--busy N` keeps N processes computing meanwhile. Exit code 1 when a cold start was missed or
invented.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.confirm import Confirmer
from monitor.agent.probe import Prober
from monitor.cli import model_server
from monitor.cli.children import Child, Ledger
from monitor.cli.storage import Storage
from monitor.clock import Clock
from monitor.detect.coldstart import USUAL_RULE, Judgement, Sample, judge, sample
from monitor.model import Attempt, ColdStartRule, DialectName, Probe, Secret, Series, Slot, Target, Vantage, VerdictKind
from monitor.simulator.distance import DistanceProxy

SHORTER = (0.2, 0.95)
LONGER = (1.05, 1.6)
"""Pauses, in multiples of the timeout."""
RTT_MS, JITTER_MS = 105, 6
SEED = 11
DAY = timedelta(days=1)
NEVER_SECONDS = 100_000.0
"""The interval that the agent's code is told: it must neither cut confirming attempts nor find a pause long."""


@dataclass(slots=True)
class Run:
    """One server with its timeout, and what was measured on it."""

    timeout: int
    child: Child
    url: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    pauses: dict[tuple[Any, ...], float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"sleeps-after-{self.timeout}"

    def series(self, key: str, far_url: str) -> list[Series]:
        """From here and from far."""
        target = Target(
            name=self.name,
            provider="llama-cpp",
            model=model_server.MODEL_NAME,
            dialect=DialectName.OPENAI_CHAT,
            url=self.url,
            api_key=Secret(key),
        )
        probe = Probe(
            name="gap",
            prompt="Say what a round trip is, in one sentence.",
            max_output_tokens=24,
            interval_seconds=NEVER_SECONDS,
            deadline_seconds=60.0,
        )
        places = (Vantage(name="here"), Vantage(name="far", proxy=far_url, simulated=True))
        return [Series(vantage=place, target=target, probe=probe) for place in places]


def pauses(timeout: int, count: int) -> list[float]:
    """Seconds: half of them shorter than the timeout, half longer, shuffled."""
    chance = random.Random(SEED + timeout)
    chosen = [chance.uniform(*(SHORTER if n % 2 else LONGER)) * timeout for n in range(count)]
    chance.shuffle(chosen)
    return chosen


async def measure(runs: list[Run], key: str, gaps: int, storage: Storage) -> None:
    """All servers at the same time, each with its own pauses."""
    clock = Clock()
    prober = Prober(clock)
    await prober.start()
    async with DistanceProxy(RTT_MS, JITTER_MS, seed=SEED) as far:
        await asyncio.gather(*(ask(run, run.series(key, far.url), gaps, prober, clock, storage) for run in runs))
    await prober.close()


async def ask(run: Run, both: list[Series], gaps: int, prober: Prober, clock: Clock, storage: Storage) -> None:
    """After each pause one planned attempt, with whatever second one the agent's code decides on."""
    confirmer = Confirmer(prober.run, clock)
    for number, pause in enumerate(pauses(run.timeout, gaps)):
        await asyncio.sleep(pause)
        series = both[number % len(both)]
        slot = Slot(
            vantage=series.vantage.name,
            target=run.name,
            probe=series.probe.name,
            scheduled_at=clock.now(),
            number=number,
        )
        planned = await prober.run(slot, series)
        second = await confirmer.second(slot, series, planned)
        made = [planned] if second is None else [planned, second]
        run.attempts += made
        run.pauses[planned.key] = pause
        await asyncio.to_thread(store, storage, both, made)
        print(".", end="", flush=True, file=sys.stderr)


def store(storage: Storage, series: list[Series], made: list[Attempt]) -> None:
    """As `up` does: into the record, then a sweep."""
    storage.insert(series, made, raw_days=30)
    storage.judge(lambda _: USUAL_RULE)


def score(run: Run, judged: dict[tuple[Any, ...], Judgement]) -> dict[str, Any]:
    """Verdicts about the planned attempts against the server's log."""
    log = run.child.log.read_text(encoding="utf-8", errors="replace")
    served = model_server.served(log)
    if len(served) != len(run.attempts):
        raise SystemExit(f"the log of {run.name} tells of {len(served)} requests, but {len(run.attempts)} were made")
    rows = []
    for attempt, truth in zip(run.attempts, served, strict=True):
        if attempt.try_number and truth.woke_the_model:
            raise SystemExit("a confirming attempt found the model asleep: this machine is too slow for the timeout")
        if attempt.try_number == 0:
            rows.append(row(attempt, truth, judged[attempt.key], run.pauses[attempt.key]))
    return {
        **summary(run, rows),
        "without_the_servers_report": blind(run, served, judged, USUAL_RULE),
        "and_with_a_factor_of_1.5": blind(run, served, judged, replace(USUAL_RULE, factor=1.5)),
    }


def blind(
    run: Run, served: list[model_server.Served], judged: dict[tuple[Any, ...], Judgement], rule: ColdStartRule
) -> dict[str, int]:
    """The same attempts judged as if the server reported no times, as most hosted models do not."""
    warm: dict[str, list[Sample]] = {}
    counts = Counter({"found": 0, "invented": 0, "unclear": 0, "missed": 0})
    bare = [replace(attempt, server={}) for attempt in run.attempts]
    seconds = {attempt.key[:4]: attempt for attempt in bare if attempt.try_number}
    for attempt, truth in zip(bare, served, strict=True):
        history = warm.setdefault(attempt.vantage, [])
        second = None if attempt.try_number else seconds.get(attempt.key[:4])
        kind = judge(attempt, second, history, judged[attempt.key].idle_before, rule).kind
        if kind is VerdictKind.WARM and (seen := sample(attempt)):
            history.append(seen)
        if attempt.try_number == 0:
            cold = kind is VerdictKind.COLD
            counts["found"] += cold and truth.woke_the_model
            counts["invented"] += cold and not truth.woke_the_model
            counts["unclear"] += kind is VerdictKind.UNCLEAR
            counts["missed"] += truth.woke_the_model and not cold
    return dict(counts)


def row(attempt: Attempt, truth: model_server.Served, found: Judgement, pause: float) -> dict[str, Any]:
    """One planned attempt, as it was and as it was judged."""
    return {
        "vantage": attempt.vantage,
        "pause_seconds": round(pause, 3),
        "idle_before_seconds": found.idle_before,
        "loaded": truth.woke_the_model,
        "load_seconds": truth.load_seconds,
        "verdict": found.verdict.kind,
        "reasons": list(found.verdict.reasons),
        "penalty_seconds": found.verdict.penalty_seconds,
        "ttft_seconds": attempt.timeline.ttft,
        "prefill_seconds": attempt.server.get("prefill"),
        "unaccounted_seconds": seen.unaccounted if (seen := sample(attempt)) else None,
        "doubts": list(attempt.validity),
    }


def summary(run: Run, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Precision and recall over the planned attempts; an unclear one counts as not found."""
    called = [one for one in rows if one["verdict"] == VerdictKind.COLD]
    cold = [one for one in rows if one["loaded"]]
    right = [one for one in called if one["loaded"]]
    penalties = [one["penalty_seconds"] for one in right if one["penalty_seconds"] is not None]
    return {
        "timeout_seconds": run.timeout,
        "gaps": len(rows),
        "loads": len(cold),
        "found": len(right),
        "invented": len(called) - len(right),
        "unclear": sum(one["verdict"] == VerdictKind.UNCLEAR for one in rows),
        "precision": len(right) / len(called) if called else None,
        "recall": len(right) / len(cold) if cold else None,
        "confirming_attempts": len(run.attempts) - len(rows),
        "load_seconds_median": median(one["load_seconds"] for one in cold) if cold else None,
        "penalty_seconds_median": median(penalties) if penalties else None,
        "reasons": Counter(reason for one in rows for reason in one["reasons"]),
        "attempts": rows,
    }


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute without a pause."""
    ending = multiprocessing.get_context("spawn").Event()
    workers = [multiprocessing.get_context("spawn").Process(target=spin, args=(ending,)) for _ in range(processes)]
    for one in workers:
        one.start()
    try:
        yield
    finally:
        ending.set()
        for one in workers:
            one.join()


def spin(ending: threading.Event) -> None:
    """Compute until told to end."""
    while not ending.is_set():
        sum(n * n for n in range(20_000))


def benchmark(timeouts: list[int], gaps: int, processes: int) -> list[dict[str, Any]]:
    """Servers, attempts, verdicts, score."""
    key = secrets.token_urlsafe(16)
    with tempfile.TemporaryDirectory(prefix="firsttoken-coldstart-") as name, busy(processes):
        folder = Path(name)
        ledger = Ledger(folder / "children")
        runs = [Run(each, model_server.start(folder / f"{each}.log", ledger, key, each)) for each in timeouts]
        storage = Storage(None, folder / "postgres")
        try:
            for run in runs:
                run.url = run.child.read_line()
            with asyncio.Runner(loop_factory=WatchedLoop) as runner:
                runner.run(measure(runs, key, gaps, storage))
            judged = {one.key: one for one in storage.latest_verdicts(10_000)}
            return [score(run, judged) for run in runs]
        finally:
            storage.close()
            for run in runs:
                run.child.stop()


def table(results: list[dict[str, Any]]) -> str:
    """For people."""
    head = ("timeout", "gaps", "loads", "found", "invented", "unclear", "confirmed", "precision", "recall")
    lines = ["".join(f"{cell:>10}" for cell in (*head, "load", "penalty"))]
    for one in results:
        shown = [one["precision"], one["recall"], one["load_seconds_median"], one["penalty_seconds_median"]]
        precision, recall, load, penalty = ("-" if value is None else f"{value:.3f}" for value in shown)
        counted = [one[name] for name in ("gaps", "loads", "found", "invented", "unclear", "confirming_attempts")]
        cells = [f"{one['timeout_seconds']} s", *counted, precision, recall, f"{load} s", f"{penalty} s"]
        lines.append("".join(f"{cell:>10}" for cell in cells))
    for name in ("without_the_servers_report", "and_with_a_factor_of_1.5"):
        lines += [f"{name.replace('_', ' ')}, {one['timeout_seconds']} s: {one[name]}" for one in results]
    wrong = [row for one in results for row in one["attempts"] if row["loaded"] != (row["verdict"] == VerdictKind.COLD)]
    lines += [f"wrong: {json.dumps(row)}" for row in wrong]
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeouts", type=int, nargs="+", default=[5, 20], help="idle seconds after which it unloads")
    parser.add_argument("--gaps", type=int, default=30)
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--quick", action="store_true", help="one server with a timeout of 2 s and 8 gaps")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if problem := model_server.why_not():
        sys.exit(problem)
    timeouts, gaps = ([2], 8) if chosen.quick else (chosen.timeouts, chosen.gaps)
    began, before = time.monotonic(), os.getloadavg()[0]
    results = benchmark(timeouts, gaps, chosen.busy)
    facts = {
        "busy_processes": chosen.busy,
        "processors": os.cpu_count(),
        "load_average_before": before,
        "load_average_after": os.getloadavg()[0],
        "seconds": round(time.monotonic() - began, 1),
    }
    print(file=sys.stderr)
    if chosen.json:
        print(json.dumps({**facts, "results": results}, indent=1))
    else:
        print(table(results))
        print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))
    return 0 if all(one["precision"] == 1 and one["recall"] == 1 for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
