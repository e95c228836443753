"""The commands of `firsttoken`, one module each; errors of our own become one sentence and exit code 2."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from monitor import __version__
from monitor.model import MonitorError

app = typer.Typer(
    name="firsttoken",
    help="Watch LLM APIs from where their users are: time every step from the DNS question to the last token.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


COMMANDS = ("validate", "probe", "up", "demo", "simulate", "migrate", "selftest", "schema", "providers", "dashboards")
"""Each is a function of the same name in the module of the same name beside this one."""


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"firsttoken {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


def _register(arguments: list[str]) -> None:
    """Load the one command that is asked for (the others' libraries would cost a second), or all, for the help."""
    asked = [name for name in COMMANDS if arguments[:1] == [name]]
    for name in asked or COMMANDS:
        app.command(name)(getattr(importlib.import_module(f"monitor.cli.{name}"), name))


def main() -> None:
    """Entry point of the `firsttoken` command."""
    try:
        _register(sys.argv[1:])
        app()
    except KeyboardInterrupt:  # also while libraries load
        sys.exit(130)
    except MonitorError as error:
        sys.stderr.write(f"firsttoken: {error}\n")
        sys.exit(2)
