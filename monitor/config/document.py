"""YAML text as a tree that remembers its lines. Hides YAML: its guesses about types, its tags, aliases and bombs.

Every scalar stays the text that was written, so that the schema decides what it is: `country: NO` is Norway, `1.10` is
a version, `60:00` is no number. Anchors, aliases and `<<` work as in other tools; size, depth and the
number of values after aliases are expanded are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

MAX_BYTES = 1_000_000
MAX_JSON_BYTES = 4_000_000
"""A handout repeats what aliases of the file say once."""
MAX_DEPTH = 24
MAX_VALUES = 50_000

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STRING_TAGS = frozenset({None, "!", "tag:yaml.org,2002:str"})
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Scalar:
    text: str  # as written, before `${NAME}` is replaced
    line: int
    plain: bool = False  # written without quotes
    size: int = 1

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]
    line: int
    size: int


@dataclass(frozen=True, slots=True)
class Mapping:
    entries: dict[str, Node]
    lines: dict[str, int]  # of the keys
    line: int
    size: int


Node = Scalar | Sequence | Mapping


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something about the YAML itself that is not allowed."""

    line: int
    key: str
    found: str
    allowed: str


class Unreadable(Exception):
    """Nothing can be read beyond this flaw."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw.found)
        self.flaw = flaw


@dataclass(frozen=True, slots=True)
class Document:
    root: Node
    flaws: tuple[Flaw, ...] = ()


def parse(data: bytes) -> Document:
    """Bytes of one YAML document -> its tree, with flaws that did not stop the reading (double keys).

    Raises Unreadable for text that is no YAML, more than one document, and anything beyond the bounds.
    """
    text = _decode(data)
    try:
        return _Builder(yaml.parse(text, Loader=_LOADER)).document()
    except yaml.YAMLError as error:
        raise Unreadable(_syntax_flaw(error, text)) from None
    except RecursionError:
        raise Unreadable(_too_deep(1)) from None


def parse_json(data: bytes) -> Document:
    """Bytes of one JSON object -> the tree that YAML of the same meaning gives; texts are kept character by character.

    JSON is not quite YAML: pairs of surrogates and some line separators mean other things there.
    """
    if len(data) > MAX_JSON_BYTES:
        raise Unreadable(Flaw(1, "", f"{len(data):,} bytes", f"at most {MAX_JSON_BYTES:,} bytes"))
    flaws: list[Flaw] = []
    try:
        told = json.loads(
            data, object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_Number
        )
        root = _from_json(told, "", 0, flaws)
    except RecursionError:
        raise Unreadable(_too_deep(1)) from None
    except ValueError as error:
        raise Unreadable(Flaw(1, "", f"broken JSON ({type(error).__name__})", "a JSON object in UTF-8")) from None
    if root.size > MAX_VALUES:
        raise Unreadable(Flaw(1, "", "too many values", f"at most {MAX_VALUES:,} values"))
    return Document(root, tuple(flaws))


class _Pairs(list[tuple[str, object]]):
    """An object, with the keys that it has twice."""


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def _from_json(told: object, path: str, depth: int, flaws: list[Flaw]) -> Node:
    if depth > MAX_DEPTH:
        raise Unreadable(_too_deep(1))
    if isinstance(told, _Pairs):
        entries: dict[str, Node] = {}
        for key, value in told:
            inner = f"{path}.{_whole(key)}" if path else _whole(key)
            if key in entries:
                flaws.append(Flaw(1, inner, "the key twice", "each key once"))
            entries[key] = _from_json(value, inner, depth + 1, flaws)
        return Mapping(entries, dict.fromkeys(entries, 1), 1, 1 + sum(one.size for one in entries.values()))
    if isinstance(told, list):
        items = tuple(_from_json(one, f"{path}[{place}]", depth + 1, flaws) for place, one in enumerate(told))
        return Sequence(items, 1, 1 + sum(one.size for one in items))
    if isinstance(told, str) and not isinstance(told, _Number):
        return Scalar(_whole(told), 1)
    return Scalar(str(told) if isinstance(told, _Number) else json.dumps(told), 1, plain=True)


def _whole(text: str) -> str:
    """The text; half a surrogate pair is no character, and could never be sent."""
    text.encode()
    return text


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise Unreadable(Flaw(1, "", f"{len(data):,} bytes", f"at most {MAX_BYTES:,} bytes"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(Flaw(line, "", f"a byte that is no UTF-8 (0x{data[error.start]:02x})", "UTF-8 text")) from None


def _too_deep(line: int) -> Flaw:
    return Flaw(line, "", f"values nested more than {MAX_DEPTH} deep", f"at most {MAX_DEPTH} levels")


def _syntax_flaw(error: yaml.YAMLError, text: str) -> Flaw:
    """What PyYAML objects to, without words of the file: they may be a key (`*sk-...` is read as an alias)."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    position = getattr(error, "position", None)
    if mark is None and isinstance(position, int):
        character = text[position] if position < len(text) else ""
        line = text.count("\n", 0, position) + 1
        return Flaw(line, "", f"a control character (U+{ord(character or ' '):04X})", "printable text")
    line = (mark.line if mark else 0) + 1
    tab = _line_with_tab(text, line)
    if tab:
        return Flaw(tab, "", "a tab in the indentation", "spaces")
    problem = re.sub(r"""(["'])(?!<)(.{2,})\1""", "...", getattr(error, "problem", None) or "text that is no YAML")
    if problem.startswith("did not find expected"):
        problem = "something stands here that does not belong here"  # what was expected is a character of YAML's
    return Flaw(line, "", f"broken YAML ({problem})", _remedy(text, line))


