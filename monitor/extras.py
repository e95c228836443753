"""How to get the packages that only some parts need. The project is installed from its checkout, not from an index."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """What to type for one of the extras of pyproject.toml, as the end of a sentence."""
    return f"in the checkout, type: pip install '.[{extra}]' (`make demo` installs it too)"
