"""Nodes of the file -> values of a shape's keys, with every mistake noted and none fatal.

A key that is wrong gets its default and is remembered as bad, so that checks across keys still run on the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping as Map
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from monitor.config import kinds, shape
from monitor.config.answers import MAX_SCHEMA, Unusable, schema_text
from monitor.config.document import Mapping, Node, Scalar, Sequence
from monitor.config.kinds import Kind, allowed_by
from monitor.config.mistake import clipped, did_you_mean, listed, quoted
from monitor.config.notes import Bad, Notes, Party, has_reference
from monitor.config.shape import Either, Form, Headers, Json, ListOf, MapOf, Schema, Section
from monitor.config.types import FrozenDict
from monitor.model import Secret

T = TypeVar("T")

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|signature", re.IGNORECASE)
JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
JSON_WORDS: Map[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One mapping of the file as its shape's value."""

    path: str
    line: int
    value: T
    bad: frozenset[str] = frozenset()
    lines: Map[str, int] = field(default_factory=dict)  # of the keys that were written

    def good(self, *names: str) -> bool:
        """Whether all these keys can be relied on."""
        return self.bad.isdisjoint(names)

    def at(self, name: str) -> int:
        """The line of a key, or of the mapping where it was not written."""
        return self.lines.get(name, self.line)


