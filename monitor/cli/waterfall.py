"""One attempt as a person reads it: a bar for each phase on one time axis, and the facts that explain it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from monitor.agent.failures import ADVICE
from monitor.model import Attempt, Doubt, Outcome, Series
from monitor.timeline import NS, PHASES, Mark, Phase

WIDTH = 28
PHASE_STYLES = {
    Phase.RESOLVE: "magenta",
    Phase.CONNECT: "blue",
    Phase.TLS: "cyan",
    Phase.SEND: "green",
    Phase.WAIT: "yellow",
    Phase.GENERATE: "bright_green",
}
PHASE_WORDS = {
    Phase.RESOLVE: "name lookup",
    Phase.CONNECT: "distance: one round trip",
    Phase.TLS: "encryption handshake",
    Phase.SEND: "request handed over",
    Phase.WAIT: "until the answer begins",
    Phase.GENERATE: "░ to its first token, █ on",
}
DOUBT_WORDS = {
    Doubt.LOOP_LAG: "this process was too busy to keep time",
    Doubt.COALESCED: "reads came late and merged: gaps are left out",
    Doubt.FIRST_TOKEN_COALESCED: "the first token's read was merged: its time is uncertain",
    Doubt.CPU_THROTTLED: "this machine's CPU quota stopped us",
    Doubt.CPU_STEAL: "this machine's host took the CPU away",
    Doubt.CLOCK_STEP: "the wall clock was moved meanwhile",
    Doubt.WARM_UP: "first attempt of a cold process",
    Doubt.RECONNECTED: "no open connection to reuse: this one was made anew",
}


def waterfall(attempt: Attempt, series: Series) -> RenderableType:
    """The attempt as a renderable for rich: heading, bars, facts, and for a failure what to do."""
    parts: list[RenderableType] = [_heading(attempt, series)]
    if attempt.timeline.marks:
        parts.append(_bars(attempt))
    parts += [_indented(line) for line in _facts(attempt, series)]
    if attempt.failure is not None:
        parts.append(_indented(attempt.failure.text, style="red"))
        parts.append(_indented(f"What to do: {ADVICE[attempt.failure.kind]}"))
    return Group(*parts)


def _indented(line: str, style: str = "") -> Padding:
    """A line of facts, which stays indented where it wraps."""
    return Padding(Text(line, style=style), (0, 0, 0, 2))


def _heading(attempt: Attempt, series: Series) -> Text:
    heading = Text()
    heading.append(f"{series.target.name}", style="bold")
    heading.append(f"  {series.target.provider}/{series.target.model}  from {attempt.vantage}")
    if series.simulated:
        heading.append("  ").append(" simulated ", style="reverse")
    if attempt.outcome is Outcome.SUCCESS:
        heading.append("  success", style="bold green")
    elif attempt.failure is not None:
        heading.append(f"  failed: {attempt.failure.kind.value} in {attempt.failure.phase.value}", style="bold red")
    heading.append(f"  {duration(attempt.timeline.lasted_ns / NS)}")
    return heading


def _bars(attempt: Attempt) -> Table:
    line = attempt.timeline
    span = max(line.lasted_ns, line.marks.get(Mark.LAST_TOKEN, 0), 1)
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(width=13, no_wrap=True)
    table.add_column(width=WIDTH, no_wrap=True)
    table.add_column(justify="right", width=7, no_wrap=True)
    table.add_column(style="dim")  # alone may shrink, where the terminal is narrow
    for phase, (begin, end) in PHASES.items():
        if begin not in line.marks or (phase is Phase.GENERATE and _refused(attempt)):
            continue
        took = line.phase(phase)
        stop = line.marks.get(end, line.lasted_ns)
        style = PHASE_STYLES[phase] if took is not None else "red"
        words = PHASE_WORDS[phase] if took is not None else "died here"
        bar = _bar(line.marks[begin], stop, span, style)
        if phase is Phase.GENERATE:
            bar = _bar_until(bar, line.marks.get(Mark.FIRST_TOKEN, stop), span)
        table.add_row(f"  {phase.value}", bar, duration(took), _cut(words))
    first, visible = line.marks.get(Mark.FIRST_TOKEN), line.marks.get(Mark.FIRST_VISIBLE)
    _point(table, "  first token", first, span, "TTFT, from the start")
    if visible != first:
        _point(table, "  visible", visible, span, "TTFO, from the start")
    if line.control is not None:
        table.add_row("  control", "", duration(line.control), _cut("same road, no model, afterwards"))
    return table


def _cut(words: str) -> Text:
    return Text(words, no_wrap=True, overflow="ellipsis")


def _refused(attempt: Attempt) -> bool:
    """Whether headers came but no answer: the status was a refusal, and generating never began."""
    return attempt.failure is not None and attempt.failure.phase is Phase.WAIT


def _bar(begin: int, end: int, span: int, style: str) -> Text:
    left = min(WIDTH - 1, begin * WIDTH // span)
    length = max(1, min(WIDTH - left, round((end - begin) * WIDTH / span)))
    return Text(" " * left + "█" * length, style=style)


def _bar_until(bar: Text, first_token: int, span: int) -> Text:
    """The part of the bar before the first token, drawn light."""
    place = min(len(bar), first_token * WIDTH // span)
    blocks = "".join("░" if at < place and block == "█" else block for at, block in enumerate(bar.plain))
    return Text(blocks, style=bar.style)


def _point(table: Table, name: str, at: int | None, span: int, words: str) -> None:
    if at is not None:
        place = min(WIDTH - 1, at * WIDTH // span)
        table.add_row(name, Text(" " * place + "▲", style="bold"), duration(at / NS), _cut(words))


def _facts(attempt: Attempt, series: Series) -> list[str]:
    facts = [
        _token_facts(attempt),
        _cost_facts(attempt, series),
        _gap_facts(attempt),
        _road_facts(attempt),
        _server_facts(attempt),
    ]
    doubts = "; ".join(DOUBT_WORDS[doubt] for doubt in attempt.validity)
    clock = f"{attempt.clock_source.value} clock" if attempt.clock_source else "nothing received"
    facts.append(f"measured by: {clock}{'' if attempt.valid else ', NOT VALID'}{': ' + doubts if doubts else ''}")
    return [fact for fact in facts if fact]


def _token_facts(attempt: Attempt) -> str:
    tokens, line = attempt.tokens, attempt.timeline
    if not attempt.token_events:
        return ""
    output = attempt.token_events if tokens.output is None else tokens.output
    parts = [f"{output} {'tokens' if tokens.output is not None else 'token events'}"]
    parts += [f"{tokens.reasoning} reasoning"] if tokens.reasoning else []
    parts += [f"{tokens.input} in"] if tokens.input is not None else []
    parts += [f"{tokens.cached} cached"] if tokens.cached else []
    generating = line.between_ns(Mark.FIRST_TOKEN, Mark.LAST_TOKEN)
    if generating and attempt.token_events > 1:
        parts.append(f"{(output - 1) * NS / generating:.0f} tokens/s")
    parts += [f"finish: {attempt.finish_reason}"] if attempt.finish_reason else []
    return " · ".join(parts)


def _cost_facts(attempt: Attempt, series: Series) -> str:
    price = series.target.price
    return "" if attempt.cost is None or price is None else f"cost: {money(attempt.cost, price.currency)}"


def _gap_facts(attempt: Attempt) -> str:
    found = attempt.gaps
    if found is None:
        return ""
    if found.p50 is None:
        return "all tokens arrived at once (a buffer on the way, or a very short answer)"
    stalls = f"{found.stalls} stalls" if found.stalls else "no stalls"
    burst = f" · {found.burst_share:.0%} of tokens came in bursts" if found.burst_share else ""
    return f"gaps p50 {duration(found.p50)} p95 {duration(found.p95)} max {duration(found.max)} · {stalls}{burst}"


def _road_facts(attempt: Attempt) -> str:
    http, tcp = attempt.http, attempt.tcp
    parts = [
        f"HTTP {http.status}" if http.status else "",
        f"HTTP/{http.version}" if http.version else "",
        http.tls_version or "",
        "reused connection" if http.reused else "",
        http.remote or ("through a proxy" if http.proxied else ""),
        f"edge {http.edge}" if http.edge else "",
        f"rtt {duration(tcp.min_rtt)} at least" if tcp.min_rtt is not None else "",
        f"{tcp.retransmits} retransmits" if tcp.retransmits else "",
        f"{tcp.out_of_order} out of order" if tcp.out_of_order else "",
        f"content-encoding {http.content_encoding}" if http.content_encoding else "",
    ]
    return " · ".join(part for part in parts if part)


def _server_facts(attempt: Attempt) -> str:
    if not attempt.server:
        return ""
    return "server says: " + ", ".join(f"{key} {duration(value)}" for key, value in sorted(attempt.server.items()))


def money(amount: float, currency: str) -> str:
    """An amount with two telling digits at least: 0.000012 USD, 1.25 USD."""
    digits = 2
    while 0 < amount < 10 ** (1 - digits) and digits < 12:
        digits += 1
    return f"{amount:.{digits}f} {currency}"


def duration(seconds: float | None) -> str:
    """Seconds as a person reads them: 83 µs, 4.2 ms, 105 ms, 1.23 s; a dash for what did not happen."""
    if seconds is None:
        return "–"
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.09995:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"
