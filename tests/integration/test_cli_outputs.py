"""Outputs and arguments as a shell can make them: closed, full, ASCII, no text: a sentence, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIRSTTOKEN = str(Path(sys.executable).parent / "firsttoken")
PROBE = [FIRSTTOKEN, "probe", "--url", "http://127.0.0.1:1/v1", "--dialect", "openai_chat", "--model", "m"]


def run(command: list[str] | str, **environment: str) -> tuple[int, bytes]:
    done = subprocess.run(
        command, shell=isinstance(command, str), capture_output=True, timeout=60, env={**os.environ, **environment}
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_an_argument_that_is_no_text_is_bad_usage() -> None:
    """Bytes that are no UTF-8 on the command line: exit 2, and a sentence."""
    code, said = run([*PROBE, "--prompt", os.fsdecode(b"\xff\xfe")])
    assert (code, b"UTF-8" in said) == (2, True)


def test_a_key_that_is_no_text_is_a_failed_probe() -> None:
    """Bytes that are no UTF-8 in the environment: the attempt fails in words."""
    code, said = run([*PROBE, "--api-key-env", "K"], K=os.fsdecode(b"sk-planted\xff"))
    assert code == 1
    assert b"planted" not in said


def test_a_terminal_without_unicode_gets_it_spelled_out() -> None:
    """ASCII only: the bars are escapes, the probe works."""
    assert run(PROBE, PYTHONIOENCODING="ascii")[0] == 1


@pytest.mark.parametrize("more", ["", "--json"])
def test_a_closed_output_swallows_what_is_said(more: str) -> None:
    """`>&-`: the exit code is all there is."""
    assert run(" ".join([*PROBE, more, ">&-"]))[0] == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("command", [[*PROBE], [*PROBE, "--json"], [FIRSTTOKEN, "schema"]])
def test_a_full_disk_behind_the_output_is_said(command: list[str]) -> None:
    """`> /dev/full`: one sentence, exit 2."""
    code, said = run(" ".join([*command, "> /dev/full"]))
    assert code == 2
    assert b"cannot be written" in said
