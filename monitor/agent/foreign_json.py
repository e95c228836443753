"""Null-safe reading of foreign JSON: what is absent, null or of the wrong type is the empty value of the asked type."""

from __future__ import annotations

import json
import math
from typing import Any

NOT_JSON = object()
"""What `parse` gives for text that is no JSON, is nested beyond reason, or holds a number beyond reason."""


_decode = json.JSONDecoder().decode


def parse(text: str) -> Any:
    """`json.loads` that never raises."""
    try:
        return _decode(text)
    except (ValueError, RecursionError):
        return NOT_JSON


def obj(value: Any) -> dict[str, Any]:
    """The value if it is an object, else {}."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The value if it is a list, else []."""
    return value if isinstance(value, list) else []


def text(value: Any) -> str:
    """The value if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def count(value: Any) -> int | None:
    """A non-negative whole number below 2**53 (some servers write 12.0), else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value) if value == int(value) else None


def quantity(value: Any) -> float | None:
    """A finite non-negative number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e15 and math.isfinite(value) else None
