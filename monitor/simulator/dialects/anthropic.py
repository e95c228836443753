"""Anthropic Messages: named events, blocks that begin and end, a ping, usage twice, `message_stop`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monitor.simulator.answer import TOOL_NAME, Answer, Frame
from monitor.simulator.behaviour import Content
from monitor.simulator.dialects.sse import event
from monitor.simulator.sendlog import SendKind

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refusal": "refusal",
    "content_filter": "refusal",
}


def frames(answer: Answer) -> Iterator[Frame]:
    """The stream in order."""
    yield Frame(SendKind.PREAMBLE, -1, event({"type": "message_start", "message": _message(answer)}))
    yield from _blocks(answer)
    end = answer.tokens
    delta = {"type": "message_delta", "delta": _stopped(answer), "usage": _usage(answer)}
    timings = answer.timings()
    yield Frame(SendKind.FINISH, end, event(delta | {"timings": timings} if timings else delta))
    yield Frame(SendKind.DONE, end, event({"type": "message_stop"}))


def error_frames(answer: Answer, error: dict[str, Any], step: int, sent: int) -> Iterator[Frame]:
    """`event: error`, and nothing after it."""
    yield Frame(SendKind.ERROR, step, event(error))


def whole(answer: Answer) -> dict[str, Any]:
    """The answer as one JSON object."""
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": "".join(answer.reasoning), "signature": "c2ln"})
    if answer.visible and answer.content is Content.TOOL_CALL:
        content.append(_opening(answer, 1) | {"input": {"city": "Lagos"}})
    elif answer.visible:
        content.append({"type": "text", "text": answer.text})
    return _message(answer) | {"content": content, **_stopped(answer), "usage": _usage(answer)}


def _blocks(answer: Answer) -> Iterator[Frame]:
    block, thoughts = 0, len(answer.reasoning)
    ping = Frame(SendKind.PREAMBLE, 0, event({"type": "ping"}))
    if answer.reasoning:
        yield _start(block, 0, {"type": "thinking", "thinking": "", "signature": ""})
        yield ping
        for number, word in enumerate(answer.reasoning):
            yield _delta(block, number, {"type": "thinking_delta", "thinking": word})
        yield _frame(thoughts, _delta_of(block, {"type": "signature_delta", "signature": "c2ln"}))
        yield _stop(block, thoughts)
        block = 1
    if not answer.visible:
        return
    yield _start(block, thoughts, _opening(answer, block))
    if not answer.reasoning:
        yield ping
    kind, field = ("text_delta", "text")
    if answer.content is Content.TOOL_CALL:
        kind, field = ("input_json_delta", "partial_json")
        yield _frame(thoughts, _delta_of(block, {"type": kind, field: ""}))  # the first one is always empty
    for number, word in enumerate(answer.visible, thoughts):
        yield _delta(block, number, {"type": kind, field: word})
    yield _stop(block, answer.tokens)


def _opening(answer: Answer, block: int) -> dict[str, Any]:
    if answer.content is Content.TOOL_CALL:
        return {"type": "tool_use", "id": f"toolu_{answer.id}{block}", "name": TOOL_NAME, "input": {}}
    return {"type": "text", "text": ""}


def _start(block: int, step: int, opening: dict[str, Any]) -> Frame:
    return _frame(step, {"type": "content_block_start", "index": block, "content_block": opening})


def _stop(block: int, step: int) -> Frame:
    return _frame(step, {"type": "content_block_stop", "index": block})


def _delta(block: int, number: int, delta: dict[str, Any]) -> Frame:
    return Frame(SendKind.TOKEN, number, event(_delta_of(block, delta)), number)


def _delta_of(block: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": block, "delta": delta}


def _frame(step: int, value: dict[str, Any]) -> Frame:
    return Frame(SendKind.STRUCTURE, step, event(value))


def _message(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _input_usage(answer) | {"output_tokens": 1, "service_tier": "standard"},
    }


def _stopped(answer: Answer) -> dict[str, Any]:
    return {"stop_reason": _STOP_REASONS.get(answer.finish, answer.finish), "stop_sequence": None}


def _input_usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.question.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def _usage(answer: Answer) -> dict[str, Any]:
    """Cumulative, thinking included, as newer responses report it."""
    thought = {"output_tokens_details": {"thinking_tokens": len(answer.reasoning)}} if answer.reasoning else {}
    return _input_usage(answer) | {"output_tokens": answer.tokens} | thought
