"""The help of every command, as a terminal of 80 columns shows it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from monitor.cli.main import COMMANDS, register


def _app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    register([], app)
    return app


APP = _app()
FOUND: dict[str, Any] = typer.main.get_command(APP).commands  # type: ignore[attr-defined]  # a group has them
LEAVES = {
    (name, *inner): command
    for name in COMMANDS
    for inner, command in {(one,): c for one, c in getattr(FOUND[name], "commands", {}).items()}.items()
    or {(): FOUND[name]}.items()
}


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_is_named_whole_and_explained(path: tuple[str, ...]) -> None:
    """Nobody has to guess the rest of an option's name, or what it does; texts wrap to the terminal's width."""
    result = CliRunner().invoke(APP, [*path, "--help"], terminal_width=80, env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "…" not in result.output
    assert not re.search(r"\S\n(?!\n)\S", LEAVES[path].help)
    for option in LEAVES[path].params:
        assert option.help, f"{option.name} has no help"
        for spelled in (*option.opts, *option.secondary_opts) if option.param_type_name == "option" else ():
            assert re.search(rf"(^|\s){re.escape(spelled)}(\s|$)", result.output), spelled
