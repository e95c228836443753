"""The terminal: the one place through which commands write to it, and whether those who see it are still there.

Hides that a text from outside (a server's words, a name in a file) may hold characters that a terminal obeys: they
show as pictures (␛) instead, in tables too (see `screen`). And that a terminal can go without a signal to us: closing
it hangs up its session's leader only. Where that is `make`, it waits for us and we hear nothing; but our descriptors
say so to whoever polls them.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

import typer

STANDARD = (0, 1, 2)
STDOUT = 1

_OBEYED = (*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""What terminals obey: control characters, and those that turn the direction of writing or break lines."""
_KEPT = (0x09, 0x0A)  # tabs and line breaks
_PICTURES = {code: 0x2400 + code if code < 0x20 else 0xFFFD for code in _OBEYED if code not in _KEPT} | {0x7F: 0x2421}
_IN_JSON = re.compile("[" + "".join(map(chr, _PICTURES)).replace("\\", "") + "]")


def this_program() -> str:
    """How this command is called from any folder: what is printed to be typed begins with it."""
    called = Path(sys.argv[0])
    return str(called.absolute()) if called.name == "firsttoken" else "firsttoken"


def visible(text: str) -> str:
    """The text with a picture for each character that a terminal would obey; of the same length."""
    return text.translate(_PICTURES).replace("␍\n", "\r\n")  # a line break as CSV has it


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Write a text to stdout, or to stderr; a line break behind it."""
    typer.echo(visible(text), err=err, nl=nl)


def say_json(value: object) -> None:
    """Write a value as one line of JSON to stdout; nothing in it changes, but what a terminal would obey is escaped."""
    line = json.dumps(value, ensure_ascii=False)
    typer.echo(_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", line))


def watched() -> list[int]:
    """The standard descriptors whose end means that nobody looks any more: terminals, and stdout into a pipe."""
    return [number for number in STANDARD if _is_terminal(number) or (number == STDOUT and _is_pipe(number))]


def gone(numbers: Iterable[int]) -> list[int]:
    """Those whose terminal was hung up or whose reader has left. Returns at once."""
    poll = select.poll()
    for number in numbers:
        poll.register(number, 0)  # hang-ups and errors are told without being asked for
    return [number for number, events in poll.poll(0) if events & (select.POLLHUP | select.POLLERR)]


def silence(numbers: Iterable[int]) -> None:
    """Send what is still written there nowhere, so that no last words raise an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(nowhere, number)
    os.close(nowhere)


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:
        return False
