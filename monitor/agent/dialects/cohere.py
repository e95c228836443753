"""Cohere's chat, version 2.

A generated token is non-empty `content.text`, `content.thinking`, a tool plan (visible text, says Cohere), and the
arguments of a tool call; the name of a tool counts when its call ends without arguments. `message-start`,
`content-start` and citations are none.

Terminal marker: `message-end`; the `[DONE]` after it means nothing. Input tokens are `usage.tokens` (with Cohere's own
preamble), not `billed_units`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from monitor.agent.dialects.asking import bearer_headers, joined, merged, replaced
from monitor.agent.dialects.contract import RequestParts
from monitor.agent.dialects.sse_decoder import DONE, SSEDecoder, error_event
from monitor.agent.dialects.usage import first_count, tokens
from monitor.agent.error_bodies import has_error
from monitor.agent.events import EventKind, StreamEvent, TokenKind
from monitor.agent.foreign_json import count, obj, text
from monitor.model import DialectName, Probe, Target, Tokens

_PATH = "/chat"


class Cohere:
    name = DialectName.COHERE

    def request(self, target: Target, probe: Probe, prompt: str) -> RequestParts:
        body = {
            "model": target.model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "max_tokens": probe.max_output_tokens,
        }
        return RequestParts(_chat_url(target.url), bearer_headers(target), merged(body, target.body))

    def control_url(self, target: Target) -> str:
        return replaced(_chat_url(target.url), "/v2" + _PATH, "/v1/models")

    def decoder(self) -> CohereDecoder:
        return CohereDecoder()


def _chat_url(base: str) -> str:
    """The vendor's SDK takes a base without /v2; people also write it with."""
    path = urlsplit(base).path.rstrip("/")
    return joined(base, _PATH if path.endswith(("/v2", "/v2" + _PATH)) else "/v2" + _PATH)


class CohereDecoder(SSEDecoder):
    def __init__(self) -> None:
        super().__init__()
        self._silent_tool = False  # a tool call is open that has streamed no arguments yet

    def recognises(self, event: str, chunk: dict[str, Any]) -> bool:
        return (text(chunk.get("type")) or event) in _KINDS

    def read(self, event: str, chunk: dict[str, Any]) -> list[StreamEvent]:
        kind = text(chunk.get("type")) or event
        message = obj(obj(chunk.get("delta")).get("message"))
        match kind:
            case "content-delta" | "content-start":
                return list(_content(obj(message.get("content"))))
            case "tool-plan-delta":
                said = text(message.get("tool_plan"))
                return [StreamEvent(EventKind.TOKEN, TokenKind.TEXT, said)] if said else []
            case "tool-call-start" | "tool-call-delta" | "tool-call-end":
                return self._call(kind, obj(obj(message.get("tool_calls")).get("function")))
            case "message-end":
                return list(self._end(chunk))
        failed = chunk.get("error") or (kind not in _KINDS and has_error(chunk))
        return [error_event(chunk)] if failed else []

    def _call(self, kind: str, function: dict[str, Any]) -> list[StreamEvent]:
        arguments = text(function.get("arguments"))
        if arguments:
            self._silent_tool = False
            return [StreamEvent(EventKind.TOKEN, TokenKind.TOOL_CALL, arguments)]
        if kind == "tool-call-start":
            self._silent_tool = bool(function.get("name"))
        elif kind == "tool-call-end" and self._silent_tool:
            self._silent_tool = False
            return [StreamEvent(EventKind.TOKEN, TokenKind.TOOL_CALL)]
        return []

    def _end(self, chunk: dict[str, Any]) -> Iterator[StreamEvent]:
        delta = obj(chunk.get("delta"))
        if reason := text(delta.get("finish_reason")):
            yield StreamEvent(EventKind.FINISH, finish_reason=reason[:100])
        if found := self._usage(obj(delta.get("usage"))):
            yield StreamEvent(EventKind.USAGE, tokens=found)
        if delta.get("error"):
            yield error_event(delta)
        yield DONE

    def _usage(self, usage: dict[str, Any]) -> Tokens | None:
        counted, billed = obj(usage.get("tokens")), obj(usage.get("billed_units"))
        output = first_count(counted.get("output_tokens"), billed.get("output_tokens"))
        thought = self.seen.counts[TokenKind.REASONING] > 0
        found = tokens(
            output=output,
            reasoning=0 if output is not None and not thought else None,
            given=first_count(counted.get("input_tokens"), billed.get("input_tokens")),
            cached=count(usage.get("cached_tokens")),
        )
        return None if found == Tokens() else found


_KINDS = frozenset(
    {
        "message-start",
        "content-start",
        "content-delta",
        "content-end",
        "tool-plan-delta",
        "tool-call-start",
        "tool-call-delta",
        "tool-call-end",
        "citation-start",
        "citation-end",
        "message-end",
        "debug",
    }
)


def _content(content: dict[str, Any]) -> Iterator[StreamEvent]:
    if thought := text(content.get("thinking")):
        yield StreamEvent(EventKind.TOKEN, TokenKind.REASONING, thought)
    if said := text(content.get("text")):
        yield StreamEvent(EventKind.TOKEN, TokenKind.TEXT, said)
