"""`firsttoken coverage`: what was owed, what was measured, and why the rest is missing, from the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from monitor.cli import terminal
from monitor.cli.database import open_database
from monitor.cli.screen import Screen
from monitor.detect.causes import CAUSE_WORDS
from monitor.detect.coverage import Tally
from monitor.model import ConfigError

if TYPE_CHECKING:
    from monitor.store.coverage import Covered

MOST_LINES = 400
"""More than that nobody reads; machines have --json and --csv."""


def coverage(
    file: Annotated[
        Path | None, typer.Argument(help="The configuration file that names the database.", show_default="DATABASE_URL")
    ] = None,
    since: Annotated[str, typer.Option(help="A duration such as 24h or 7d, or an instant (RFC 3339).")] = "24h",
    until: Annotated[str | None, typer.Option(help="The end, spelled likewise.", show_default="now")] = None,
    vantage: Annotated[str | None, typer.Option(help="Only this vantage point.")] = None,
    target: Annotated[str | None, typer.Option(help="Only this target.")] = None,
    by: Annotated[str, typer.Option(help="Lines for each of: vantage, target, probe, hour.")] = "vantage,target",
    state: Annotated[
        Path | None, typer.Option("--state", help="Folder of the embedded database, as `up` was given it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, as GET /api/v1/coverage gives it.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a column for each cause.")] = False,
) -> None:
    """Show the slots owed, measured and missed in whole hours, and the causes. docs/coverage.md says what they mean."""
    from monitor.hub import coverage_answers as answers
    from monitor.store import coverage as record

    if as_json and as_csv:
        raise ConfigError("give either --json or --csv, not both")
    with open_database(file, state) as (storage, now):
        try:
            asked = answers.Question.read(now, since, until, vantage, target, by)
        except answers.BadQuestion as error:
            raise ConfigError(f"--{error}") from None
        found = storage.ask(record.covered, asked.since, asked.until, now, vantage=vantage, target=target)
    if as_json:
        terminal.say(answers.as_json(asked, found).decode())
    elif as_csv:
        terminal.say(answers.as_csv(asked, found).decode(), nl=False)
    elif not found and (vantage or target):
        asked_for = " and ".join(filter(None, (vantage and f"vantage {vantage}", target and f"target {target}")))
        terminal.say(f"Nothing of {asked_for} was planned in that time; without the option see what there is.")
    else:
        _print(found, asked.by, record.grouped(found, *asked.by), record.simulated(found, *asked.by))


Group = tuple[object, ...]


def _print(
    found: Sequence[Covered], by: Sequence[str], groups: dict[Group, Tally], simulated: Collection[Group]
) -> None:
    if not found:
        terminal.say(
            "No plan is known for that time: coverage begins when an agent, or `firsttoken up`, has said what it "
            "will measure."
        )
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in by:
        shown.add_column(name, overflow="fold")
    for name in ("owed", "measured", "share"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("missed", overflow="fold")
    if simulated:
        shown.add_column("", no_wrap=True)
    for key, tally in list(groups.items())[:MOST_LINES]:
        counts = (str(tally.owed), str(tally.measured), share(tally))
        remark = ["simulated" if key in simulated else ""] if simulated else []
        shown.add_row(*(Text(cell) for cell in (*map(_name, key), *counts, missed(tally), *remark)))
    Screen().print(shown)
    if len(groups) > MOST_LINES:
        terminal.say(f"{len(groups) - MOST_LINES} more lines: ask for a shorter time, or for --csv")
    total = Tally()
    for one in found:
        total.add(one.tally)
    rest = f"; missed: {missed(total)}" if total.missed.total() else ""
    terminal.say(f"all together: {total.measured} of {total.owed} slots measured ({share(total)}){rest}")


def share(tally: Tally) -> str:
    """Per cent, never rounded up to all of it."""
    if tally.share is None:
        return "-"
    return "100 %" if tally.measured == tally.owed else f"{int(1000 * tally.share) / 10:.1f} %"


def missed(tally: Tally) -> str:
    """The causes in words, the most frequent first."""
    told = [f"{slots} ({CAUSE_WORDS[cause].short})" for cause, slots in tally.missed.most_common() if slots]
    return ", ".join(told + ([f"{tally.pending} may still run"] if tally.pending else []))


def _name(value: object) -> str:
    return value.strftime("%Y-%m-%d %H:%M UTC") if isinstance(value, datetime) else str(value)
