"""Writing server-sent events and JSON the way the vendors do."""

from __future__ import annotations

import json
from typing import Any


def dumps(value: Any) -> str:
    """Compact JSON, non-ASCII as it is: characters of several bytes belong on the wire."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def data(text: str) -> bytes:
    """One event with only a data line."""
    return f"data: {text}\n\n".encode()


def event(value: dict[str, Any]) -> bytes:
    """One event named by the value's own `type`."""
    return f"event: {value['type']}\ndata: {dumps(value)}\n\n".encode()
