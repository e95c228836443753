"""How to get the packages that only some parts need. The project is installed from its checkout, not from an index."""

from __future__ import annotations

from importlib.util import find_spec

from monitor.model import MonitorError

HUB_PACKAGES = ("sqlalchemy", "psycopg", "alembic", "fastapi", "uvicorn")


class MissingPackages(MonitorError):
    """A part was asked for whose packages are not installed; the sentence says how to get them."""


def how_to_install(extra: str) -> str:
    """What to type for one of the extras of pyproject.toml, as the end of a sentence."""
    return f"in the checkout, type: pip install '.[{extra}]' (`make demo` installs it too)"


def need_hub(command: str) -> None:
    """Raises MissingPackages where only an agent is installed."""
    if missing := [name for name in HUB_PACKAGES if find_spec(name) is None]:
        raise MissingPackages(
            f"`firsttoken {command}` keeps a record, and this installation is an agent's "
            f"(without {', '.join(missing)}): {how_to_install('hub')}"
        )
