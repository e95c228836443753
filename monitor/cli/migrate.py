"""`firsttoken migrate`: bring the database to this version's schema, or tell where it stands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from monitor.cli import terminal
from monitor.model import ConfigError

DEFAULT_FILE = Path("firsttoken.yaml")


def migrate(
    file: Annotated[
        Path | None, typer.Argument(help="The configuration file that names the database.", show_default="DATABASE_URL")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 when something is pending.")
    ] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Print all versions as SQL, without a database.")] = False,
) -> None:
    """Create or upgrade the tables in Postgres. `up` does it by itself; two at once do no harm.

    Changes are additive: the previous release keeps running on the new schema.
    """
    from monitor.store import migrate as migrations  # SQLAlchemy and Alembic: not before the command is asked for

    if sql:
        terminal.say(migrations.script(), nl=False)
        return
    url = database_url(file)
    state = migrations.check(url) if check else migrations.upgrade(url)
    for step in state.pending:
        terminal.say(f"{'pending' if check else 'applied'}  {step}")
    if check and state.pending:
        terminal.say(f"the schema is {_named(state.current)}, the newest is {state.newest}: run `firsttoken migrate`")
        raise typer.Exit(1)
    terminal.say(f"the schema is version {state.newest}, the newest")


def database_url(file: Path | None) -> str:
    """The database to work on: the file's, else DATABASE_URL, else the file in this folder; ConfigError without any."""
    from monitor import config

    if file is None and os.environ.get("DATABASE_URL"):
        return os.environ["DATABASE_URL"]
    if file is None and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    url = config.load(file, allow_missing_secrets=True).database_url if file is not None else None
    if url is None:
        raise ConfigError(
            "no database is named: set DATABASE_URL, or storage.database_url in the configuration "
            "(the embedded database needs no `migrate`: `up` and `demo` bring it up to date by themselves)"
        )
    return url


def _named(version: str | None) -> str:
    return "empty" if version is None else f"version {version}"
