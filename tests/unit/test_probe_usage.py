"""What `firsttoken probe` takes together and what not: no option is without effect, and no key is asked in vain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from monitor.cli.probe import probe
from monitor.config import InvalidConfig
from monitor.model import MonitorError

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "firsttoken.yaml")
URL = ("--url", "http://h/v1", "--dialect", "openai_chat", "--model", "m")
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OWN_LLAMA_KEY", "FIRSTTOKEN_VANTAGE")


def ask(*arguments: str, environment: Mapping[str, str | None] | None = None) -> str:
    """The output of a dry run; raises what the command would say."""
    app = typer.Typer()
    app.command()(probe)
    env = {**dict.fromkeys(KEYS), **(environment or {})}
    result = CliRunner().invoke(app, [*arguments, "--dry-run", "--json"], env=env)
    if isinstance(result.exception, MonitorError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("--prompt", "x"), ("--deadline", "60"), ("--model", "m"), ("--dialect", "cohere"), ("--no-nonce", None)],
        *[("--control", None), ("--proxy", "http://h:1"), ("--api-key-env", "X"), ("--http", "1.1")],
    ],
)
def test_options_of_a_url_are_refused_with_a_file(option: str, value: str | None) -> None:
    """Also where the value typed is the default: the file decides, and the sentence says so."""
    with pytest.raises(MonitorError, match=f"^{option}: only with --url"):
        ask(EXAMPLE, "--vantage", "lagos", option, *([value] if value else []))


def test_options_of_a_file_are_refused_with_a_url() -> None:
    """All that were typed, in one sentence."""
    with pytest.raises(MonitorError, match=r"^--target, --probe: only with a configuration file"):
        ask(*URL, "--probe", "p", "--target", "t")
    assert json.loads(ask(*URL, "--vantage", "lagos", "--deadline", "3"))["vantage"] == "lagos"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompt", " "), "--prompt: allowed is a text of 1 to"),
        (("--model", ""), "--model: allowed is"),
        (("--first-token-deadline", "100"), "--first-token-deadline: 100 s is longer than the deadline of 60 s"),
        (("--deadline", "5", "--stall", "6"), "--stall: 6 s is longer than the deadline of 5 s"),
    ],
)
def test_what_no_file_may_say_is_refused_on_the_command_line(arguments: tuple[str, ...], words: str) -> None:
    """The same bounds; defaults that are longer than a short deadline are no mistake of the user's."""
    with pytest.raises(MonitorError, match=f"^{words}"):
        ask(*URL, *arguments)
    assert ask(*URL, "--deadline", "1")


def test_everything_that_a_url_lacks_is_said_at_once() -> None:
    """Dialect and model, not one after the other."""
    with pytest.raises(MonitorError, match=r"^--url needs --dialect and --model$"):
        ask("--url", "http://h/v1")


@pytest.mark.parametrize(
    ("chosen", "told"), [(("--target", "x"), "fits --target x;"), (("--probe", "y"), "fits --probe y;")]
)
def test_only_what_was_asked_for_is_repeated(chosen: tuple[str, ...], told: str) -> None:
    """No `None` in a sentence."""
    with pytest.raises(MonitorError, match=told):
        ask(EXAMPLE, "--vantage", "lagos", *chosen)


def test_only_the_secrets_of_the_chosen_are_needed() -> None:
    """One target's key is enough to ask that target; another's is named when it is asked."""
    own = {"OWN_LLAMA_KEY": "sk-planted-1"}
    shown = ask(EXAMPLE, "--vantage", "lagos", "--target", "own-llama", environment=own)
    assert {json.loads(line)["target"] for line in shown.splitlines()} == {"own-llama"}
    with pytest.raises(InvalidConfig, match="OPENAI_API_KEY") as refused:
        ask(EXAMPLE, "--vantage", "lagos", "--target", "openai-mini", environment=own)
    assert [mistake.key for mistake in refused.value.mistakes] == ["targets.openai-mini.api_key"]
