"""Logs: one event a line, machine-readable or for people, and never a secret, whoever wrote the line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from monitor.cli import logs
from monitor.model import Secret

KEY = "sk-planted-1a2b3c4d5e6f7a8b9c0d"


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("style", ["json", "text"])
def test_a_secret_shows_nowhere(out, style):
    """Not in the message, in values however deep, in tracebacks, nor in what libraries log."""
    logs.configure("debug", style, logs.Scrubber([Secret(KEY)]), out)
    log = structlog.get_logger()
    log.info(f"sent {KEY}", header={"authorization": f"Bearer {KEY}", "list": [KEY, 1]}, secret=Secret(KEY))
    try:
        raise ValueError(f"bad key {KEY}")
    except ValueError:
        log.exception("broke")
        logging.getLogger("httpx").exception("a library broke with %s", KEY)
    said = out.getvalue()
    assert "ValueError" in said
    assert "a library broke" in said
    assert KEY not in said
    assert KEY[3:15] not in said


def test_json_lines_are_whole_objects(out):
    """Every line is one JSON object with time, level and message, tracebacks included."""
    logs.configure("info", "json", logs.Scrubber(), out)
    structlog.get_logger().warning("store away", waiting=3, seconds=1.5, parts=["a"], none=None)
    logging.getLogger("apscheduler").error("failed")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["message"], first["level"], first["waiting"], first["seconds"]) == ("store away", "warning", 3, 1.5)
    assert first["timestamp"].endswith("Z")
    assert (second["message"], second["level"]) == ("failed", "error")


def test_less_severe_lines_are_left_out(out):
    """The level of the configuration holds for us; libraries are heard from warning on."""
    logs.configure("info", "text", logs.Scrubber(), out)
    structlog.get_logger().debug("quiet")
    logging.getLogger("httpx").info("request to somewhere")
    assert out.getvalue() == ""


def test_later_secrets_are_taken_out_too(out):
    """A reloaded configuration brings new secrets; the old ones stay known."""
    scrubber = logs.Scrubber([Secret("hunter-two-hunter")])
    logs.configure("info", "text", scrubber, out)
    scrubber.know([Secret("correct-horse-battery")])
    structlog.get_logger().info("hunter-two-hunter and correct-horse-battery")
    assert "hunter" not in out.getvalue()
    assert "horse" not in out.getvalue()


def test_lists_are_written_out_for_people(out):
    """Sentences each in a line of its own, names in one; never as code."""
    logs.configure("info", "text", logs.Scrubber(), out)
    structlog.get_logger().info("refused", mistakes=["line 1: it's odd", 'line 2: "no"'], vantages=["here", "lagos"])
    first, *sentences = out.getvalue().splitlines()
    assert sentences == ["  line 1: it's odd", '  line 2: "no"']
    assert first.endswith("vantages=here,lagos")
