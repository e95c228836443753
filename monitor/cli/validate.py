"""`firsttoken validate`: what a configuration would run, or every mistake in it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from monitor import config as configuration
from monitor.cli import terminal
from monitor.cli.screen import Screen
from monitor.config import Config, InvalidConfig, Mistake, plan
from monitor.config.kinds import show_duration
from monitor.config.mistake import listed
from monitor.model import Series

SHOWN_ROWS = 100


def validate(
    file: Annotated[Path, typer.Argument(help="The configuration file.", show_default=True)] = Path("firsttoken.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    allow_missing_secrets: Annotated[
        bool, typer.Option("--allow-missing-secrets", help="Secrets that are not set here are warnings.")
    ] = False,
) -> None:
    """Check a configuration file and show what it would run. Exit code 0: good; 2: mistakes, one a line."""
    try:
        checked = configuration.load(file, allow_missing_secrets=allow_missing_secrets)
    except InvalidConfig as error:
        _print_mistakes(error.mistakes, as_json)
        raise typer.Exit(2) from None
    if as_json:
        terminal.say(json.dumps(report(checked), indent=2))
        return
    for warning in checked.warnings:
        terminal.say(f"warning: {warning}", err=True)
    _print_plan(checked)


def report(config: Config) -> dict[str, object]:
    """The object that `--json` prints for a good file."""
    return {
        "valid": True,
        "file": config.path,
        "digest": config.digest,
        "warnings": [asdict(warning) for warning in config.warnings],
        "series": [_series_report(series) for series in plan.all_series(config)],
        "targets": [asdict(use) for use in plan.uses(config)],
        "currency": config.prices.currency,
        "budget": asdict(config.budget),
        "witness": {name: [one.address for one in config.witness.seen_from(name)] for name in config.vantages},
    }


def _series_report(series: Series) -> dict[str, object]:
    return {
        **series.labels,
        "probe_version": series.probe.version,
        "connection": series.probe.connection,
        "interval_seconds": series.probe.interval_seconds,
        "deadline_seconds": series.probe.deadline_seconds,
        "slots_per_hour": plan.slots_per_hour(series.probe),
        "simulated": series.simulated,
    }


def _print_mistakes(mistakes: tuple[Mistake, ...], as_json: bool) -> None:
    if as_json:
        terminal.say(json.dumps({"valid": False, "mistakes": [asdict(mistake) for mistake in mistakes]}, indent=2))
        return
    for mistake in mistakes:
        terminal.say(str(mistake), err=True)
    terminal.say(f"{len(mistakes)} {'mistake' if len(mistakes) == 1 else 'mistakes'}", err=True)


def _print_plan(config: Config) -> None:
    console = Screen()
    console.print(_series_table(config))
    console.print(_use_table(config))
    for line in _budget_lines(config):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(_witness_line(config)), soft_wrap=True)
    series = plan.all_series(config)
    slots = sum(plan.slots_per_hour(item.probe) for item in series)
    last = f"{config.path} is good: {len(series)} series, {slots:,.0f} slots an hour, digest {config.digest}"
    console.print(Text(last), soft_wrap=True)


def _witness_line(config: Config) -> str:
    """What is looked at beside the targets."""
    witness = config.witness
    looking = [name for name in config.vantages if witness.seen_from(name)]
    if not looking:
        return "No neutral endpoints are looked at (witness: off)"
    addresses = {one.address: None for name in looking for one in witness.seen_from(name)}
    every, all_of = show_duration(witness.interval_seconds), len(config.vantages)
    return f"Witness: {listed(list(addresses))} every {every}, from {len(looking)} of {all_of} vantage points"


def _budget_lines(config: Config) -> list[str]:
    """The caps, those of all processes together."""
    caps = [("all targets", config.budget.overall), *config.budget.per_target.items()]
    amounts = {
        name: [
            *([f"{cap.money:g} {config.prices.currency}"] if cap.money is not None else []),
            *([f"{cap.tokens:,} tokens"] if cap.tokens is not None else []),
        ]
        for name, cap in caps
    }
    return [f"At most {' and '.join(found)} a day (UTC) for {name}" for name, found in amounts.items() if found]


def _series_table(config: Config) -> Table:
    """A row for each target of each probe; its vantage points stand in one cell."""
    table = Table(box=box.SIMPLE_HEAD, title="What will run", title_justify="left", pad_edge=False)
    for name in ("target", "probe", "connection"):
        table.add_column(name, no_wrap=True)
    table.add_column("from", min_width=6)
    for name in ("every", "deadline", "slots/h"):
        table.add_column(name, justify="right", no_wrap=True)
    rows: dict[tuple[str, str], list[Series]] = {}
    for item in plan.all_series(config):
        rows.setdefault((item.target.name, item.probe.name), []).append(item)
    for row in list(rows.values())[:SHOWN_ROWS]:
        table.add_row(*_cells(row, len(config.vantages)))
    if len(rows) > SHOWN_ROWS:
        table.add_row(f"and {len(rows) - SHOWN_ROWS:,} more")
    return table


def _cells(row: list[Series], vantages: int) -> list[Text]:
    target, probe = row[0].target, row[0].probe
    places = listed([_marked(item.vantage.name, item.vantage.simulated) for item in row], 10)
    cells = [
        _marked(target.name, target.simulated),
        probe.name,
        probe.connection + ("+control" if probe.control else ""),
        f"all {vantages}" if len(row) == vantages > 2 else places,
        show_duration(probe.interval_seconds),
        show_duration(probe.deadline_seconds),
        f"{len(row) * plan.slots_per_hour(probe):,.0f}",
    ]
    return [Text(cell) for cell in cells]


def _marked(name: str, simulated: bool) -> str:
    return f"{name} (simulated)" if simulated else name


def _use_table(config: Config) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="What it may use in a day", title_justify="left", pad_edge=False)
    table.add_column("target")
    for name in ("slots/h", "output tokens, at most", "prompt tokens, about", f"{config.prices.currency}, at most"):
        table.add_column(name, justify="right")
    for use in plan.uses(config):
        table.add_row(
            Text(use.target),
            f"{use.slots_per_hour:,.0f}",
            f"{use.output_tokens_per_day:,}",
            f"{use.prompt_tokens_per_day:,}",
            "no price" if use.cost_per_day is None else f"{use.cost_per_day:,.2f}",
        )
    return table
