"""`firsttoken selftest`: how exactly this machine measures, and what to expect of it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.cli import terminal
from monitor.cli.accuracy import Comparison, Summary, compare_all, measure, summarise
from monitor.cli.screen import Screen
from monitor.cli.waterfall import duration
from monitor.clock import Clock
from monitor.extras import how_to_install
from monitor.model import Attempt, ClockSource, DialectName, Doubt, MonitorError, Probe, Series, Target, Vantage
from monitor.simulator.process import SimulatorProcess

STREAMS_AT_ONCE = 10
BUSY_SHARE = 0.05
"""When more of the first tokens than this are in doubt, the machine has too little time for measuring."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way of measuring that is put to the test."""

    name: str
    listener: str
    kernel_stamps: bool = True

    @property
    def judged(self) -> bool:
        """Whether attempts here are measured this way; doing without the stamps is shown for comparison only."""
        return self.kernel_stamps


@dataclass(frozen=True, slots=True)
class Finding:
    case: Case
    summary: Summary
    kernel_clock: bool
    doubts: dict[str, int]


def selftest(
    streams: Annotated[int, typer.Option(min=5, max=500, help="Streams for each way of measuring.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Figures for machines.")] = False,
) -> None:
    """Measure this machine's own error: stream from a simulator here, and compare with when it really sent.

    Judged is the way attempts are measured here: with the kernel's arrival stamps, where it gives them. The user clock
    is shown beside it for comparison and changes neither the verdict nor the exit code.

    Exit code 0: a TTFT measured here is right to a millisecond or says that it is not; 1: it is not; 2: cannot run.
    """
    cases = [Case("plain, kernel clock", "plain"), Case("plain, user clock", "plain", kernel_stamps=False)]
    left_out: list[str] = []
    secure = Case("TLS, kernel clock", "tls")
    if importlib.util.find_spec("cryptography"):
        cases.insert(1, secure)
    else:
        left_out.append(secure.name)
    findings = _run(cases, streams, quiet=as_json)
    if as_json:
        terminal.say(json.dumps(report(findings, left_out)))
    else:
        _show(findings, left_out)
    raise typer.Exit(0 if good(findings) else 1)


def good(findings: list[Finding]) -> bool:
    """The verdict: nothing that is judged was wrong without saying so."""
    return all(_acceptable(finding) for finding in findings if finding.case.judged)


def report(findings: list[Finding], left_out: list[str]) -> dict[str, object]:
    """The object of `--json`. `good` is about the cases that are `judged`; the others are never called acceptable."""
    return {"good": good(findings), "cases": [_as_json(finding) for finding in findings], "left_out": left_out}


def _run(cases: list[Case], streams: int, *, quiet: bool) -> list[Finding]:
    clock = Clock()
    attempts: dict[Case, list[Attempt]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as directory:
        with (
            SimulatorProcess(_scenario(cases), send_log=Path(directory) / "sent.jsonl") as sim,
            Progress(console=Screen(stderr=True, quiet=quiet), transient=True) as progress,
        ):
            task = progress.add_task("measuring", total=len(cases) * streams)
            for case in cases:
                with asyncio.Runner(loop_factory=WatchedLoop) as runner:
                    attempts[case] = runner.run(_streams(case, sim, clock, streams))
                progress.advance(task, streams)
        log = sim.log()
    return [_finding(case, attempts[case], compare_all(attempts[case], log, clock)) for case in cases]


def _scenario(cases: list[Case]) -> dict[str, Any]:
    models = {"steady": {"ttft_seconds": 0.15, "tokens": 25, "tokens_per_second": 50}}
    secure: dict[str, Any] = {"tls": "good"}
    wanted = {case.listener: secure if case.listener == "tls" else {} for case in cases}
    return {"listeners": [{"name": name, "models": models, **extra} for name, extra in wanted.items()]}


async def _streams(case: Case, sim: SimulatorProcess, clock: Clock, streams: int) -> list[Attempt]:
    prober = Prober(clock, max_concurrent=STREAMS_AT_ONCE, kernel_stamps=case.kernel_stamps)
    await prober.start()
    target = Target(
        name="simulator",
        provider="simulator",
        model="steady",
        dialect=DialectName.OPENAI_CHAT,
        url=sim.url(case.listener),
        ca_file=sim.ca_file,
        simulated=True,
    )
    series = Series(vantage=Vantage(name="here"), target=target, probe=Probe(name="selftest", prompt="hello"))
    found: list[Attempt] = []
    try:
        while len(found) < streams:
            found += await measure(prober, series, min(STREAMS_AT_ONCE, streams - len(found)), 0.1)
    finally:
        await prober.close()
    return found


def _finding(case: Case, attempts: list[Attempt], comparisons: list[Comparison]) -> Finding:
    if not comparisons:
        failure = next((a.failure.text for a in attempts if a.failure), "no stream could be compared")
        raise MonitorError(f"selftest cannot measure: {failure}")
    return Finding(
        case,
        summarise(comparisons),
        all(a.clock_source is ClockSource.KERNEL for a in attempts),
        {doubt.value: n for doubt in Doubt if (n := sum(doubt in a.validity for a in attempts))},
    )


def _acceptable(finding: Finding) -> bool:
    return finding.summary.silently_wrong == 0


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "case": finding.case.name,
        "clock_source": "kernel" if finding.kernel_clock else "user",
        "judged": finding.case.judged,
        "acceptable": _acceptable(finding) if finding.case.judged else None,
        "doubts": finding.doubts,
        **asdict(finding.summary),
    }


