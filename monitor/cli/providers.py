"""`firsttoken providers`: whom a configuration can name, in which dialects, and how each is known to work.

`python -m monitor.cli.providers docs/providers.md` writes the generated parts of that page anew; a test fails while
they are stale.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from monitor.cli import terminal
from monitor.cli.screen import Screen
from monitor.providers import PROVIDERS


def providers(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
) -> None:
    """List the providers that a configuration can name, their dialects, and what is proven how."""
    if as_json:
        terminal.say(json.dumps(rows(), indent=2))
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("provider", "dialect", "proven by", "base URL"):
        shown.add_column(name, overflow="fold", no_wrap=name in ("provider", "dialect"))
    for row in rows():
        evidence = f"{row['evidence']} ({row['proof']})"
        shown.add_row(*(Text(cell) for cell in (row["provider"], row["dialect"], evidence, row["url"])))
    Screen().print(shown)
    terminal.say("In a target: `provider: NAME`, with `url_values` for the {names}; what the file itself says wins.")


def rows() -> list[dict[str, str]]:
    """One row a form, in the order of the entries: what `firsttoken providers` and the docs show."""
    return [
        {
            "provider": name,
            "title": provider.title,
            "dialect": form.dialect.value,
            "url": form.url,
            "evidence": form.evidence.value,
            "proof": form.proof,
            "reasoning_off": "yes" if form.reasoning_off else "",
        }
        for name, provider in PROVIDERS.items()
        for form in provider.forms
    ]


def table() -> str:
    """The Markdown table of the docs."""
    head = "| `provider` | who | dialect | base URL | proven by | what that is | `reasoning: off` |"
    lines = [
        f"| `{row['provider']}` | {row['title']} | `{row['dialect']}` | `{row['url']}` | {row['evidence']} "
        f"| {row['proof']} | {row['reasoning_off']} |"
        for row in rows()
    ]
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- | --- |", *lines])


def notes() -> str:
    """What a user of a provider should know, as Markdown list."""
    return "\n".join(f"- `{name}`: {provider.note}" for name, provider in PROVIDERS.items() if provider.note)


_BLOCK = re.compile(r"(<!-- generated: (providers|notes) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with its generated blocks made anew."""
    blocks = {"providers": table, "notes": notes}
    return _BLOCK.sub(lambda match: f"{match[1]}{blocks[match[2]]()}\n{match[3]}", text)


def main(path: str) -> None:
    """Write the generated parts of the page at `path` anew."""
    file = Path(path)
    file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
