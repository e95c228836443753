"""`firsttoken probe --dry-run`: the request as it would go out, no secret, a price, and nothing sent."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from monitor.cli.probe import probe
from monitor.cli.waterfall import money

PLANTED = "sk-planted-Zq7Vx2Lm9Tr4Kd83"
HEADER = "hush-8f2k1x9c-hush"
FILE = """
targets:
  one:
    provider: openai
    model: gpt-4.1-mini
    dialect: {dialect}
    url: {url}
    api_key: ${{KEY}}
    headers: {{x-team-token: "${{TEAM}}", x-plain: shown}}
  own: {{provider: self, model: own, dialect: openai_chat, url: "http://127.0.0.1:1/v1"}}
probes:
  short: {{prompt: Say hello., max_output_tokens: 64, targets: [one], control: true}}
  free: {{prompt: Say hello., targets: [own], nonce: false}}
prices:
  per_model: {{gpt-4.1-mini: {{input: 0.4, output: 1.6}}}}
"""


def run(tmp_path: Path, *arguments: str, url: str = "https://api.example.com/v1", dialect: str = "openai_chat") -> str:
    app = typer.Typer()
    app.command()(probe)
    file = tmp_path / "c.yaml"
    file.write_text(FILE.format(url=url, dialect=dialect))
    result = CliRunner().invoke(app, [str(file), "--dry-run", *arguments], env={"KEY": PLANTED, "TEAM": HEADER})
    assert result.exit_code == 0, result.output
    assert PLANTED not in result.output
    assert HEADER not in result.output
    return result.stdout


def test_for_people(tmp_path: Path) -> None:
    """Method, URL, every header with secrets masked, the body, tokens and price; then exit code 0."""
    shown = run(tmp_path, "--probe", "short")
    assert shown.startswith("dry run: nothing is sent\n")
    assert "POST https://api.example.com/v1/chat/completions HTTP/1.1\n" in shown
    for header in ("host: api.example.com", "authorization: Bearer ***", "x-team-token: ***", "x-plain: shown"):
        assert f"\n{header}\n" in shown
    assert '"model": "gpt-4.1-mini"' in shown
    assert "about 42 prompt tokens and at most 64 output tokens: at most 0.00012 USD an attempt" in shown
    assert "GET https://api.example.com/v1/models" in shown


def test_without_a_price(tmp_path: Path) -> None:
    """A target without a price says so, and shows all the rest."""
    shown = run(tmp_path, "--target", "own")
    assert "`prices` has none for this target" in shown
    assert "authorization" not in shown


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic", "gemini", "cohere", "bedrock"])
def test_for_machines(tmp_path: Path, dialect: str) -> None:
    """One JSON object a series and nothing else, in every dialect; the body is the text that would be sent."""
    one, free = (json.loads(line) for line in run(tmp_path, "--json", dialect=dialect).splitlines())
    assert one["dry_run"] is True
    assert one["url"].startswith("https://api.example.com/")
    assert "Say hello." in one["body"]
    json.loads(one["body"])
    length = dict(one["headers"])["content-length"]
    assert int(length) == len(one["body"].encode())
    assert one["estimate"] == {
        "input_tokens": 42,
        "output_tokens_at_most": 64,
        "cost_at_most": pytest.approx(42 * 0.4e-6 + 64 * 1.6e-6),
        "currency": "USD",
    }
    assert free["estimate"]["cost_at_most"] is None


def test_nothing_is_sent(tmp_path: Path) -> None:
    """Not even a connection is made."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        run(tmp_path, url=f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "0.00 USD"), (1.25, "1.25 USD"), (12345.678, "12345.68 USD"), (0.00001234, "0.000012 USD")],
)
def test_money(amount: float, shown: str) -> None:
    """Small sums keep two telling digits."""
    assert money(amount, "USD") == shown
