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
import asyncio
import json
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.cli.accuracy import Comparison, Summary, compare_all, error_ns, measure, summarise
from monitor.clock import Clock
from monitor.model import Attempt, DialectName, Probe, Series, Target, Vantage
from monitor.simulator.process import SimulatorProcess
from monitor.simulator.sendlog import Sending, SendKind
from monitor.timeline import NS, nearest_rank

TTFT_SECONDS = 0.5
SPREAD_SECONDS = 0.2
TARGET_P99_SECONDS = 0.0005
TARGET_RATIO = 0.1


@dataclass(frozen=True)
class Cell:
    listener: str  # of the simulator
    http: str
    streams: int
    rate: int  # tokens per second and stream
    busy: bool

    @property
    def name(self) -> str:
        road = ("TLS" if self.listener.startswith("tls") else "plain") + f" HTTP/{self.http}"
        return f"{self.streams} x {self.rate}/s {road} {'busy' if self.busy else 'idle'}"


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


@asynccontextmanager
async def occupied(busy: bool) -> Any:
    """Keep the running loop busy 5 ms in every 10 meanwhile."""

    async def spin() -> None:
        while True:
            until = time.perf_counter() + 0.005
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0.005)

    task = asyncio.create_task(spin()) if busy else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


async def first_token(cell: Cell, sim: SimulatorProcess, clock: Clock) -> list[Attempt]:
    prober = Prober(clock, max_concurrent=cell.streams)
    await prober.start()
    target = Target(
        name="simulated",
        provider="simulator",
        model=f"rate-{cell.rate}",
        dialect=DialectName.OPENAI_CHAT,
        url=sim.url(cell.listener),
        http_version=cell.http,
        ca_file=sim.ca_file,
    )
    probe = Probe(name="accuracy", prompt="hello", max_output_tokens=1000, deadline_seconds=60.0)
    series = Series(vantage=Vantage(name="here"), target=target, probe=probe)
    try:
        async with occupied(cell.busy):
            return await measure(prober, series, cell.streams, SPREAD_SECONDS)
    finally:
        await prober.close()


async def plain_httpx(cell: Cell, sim: SimulatorProcess, trust: ssl.SSLContext) -> list[tuple[str, int]]:
    """(request id, monotonic ns of the first token) of each stream; every stream on a fresh connection of its own."""
    body = {
        "model": f"rate-{cell.rate}",
        "stream": True,
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "hello"}],
    }

    async def one(number: int) -> tuple[str, int]:
        await asyncio.sleep(number * SPREAD_SECONDS / cell.streams)
        first = 0
        async with (
            httpx.AsyncClient(verify=trust, http2=cell.http == "2", http1=cell.http != "2", timeout=60) as client,
            client.stream("POST", sim.url(cell.listener) + "/chat/completions", json=body) as response,
        ):
            async for line in response.aiter_lines():
                if not first and line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    if choices and choices[0]["delta"].get("content"):
                        first = time.monotonic_ns()
        return response.headers["x-request-id"], first

    async with occupied(cell.busy):
        return list(await asyncio.gather(*(one(number) for number in range(cell.streams))))


def plain_errors(firsts: Sequence[tuple[str, int]], log: dict[str, list[Sending]]) -> list[int]:
    errors = []
    for stream, first_ns in firsts:
        sent = next((s for s in log.get(stream, ()) if s.kind == SendKind.TOKEN), None)
        if sent is not None and first_ns:
            errors.append(error_ns(first_ns, sent))
    return sorted(errors)


def in_loop(loop: Callable[[], asyncio.AbstractEventLoop] | None, work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)


def run(wanted: list[Cell], rounds: int, quiet: bool) -> list[Result]:
    """All cells, ours and plain alternating; the log is read when the simulator has ended."""
    clock = Clock()
    ours: dict[Cell, list[Attempt]] = {cell: [] for cell in wanted}
    plain: dict[Cell, list[tuple[str, int]]] = {cell: [] for cell in wanted}
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
    firsts: list[tuple[str, int]],
    log: dict[str, list[Sending]],
    clock: Clock,
) -> Result:
    comparisons: list[Comparison] = compare_all(attempts, log, clock)
    if len(comparisons) < len(attempts):
        lost = [a.failure for a in attempts if a.failure]
        sys.exit(f"{cell.name}: {len(attempts) - len(comparisons)} attempts failed, first: {lost[:1]}")
    errors = plain_errors(firsts, log)
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
