"""What a terminal would obey shows as a picture, wherever a command writes it; JSON keeps its content."""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from monitor.cli import terminal
from monitor.cli.board import Board
from monitor.cli.screen import Screen
from monitor.cli.waterfall import duration, waterfall
from monitor.clock import Clock
from monitor.model import Attempt, DialectName, Failure, FailureKind, Outcome, Probe, Series, Target, Vantage
from monitor.timeline import Phase

COMMANDS = Path(terminal.__file__).parent
EVIL = "a\x1b[31mred\x9b1mbold\r\x07\x00\x7f\u202eback\u2066\u2028z"
SHOWN = "a␛[31mred\ufffd1mbold␍␇␀␡\ufffdback\ufffd\ufffdz"


def test_a_picture_for_each_character_that_is_obeyed() -> None:
    """Of the same length, so that tables stay in line; tabs, line breaks and other writings stay what they are."""
    assert terminal.visible(EVIL) == SHOWN
    assert len(SHOWN) == len(EVIL)
    plain = "tab\tline\nline\r\nümläut 日本 🙂 \u200d עברית"
    assert terminal.visible(plain) == plain


def test_what_is_said_is_visible(capsys: pytest.CaptureFixture[str]) -> None:
    """On both outputs."""
    terminal.say(EVIL)
    terminal.say(EVIL, err=True)
    said = capsys.readouterr()
    assert (said.out, said.err) == (SHOWN + "\n", SHOWN + "\n")


def test_json_is_escaped_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads it gets the very text; a terminal that shows it gets no command."""
    terminal.say_json({"model": EVIL, "ü": "日"})
    line = capsys.readouterr().out
    assert terminal.visible(line) == line
    assert "日" in line
    assert json.loads(line) == {"model": EVIL, "ü": "日"}


def _table() -> Table:
    table = Table(EVIL, title=EVIL, caption=EVIL)
    table.add_row(EVIL)
    return table


RENDERABLES: list[RenderableType] = [
    EVIL,
    Text(EVIL),
    Text.assemble((EVIL, "red"), "x"),
    Padding(Text(EVIL), (0, 0, 0, 2)),
    Panel(EVIL, title=EVIL),
    _table(),
]


@pytest.mark.parametrize("renderable", RENDERABLES, ids=lambda one: type(one).__name__)
def test_whatever_rich_draws_is_visible(renderable: RenderableType) -> None:
    """Texts and what holds them; colours of our own still come through, where there are any."""
    assert "␛[31mred" in drawn(renderable)
    coloured = Screen(file=io.StringIO(), width=100, force_terminal=True, color_system="standard")
    coloured.print(Text("x", style="red"))
    assert "\x1b[31m" in coloured.file.getvalue()  # type: ignore[attr-defined]


def drawn(renderable: RenderableType) -> str:
    """What reaches a file that is no terminal; it holds nothing that one would obey."""
    screen = Screen(file=io.StringIO(), width=200, color_system=None)
    screen.print(renderable, markup=False)
    text: str = screen.file.getvalue()  # type: ignore[attr-defined]
    assert terminal.visible(text) == text
    return text


def test_names_and_texts_of_attempts_are_visible() -> None:
    """The waterfall and the demo's board, with such characters in a model, a name, a fact and a failure."""
    target = Target(name="t" + EVIL, provider=EVIL, model=EVIL, dialect=DialectName.OPENAI_CHAT, url="http://h/v1")
    series = Series(vantage=Vantage(name="v"), target=target, probe=Probe(name="p", prompt="x"))
    now = Clock().now()
    failed = Attempt(
        vantage="v",
        target=target.name,
        probe="p",
        probe_version="0",
        scheduled_at=now,
        started_at=now,
        outcome=Outcome.FAILED,
        failure=Failure(kind=FailureKind.TLS, phase=Phase.TLS, text=EVIL),
        token_events=3,
        finish_reason=EVIL,
        server={EVIL: 1.0},
    )
    board = Board([series], "http://page/")
    for attempt in (failed, replace(failed, outcome=Outcome.SUCCESS, failure=None)):
        assert "␛[31mred" in drawn(waterfall(attempt, series))
        word = board.take(attempt)
        assert "␛[31mred" in drawn(board.render(120))
        assert "␛[31mred" in terminal.visible(board.line(attempt, word).plain)


WRITERS = {"terminal.py": {"typer.echo"}, "screen.py": {"Console"}, "model_server.py": {"print"}}
"""`model_server` is a child process: its line goes to its parent."""


@pytest.mark.parametrize("module", sorted(COMMANDS.glob("*.py")), ids=lambda path: path.name)
def test_commands_write_through_one_place(module: Path) -> None:
    """No module writes to the outputs by itself, whatever the library."""
    used = set(_writers(ast.parse(module.read_text("utf-8"))))
    assert used <= WRITERS.get(module.name, set())


def _writers(tree: ast.AST) -> Iterator[str]:
    outputs = {"sys.stdout.write", "sys.stderr.write", "typer.echo", "typer.secho", "click.echo", "print"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in outputs:
            yield ast.unparse(node.func)
        elif isinstance(node, ast.ImportFrom) and node.module == "rich.console":
            yield from (name.name for name in node.names if name.name == "Console")
        elif isinstance(node, ast.ImportFrom) and node.module == "rich" and "print" in {n.name for n in node.names}:
            yield "print"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0009996, "1.0 ms"), (0.09996, "100 ms"), (0.9996, "1.00 s"), (0.000083, "83 µs"), (None, "–")],
)
def test_durations_change_their_unit_where_they_are_rounded(seconds: float | None, words: str) -> None:
    """Never "1000 µs", "100.0 ms" or "1000 ms"."""
    assert duration(seconds) == words
