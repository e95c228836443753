"""CI fails on a skip that nobody listed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JUNIT = """<testsuites><testsuite><testcase classname="a" name="b"><skipped type="pytest.skip" message="{}"/></testcase>
<testcase classname="a" name="c"/><testcase classname="a" name="d"><skipped type="pytest.xfail" message="x"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("message", "allowed", "code"),
    [
        ("needs root", "needs root # the network namespaces", 0),
        ("no Postgres", "needs root # the network namespaces", 1),
        ("no Postgres", "# nothing is allowed", 1),
        ("needs root", "needs root", 1),
    ],
    ids=["listed", "unlisted", "empty list", "no reason"],
)
def test_unlisted_skips_fail(tmp_path: Path, message: str, allowed: str, code: int) -> None:
    """A skip passes when its message matches a line that has a reason, and fails the run otherwise."""
    (tmp_path / "junit.xml").write_text(JUNIT.format(message))
    (tmp_path / "allowed").write_text(allowed + "\n")
    command = [sys.executable, str(ROOT / ".ci/check_skips.py"), str(tmp_path / "junit.xml"), str(tmp_path / "allowed")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert (done.stdout + done.stderr == "") == (code == 0)


@pytest.mark.parametrize(("model", "code"), [("smollm2", 0), ("none", 0), ("foo", 2)])
def test_make_knows_its_models(model: str, code: int) -> None:
    """Another MODEL is one sentence that names the two, before anything is installed."""
    done = subprocess.run(
        ["make", "model", f"MODEL={model}"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == code
    assert ("There is no model 'foo' here: MODEL=smollm2 (the default) or MODEL=none." in done.stderr) == (code == 2)
