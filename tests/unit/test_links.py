"""Links of the documentation, and paths that it and the sources name: files, headings and tests that are there."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"))
SOURCES = (*ROOT.glob("monitor/**/*.py"), *ROOT.glob("deploy/**/*.yaml"), *ROOT.glob("examples/*"), ROOT / "Makefile")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w/.-])((?:tests|docs|deploy|examples|benchmarks|tools|dashboards|locks)/[\w./-]*\.[a-z]+)\b")


@cache
def anchors(page: Path) -> frozenset[str]:
    """What headings of a page are called in links, as GitHub makes it."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """A relative link names a file of the repository, and a heading of it where it names one."""
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not heading or heading in anchors(target), link


@pytest.mark.parametrize("page", [*PAGES, *SOURCES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_is_named_is_there(page: Path) -> None:
    """Nobody is sent to a file that was moved."""
    gone = [path for path in PATH.findall(page.read_text()) if not (ROOT / path).exists()]
    assert gone == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_is_named_is_there(page: Path) -> None:
    """`test_...` beside a path or alone is the name of a test or of a file of tests."""
    for name in re.findall(r"`(test_\w+)`", page.read_text()):
        found = subprocess.run(["grep", "-rqE", f"def {name}\\b", ROOT / "tests"], check=False)
        assert found.returncode == 0, name
