"""Proxies of the environment are refused in words, on stderr alone, without repeating what they hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from monitor.cli.env_proxy import ignored
from monitor.cli.probe import probe
from monitor.model import DialectName, Probe, Series, Target, Vantage

SECRET = "http://user:planted-password@proxy.example:3128"
SERIES = Series(
    vantage=Vantage(name="lagos"),
    target=Target(name="t", provider="p", model="m", dialect=DialectName.OPENAI_CHAT, url="http://x/v1"),
    probe=Probe(name="q", prompt="hi"),
)
THROUGH = replace(SERIES, vantage=Vantage(name="london", proxy="http://proxy.example:3128"))


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY"])
def test_said_in_words(name: str) -> None:
    """Which variable, that it is on purpose, and what to do instead; never its value."""
    said = ignored([THROUGH, SERIES], {name: SECRET})
    assert said is not None
    assert said.startswith(f"{name} of the environment is not used, on purpose")
    assert "vantages.lagos.proxy: http://host:port" in said
    assert "planted" not in said


def test_silent_where_nothing_surprises() -> None:
    """No such variable, an empty one, or a proxy of the configuration's own."""
    assert ignored([SERIES], {}) is None
    assert ignored([SERIES], {"HTTPS_PROXY": " ", "NO_PROXY": "*"}) is None
    assert ignored([THROUGH], {"HTTPS_PROXY": SECRET}) is None


def test_probe_says_it_on_stderr_alone() -> None:
    """--json keeps stdout to its objects."""
    app = typer.Typer()
    app.command()(probe)
    asked = ["--url", "http://127.0.0.1:1/v1", "--dialect", "openai_chat", "--model", "m", "--json", "--dry-run"]
    result = CliRunner().invoke(app, asked, env={"HTTPS_PROXY": SECRET})
    json.loads(result.stdout)
    assert "HTTPS_PROXY of the environment is not used" in result.stderr
    assert "planted" not in result.output
