"""OpenAI Chat Completions: data-only chunks, a role chunk first, usage in a chunk of its own, `[DONE]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monitor.simulator.answer import TOOL_NAME, Answer, Frame
from monitor.simulator.behaviour import Content
from monitor.simulator.dialects.sse import data, dumps
from monitor.simulator.sendlog import SendKind

_PLACE = "\x00here\x00"


def frames(answer: Answer) -> Iterator[Frame]:
    """The stream in order."""
    yield Frame(SendKind.PREAMBLE, -1, data(_chunk(answer, _role(answer))))
    for index, word in enumerate(answer.reasoning):
        yield Frame(SendKind.TOKEN, index, _token(answer, {"reasoning_content": _PLACE}, word), index)
    yield from _visible(answer)
    end = answer.tokens
    yield Frame(SendKind.FINISH, end, data(_chunk(answer, {}, finish=_finish(answer))))
    if answer.question.include_usage:
        yield Frame(SendKind.USAGE, end, data(dumps(_usage_chunk(answer))))
    yield Frame(SendKind.DONE, end, data("[DONE]"))


def error_frames(answer: Answer, error: dict[str, Any], step: int, sent: int) -> Iterator[Frame]:
    """An error as vLLM sends it inside a 200: an ordinary data line, and `[DONE]` all the same."""
    yield Frame(SendKind.ERROR, step, data(dumps(error)))
    yield Frame(SendKind.DONE, step, data("[DONE]"))


def whole(answer: Answer) -> dict[str, Any]:
    """The answer as one JSON object."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.content is Content.TOOL_CALL:
        message |= {"content": None, "tool_calls": [_call(answer, answer.text)]}
    elif answer.content is Content.REFUSAL:
        message |= {"content": None, "refusal": answer.text}
    if answer.reasoning:
        message["reasoning_content"] = "".join(answer.reasoning)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
    return _envelope(answer, "chat.completion") | {"choices": [choice], "usage": usage(answer)}


def usage(answer: Answer) -> dict[str, Any]:
    """Counts as OpenAI reports them: completion tokens include reasoning."""
    given, made = answer.question.input_tokens, answer.tokens
    return {
        "prompt_tokens": given,
        "completion_tokens": made,
        "total_tokens": given + made,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": len(answer.reasoning), "audio_tokens": 0},
    }


def _visible(answer: Answer) -> Iterator[Frame]:
    delta: dict[str, Any] = {"content": _PLACE}
    if answer.content is Content.REFUSAL:
        delta = {"refusal": _PLACE}
    elif answer.content is Content.TOOL_CALL:
        delta = {"tool_calls": [{"index": 0, "function": {"arguments": _PLACE}}]}
    before, after = _chunk(answer, delta).split(dumps(_PLACE))
    for index, word in enumerate(answer.visible, len(answer.reasoning)):
        yield Frame(SendKind.TOKEN, index, data(before + dumps(word) + after), index)


def _token(answer: Answer, delta: dict[str, Any], word: str) -> bytes:
    return data(_chunk(answer, delta).replace(dumps(_PLACE), dumps(word)))


def _role(answer: Answer) -> dict[str, Any]:
    role: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    if answer.content is Content.TOOL_CALL:
        return role | {"content": None, "tool_calls": [{"index": 0, **_call(answer, "")}]}
    return role | {"content": None, "refusal": ""} if answer.content is Content.REFUSAL else role


def _call(answer: Answer, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{answer.id}", "type": "function", "function": {"name": TOOL_NAME, "arguments": arguments}}


def _finish(answer: Answer) -> str:
    return "stop" if answer.finish == "refusal" else answer.finish


def _envelope(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "service_tier": "default",
        "system_fingerprint": "fp_simulated",
    }


def _chunk(answer: Answer, delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    chunk = _envelope(answer, "chat.completion.chunk") | {"choices": [choice]}
    return dumps(chunk | {"usage": None} if answer.question.include_usage else chunk)


def _usage_chunk(answer: Answer) -> dict[str, Any]:
    chunk = _envelope(answer, "chat.completion.chunk") | {"choices": [], "usage": usage(answer)}
    timings = answer.timings()
    return chunk | {"timings": timings} if timings else chunk
