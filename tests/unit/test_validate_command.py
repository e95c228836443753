"""`firsttoken validate` and `firsttoken schema`: for people, for machines, with their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from monitor.cli.schema import schema
from monitor.cli.validate import validate

ROOT = Path(__file__).parents[2]
GOOD = str(ROOT / "examples" / "firsttoken.yaml")
PLANTED = "sk-planted-Zq7Vx2Lm9Tr4"
KEYS = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OWN_LLAMA_KEY"), PLANTED)


@pytest.fixture
def app() -> typer.Typer:
    """The two commands as the command line registers them."""
    app = typer.Typer()
    app.command()(validate)
    app.command()(schema)
    return app


def test_good_file(app: typer.Typer) -> None:
    """A good file shows its series and what they may use, and no key."""
    result = CliRunner().invoke(app, ["validate", GOOD], env=KEYS)
    assert result.exit_code == 0
    for expected in ("own-often", "fresh+control", "all 3", "221,184", "21 series, 396 slots an hour"):
        assert expected in result.stdout
    assert PLANTED not in result.output


def test_good_file_for_machines(app: typer.Typer) -> None:
    """--json prints one object with every series and the digest."""
    result = CliRunner().invoke(app, ["validate", GOOD, "--json"], env=KEYS)
    report = json.loads(result.stdout)
    assert report["valid"] is True
    assert len(report["series"]) == 21
    assert report["series"][0]["vantage"] == "lagos"
    assert report["series"][0]["slots_per_hour"] == pytest.approx(12)
    assert PLANTED not in result.output


def test_bad_file(app: typer.Typer, tmp_path: Path) -> None:
    """Mistakes go to the error stream, one a line, with exit code 2; --json prints them as data."""
    path = tmp_path / "firsttoken.yaml"
    path.write_text((ROOT / "examples" / "minimal.yaml").read_text() + "    interval: 10 parsecs\n    targets: [x]\n")
    result = CliRunner().invoke(app, ["validate", str(path)])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert (
        f'{path}:13: probes.short.interval: found "10 parsecs"; allowed: a duration such as 60s, 5m\n' in result.stderr
    )
    assert result.stderr.endswith("2 mistakes\n")
    result = CliRunner().invoke(app, ["validate", str(path), "--json"])
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert report["valid"] is False
    assert report["mistakes"][1]["key"] == "probes.short.targets[0]"


def test_unset_secrets(app: typer.Typer) -> None:
    """Keys that are not here are mistakes, or warnings with --allow-missing-secrets."""
    nothing = dict.fromkeys(KEYS)
    assert CliRunner().invoke(app, ["validate", GOOD], env=nothing).exit_code == 2
    result = CliRunner().invoke(app, ["validate", GOOD, "--allow-missing-secrets"], env=nothing)
    assert result.exit_code == 0
    assert result.stderr.count("warning: ") == 3


def test_schema(app: typer.Typer) -> None:
    """`schema` prints JSON Schema."""
    result = CliRunner().invoke(app, ["schema"])
    assert json.loads(result.stdout)["$schema"].endswith("2020-12/schema")


def test_witness(app: typer.Typer, tmp_path: Path) -> None:
    """What is looked at beside the targets is said, as nobody wrote it down; and that it is off."""
    runner, minimal = CliRunner(), ROOT / "examples" / "minimal.yaml"
    shown = runner.invoke(app, ["validate", str(minimal)]).output
    assert "Witness: tls://1.1.1.1:443, tls://9.9.9.9:443" in shown
    assert "every 1m, from 1 of 1 vantage points" in shown
    file = tmp_path / "off.yaml"
    file.write_text(minimal.read_text() + "\nwitness: off\n")
    assert "witness: off" in runner.invoke(app, ["validate", str(file)]).output
    assert json.loads(runner.invoke(app, ["validate", "--json", str(file)]).output)["witness"] == {"local": []}


def test_money(app: typer.Typer, tmp_path: Path) -> None:
    """What a day may cost at most, and the caps that hold whatever it would cost."""
    file = tmp_path / "c.yaml"
    file.write_text(
        "targets: {t: {provider: p, model: m, dialect: openai_chat, url: 'https://x/v1'}}\n"
        "probes: {q: {prompt: hi, interval: 60s, max_output_tokens: 100}}\n"
        "prices: {currency: EUR, per_model: {m: {input: 1, output: 10}}}\n"
        "budget: {money_per_day: 0.5, per_target: {t: {tokens_per_day: 100000}}}\n"
    )
    result = CliRunner().invoke(app, ["validate", str(file)])
    assert result.exit_code == 0
    assert "EUR, at most" in " ".join(result.stdout.split())
    assert "1.50" in result.stdout  # 1,440 times 40 tokens at 1 and 100 at 10 a million
    assert "At most 0.5 EUR a day (UTC) for all targets" in result.stdout
    assert "At most 100,000 tokens a day (UTC) for t" in result.stdout
    report = json.loads(CliRunner().invoke(app, ["validate", str(file), "--json"]).stdout)
    assert report["targets"][0]["cost_per_day"] == pytest.approx(1.4976)
    assert report["budget"]["overall"] == {"money": 0.5, "tokens": None}
