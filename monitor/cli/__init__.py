"""The command line `firsttoken`: the only place where everything meets."""

from __future__ import annotations

import typer

app = typer.Typer(name="firsttoken", no_args_is_help=True, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point of the `firsttoken` command."""
    app()
