"""How exactly is TTFT measured? Every attempt against the simulator's own log of when it sent what.

    .venv/bin/python benchmarks/accuracy.py              all cells, about three minutes
    .venv/bin/python benchmarks/accuracy.py --quick      one round of the plain cells
    .venv/bin/python benchmarks/accuracy.py --json       figures for machines

Each cell runs First Token and, in turn on the same server, a plain httpx loop written as a careful user would
write it (monotonic clock, parsed events, first non-empty content). `busy` keeps the event loop occupied 5 ms in
every 10. The error is the distance of the measured arrival from the interval in which the server's send ran.
The simulator is a process of its own on this machine; both sides share the monotonic clock.
"""

from __future__ import annotations

import argparse
import json
import ssl
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import Cell, Reading, errors_ns, first_token, in_loop, plain_httpx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from monitor.agent.arrivals import WatchedLoop
from monitor.cli.accuracy import Comparison, Summary, compare_all, summarise
from monitor.clock import Clock
from monitor.model import Attempt
from monitor.simulator.process import SimulatorProcess
from monitor.simulator.sendlog import Sending
from monitor.timeline import NS, nearest_rank

TTFT_SECONDS = 0.5
TARGET_P99_SECONDS = 0.0005
TARGET_RATIO = 0.1


@dataclass
class Result:
    cell: Cell
    ours: Summary
    plain_p50: float
    plain_p99: float

    @property
    def ratio(self) -> float:
        return self.ours.ttft_p99 / self.plain_p99 if self.plain_p99 else float("inf")


def cells(quick: bool) -> list[Cell]:
    roads = [("plain", "1.1")] if quick else [("plain", "1.1"), ("plain2", "2"), ("tls", "1.1"), ("tls", "2")]
    loads = [(20, 50), (200, 50), (20, 500)]
    return [Cell(road, http, n, rate, busy) for n, rate in loads for road, http in roads for busy in (False, True)]


def scenario() -> dict[str, Any]:
    models = {
        f"rate-{rate}": {"ttft_seconds": TTFT_SECONDS, "tokens": tokens, "tokens_per_second": rate}
        for rate, tokens in ((50, 50), (500, 400))
    }
    return {
        "listeners": [
            {"name": "plain", "models": models},
            {"name": "plain2", "models": models, "http": ["2"]},
            {"name": "tls", "models": models, "http": ["2", "1.1"], "tls": "good"},
        ]
    }


def run(wanted: list[Cell], rounds: int, quiet: bool) -> list[Result]:
    """All cells, ours and plain alternating; the log is read when the simulator has ended."""
    clock = Clock()
    ours: dict[Cell, list[Attempt]] = {cell: [] for cell in wanted}
    plain: dict[Cell, list[Reading]] = {cell: [] for cell in wanted}
    with tempfile.TemporaryDirectory() as directory:
        with SimulatorProcess(scenario(), send_log=Path(directory) / "sent.jsonl") as sim:
            trust = ssl.create_default_context(cafile=sim.ca_file)
            turns = [cell for _ in range(rounds) for cell in wanted]
            for cell in track(turns, "measuring", console=Console(stderr=True, quiet=quiet)):
                ours[cell] += in_loop(WatchedLoop, first_token(cell, sim, clock))
                plain[cell] += in_loop(None, plain_httpx(cell, sim, trust))
        log = sim.log()
    return [result(cell, ours[cell], plain[cell], log, clock) for cell in wanted]


def result(
    cell: Cell,
    attempts: list[Attempt],
    firsts: list[Reading],
    log: dict[str, list[Sending]],
    clock: Clock,
) -> Result:
    comparisons: list[Comparison] = compare_all(attempts, log, clock)
    if len(comparisons) < len(attempts):
        lost = [a.failure for a in attempts if a.failure]
        sys.exit(f"{cell.name}: {len(attempts) - len(comparisons)} attempts failed, first: {lost[:1]}")
    errors = errors_ns(firsts, log)
    return Result(cell, summarise(comparisons), nearest_rank(errors, 0.5) / NS, nearest_rank(errors, 0.99) / NS)


def show(results: list[Result]) -> None:
    table = Table(title="Error of TTFT against the server's send log (ms)")
    for heading in ("cell", "streams", "p50", "p99", "worst", "httpx p50", "httpx p99", "ratio p99"):
        table.add_column(heading, justify="left" if heading == "cell" else "right")
    for heading in ("TTFT in doubt", "gaps left out", "worst gap", "silently wrong"):
        table.add_column(heading, justify="right")
    for r in results:
        o = r.ours
        figures = [o.ttft_p50, o.ttft_p99, o.ttft_worst, r.plain_p50, r.plain_p99]
        table.add_row(
            r.cell.name,
            str(o.streams),
            *(f"{figure * 1e3:.3f}" for figure in figures),
            f"{r.ratio:.4f}",
            f"{o.ttft_doubted_share:.0%}",
            f"{o.coalesced_share:.0%}",
            "-" if o.gaps_worst is None else f"{o.gaps_worst * 1e3:.3f}",
            str(o.silently_wrong),
        )
    Console(width=170).print(table)


def met(r: Result) -> bool:
    """The promise: half a millisecond and a tenth of httpx's error at 50 tokens/s; nothing silently wrong anywhere."""
    exact = r.ours.ttft_p99 <= TARGET_P99_SECONDS and (not r.cell.busy or r.ratio <= TARGET_RATIO)
    return r.ours.silently_wrong == 0 and (exact or r.cell.rate > 50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of the plain HTTP/1.1 cells")
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    wanted = [cell for cell in cells(arguments.quick) if arguments.only in cell.name]
    results = run(wanted, rounds, arguments.json)
    if arguments.json:
        print(json.dumps([{**asdict(r), "ratio": r.ratio, "met": met(r)} for r in results]))
    else:
        show(results)
        missed = [r.cell.name for r in results if not met(r)]
        print("every cell meets its target" if not missed else f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
