"""The commands of `firsttoken`, one module each; errors of our own become one sentence and exit code 2."""

from __future__ import annotations

import errno
import importlib
import inspect
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from monitor import __version__
from monitor.cli import terminal
from monitor.extras import need_hub
from monitor.model import MonitorError

app = typer.Typer(
    name="firsttoken",
    help="Watch LLM APIs from where their users are: time every step from the DNS question to the last token.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


COMMANDS = (
    "validate", "probe", "up", "demo", "simulate", "migrate", "selftest", "schema", "providers", "dashboards", "rules",
    "alertmanager", "hub", "agent", "vantage", "coverage",
)  # fmt: skip
"""Each is a function, or a group of them, of the same name in the module of the same name beside this one."""


KEEPERS = frozenset({"up", "demo", "hub", "migrate", "vantage", "coverage"})
"""Those that need the hub's packages."""


def _show_version(asked: bool) -> None:
    if asked:
        terminal.say(f"firsttoken {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


def register(arguments: list[str], app: typer.Typer = app) -> None:
    """Load the one command that is asked for (the others' libraries would cost a second), or all, for the help."""
    asked = [name for name in COMMANDS if arguments[:1] == [name]]
    if asked and asked[0] in KEEPERS:
        need_hub(asked[0])
    for name in asked or COMMANDS:
        command = getattr(importlib.import_module(f"monitor.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, help=_flowing(command.__doc__))(command)


def _flowing(docstring: str | None) -> str:
    """Each paragraph as one line: the help wraps them to the terminal's width, not to the source's."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(docstring or "").split("\n\n"))


def _open_outputs() -> None:
    """Outputs that are closed swallow what is said; characters that the terminal cannot show are spelled out."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # for as long as we run
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # for as long as we run
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")


def _fail(sentence: str) -> None:
    with suppress(OSError):
        terminal.say(f"firsttoken: {sentence}", err=True)
    sys.exit(2)


def main() -> None:
    """Entry point of the `firsttoken` command."""
    _open_outputs()
    if unreadable := [argument for argument in sys.argv[1:] if not argument.isascii() and _is_no_text(argument)]:
        _fail(f"an argument is no UTF-8 text: {unreadable[0]!a}")
    for number, argument in enumerate(sys.argv[1:], 1):
        if control := _control(argument):
            _fail(f"argument {number} holds a control character: {control!a}")
    try:
        register(sys.argv[1:])
        app()
    except KeyboardInterrupt:  # also while libraries load
        sys.exit(130)
    except MonitorError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _leave_output()
        _fail(f"the output cannot be written: {error.strerror}")


def _control(argument: str) -> str:
    """The first character of it that a terminal would obey, but for line ends: a prompt may have those of Windows."""
    return next((char for char in argument if char != "\r" and terminal.visible(char) != char), "")


def _is_no_text(argument: str) -> bool:
    return argument != argument.encode("utf-8", "replace").decode()


def _leave_output() -> None:
    """What could not be written will not be tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