def _remedy(text: str, line: int) -> str:
    near = text.split("\n")[max(0, line - 2) : line]
    if any(re.search(r"\{.*\$\{", part) for part in near):
        return 'quotes around a reference inside { }: {api_key: "${NAME}"}'
    return "`key: value` lines indented by spaces, and quotes around text that has : # * & or {"


def _line_with_tab(text: str, line: int) -> int | None:
    lines = text.split("\n")
    for number in (line, line - 1):
        if 0 < number <= len(lines) and re.match(r"[ ]*\t", lines[number - 1]):
            return number
    return None


@dataclass(slots=True)
class _Builder:
    """Turns PyYAML's flat events into nodes: a flat walk cannot be led into recursion by the file's aliases."""

    events: Iterator[yaml.Event]
    anchors: dict[str, Node] = field(default_factory=dict)
    flaws: list[Flaw] = field(default_factory=list)

    def document(self) -> Document:
        root: Node | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise Unreadable(Flaw(_line(event), "", "a second document (`---`)", "one document a file"))
                root = self.node(next(self.events), "", 0)
        if root is None:
            raise Unreadable(Flaw(1, "", "an empty file", "vantages, targets and probes; see examples/minimal.yaml"))
        return Document(root, tuple(self.flaws))

    def node(self, event: yaml.Event, path: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise Unreadable(_too_deep(_line(event)))
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if not isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            raise Unreadable(Flaw(_line(event), path, "broken YAML", "a value"))
        self.check_tag(event, path)
        built = self.build(event, path, depth)
        if built.size > MAX_VALUES:
            allowed = f"at most {MAX_VALUES:,} values, those that aliases repeat included"
            raise Unreadable(Flaw(_line(event), path, "too many values", allowed))
        if event.anchor:
            self.anchors[event.anchor] = built
        return built

    def build(self, event: yaml.Event, path: str, depth: int) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(event.value, _line(event), plain=not event.style)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(event, path, depth)
        return self.mapping(event, path, depth)

    def alias(self, event: yaml.AliasEvent) -> Node:
        known = self.anchors.get(event.anchor or "")
        if known is None:
            raise Unreadable(
                Flaw(_line(event), "", "an alias (`*name`) without its anchor", "an anchor (`&name`) above it")
            )
        return known

    def check_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, path: str) -> None:
        if event.tag not in _STRING_TAGS:
            self.flaws.append(Flaw(_line(event), path, "a YAML tag (`!...`)", "no tags"))

    def sequence(self, start: yaml.Event, path: str, depth: int) -> Sequence:
        items: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, f"{path}[{len(items)}]", depth + 1))
        return Sequence(tuple(items), _line(start), 1 + sum(item.size for item in items))

    def mapping(self, start: yaml.Event, path: str, depth: int) -> Mapping:
        entries: dict[str, Node] = {}
        lines: dict[str, int] = {}
        merged: list[Mapping] = []
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.key(event, path, depth)
            inner = f"{path}.{key}" if path else key
            value = self.node(next(self.events), inner, depth + 1)
            if key == "<<":
                merged += self.merge_sources(value, inner)
            elif key in entries:
                self.flaws.append(
                    Flaw(_line(event), inner, f"the key twice (first in line {lines[key]})", "each key once")
                )
            else:
                entries[key], lines[key] = value, _line(event)
        for source in merged:
            for key, value in source.entries.items():
                if key not in entries:
                    entries[key], lines[key] = value, source.lines[key]
        return Mapping(entries, lines, _line(start), 1 + sum(value.size for value in entries.values()))

    def key(self, event: yaml.Event, path: str, depth: int) -> str:
        node = self.node(event, path, depth + 1)
        if isinstance(node, Scalar):
            return node.text
        raise Unreadable(
            Flaw(_line(event), path, "a key that is a list or mapping", "a word (text with { or [ goes in quotes)")
        )

    def merge_sources(self, value: Node, path: str) -> list[Mapping]:
        sources = value.items if isinstance(value, Sequence) else (value,)
        good = [source for source in sources if isinstance(source, Mapping)]
        if len(good) < len(sources):
            self.flaws.append(Flaw(value.line, path, "something that is no mapping", "an alias of a mapping"))
        return good


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1
