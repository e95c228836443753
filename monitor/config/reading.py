"""Nodes of the file -> values of a shape's keys, with every mistake noted and none fatal.

A key that is wrong gets its default and is remembered as bad, so that checks across keys still run on the others.
`${NAME}` is replaced here, after YAML: a variable's value can never become structure, and no message repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping as Map
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from monitor.config import kinds, shape
from monitor.config.document import Flaw, Mapping, Node, Scalar, Sequence
from monitor.config.kinds import Kind
from monitor.config.mistake import Mistake, did_you_mean, listed, quoted
from monitor.config.shape import Form, Headers, Json, ListOf, MapOf, Section
from monitor.config.types import FrozenDict
from monitor.model import Secret

T = TypeVar("T")

MAX_SECRET_FILE = 65_536
_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OUR_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "expect", "accept-encoding"}
)
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|signature", re.IGNORECASE)
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
_JSON_WORDS: Map[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}


class Bad(Exception):
    """A value that cannot be used; the mistake is already noted."""


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


@dataclass(slots=True)
class Reader:
    """Reads one file; collects what is wrong and what is secret."""

    file: str
    directory: Path
    environ: Map[str, str]
    allow_missing_secrets: bool = False
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[Mistake] = field(default_factory=list)
    secrets: dict[Secret, None] = field(default_factory=dict)

    def wrong(self, line: int | None, path: str, found: str, allowed: str) -> None:
        self.mistakes.append(Mistake(self.file, line, path, found, allowed))

    def warn(self, line: int | None, path: str, found: str, allowed: str) -> None:
        self.warnings.append(Mistake(self.file, line, path, found, allowed))

    def flaw(self, flaw: Flaw) -> None:
        self.wrong(flaw.line, flaw.key, flaw.found, flaw.allowed)

    def secret(self, value: str) -> Secret:
        """The value as a secret, remembered for scrubbing."""
        found = Secret(value)
        self.secrets[found] = None
        return found

    def entry(self, form: type[T], node: Node | None, path: str, line: int) -> Entry[T]:
        """A mapping -> its shape's value. Nothing written counts as an empty mapping."""
        known = {item.name: item for item in fields(form)}  # type: ignore[arg-type]  # every shape is a dataclass
        if node is None or (isinstance(node, Scalar) and node.is_null):
            node = Mapping({}, {}, line, 1)
        if not isinstance(node, Mapping):
            self.wrong(line, path, describe(node), f"a mapping of keys such as {listed(list(known)[:3])}")
            return Entry(path, line, form(**_placeholders(form)), frozenset(known))
        values: dict[str, Any] = {}
        bad: set[str] = set()
        for name, child in node.entries.items():
            inner, at = f"{path}.{name}", node.lines[name]
            if name not in known:
                self.wrong(at, inner, f"an unknown key{did_you_mean(name, known)}", listed(list(known)))
                continue
            try:
                values[name] = self.value(shape.form_of(known[name]), child, inner, at)
            except Bad:
                bad.add(name)
        for name, item in known.items():
            if item.metadata["required"] and name not in node.entries:
                self.wrong(line, f"{path}.{name}", "nothing", shape.form_of(item).allowed)
                bad.add(name)
        return Entry(path, line, form(**{**_placeholders(form), **values}), frozenset(bad), node.lines)

    def value(self, form: Form, node: Node, path: str, line: int) -> Any:
        """One key's value; raises Bad when the mistake has been noted."""
        if isinstance(form, Kind):
            return self.scalar(form, node, path, line)
        if isinstance(form, Section):
            inner = self.entry(form.shape, node, path, line)
            if inner.bad:
                raise Bad
            return inner.value
        if isinstance(form, ListOf):
            return self.names(form, node, path, line)
        if not isinstance(node, Mapping):
            raise self.refuse(line, path, describe(node), form.allowed)
        if isinstance(form, Headers):
            return self.headers(node, path)
        if isinstance(form, Json):
            return self.json(node, path)
        return self.map(form, node, path)

    def refuse(self, line: int, path: str, found: str, allowed: str) -> Bad:
        self.wrong(line, path, found, allowed)
        return Bad()

    def scalar(self, kind: Kind[T], node: Node, path: str, line: int) -> T | Secret | None:
        if not isinstance(node, Scalar):
            raise self.refuse(line, path, describe(node), kind.allowed)
        if node.is_null:
            raise self.refuse(line, path, "nothing", kind.allowed)
        written = self.substitute(node.text, path, line, secret=kind.secret)
        if written is None:
            return None
        value = self.parsed(kind, written, node.text, path, line)
        if not kind.secret:
            return value
        if kind is kinds.SECRET:
            self.warn_literal(node.text, path, line)
        return self.secret(str(value))

    def parsed(self, kind: Kind[T], value: str, shown: str, path: str, line: int) -> T:
        try:
            return kind.parse(value)
        except ValueError as error:
            found = "a value that is not shown" if kind.secret else quoted(_masked(kind, shown))
            raise self.refuse(line, path, found, _sentence(error) or kind.allowed) from None

    def names(self, form: ListOf, node: Node, path: str, line: int) -> tuple[Any, ...]:
        if not isinstance(node, Sequence):
            raise self.refuse(line, path, describe(node), form.allowed)
        if not node.items:
            raise self.refuse(line, path, "an empty list", form.allowed)
        if len(node.items) > shape.MAX_LIST:
            raise self.refuse(line, path, f"{len(node.items)} names", f"at most {shape.MAX_LIST}")
        found: list[Any] = []
        for place, item in enumerate(node.items):
            value = self.scalar(form.item, item, f"{path}[{place}]", item.line)
            if value in found:
                raise self.refuse(item.line, f"{path}[{place}]", f"{quoted(str(value))} twice", "each name once")
            found.append(value)
        return tuple(found)

    def map(self, form: MapOf, node: Mapping, path: str) -> FrozenDict[str, Any]:
        found: dict[str, Any] = {}
        for name, child in node.entries.items():
            line = node.lines[name]
            self.parsed(form.key, name, name, f"{path}.{name}", line)
            found[name] = self.scalar(form.value, child, f"{path}.{name}", line)
        return FrozenDict(found)

    def headers(self, node: Mapping, path: str) -> FrozenDict[str, str | Secret]:
        found: dict[str, str | Secret] = {}
        for name, child in node.entries.items():
            inner, line = f"{path}.{name}", node.lines[name]
            if not _HEADER_NAME.fullmatch(name):
                raise self.refuse(line, path, f"the header name {quoted(name)}", "letters, digits and -")
            if name.lower() in _OUR_HEADERS:
                raise self.refuse(line, inner, "a header that the measurement sets itself", "other headers")
            if name.lower() in (known.lower() for known in found):
                raise self.refuse(line, inner, "the header twice", "each header once, whatever its capitals")
            value = self.header(name, child, inner, line)
            if value is not None:
                found[name] = value
        return FrozenDict(found)

    def header(self, name: str, node: Node, path: str, line: int) -> str | Secret | None:
        if not isinstance(node, Scalar) or node.is_null:
            raise self.refuse(line, path, describe(node), "a text")
        secret = bool(_REFERENCE.search(node.text) or _SECRET_HEADER.search(name))
        written = self.substitute(node.text, path, line, secret=secret)
        if written is None:
            return None
        value = self.parsed(kinds.SECRET, written, "", path, line)
        if not secret:
            return value
        self.warn_literal(node.text, path, line)
        return self.secret(value)

    def json(self, node: Mapping, path: str) -> FrozenDict[str, object]:
        found: dict[str, object] = {}
        for name, child in node.entries.items():
            found[name] = self.json_value(child, f"{path}.{name}", node.lines[name])
        return FrozenDict(found)

    def json_value(self, node: Node, path: str, line: int) -> object:
        if isinstance(node, Mapping):
            return self.json(node, path)
        if isinstance(node, Sequence):
            return tuple(self.json_value(item, f"{path}[{i}]", item.line) for i, item in enumerate(node.items))
        if not node.plain:
            return self.substitute(node.text, path, line, secret=False)
        if node.text.lower() in _JSON_WORDS:
            return _JSON_WORDS[node.text.lower()]
        if match := _JSON_NUMBER.fullmatch(node.text):
            return float(node.text) if match[2] or match[3] else int(node.text)
        return self.substitute(node.text, path, line, secret=False)

    def substitute(self, written: str, path: str, line: int, *, secret: bool) -> str | None:
        """The text with its `${NAME}` replaced; None when a secret is missing and that is allowed. Raises Bad."""
        pieces: list[str] = []
        place = 0
        for match in _REFERENCE.finditer(written):
            value = "${" if match[1] is None else self.variable(match, path, line, secret=secret)
            if value is None:
                return None
            pieces += [written[place : match.start()], value]
            place = match.end()
        return "".join(pieces) + written[place:]

    def variable(self, match: re.Match[str], path: str, line: int, *, secret: bool) -> str | None:
        parts = _VARIABLE.fullmatch(match[1])
        if not parts or not match[0].endswith("}") or "${" in (parts[2] or ""):
            allowed = "${NAME} or ${NAME:-default}; to write the characters ${ themselves: $${"
            raise self.refuse(line, path, "a reference that is none", allowed)
        name, default = parts[1], parts[2]
        value = self.environ.get(name)
        if default is not None:
            value = value or default
        if value is not None:
            if secret and value.strip():
                self.secret(value.strip())
            return value
        allowed = f"set {name} in the environment, or write ${{{name}:-default}}"
        self.missing(line, path, f"${{{name}}}, which is not set", allowed, secret=secret)
        return None

    def missing(self, line: int, path: str, found: str, allowed: str, *, secret: bool) -> None:
        """A secret or file that is not here: a mistake, or a warning where that is allowed."""
        if not (secret and self.allow_missing_secrets):
            raise self.refuse(line, path, found, allowed)
        self.warn(line, path, found, allowed)

    def warn_literal(self, written: str, path: str, line: int) -> None:
        if not re.search(r"\$\{\w+\}", written):
            self.warn(
                line, path, "a secret written into the file", "${NAME} from the environment, or a file of its own"
            )

    def secret_file(self, kind: Kind[str], name: str, path: str, line: int) -> Secret | None:
        """The secret that a file holds, without the white space around it. Raises Bad."""
        try:
            with (self.directory / name).open("rb") as handle:
                data = handle.read(MAX_SECRET_FILE + 1)
        except OSError as error:
            found = f"{quoted(name)}, which cannot be read ({(error.strerror or 'error').lower()})"
            self.missing(line, path, found, "a file that this user can read", secret=True)
            return None
        try:
            value = kind.parse(data.decode().strip())
        except ValueError as error:
            found = f"{quoted(name)}, whose content cannot be used"
            raise self.refuse(line, path, found, _sentence(error) or kind.allowed) from None
        return self.secret(value)


def describe(node: Node) -> str:
    """What stands there, without repeating a text that may be a secret in the wrong place."""
    if isinstance(node, Scalar):
        return "nothing" if node.is_null else "a text"
    if isinstance(node, Sequence):
        return "an empty list" if not node.items else "a list"
    return "a mapping"


def _sentence(error: ValueError) -> str:
    """A parser's own sentence; the standard library's (`invalid literal ...`) repeat values and are left out."""
    return str(error) if type(error) is ValueError and str(error).startswith(("a ", "GB ")) else ""


def _masked(kind: Kind[Any], shown: str) -> str:
    return kinds.mask_url(shown) if kind in (kinds.URL, kinds.PROXY) else shown


def _placeholders(form: type[Any]) -> dict[str, Any]:
    return {item.name: shape.default_of(item) for item in fields(form)}
