"""Cold starts of a real model that really unloads, judged against its own load log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.cli import model_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(model_server.why_not() is not None, reason="no real model installed (MODEL=none)")
def test_every_cold_start_of_a_real_model_is_found_and_none_is_invented(tmp_path: Path) -> None:
    """A few pauses shorter and longer than the model's idle timeout: precision and recall are 1."""
    asked = ["--timeouts", "2", "--gaps", "6", "--json"]
    run = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "coldstart.py", *asked],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert run.stdout, run.stderr
    (result,) = json.loads(run.stdout)["results"]
    assert (result["precision"], result["recall"]) == (1.0, 1.0), result["attempts"]
    assert 0 < result["loads"] < result["gaps"]
    assert run.returncode == 0
