"""The reference page and the JSON Schema, both made from the file's shape so that they cannot drift from the reader.

`python -m monitor.config.reference docs/configuration.md` writes the generated parts of the page anew; a test fails
while they are stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import Field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from monitor.config import kinds, shape
from monitor.config.kinds import Kind, show_duration
from monitor.config.shape import Either, Form, Headers, Json, ListOf, MapOf, Schema, Section

_REFERENCE = {"type": "string", "pattern": r"\$\{"}
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


_COMMENT = (
    "First Token takes every scalar as it is written. An editor that reads YAML 1.1 takes off, no and NO for false: "
    'where it objects, quote them (reasoning: "off", country: "NO").'
)


def page(text: str) -> str:
    """The page with each block between `<!-- generated: SECTION -->` and `<!-- end -->` made anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}{table(match[2])}\n{match[3]}", text)


def table(section: str) -> str:
    """The keys of a section as a Markdown table."""
    form = {**shape.NAMED, **shape.SECTIONS, **shape.NESTED}[section]
    rows = [_row(item) for item in fields(form)]
    return "\n".join(["| key | default | what it is | allowed |", "| --- | --- | --- | --- |", *rows])


def _row(item: Field[Any]) -> str:
    form = shape.form_of(item)
    allowed = f"{form.allowed}; {form.bounds}" if isinstance(form, Kind) and form.bounds else form.allowed
    return f"| `{item.name}` | {_default(item)} | {item.metadata['help']} | {allowed} |"


def _default(item: Field[Any]) -> str:
    if item.metadata["required"]:
        return "**required**"
    if item.metadata["shown"]:
        return str(item.metadata["shown"])
    value = _plain_default(item)
    return "none" if value is None else f"`{value}`"


def _plain_default(item: Field[Any]) -> str | int | None:
    """The default as the file would spell it."""
    value = shape.default_of(item)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return show_duration(value)
    if isinstance(value, StrEnum):
        return str(value)
    return value if isinstance(value, str | int) else None


def json_schema() -> dict[str, object]:
    """JSON Schema (2020-12) of the file, for editors. The reader checks more: what stands across keys."""
    names = {name: _named_schema(form, name) for name, form in shape.NAMED.items()}
    sections = {name: _section_schema(name, form) for name, form in shape.SECTIONS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "First Token configuration",
        "$comment": _COMMENT,
        "type": "object",
        "properties": {**names, **sections},
        "patternProperties": {"^x-": {}},
        "required": ["targets", "probes"],
        "additionalProperties": False,
    }


def _named_schema(form: type[Any], name: str) -> dict[str, object]:
    return {
        "type": "object",
        "description": f"Names of {name} to their keys.",
        "propertyNames": {"pattern": kinds.NAME_PATTERN},
        "minProperties": 1,
        "additionalProperties": _shape_schema(form),
    }


def _section_schema(name: str, form: type[Any]) -> Mapping[str, object]:
    schema = _shape_schema(form)
    return {"anyOf": [kinds.OFF.schema, schema]} if name in shape.SWITCHED else schema


def _shape_schema(form: type[Any]) -> dict[str, object]:
    required = [item.name for item in fields(form) if item.metadata["required"]]
    schema: dict[str, object] = {
        "type": ["object"] if required else ["object", "null"],
        "properties": {item.name: _key_schema(item) for item in fields(form)},
        "additionalProperties": False,
    }
    return {**schema, "required": required} if required else schema


def _key_schema(item: Field[Any]) -> dict[str, object]:
    schema = {**_form_schema(shape.form_of(item)), "description": item.metadata["help"].replace("`", "")}
    default = _plain_default(item)
    return (
        schema if default is None else {**schema, "default": shape.default_of(item) if item.type == "bool" else default}
    )


def _form_schema(form: Form) -> Mapping[str, object]:
    if isinstance(form, Kind):
        return _or_reference(form.schema)
    if isinstance(form, Section):
        return _shape_schema(form.shape)
    if isinstance(form, ListOf):
        return {"type": "array", "items": _or_reference(form.item.schema), "minItems": 1, "uniqueItems": True}
    if isinstance(form, MapOf):
        return {"type": "object", "propertyNames": form.key.schema, "additionalProperties": _form_schema(form.value)}
    if isinstance(form, Headers):
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    if isinstance(form, Either):
        return {"anyOf": [_form_schema(form.scalar), _form_schema(form.other)]}
    assert isinstance(form, Json | Schema)
    return {"type": "object"}


def _or_reference(schema: Mapping[str, object]) -> Mapping[str, object]:
    """Any value may come from the environment as `${NAME}`."""
    return schema if schema == {"type": "string"} else {"anyOf": [schema, _REFERENCE]}


def main(path: str) -> None:
    """Write the generated parts of the page at `path` anew."""
    file = Path(path)
    file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
