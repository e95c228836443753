"""The same streams measured by First Token, a plain httpx loop, aiperf and llmeter: whose TTFT is how far off?

    .venv/bin/python benchmarks/peers.py                 1, 10, 20 and 100 streams at once, under three minutes
    .venv/bin/python benchmarks/peers.py --at-once 20    only that many
    .venv/bin/python benchmarks/peers.py --json          figures for machines

The simulator, a process of its own, sends 50 tokens/s a stream over plain HTTP/1.1 and logs the instants just before
and just after each socket send. Every tool's first token is placed on the clock that all processes of this machine
share (its own start plus its own TTFT), matched with the server's stream by the id in the answer, and compared with
the send. The tools run one after the other, each in its own way of spreading work over processes and threads; what a
process of theirs needs to start is not measured. aiperf and llmeter live in `.venv-peers`, made on the first run.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import peer_tools
from common import Cell, Reading, errors_ns, first_token, in_loop, plain_httpx
from peer_tools import PeerError
from rich.console import Console
from rich.progress import track
from rich.table import Table

from monitor.agent.arrivals import WatchedLoop
from monitor.clock import Clock, wall_ns
from monitor.model import Attempt
from monitor.simulator.process import SimulatorProcess
from monitor.simulator.sendlog import Sending, SendKind
from monitor.timeline import NS, nearest_rank

RATE = 50
TOKENS = 35
TTFT_SECONDS = 0.3
STREAM_SECONDS = TTFT_SECONDS + TOKENS / RATE
AT_ONCE = (1, 10, 20, 100)
ROUNDS = 4  # streams that follow one another in each of the places
LEAST_STREAMS = 8

INCLUDES = {
    "First Token": "from before resolving and connecting (a fresh connection each) to the kernel's stamp of the first "
    "token's arrival; what its own loop is late before sending is in it (and told as `remainder`); `valid only` leaves "
    "out the attempts whose measurement it doubts itself, as its histograms do",
    "httpx loop": "from before a new client is made and connects to the moment the loop has read and parsed the first "
    "token: the time a busy loop or processor keeps it waiting is in it",
    "aiperf": "from just before its worker's aiohttp request (a fresh connection each, by option; connecting is in it, "
    "waiting for a worker is not) to the moment the worker has read the bytes of the first token, before parsing",
    "llmeter": "from just before its thread calls the OpenAI SDK (building the request is in it; connections are kept, "
    "so only a thread's first may connect) to the moment the thread has the parsed first token",
}


@dataclass(frozen=True)
class Figures:
    """One tool on one load. Seconds; of fewer than 100 streams, the p99 is the worst."""

    tool: str
    at_once_wanted: int
    at_once: int  # what the server saw
    asked: int
    compared: int  # the rest failed or has no TTFT
    error_p50: float
    error_p99: float
    error_worst: float
    besides_server_p50: float  # TTFT minus the server's time from the whole request to the first token's send
    besides_server_p99: float


@dataclass(frozen=True)
class Run:
    """One tool's turn at one load."""

    tool: str
    at_once: int
    cell: Cell
    readings: list[Reading]


def load(at_once: int) -> Cell:
    streams = max(LEAST_STREAMS, at_once * ROUNDS)
    return Cell("plain", "1.1", streams, RATE, busy=False, spread_seconds=streams / at_once * STREAM_SECONDS)


def scenario() -> dict[str, Any]:
    model = {"ttft_seconds": TTFT_SECONDS, "tokens": TOKENS, "tokens_per_second": RATE}
    return {"listeners": [{"name": "plain", "models": {f"rate-{RATE}": model}}]}


def our_readings(attempts: Sequence[Attempt], clock: Clock) -> list[Reading]:
    """Attempts as readings; those that failed are left out."""
    offset_ns = clock.offset_ns()
    readings = []
    for attempt in attempts:
        ttft, stream = attempt.timeline.ttft, attempt.http.request_id
        if ttft is not None and stream is not None:
            started_ns = wall_ns(attempt.started_at) - offset_ns
            readings.append(Reading(stream, started_ns, started_ns + round(ttft * NS), in_doubt=not attempt.valid))
    return readings


def turns(sim: SimulatorProcess, clock: Clock) -> dict[str, Callable[[Cell, int], list[Reading]]]:
    """How each tool measures a load that keeps so many streams open at once."""
    trust, url = ssl.create_default_context(), sim.url("plain")
    return {
        "First Token": lambda cell, _: our_readings(in_loop(WatchedLoop, first_token(cell, sim, clock)), clock),
        "httpx loop": lambda cell, _: list(in_loop(None, plain_httpx(cell, sim, trust))),
        "aiperf": lambda cell, _: peer_tools.aiperf(cell, url),
        "llmeter": lambda cell, at_once: peer_tools.llmeter(cell, url, at_once, STREAM_SECONDS),
    }


