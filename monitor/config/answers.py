"""Regular expressions and JSON Schemas for answers: checked when the file is read, ready for use afterwards.

Hides RE2 and jsonschema. A model's answer is foreign text, so what is matched against it must not be able to hang: RE2
matches in time linear in the text and refuses patterns that would need much memory (Python's `re`, and every other
engine that backtracks, take years for `(a+)+$` on a few dozen letters; a time limit would still cost that limit on
every attempt). Schemas may not refer to anything, themselves included, so that checking an answer costs at most its
size times the schema's, and nothing is ever fetched; their patterns are RE2's too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol

MAX_PATTERN = 1_000
MAX_SCHEMA = 10_000
"""Characters of a schema as JSON."""
MAX_PROGRAM_BYTES = 1 << 20
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


class Pattern(Protocol):
    """A compiled pattern."""

    def search(self, text: str) -> object | None:
        """Something when the pattern matches anywhere in `text`, else None."""


class Unusable(ValueError):
    """A pattern or schema that cannot be used; the message says why."""


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """The regular expression `text` in RE2's syntax (no look-around, no back-references). Raises Unusable."""
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = MAX_PROGRAM_BYTES, False
    try:
        compiled: Pattern = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise Unusable(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
    return compiled


def schema_text(schema: Mapping[str, object]) -> str:
    """A JSON Schema (2020-12) as JSON text, checked. Raises Unusable."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    text = json.dumps(schema, ensure_ascii=False)
    if len(text) > MAX_SCHEMA:
        raise Unusable(f"it has {len(text):,} characters")
    for key, value in _pairs(schema):
        if key in _REFERENCES:
            raise Unusable(f"it uses {key}")
        if key == "pattern" and isinstance(value, str):
            pattern(value)
        if key == "patternProperties" and isinstance(value, Mapping):
            for each in value:
                pattern(each)
    try:
        Draft202012Validator.check_schema(json.loads(text))
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path))
        raise Unusable(f"{where}: {error.message}" if where else error.message) from None
    return text


def first_mistake(schema: str, value: object) -> str | None:
    """What about a JSON value is not as `schema` (of `schema_text`) wants it, None when all is."""
    error = next(_validator(schema).iter_errors(value), None)
    if error is None:
        return None
    where = "/".join(map(str, error.absolute_path))
    return f"{where}: {error.message}" if where else str(error.message)


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator, validators
    from referencing import Registry

    own = {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique_items}
    extended = validators.extend(Draft202012Validator, own)  # type: ignore[no-untyped-call]
    return extended(json.loads(schema), registry=Registry())


def _pairs(node: object) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield key, value
            yield from _pairs(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _pairs(value)


# jsonschema's own versions of these use backtracking expressions and a quadratic comparison.


def _pattern(_: Any, wanted: str, value: object, __: object) -> Iterator[Exception]:
    if isinstance(value, str) and not pattern(wanted).search(value):
        yield _error(f"{value[:100]!r} does not match {wanted!r}")


def _pattern_properties(validator: Any, wanted: Mapping[str, Any], value: object, _: object) -> Iterator[Exception]:
    if isinstance(value, dict):
        for each, below in wanted.items():
            for key in filter(pattern(each).search, value):
                yield from validator.descend(value[key], below, path=key, schema_path=each)


def _unique_items(_: Any, wanted: bool, value: object, __: object) -> Iterator[Exception]:
    if wanted and isinstance(value, list):
        different = {json.dumps(item, sort_keys=True) for item in value}
        if len(different) < len(value):
            yield _error("items that occur more than once")


def _error(text: str) -> Exception:
    from jsonschema.exceptions import ValidationError

    return ValidationError(text)
