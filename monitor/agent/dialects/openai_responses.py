"""Responses: OpenAI, Azure, xAI, OpenRouter, DeepSeek, llama.cpp.

Hides the event names. A generated token is a non-empty delta of output text, refusal, reasoning (text or summary) or
of a tool's input. `output_item.added` is preamble even where it names a tool: its name counts when the item ends
without having streamed a single delta, as does text that a gateway sends only whole.

Terminal marker: `response.completed`, `response.incomplete` or `response.failed`. A `[DONE]` after it (OpenRouter)
means nothing. The finish reason is the reason of an incomplete response, else its status.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monitor.agent.dialects.asking import bearer_headers, joined, merged, replaced
from monitor.agent.dialects.contract import RequestParts
from monitor.agent.dialects.sse_decoder import DONE, KEEPALIVE, SSEDecoder, error_event, model_of
from monitor.agent.dialects.timings import body_timings
from monitor.agent.dialects.usage import openai_tokens, refined
from monitor.agent.error_bodies import has_error
from monitor.agent.events import EventKind, StreamEvent, TokenKind
from monitor.agent.foreign_json import items, obj, text
from monitor.model import DialectName, Probe, Target

_PATH = "/responses"

_DELTAS = {
    "response.output_text.delta": TokenKind.TEXT,
    "response.refusal.delta": TokenKind.REFUSAL,
    "response.reasoning_text.delta": TokenKind.REASONING,
    "response.reasoning_summary_text.delta": TokenKind.REASONING,
    "response.reasoning.delta": TokenKind.REASONING,
    "response.reasoning_summary.delta": TokenKind.REASONING,
    "response.function_call_arguments.delta": TokenKind.TOOL_CALL,
    "response.custom_tool_call_input.delta": TokenKind.TOOL_CALL,
    "response.mcp_call_arguments.delta": TokenKind.TOOL_CALL,
    "response.code_interpreter_call_code.delta": TokenKind.TOOL_CALL,
}
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_FAILED = frozenset({"failed", "cancelled"})
_PARTS = {
    "output_text": ("text", TokenKind.TEXT),
    "text": ("text", TokenKind.TEXT),
    "refusal": ("refusal", TokenKind.REFUSAL),
    "reasoning_text": ("text", TokenKind.REASONING),
    "summary_text": ("text", TokenKind.REASONING),
}


class OpenAIResponses:
    name = DialectName.OPENAI_RESPONSES

    def request(self, target: Target, probe: Probe, prompt: str) -> RequestParts:
        body = {
            "model": target.model,
            "input": prompt,
            "stream": True,
            "max_output_tokens": probe.max_output_tokens,
            "store": False,
        }
        return RequestParts(joined(target.url, _PATH), bearer_headers(target), merged(body, target.body))

    def control_url(self, target: Target) -> str:
        return replaced(joined(target.url, _PATH), _PATH, "/models")

    def decoder(self) -> OpenAIResponsesDecoder:
        return OpenAIResponsesDecoder()


class OpenAIResponsesDecoder(SSEDecoder):
    def __init__(self) -> None:
        super().__init__()
        self._before_item = 0  # tokens seen when the current output item began

    def recognises(self, event: str, chunk: dict[str, Any]) -> bool:
        return (text(chunk.get("type")) or event).startswith(("response.", "keepalive"))

    def read(self, event: str, chunk: dict[str, Any]) -> list[StreamEvent]:
        kind = text(chunk.get("type")) or event
        if kind in _DELTAS:
            delta = text(chunk.get("delta"))
            return [StreamEvent(EventKind.TOKEN, _DELTAS[kind], delta)] if delta else []
        if kind in _TERMINAL:
            return list(self._terminal(kind, chunk, obj(chunk.get("response"))))
        return self._between(kind, chunk)

    def _between(self, kind: str, chunk: dict[str, Any]) -> list[StreamEvent]:
        if kind in ("keepalive", "ping"):
            return [KEEPALIVE]
        if kind == "error" or chunk.get("error") or (not kind and has_error(chunk)):
            return [error_event(chunk)]
        if kind == "response.output_item.added":
            self._before_item = self.seen.token_events
        elif kind == "response.output_item.done" and self.seen.token_events == self._before_item:
            return list(_whole(obj(chunk.get("item"))))
        model = model_of(obj(chunk.get("response")), self.seen.model)
        return [StreamEvent(self.idle().kind, model=model)] if model else []

    def _terminal(self, kind: str, chunk: dict[str, Any], response: dict[str, Any]) -> Iterator[StreamEvent]:
        if not self.seen.token_events:
            for item in items(response.get("output")):
                yield from _whole(obj(item))
        status = text(response.get("status")) or kind.removeprefix("response.")
        reason = text(obj(response.get("incomplete_details")).get("reason")) or status
        yield StreamEvent(EventKind.FINISH, finish_reason=reason[:100])
        tokens = openai_tokens(response.get("usage"), self.seen.counts[TokenKind.REASONING] > 0)
        server = body_timings(response) | body_timings(chunk)  # llama.cpp has them beside the response
        model = model_of(response, self.seen.model)
        if tokens is not None or server or model:
            tokens = tokens and refined(self.seen.tokens, tokens)
            yield StreamEvent(EventKind.USAGE, tokens=tokens, server=server, model=model)
        if status in _FAILED or response.get("error"):
            yield error_event(response.get("error") or f"the response has the status {status[:50]!r}")
        yield DONE


def _whole(item: dict[str, Any]) -> Iterator[StreamEvent]:
    """The tokens of an output item that came without deltas."""
    for part in map(obj, [*items(item.get("content")), *items(item.get("summary"))]):
        field, token = _PARTS.get(text(part.get("type")), ("", TokenKind.TEXT))
        if said := text(part.get(field)):
            yield StreamEvent(EventKind.TOKEN, token, said)
    arguments = text(item.get("arguments")) or text(item.get("input"))
    if text(item.get("type")).endswith("_call") and (arguments or item.get("name")):
        yield StreamEvent(EventKind.TOKEN, TokenKind.TOOL_CALL, arguments)
