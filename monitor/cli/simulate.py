"""`firsttoken simulate`: fake providers and networks that misbehave on purpose, to try everything without a key."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from monitor.cli import terminal
from monitor.cli.screen import Screen
from monitor.simulator.behaviour import FIELDS, Behaviour
from monitor.simulator.scenario import Change, Scenario
from monitor.simulator.scenario_file import read_scenario
from monitor.simulator.server import Simulator
from monitor.simulator.serving import serve_until, told_to_end
from monitor.simulator.showcase import showcase

SHOWN_MODELS = 200
_HEALTHY = Behaviour()
_PACE = f"first token after {_HEALTHY.ttft_seconds:g} s, {_HEALTHY.tokens} tokens at {_HEALTHY.tokens_per_second:g}/s"


def simulate(
    scenario: Annotated[
        Path | None, typer.Option(help="What to serve, as YAML or JSON; without it a showcase.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address of the showcase.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65000, help="First port of the showcase; 0: any free ones.")] = 8808,
    send_log: Annotated[Path | None, typer.Option(help="Write the true time of every send to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when ready, and nothing else.")] = False,
) -> None:
    """Serve simulated providers until Ctrl-C: slow, sleeping, crowded, broken ones, near and far."""
    asked = read_scenario(scenario) if scenario else showcase(host, port)
    asyncio.run(_run(asked, send_log, as_json))


async def _run(asked: Scenario, send_log: Path | None, as_json: bool) -> None:
    wanted = Simulator.of(asked, send_log=send_log, keep_sends=0)
    with told_to_end() as ending:
        async with wanted as simulator:
            if as_json:
                terminal.say(json.dumps(simulator.description()))
            else:
                _show(simulator)
            await serve_until(ending, simulator)


def _show(simulator: Simulator) -> None:
    console = Screen()
    console.print(_models(simulator))
    console.print(_places(simulator))
    for change in simulator.scenario.timeline:
        console.print(Text(f"Timeline: {told(change)}"), soft_wrap=True)
    console.print(Text("Try it, in another terminal:"))
    for line in _examples(simulator):
        console.print(Text(f"  {line}"), soft_wrap=True)
    console.print(Text("Ctrl-C ends it."))


def _models(simulator: Simulator) -> Table:
    """A row for each model; where it is served stands beside it only when that is not everywhere."""
    listeners = simulator.scenario.listeners
    title = f"Simulated models, and what differs from a healthy one ({_PACE})"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("behaviour")
    rows: dict[tuple[str, str], list[str]] = {}
    for listener in listeners:
        for model, behaviour in listener.models.items():
            rows.setdefault((model, summary(behaviour)), []).append(listener.name)
    for (model, told), places in list(rows.items())[:SHOWN_MODELS]:
        at = "" if len(places) == len(listeners) else f" (at {', '.join(places)})"
        table.add_row(Text("any name" if model == "*" else model), Text(f"{told}{at}"))
    if len(rows) > SHOWN_MODELS:
        table.add_row(f"and {len(rows) - SHOWN_MODELS} more")
    return table


def _places(simulator: Simulator) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Where", title_justify="left", pad_edge=False)
    for name in ("name", "address", "what"):
        table.add_column(name, no_wrap=name != "what")
    for listener in simulator.scenario.listeners:
        spoken = " and ".join(f"HTTP/{version}" for version in sorted(listener.http))
        secured = f"{spoken} over TLS, {listener.tls} certificate" if listener.tls else f"{spoken}, plain"
        table.add_row(listener.name, simulator.url(listener.name), secured)
    for name, proxy in simulator.proxies.items():
        table.add_row(
            name, proxy.url, f"proxy that adds {proxy.distance.rtt_ms:g} ms of round trip (simulated distance)"
        )
    if simulator.ca_file:
        table.add_row("CA", simulator.ca_file, "trust this file to believe the good certificates")
    return table


def _examples(simulator: Simulator) -> list[str]:
    plain = next((item for item in simulator.scenario.listeners if item.tls is None and not item.silent), None)
    secure = next((item for item in simulator.scenario.listeners if item.tls == "good"), None)
    lines, ask = [], f"{terminal.this_program()} probe"
    if plain:
        model = next(iter(plain.models), "*").replace("*", "any")
        key = " --api-key-env NAME" if plain.api_key else ""
        lines.append(f"{ask} --url {simulator.url(plain.name)} --dialect openai_chat --model {model}{key}")
    if secure:
        model = next(iter(secure.models), "*").replace("*", "any")
        proxy = next((f" --proxy {proxy.url}" for proxy in simulator.proxies.values()), "")
        lines.append(
            f"{ask} --url {simulator.url(secure.name)} --dialect anthropic --model {model}"
            f" --ca-file {simulator.ca_file}{proxy}"
        )
    return lines


def summary(behaviour: Behaviour) -> str:
    """What differs from a healthy model, spelled as a scenario file spells it."""
    differing = [
        f"{name}: {_value(getattr(behaviour, name))}"
        for name in FIELDS
        if getattr(behaviour, name) != getattr(_HEALTHY, name)
    ]
    return ", ".join(differing) or "healthy"


def _value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    return f'"{value}"' if value == "" or " " in str(value) else str(value)


def told(change: Change) -> str:
    """What a step of the timeline changes, and when."""
    what = [f"{name} times {factor:g}" for name, factor in change.multiply.items()]
    what += [f"{name} = {_value(value)}" for name, value in change.set.items()]
    lasts = f" for {change.for_seconds:g} s" if change.for_seconds is not None else ""
    again = f", every {change.every_seconds:g} s" if change.every_seconds else ""
    return f"after {change.after_seconds:g} s {change.model or 'all models'}: {', '.join(what)}{lasts}{again}"