@dataclass(frozen=True, slots=True)
class Reader:
    notes: Notes

    def entry(self, form: type[T], node: Node | None, path: str, line: int) -> Entry[T]:
        """A mapping -> its shape's value. Nothing written counts as an empty mapping."""
        known = {item.name: item for item in fields(form)}  # type: ignore[arg-type]  # every shape is a dataclass
        if node is None or (isinstance(node, Scalar) and node.is_null):
            node = Mapping({}, {}, line, 1)
        if not isinstance(node, Mapping):
            self.notes.wrong(line, path, describe(node), f"a mapping of keys such as {listed(list(known)[:3])}")
            return Entry(path, line, form(**_placeholders(form)), frozenset(known))
        values: dict[str, Any] = {}
        bad: set[str] = set()
        for name, child in node.entries.items():
            inner, at = f"{path}.{name}", node.lines[name]
            if name not in known:
                self.notes.wrong(at, inner, f"an unknown key{did_you_mean(name, known)}", listed(list(known)))
                continue
            try:
                values[name] = self.value(shape.form_of(known[name]), child, inner, at)
            except Bad:
                bad.add(name)
        for name, item in known.items():
            if item.metadata["required"] and name not in node.entries:
                self.notes.wrong(line, f"{path}.{name}", "nothing", shape.form_of(item).allowed)
                bad.add(name)
        return Entry(path, line, form(**{**_placeholders(form), **values}), frozenset(bad), node.lines)

    def value(self, form: Form, node: Node, path: str, line: int) -> Any:
        """One key's value; raises Bad when the mistake has been noted."""
        if isinstance(form, Kind):
            return self.scalar(form, node, path, line)
        if isinstance(form, Either):
            return self.value(form.scalar if isinstance(node, Scalar) else form.other, node, path, line)
        if isinstance(form, Section):
            inner = self.entry(form.shape, node, path, line)
            if inner.bad:
                raise Bad
            return inner.value
        if isinstance(form, ListOf):
            return self.names(form, node, path, line)
        if not isinstance(node, Mapping):
            raise self.notes.refuse(line, path, describe(node), form.allowed)
        if isinstance(form, Headers):
            return self.headers(node, path, line)
        if isinstance(form, Json):
            return self.json(node, path)
        if isinstance(form, Schema):
            return self.schema(node, path, line)
        return self.map(form, node, path)

    def scalar(self, kind: Kind[T], node: Node, path: str, line: int) -> T | Secret | None:
        if not isinstance(node, Scalar):
            raise self.notes.refuse(line, path, describe(node), kind.allowed)
        if node.is_null:
            raise self.notes.refuse(line, path, "nothing", kind.allowed)
        written = self.notes.substitute(node.text, path, line, secret=kind.secret)
        if written is None:
            return None
        value = self.parsed(kind, written, node.text, path, line)
        if not kind.secret:
            return value
        if kind is kinds.SECRET:
            self.notes.warn_literal(node.text, path, line)
        return self.notes.secret(str(value))

    def parsed(self, kind: Kind[T], value: str, shown: str, path: str, line: int) -> T:
        try:
            return kind.parse(value)
        except ValueError as error:
            found = quoted(_masked(kind, shown)) + did_you_mean(value, kind.options)
            if kind.secret:
                found = "a value that is not shown" if value.strip() else "an empty text"
            raise self.notes.refuse(line, path, found, allowed_by(kind, error)) from None

    def names(self, form: ListOf, node: Node, path: str, line: int) -> tuple[Any, ...]:
        """The good ones of a list, mistakes noted."""
        if not isinstance(node, Sequence):
            raise self.notes.refuse(line, path, describe(node), form.allowed)
        if not node.items:
            raise self.notes.refuse(line, path, "an empty list", form.allowed)
        if len(node.items) > shape.MAX_LIST:
            raise self.notes.refuse(line, path, f"{len(node.items)} names", f"at most {shape.MAX_LIST}")
        found: list[Any] = []
        for place, item in enumerate(node.items):
            inner = f"{path}[{place}]"
            with suppress(Bad):
                value = self.scalar(form.item, item, inner, item.line)
                if value in found:
                    raise self.notes.refuse(item.line, inner, f"{quoted(str(value))} twice", "each name once")
                found.append(value)
        return tuple(found)

    def map(self, form: MapOf, node: Mapping, path: str) -> FrozenDict[str, Any]:
        """The good ones of a mapping, mistakes noted."""
        found: dict[str, Any] = {}
        for name, child in node.entries.items():
            line = node.lines[name]
            with suppress(Bad):
                self.parsed(form.key, name, name, path, line)
                found[name] = self.value(form.value, child, f"{path}.{name}", line)
        return FrozenDict(found)

    def headers(self, node: Mapping, path: str, line: int) -> FrozenDict[str, str | Secret]:
        """The good ones of the headers, mistakes noted."""
        if len(node.entries) > shape.MAX_HEADERS:
            raise self.notes.refuse(line, path, f"{len(node.entries)} headers", f"at most {shape.MAX_HEADERS}")
        found: dict[str, str | Secret] = {}
        for name, child in node.entries.items():
            with suppress(Bad):
                self.header_name(name, found, path, node.lines[name])
                value = self.header(name, child, f"{path}.{name}", node.lines[name])
                if value is not None:
                    found[name] = value
        return FrozenDict(found)

    def header_name(self, name: str, before: Map[str, object], path: str, line: int) -> None:
        if not _HEADER_NAME.fullmatch(name):
            raise self.notes.refuse(line, path, f"the header name {quoted(name)}", "letters, digits and -")
        if name.lower() in kinds.OUR_HEADERS:
            found = "a header that the measurement sets itself"
            raise self.notes.refuse(line, f"{path}.{name}", found, "other headers")
        if name.lower() in kinds.ROUTING_HEADERS and self.notes.party is not Party.ONE:
            found = "a header by which a front may send keys to somebody else"
            raise self.notes.refuse(line, f"{path}.{name}", found, "other headers")
        if name.lower() in (known.lower() for known in before):
            allowed = "each header once, whatever its capitals"
            raise self.notes.refuse(line, f"{path}.{name}", "the header twice", allowed)

    def header(self, name: str, node: Node, path: str, line: int) -> str | Secret | None:
        if not isinstance(node, Scalar) or node.is_null:
            raise self.notes.refuse(line, path, describe(node), "a text")
        secret = has_reference(node.text) or bool(_SECRET_HEADER.search(name))
        written = self.notes.substitute(node.text, path, line, secret=secret)
        if written is None:
            return None
        value = self.parsed(kinds.HEADER, written, "", path, line)
        if not secret:
            return value
        self.notes.warn_literal(node.text, path, line)
        if not has_reference(node.text):
            self.notes.secret(value.split()[-1])
        return Secret(value)  # what came from the environment is remembered already, without the `Bearer` before it

    def json(self, node: Mapping, path: str) -> FrozenDict[str, object]:
        found: dict[str, object] = {}
        for name, child in node.entries.items():
            with suppress(Bad):
                found[name] = self.json_value(child, f"{path}.{name}", node.lines[name])
        return FrozenDict(found)

    def schema(self, node: Mapping, path: str, line: int) -> str:
        """A JSON Schema as JSON text."""
        try:
            return schema_text(self.json(node, path))
        except Unusable as error:
            allowed = f"a JSON Schema (2020-12) of at most {MAX_SCHEMA:,} characters, without $ref"
            raise self.notes.refuse(
                line, path, f"a schema that cannot be used ({clipped(str(error))})", allowed
            ) from None

    def json_value(self, node: Node, path: str, line: int) -> object:
        """What JSON would make of it: here alone YAML's words and numbers count by how they look."""
        if isinstance(node, Mapping):
            return self.json(node, path)
        if isinstance(node, Sequence):
            return tuple(self.json_value(item, f"{path}[{i}]", item.line) for i, item in enumerate(node.items))
        if node.plain and node.text.lower() in JSON_WORDS:
            return JSON_WORDS[node.text.lower()]
        if node.plain and (match := JSON_NUMBER.fullmatch(node.text)):
            return self.json_number(match, path, line)
        return self.notes.substitute(node.text, path, line, secret=False)

    def json_number(self, match: re.Match[str], path: str, line: int) -> float:
        if len(match[0]) > 100 or not math.isfinite(float(match[0])):
            raise self.notes.refuse(line, path, f"the number {quoted(match[0])}", "a number that JSON can hold")
        return float(match[0]) if match[2] or match[3] else int(match[0])


def describe(node: Node) -> str:
    """What stands there, without repeating a text that may be a secret in the wrong place."""
    if isinstance(node, Scalar):
        return "nothing" if node.is_null else "a text"
    if isinstance(node, Sequence):
        return "an empty list" if not node.items else "a list"
    return "a mapping"


def _masked(kind: Kind[Any], shown: str) -> str:
    return kinds.mask_url(shown) if kind in (kinds.URL, kinds.PROXY) else shown


def _placeholders(form: type[Any]) -> dict[str, Any]:
    return {item.name: shape.default_of(item) for item in fields(form)}
