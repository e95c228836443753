"""Presets: complete, usable as they stand, honest about their evidence, and under whatever the file says itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monitor.agent.dialects import DIALECTS
from monitor.agent.dialects.asking import merged
from monitor.cli import providers as command
from monitor.config import Config, loads
from monitor.model import DialectName, Secret, Target
from monitor.providers import PROVIDERS, Evidence, Form

ROOT = Path(__file__).parents[2]
FORMS = [(name, form) for name, provider in PROVIDERS.items() for form in provider.forms]
LISTED = """openai azure azure-classic anthropic gemini vertex vertex-claude bedrock ollama vllm sglang tgi huggingface
groq cerebras together fireworks deepseek openrouter mistral xai cohere perplexity llama-cpp litellm"""


def configured(**keys: object) -> Config:
    text = json.dumps({"targets": {"t": {"model": "m", **keys}}, "probes": {"p": {"prompt": "Hi"}}})
    return loads(text, {"KEY": "sk-planted-0123456789", "SECRET": "planted-secret-0123", "TOKEN": "planted-session"})


def target(**keys: object) -> Target:
    return configured(**keys).targets["t"]


def test_everybody_whom_the_docs_promise_is_there() -> None:
    """The table holds the providers that people use, each dialect at least once."""
    assert set(LISTED.split()) <= PROVIDERS.keys()
    assert {form.dialect for _, form in FORMS} == set(DialectName)
    assert {form.evidence for _, form in FORMS} == set(Evidence)


@pytest.mark.parametrize(("name", "form"), FORMS, ids=[f"{name}-{form.dialect}" for name, form in FORMS])
def test_each_form_makes_a_good_target(name: str, form: Form) -> None:
    """Named in a configuration, with its {names} filled in, it can be asked."""
    values = dict.fromkeys(form.names, "x1")
    made = target(
        provider=name, dialect=form.dialect.value, api_key="${KEY}", **({"url_values": values} if values else {})
    )
    parts = DIALECTS[form.dialect].request(
        made, configured(provider=name, dialect="ollama", url="http://h").probes["p"], "Hi"
    )
    assert parts.url.startswith(form.url.format_map(values).partition("?")[0])
    assert "{" not in parts.url
    assert isinstance(parts.headers[form.auth_header or _usual(form.dialect)], Secret)
    assert PROVIDERS[name].form(form.dialect) is form
    json.dumps(merged(parts.body, form.reasoning_off))


def _usual(dialect: DialectName) -> str:
    return {DialectName.ANTHROPIC: "x-api-key", DialectName.GEMINI: "x-goog-api-key"}.get(dialect, "authorization")


def test_the_file_wins() -> None:
    """Each thing that the entry says gives way to what the file says."""
    preset = target(provider="groq", api_key="${KEY}")
    assert (preset.url, preset.dialect, preset.cap_field) == (
        "https://api.groq.com/openai/v1",
        DialectName.OPENAI_CHAT,
        "max_completion_tokens",
    )
    own = target(provider="groq", url="http://127.0.0.1:1/v9", dialect="anthropic", auth_header="X-Own")
    assert (own.url, own.dialect, own.auth_header) == ("http://127.0.0.1:1/v9", DialectName.ANTHROPIC, "x-own")
    assert target(provider="groq", cap_field="max_tokens").cap_field == "max_tokens"
    assert target(provider="azure", url_values={"resource": "r"}).auth_header == "api-key"


def test_reasoning_off_is_the_providers_switch_under_the_files_body() -> None:
    """The switch is merged in; the file's own body stands over it; without the key nothing is added."""
    assert target(provider="deepseek").body == {}
    assert target(provider="deepseek", reasoning="off").body == {"thinking": {"type": "disabled"}}
    own = target(provider="gemini", reasoning="off", body={"generationConfig": {"temperature": 0}}).body
    assert own == {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}, "temperature": 0}}
    assert target(provider="groq", reasoning="off", body={"reasoning_effort": "low"}).body == {
        "reasoning_effort": "low"
    }
    assert target(provider="groq", reasoning="off", body={"reasoning_effort": None}).body == {"reasoning_effort": None}
    hash(target(provider="gemini", reasoning="off").body)


def test_aws_credentials_are_secrets_of_the_configuration() -> None:
    """They sign for the region in the URL, are known for scrubbing, and show in no repr."""
    keys = {"aws_access_key_id": "${KEY}", "aws_secret_access_key": "${SECRET}", "aws_session_token": "${TOKEN}"}
    config = configured(provider="bedrock", url_values={"region": "eu-west-1"}, **keys)
    asked = config.targets["t"]
    assert asked.url == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert asked.aws is not None
    assert {secret.reveal() for secret in config.secrets()} >= {"sk-planted-0123456789", "planted-secret-0123"}
    assert "planted" not in repr(config)
    assert "planted" not in json.dumps(config.digest)


def test_the_page_is_fresh() -> None:
    """docs/providers.md is what `python -m monitor.cli.providers docs/providers.md` writes."""
    text = (ROOT / "docs" / "providers.md").read_text(encoding="utf-8")
    assert command.page(text) == text
    assert all(f"| `{name}` |" in text for name in PROVIDERS)
    assert all(f"| `{name}` | " in text.partition("## Dialects")[2] for name in DialectName)


def test_the_command() -> None:
    """A table for people, an array for machines; both say how each is proven."""
    import typer

    app = typer.Typer()
    app.command()(command.providers)
    shown = CliRunner().invoke(app, [], env={"COLUMNS": "300"}).output
    assert "vertex-claude" in shown
    assert "documentation" in shown
    listed = json.loads(CliRunner().invoke(app, ["--json"]).output)
    assert len(listed) == len(FORMS)
    assert {row["evidence"] for row in listed} == {"recording", "server", "documentation"}


def test_a_hosted_provider_without_a_key_is_a_warning() -> None:
    """It validates, as a gateway may add the key, but says so; not where a key, a header or a server here is named."""
    [warning] = configured(provider="groq").warnings
    assert (warning.key, warning.found) == ("targets.t.api_key", "nothing, though groq asks for a key")
    assert configured(provider="groq", api_key="${KEY}").warnings == ()
    assert (
        configured(
            provider="vertex", url_values={"location": "eu", "project": "p"}, headers={"authorization": "${KEY}"}
        ).warnings
        == ()
    )
    assert configured(provider="llama-cpp").warnings == ()
    assert configured(provider="groq", url="http://127.0.0.1:4000/v1").warnings == ()