def run(wanted: Sequence[int], tools: Sequence[str], quiet: bool) -> tuple[list[Run], dict[str, list[Sending]]]:
    """All tools at all loads in turn, and the send log. A tool that fails once is left out from there on."""
    runs: list[Run] = []
    clock, lost = Clock(), set[str]()
    with tempfile.TemporaryDirectory() as directory:
        with SimulatorProcess(scenario(), send_log=Path(directory) / "sent.jsonl") as sim:
            measure = turns(sim, clock)
            plan = [(at_once, tool) for at_once in wanted for tool in tools]
            for at_once, tool in track(plan, "measuring", console=Console(stderr=True, quiet=quiet)):
                if tool not in lost:
                    try:
                        runs.append(Run(tool, at_once, load(at_once), measure[tool](load(at_once), at_once)))
                    except PeerError as problem:
                        lost.add(tool)
                        print(f"{tool} is left out from here on: {problem}", file=sys.stderr)
        return runs, sim.log()


def figures(one: Run, log: Mapping[str, Sequence[Sending]]) -> Figures | None:
    """None, and a sentence on stderr, when nothing can be compared."""
    errors = errors_ns(one.readings, log)
    besides = sorted(ns for ns in (besides_server_ns(r, log.get(r.stream, ())) for r in one.readings) if ns is not None)
    if not errors or not besides:
        print(f"{one.tool}, {one.at_once} at once: no stream could be matched with the server's log", file=sys.stderr)
        return None
    return Figures(
        tool=one.tool,
        at_once_wanted=one.at_once,
        at_once=most_at_once([log[r.stream] for r in one.readings if r.stream in log]),
        asked=one.cell.streams,
        compared=len(errors),
        error_p50=nearest_rank(errors, 0.5) / NS,
        error_p99=nearest_rank(errors, 0.99) / NS,
        error_worst=errors[-1] / NS,
        besides_server_p50=nearest_rank(besides, 0.5) / NS,
        besides_server_p99=nearest_rank(besides, 0.99) / NS,
    )


def rows(one: Run, log: Mapping[str, Sequence[Sending]]) -> list[Figures]:
    """The run's figures; where its tool can doubt, those of the streams that it does not doubt as well."""
    sure = [reading for reading in one.readings if not reading.in_doubt]
    runs = [one, replace(one, tool="First Token, valid only", readings=sure)] if one.tool == "First Token" else [one]
    return [found for run in runs if (found := figures(run, log)) is not None]


def besides_server_ns(reading: Reading, sent: Sequence[Sending]) -> int | None:
    """What the tool's TTFT holds beyond the server's own time: connecting, sending, noticing."""
    request = next((s for s in sent if s.kind == SendKind.REQUEST), None)
    token = next((s for s in sent if s.kind == SendKind.TOKEN), None)
    if request is None or token is None:
        return None
    return (reading.first_ns - reading.started_ns) - (token.before_ns - request.after_ns)


def most_at_once(streams: Sequence[Sequence[Sending]]) -> int:
    """How many streams the server had open at its busiest moment."""
    steps = sorted([(s[0].before_ns, 1) for s in streams] + [(s[-1].after_ns, -1) for s in streams])
    most = current = 0
    for _, step in steps:
        current += step
        most = max(most, current)
    return most


def show(results: Sequence[Figures], tools: Sequence[str], load_before: float) -> None:
    machine = f"{os.cpu_count()} processors, load {load_before:.1f} before"
    table = Table(title=f"TTFT against the server's send log (ms); {machine}")
    for heading in ("streams at once", "tool", "at once", "streams", "error p50", "p99", "worst", "extra p50", "p99"):
        table.add_column(heading, justify="left" if heading == "tool" else "right")
    for place, r in enumerate(results):
        seconds = (r.error_p50, r.error_p99, r.error_worst, r.besides_server_p50, r.besides_server_p99)
        first = place == 0 or results[place - 1].at_once_wanted != r.at_once_wanted
        if first and place:
            table.add_section()
        of = str(r.compared) if r.compared >= r.asked else f"{r.compared} of {r.asked}"
        wanted = str(r.at_once_wanted) if first else ""
        table.add_row(wanted, r.tool, str(r.at_once), of, *(f"{figure * 1e3:.3f}" for figure in seconds))
    console = Console(width=130)
    console.print(table)
    console.print("error: how far the instant of the first token (start + TTFT) lies outside its send on the server.")
    console.print(
        "extra: what TTFT holds beyond the server's own time from the whole request to that send: connecting,"
    )
    console.print("  sending and noticing. Some of it is what a TTFT should hold; compare it with what each includes:")
    for tool in tools:
        known = f" {peer_tools.version(tool)}" if tool in ("aiperf", "llmeter") else ""
        console.print(f"{tool}{known}: {INCLUDES[tool]}.", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=list(AT_ONCE), help="streams at once")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tools, load_before = list(INCLUDES), os.getloadavg()[0]
    try:
        peer_tools.install()
    except PeerError as problem:
        print(problem, file=sys.stderr)
        tools = ["First Token", "httpx loop"]
    runs, log = run(arguments.at_once, tools, arguments.json)
    results = [row for one in runs for row in rows(one, log)]
    if arguments.json:
        versions = {tool: peer_tools.version(tool) for tool in ("aiperf", "llmeter")}
        machine = {"processors": os.cpu_count(), "load_before": load_before}
        whole = {**machine, "versions": versions, "includes": INCLUDES, "results": [asdict(r) for r in results]}
        print(json.dumps(whole))
    else:
        show(results, tools, load_before)


if __name__ == "__main__":
    main()
