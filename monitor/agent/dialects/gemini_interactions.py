"""The event names of Google's interactions API, read by the Gemini decoder: typed steps instead of whole responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from monitor.agent.dialects.sse_decoder import DONE, error_event, model_of
from monitor.agent.dialects.usage import tokens
from monitor.agent.events import EventKind, Seen, StreamEvent, TokenKind
from monitor.agent.foreign_json import count, obj, text
from monitor.model import Tokens

_FAILED = frozenset({"failed", "cancelled"})


def recognises(event: str, chunk: dict[str, Any]) -> bool:
    """Whether this frame belongs to the interactions API."""
    return _name(event, chunk).startswith(("interaction.", "step.", "content."))


def read(event: str, chunk: dict[str, Any], seen: Seen) -> Iterator[StreamEvent]:
    """The events in one frame, given what was seen before it."""
    name = _name(event, chunk)
    if name == "step.delta":
        yield from _tokens(obj(chunk.get("delta")))
    interaction = obj(chunk.get("interaction"))
    usage = obj(interaction.get("usage")) or obj(obj(chunk.get("metadata")).get("usage"))
    found, model = _usage(usage), model_of(interaction, seen.model)
    if found != Tokens():
        yield StreamEvent(EventKind.USAGE, tokens=found, model=model)
    elif model:
        yield StreamEvent(EventKind.PREAMBLE, model=model)
    if name == "interaction.completed":
        status = text(interaction.get("status")) or "completed"
        yield StreamEvent(EventKind.FINISH, finish_reason=status[:100])
        if status in _FAILED or interaction.get("error"):
            yield error_event(interaction.get("error") or f"the interaction has the status {status[:50]!r}")
        yield DONE


def _name(event: str, chunk: dict[str, Any]) -> str:
    return text(chunk.get("event_type")) or event


def _tokens(delta: dict[str, Any]) -> Iterator[StreamEvent]:
    match text(delta.get("type")):
        case "text":
            kind, said = TokenKind.TEXT, text(delta.get("text"))
        case "thought_summary" | "thought":
            kind, said = TokenKind.REASONING, text(obj(delta.get("content")).get("text")) or text(delta.get("text"))
        case "function_call" | "arguments" | "arguments_delta":
            kind, said = TokenKind.TOOL_CALL, _arguments(delta.get("arguments"))
        case _:
            return
    if said:
        yield StreamEvent(EventKind.TOKEN, kind, said)


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(obj(value))


def _usage(usage: dict[str, Any]) -> Tokens:
    said, thoughts = count(usage.get("total_output_tokens")), count(usage.get("total_thought_tokens"))
    return tokens(
        output=None if said is None else said + (thoughts or 0),
        reasoning=thoughts,
        given=count(usage.get("total_input_tokens")),
        cached=count(usage.get("total_cached_tokens")),
    )
