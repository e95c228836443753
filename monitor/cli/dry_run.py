"""`firsttoken probe --dry-run`: the request as it would be sent, with secrets masked, and what it may cost."""

from __future__ import annotations

import asyncio

from monitor.agent.pricing import Use, worst_case
from monitor.agent.probe import Prober
from monitor.agent.question import Rehearsal
from monitor.cli import terminal
from monitor.cli.waterfall import money
from monitor.clock import Clock
from monitor.model import Series

NOTHING_SENT = "dry run: nothing is sent"


def show(chosen: list[Series], *, as_json: bool) -> None:
    """Print what each series would send; opens no connection and asks no resolver."""
    if not as_json:
        terminal.say(NOTHING_SENT)
    for series, request in asyncio.run(_rehearsals(chosen)):
        if as_json:
            terminal.say_json(_report(series, request))
        else:
            terminal.say(_text(series, request))


async def _rehearsals(chosen: list[Series]) -> list[tuple[Series, Rehearsal]]:
    prober = Prober(Clock(), max_concurrent=1)
    try:
        return [(series, prober.rehearse(series)) for series in chosen]
    finally:
        await prober.close()


def _report(series: Series, request: Rehearsal) -> dict[str, object]:
    use, price = worst_case(series), series.target.price
    return {
        "dry_run": True,
        "vantage": series.vantage.name,
        "target": series.target.name,
        "probe": series.probe.name,
        "method": request.method,
        "url": request.url,
        "http_version": series.target.http_version,
        "proxy": series.vantage.proxy,
        "headers": [list(header) for header in request.headers],
        "body": request.body,
        "control_url": request.control_url,
        "estimate": {
            "input_tokens": use.input,
            "output_tokens_at_most": use.output,
            "cost_at_most": use.money(price),
            "currency": None if price is None else price.currency,
        },
    }


def _text(series: Series, request: Rehearsal) -> str:
    through = f" through {series.vantage.proxy}" if series.vantage.proxy else ""
    lines = [
        "",
        f"{series.target.name}/{series.probe.name} from {series.vantage.name}{through}",
        f"{request.method} {request.url} HTTP/{series.target.http_version}",
        *(f"{name}: {value}" for name, value in request.headers),
        "",
        request.body,
        "",
        _estimate(worst_case(series), series),
    ]
    if request.control_url:
        lines.append(f"afterwards, outside its times: GET {request.control_url}")
    return "\n".join(lines)


def _estimate(use: Use, series: Series) -> str:
    tokens = f"about {use.input} prompt tokens and at most {use.output} output tokens"
    price, cost = series.target.price, use.money(series.target.price)
    if price is None or cost is None:
        return f"{tokens}; `prices` has none for this target"
    return f"{tokens}: at most {money(cost, price.currency)} an attempt"
