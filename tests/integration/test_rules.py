"""The rules before promtool: they are well formed, and fire, stay silent and resolve as the cases say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "firsttoken.rules.yml"
CASES = sorted((ROOT / "tests" / "rules").glob("*.yml"))
PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="Debian package prometheus is not installed")


def promtool(*arguments: str | Path) -> str:
    """What promtool complains about; empty when all is well."""
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_promtool_finds_the_rules_well_formed() -> None:
    """Every expression and template parses, and no two rules say the same."""
    assert promtool("check", "rules", RULES) == ""


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_what_fires_and_what_stays_silent(file: Path) -> None:
    """Alerts fire, stay silent and resolve at the minutes that the cases name, with these labels and texts."""
    assert promtool("test", "rules", file) == ""


def test_a_case_can_fail(tmp_path: Path) -> None:
    """The test above is not blind: without the votes' expiry, promtool complains."""
    for kept in ("deploy/prometheus", "tests/rules"):
        (tmp_path / kept).mkdir(parents=True)
    text = RULES.read_text("utf-8")
    assert " + 120)" in text
    (tmp_path / "deploy" / "prometheus" / RULES.name).write_text(text.replace(" + 120)", " + 999999)"))
    broken = shutil.copy(ROOT / "tests" / "rules" / "down.yml", tmp_path / "tests" / "rules")
    assert "votes expire" in promtool("test", "rules", broken)


def test_the_committed_files_are_what_the_sources_give() -> None:
    """Nobody edits generated files by hand, or forgets `make rules`."""
    done = subprocess.run([sys.executable, ROOT / "tools" / "rules.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
