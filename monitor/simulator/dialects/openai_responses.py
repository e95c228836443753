"""OpenAI Responses: numbered, named events around items and parts; the terminal event holds everything again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from monitor.simulator.answer import TOOL_NAME, Answer, Frame
from monitor.simulator.behaviour import Content
from monitor.simulator.dialects.sse import event
from monitor.simulator.sendlog import SendKind


def frames(answer: Answer) -> Iterator[Frame]:
    """The stream in order; there is no `[DONE]`."""
    stream = _Stream(answer)
    yield from stream.opening()
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        yield from stream.reasoning(output)
    if answer.visible and answer.content is Content.TOOL_CALL:
        yield from stream.call(output)
    elif answer.visible:
        yield from stream.message(output)
    yield stream.terminal(output)


def error_frames(answer: Answer, error: dict[str, Any], step: int, sent: int) -> Iterator[Frame]:
    """`error` with the nested object that is seen in the wild, then `response.failed`."""
    inner = error["error"]
    yield Frame(SendKind.ERROR, step, event({"type": "error", "sequence_number": sent, "error": inner}))
    failed = _response(answer, "failed") | {"error": {"code": inner["code"], "message": inner["message"]}}
    last = {"type": "response.failed", "response": failed, "sequence_number": sent + 1}
    yield Frame(SendKind.DONE, step, event(last))


def whole(answer: Answer) -> dict[str, Any]:
    """The answer as one JSON object."""
    output: list[dict[str, Any]] = []
    for _ in (*_Stream(answer).reasoning(output),) if answer.reasoning else ():
        pass
    if answer.visible:
        stream = _Stream(answer)
        for _ in stream.call(output) if answer.content is Content.TOOL_CALL else stream.message(output):
            pass
    return _response(answer, _status(answer), output)


class _Stream:
    """Numbers the events of one response and words its items."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._sequence = count()
        self._item = 0

    def opening(self) -> Iterator[Frame]:
        for kind in ("response.created", "response.in_progress"):
            yield self._frame(SendKind.PREAMBLE, -1, kind, {"response": _response(self._answer, "in_progress")})

    def reasoning(self, output: list[dict[str, Any]]) -> Iterator[Frame]:
        """A reasoning item with one streamed summary part."""
        words = self._answer.reasoning
        item = {"id": f"rs_{self._answer.id}", "type": "reasoning", "summary": []}
        part = {"type": "summary_text", "text": "".join(words)}
        place = {"item_id": item["id"], "output_index": 0, "summary_index": 0}
        name = "response.reasoning_summary"
        yield self._structure(0, "response.output_item.added", {"item": item, "output_index": 0})
        yield self._structure(0, f"{name}_part.added", place | {"part": part | {"text": ""}})
        for number, word in enumerate(words):
            yield self._token(number, f"{name}_text.delta", place | {"delta": word})
        yield self._structure(len(words), f"{name}_text.done", place | {"text": part["text"]})
        yield self._structure(len(words), f"{name}_part.done", place | {"part": part})
        yield self._item_done(item | {"summary": [part]}, output, len(words))

    def message(self, output: list[dict[str, Any]]) -> Iterator[Frame]:
        """A message item with one part: text or refusal."""
        answer, begin = self._answer, len(self._answer.reasoning)
        kind, field = ("refusal", "refusal") if answer.content is Content.REFUSAL else ("output_text", "text")
        item = {"id": f"msg_{answer.id}", "type": "message", "status": "in_progress", "content": []}
        item["role"] = "assistant"
        more: dict[str, Any] = {} if kind == "refusal" else {"annotations": [], "logprobs": []}
        place = {"item_id": item["id"], "output_index": len(output), "content_index": 0}
        part = {"type": kind, field: answer.text, **more}
        yield self._structure(begin, "response.output_item.added", {"item": item, "output_index": len(output)})
        yield self._structure(begin, "response.content_part.added", place | {"part": part | {field: ""}})
        for number, word in enumerate(answer.visible, begin):
            yield self._token(number, f"response.{kind}.delta", place | {"delta": word})
        yield self._structure(answer.tokens, f"response.{kind}.done", place | {field: answer.text})
        yield self._structure(answer.tokens, "response.content_part.done", place | {"part": part})
        yield self._item_done(item | {"content": [part]}, output, answer.tokens)

    def call(self, output: list[dict[str, Any]]) -> Iterator[Frame]:
        """A function call whose arguments are streamed."""
        answer, begin = self._answer, len(self._answer.reasoning)
        item = {"id": f"fc_{answer.id}", "type": "function_call", "call_id": f"call_{answer.id}", "name": TOOL_NAME}
        place = {"item_id": item["id"], "output_index": len(output)}
        name = "response.function_call_arguments"
        added = item | {"arguments": "", "status": "in_progress"}
        yield self._structure(begin, "response.output_item.added", {"item": added, "output_index": len(output)})
        for number, piece in enumerate(answer.visible, begin):
            yield self._token(number, f"{name}.delta", place | {"delta": piece})
        yield self._structure(answer.tokens, f"{name}.done", place | {"arguments": answer.text})
        yield self._item_done(item | {"arguments": answer.text}, output, answer.tokens)

    def terminal(self, output: list[dict[str, Any]]) -> Frame:
        """`response.completed` or `response.incomplete`: finish, usage and end marker in one."""
        status = _status(self._answer)
        response = _response(self._answer, status, output)
        timings = self._answer.timings()
        more = {"response": response} | ({"timings": timings} if timings else {})
        return self._frame(SendKind.DONE, self._answer.tokens, f"response.{status}", more)

    def _item_done(self, item: dict[str, Any], output: list[dict[str, Any]], step: int) -> Frame:
        finished = item | {"status": "completed"}
        output.append(finished)
        place = {"item": finished, "output_index": len(output) - 1}
        return self._structure(step, "response.output_item.done", place)

    def _token(self, number: int, kind: str, values: dict[str, Any]) -> Frame:
        return self._frame(SendKind.TOKEN, number, kind, values)._replace(token=number)

    def _structure(self, step: int, kind: str, values: dict[str, Any]) -> Frame:
        return self._frame(SendKind.STRUCTURE, step, kind, values)

    def _frame(self, sent: SendKind, step: int, kind: str, values: dict[str, Any]) -> Frame:
        numbered = {"type": kind, **values, "sequence_number": next(self._sequence)}
        return Frame(sent, step, event(numbered))


def _status(answer: Answer) -> str:
    return "incomplete" if answer.finish in ("length", "content_filter") else "completed"


def _response(answer: Answer, status: str, output: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    ended = status in ("completed", "incomplete")
    reason = "max_output_tokens" if answer.finish == "length" else answer.finish
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "background": False,
        "completed_at": answer.created if status == "completed" else None,
        "error": None,
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "instructions": None,
        "max_output_tokens": answer.question.cap,
        "model": answer.model,
        "output": output or [],
        "parallel_tool_calls": True,
        "service_tier": "default" if ended else "auto",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": _usage(answer) if ended else None,
        "metadata": {},
    }


def _usage(answer: Answer) -> dict[str, Any]:
    given, made = answer.question.input_tokens, answer.tokens
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": len(answer.reasoning)},
        "total_tokens": given + made,
    }
