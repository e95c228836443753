"""The examples are good, the reference page is fresh, and the JSON Schema says what the reader reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.config import load
from monitor.config.plan import all_series, uses
from monitor.config.reference import json_schema, page
from monitor.config.shape import NAMED, NESTED, SECTIONS

ROOT = Path(__file__).parents[2]
KEYS = {name: f"sk-{name}-0123456789" for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OWN_LLAMA_KEY")}
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_good(path: Path) -> None:
    """Every example loads without a mistake or a warning."""
    assert load(path, KEYS).warnings == ()


def test_the_example_of_three_places() -> None:
    """Lagos, London and Virginia ask OpenAI, Anthropic and an own model, fresh and reused, with a control request."""
    config = load(ROOT / "examples" / "firsttoken.yaml", KEYS)
    assert list(config.vantages) == ["lagos", "london", "virginia"]
    assert {target.provider for target in config.targets.values()} == {"openai", "anthropic", "self-hosted"}
    assert {series.probe.connection for series in all_series(config)} == {"fresh", "reused"}
    assert any(series.probe.control for series in config.series("lagos"))
    assert len(all_series(config)) == 21
    assert [secret.reveal() for secret in config.secrets()] == list(KEYS.values())


def test_use_of_tokens() -> None:
    """The plan counts slots of all vantage points, and caps output by what the probes allow."""
    config = load(ROOT / "examples" / "firsttoken.yaml", KEYS)
    openai = uses(config)[0]
    assert openai.slots_per_hour == pytest.approx(3 * 2 * 12)
    assert openai.output_tokens_per_day == 3 * 2 * 288 * 48


def test_page_is_fresh() -> None:
    """docs/configuration.md is what `python -m monitor.config.reference docs/configuration.md` writes."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page(text) == text
    assert set(re.findall(r"<!-- generated: (\w+) -->", text)) == {*NAMED, *SECTIONS, *NESTED}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_schema_accepts_examples(path: Path) -> None:
    """An editor with the JSON Schema finds no fault with a good file."""
    assert fits(yaml.safe_load(path.read_text()), json_schema())


@pytest.mark.parametrize(
    ("section", "entry"),
    [
        ("log", {"level": "loud"}),
        ("probes", {"short": {"prompt": "a", "intervall": "5m"}}),
        ("probes", {"short": {"prompt": "a", "interval": "10 parsecs"}}),
        ("probes", {"short": {}}),
        ("targets", {"Open AI": {}}),
        ("vantages", {"lagos": {"country": "NGA"}}),
        ("wib", {}),
    ],
)
def test_schema_refuses_mistakes(section: str, entry: object) -> None:
    """Unknown keys, wrong values, missing keys and bad names are seen in the editor already."""
    good = yaml.safe_load((ROOT / "examples" / "minimal.yaml").read_text())
    assert fits(good, json_schema())
    assert not fits({**good, section: entry}, json_schema())


TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """A judge of JSON Schema, as far as ours goes: independent of the reader."""
    types = schema.get("type", list(TYPES))
    kinds = [types] if isinstance(types, str) else types
    if not any(isinstance(value, TYPES[kind]) for kind in kinds) or value not in schema.get("enum", [value]):
        return False
    if "anyOf" in schema and not any(fits(value, option) for option in schema["anyOf"]):
        return False
    if isinstance(value, str):
        return bool(re.search(schema.get("pattern", ""), value)) and len(value) >= schema.get("minLength", 0)
    if isinstance(value, list):
        return all(fits(item, schema.get("items", {})) for item in value)
    if isinstance(value, dict):
        return set(schema.get("required", ())) <= set(value) and all(fits_key(*pair, schema) for pair in value.items())
    return True


def fits_key(key: str, value: object, schema: Mapping[str, Any]) -> bool:
    """One key of an object: its name, and its value by `properties` or `additionalProperties`."""
    rest = schema.get("additionalProperties", {})
    named = bool(re.search(schema.get("propertyNames", {}).get("pattern", ""), key))
    form = schema.get("properties", {}).get(key, rest)
    return named and form is not False and fits(value, form)
