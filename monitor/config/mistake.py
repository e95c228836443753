"""What is wrong with a file, said so that a person can act: where, what was found, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monitor.model import ConfigError

FOUND_LIMIT = 60
"""Characters of a value that a message repeats."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing to correct. `found` never holds a secret: values that may be one are not repeated."""

    file: str
    line: int | None  # from 1; None when the file as a whole is meant
    key: str  # path of keys such as `probes.short.interval`; empty when the file as a whole is meant
    found: str
    allowed: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        key = f" {self.key}:" if self.key else ""
        return f"{where}:{key} found {self.found}; allowed: {self.allowed}"


class InvalidConfig(ConfigError):
    """The file cannot be used. `mistakes` holds all of them in the order of the file; the message has one a line."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes: tuple[Mistake, ...] = in_file_order(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def in_file_order(mistakes: Iterable[Mistake]) -> tuple[Mistake, ...]:
    """The mistakes by line, those about the whole file first, each said once."""
    return tuple(sorted(dict.fromkeys(mistakes), key=lambda mistake: mistake.line or 0))


def quoted(text: str) -> str:
    """A found value as messages show it: in quotes, on one line, clipped."""
    line = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return f'"{line}"' if len(line) <= FOUND_LIMIT else f'"{line[:FOUND_LIMIT]}..."'


def clipped(text: str, limit: int = 120) -> str:
    """Foreign words inside a sentence: on one line, at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean "x"?)` when one of the known names is near, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{near[0]}"?)' if near else ""


def listed(names: Sequence[str], limit: int = 20) -> str:
    """Names with commas between them, the first `limit` of them."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
