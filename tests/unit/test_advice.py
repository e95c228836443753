"""Advice names only what a person can write: keys of the file, options of `firsttoken probe`."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from monitor.agent.advice import ADVICE
from monitor.cli.probe import probe
from monitor.config import shape
from monitor.model import FailureKind

ROOT = Path(__file__).parents[2]
FORMS = {**shape.NAMED, **shape.SECTIONS, **shape.NESTED}
KEYS = {item.name for form in FORMS.values() for item in fields(form)} | set(inspect.signature(probe).parameters)
COMMANDS = {"getent hosts NAME"}


@pytest.mark.parametrize("kind", FailureKind)
def test_advice_names_keys_that_exist(kind: FailureKind) -> None:
    """Every word in backticks is a key of the configuration, an option, or a command to type."""
    assert set(re.findall(r"`([^`]+)`", ADVICE[kind])) <= KEYS | COMMANDS


def test_the_page_of_failures_names_no_key_of_the_code() -> None:
    """docs/failures.md: durations are written without the unit that the code has in its names."""
    assert not re.findall(r"`\w+_seconds`", (ROOT / "docs" / "failures.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", [FailureKind.MODEL_GONE, FailureKind.NOT_FOUND])
def test_what_is_not_there_may_be_asked_wrongly(kind: FailureKind) -> None:
    """A dialect that does not fit its server looks like a missing model or page: the advice says so."""
    assert "`dialect`" in ADVICE[kind]
    assert "`url`" in ADVICE[kind]