def _show(findings: list[Finding], left_out: list[str]) -> None:
    table = Table(title="How far TTFT measured here is from the truth, where it is not in doubt")
    for heading in ("way of measuring", "streams", "half within", "99 % within", "gaps within", "in doubt"):
        table.add_column(heading, justify="left" if heading == "way of measuring" else "right")
    for finding in findings:
        s = finding.summary
        figures = [duration(s.ttft_p50), duration(s.sure_p99), duration(s.gaps_worst)]
        doubted = f"{s.ttft_doubted_share:.0%}" if finding.kernel_clock else "not told"
        table.add_row(finding.case.name, str(s.streams), *figures, doubted)
    console = Screen(highlight=False)
    console.print(table)
    known = max(finding.summary.truth_width_p99 for finding in findings)
    console.print(Text(f"The simulator knows to {duration(known)} when it sent; the table has what lies beyond."))
    for name in left_out:
        console.print(Text(f"{name}: left out, as cryptography is not installed; {how_to_install('simulator')}"))
    for line in advice(findings):
        console.print(Text(line))


def advice(findings: list[Finding]) -> list[str]:
    """What the figures mean, a sentence each; the first finding is the plain one, the last that of the user clock."""
    best, user = findings[0], findings[-1]
    defect = best.kernel_clock and not good(findings)  # without stamps, being late untold is their lack and no defect
    lines = [_DEFECT] if defect else _expectations(best, user)
    if best.summary.ttft_doubted_share > BUSY_SHARE:
        lines.append("This machine is too busy to measure well now: stop what else it does, or give it more CPU.")
    if best.summary.coalesced_share:
        lines.append(
            f"In {best.summary.coalesced_share:.0%} of the streams reads came late and merged tokens;"
            " those attempts say `coalesced` and carry no gaps."
        )
    return lines


_DEFECT = "Some times were wrong and did not say so: please report this, with the output of `selftest --json`."


def _right_to(finding: Finding) -> str:
    """What 99 % of the TTFT that are not in doubt keep to: nothing is known better than when the simulator sent."""
    return duration((finding.summary.sure_p99 or 0.0) + finding.summary.truth_width_p99)


def _expectations(best: Finding, user: Finding) -> list[str]:
    without = f"to {_right_to(user)} in this run, and a late one does not say that it is late."
    if not best.kernel_clock:
        return [
            "The kernel gives no arrival stamps here: times are taken when this process gets to read.",
            f"Expect a TTFT from this machine to be right {without}",
        ]
    if best.summary.sure_p99 is None:
        return ["Every TTFT was in doubt, and said so."]
    right = f"right to {_right_to(best)}, or to say that it is in doubt"
    return [
        f"With the kernel's stamps, expect a TTFT from this machine to be {right}.",
        f"Without them (`probe --user-clock`) it is right {without}",
    ]
