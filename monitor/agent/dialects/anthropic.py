"""Messages: Anthropic and the gateways and servers that speak its shape.

Hides the block structure. A generated token is a non-empty text, thinking or tool-input delta. `message_start`,
`content_block_start` and `ping` are none; the name of a tool counts when its block ends without input (a tool without
arguments). A signature alone (thinking that is not shown) is no token either.

Terminal marker: `message_stop`. Input tokens are the sum of uncached, cache-read and cache-written ones. The output
count of `message_start` is a beginning, not a count; `message_delta` has the final one.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

from monitor.agent.dialects.asking import joined, keyed_headers, merged, replaced
from monitor.agent.dialects.contract import RequestParts
from monitor.agent.dialects.sse_decoder import DONE, KEEPALIVE, SSEDecoder, error_event, model_of
from monitor.agent.dialects.timings import body_timings
from monitor.agent.dialects.usage import refined, tokens
from monitor.agent.error_bodies import has_error
from monitor.agent.events import EventKind, StreamEvent, TokenKind
from monitor.agent.foreign_json import count, obj, text
from monitor.model import DialectName, Probe, Target, Tokens

API_VERSION = "2023-06-01"
VERTEX_VERSION = "vertex-2023-10-16"
_PATH = "/messages"

_DELTAS = {
    "text_delta": ("text", TokenKind.TEXT),
    "thinking_delta": ("thinking", TokenKind.REASONING),
    "input_json_delta": ("partial_json", TokenKind.TOOL_CALL),
}
_THOUGHTS = frozenset({"thinking_delta", "signature_delta"})
_BLOCKS = {"text": ("text", TokenKind.TEXT), "thinking": ("thinking", TokenKind.REASONING)}
_KINDS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
    }
)
_THINKING = frozenset({"thinking", "redacted_thinking"})


class Anthropic:
    name = DialectName.ANTHROPIC

    def request(self, target: Target, probe: Probe, prompt: str) -> RequestParts:
        body = {
            "model": target.model,
            "max_tokens": probe.max_output_tokens,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
        }
        headers = {"anthropic-version": API_VERSION} | keyed_headers(target, "x-api-key")
        if _is_vertex(target.url):
            del body["model"]
            body["anthropic_version"] = VERTEX_VERSION
        return RequestParts(_messages_url(target.url, target.model), headers, merged(body, target.body))

    def control_url(self, target: Target) -> str:
        return replaced(
            _messages_url(target.url), "/models/:streamRawPredict" if _is_vertex(target.url) else _PATH, "/models"
        )

    def decoder(self) -> AnthropicDecoder:
        return AnthropicDecoder()


def _is_vertex(base: str) -> bool:
    """Whether Google serves it: Vertex has the model in the path and the version in the body."""
    return urlsplit(base).path.rstrip("/").endswith("/publishers/anthropic")


def _messages_url(base: str, model: str = "") -> str:
    """The vendor's SDK takes a base without /v1; people also write it with."""
    if _is_vertex(base):
        return joined(base, f"/models/{quote(model, safe='@')}:streamRawPredict")
    path = urlsplit(base).path.rstrip("/")
    return joined(base, _PATH if path.endswith(("/v1", "/v1" + _PATH)) else "/v1" + _PATH)


class AnthropicDecoder(SSEDecoder):
    def __init__(self) -> None:
        super().__init__()
        self._thought = False  # thinking of any kind was seen, shown or not
        self._silent_tool = False  # a tool block is open that has streamed no input yet

    def recognises(self, event: str, chunk: dict[str, Any]) -> bool:
        return (text(chunk.get("type")) or event) in _KINDS

    def read(self, event: str, chunk: dict[str, Any]) -> list[StreamEvent]:
        kind = text(chunk.get("type")) or event
        match kind:
            case "content_block_delta":
                return self._delta(obj(chunk.get("delta")))
            case "ping":
                return [KEEPALIVE]
            case "message_start":
                return [self._start(obj(chunk.get("message")))]
            case "content_block_start":
                return self._block_start(obj(chunk.get("content_block")))
            case "content_block_stop":
                return self._block_stop()
            case "message_delta":
                return self._message_delta(chunk)
            case "message_stop":
                return [DONE]
        failed = kind == "error" or chunk.get("error") or (not kind and has_error(chunk))
        return [error_event(chunk)] if failed else []

    def _start(self, message: dict[str, Any]) -> StreamEvent:
        told = obj(message.get("usage"))
        facts = self.news(region=told.get("inference_geo"), tier=told.get("service_tier"))
        usage = self._usage(told, final=False)
        return StreamEvent(self.idle().kind, tokens=usage, model=model_of(message, self.seen.model), facts=facts)

    def _block_start(self, block: dict[str, Any]) -> list[StreamEvent]:
        kind = text(block.get("type"))
        self._thought = self._thought or kind in _THINKING
        self._silent_tool = kind.endswith("tool_use") and bool(block.get("name"))
        field, token = _BLOCKS.get(kind, ("", TokenKind.TEXT))
        if said := text(block.get(field)):
            return [StreamEvent(EventKind.TOKEN, token, said)]
        model = model_of(block, self.seen.model)  # a `fallback` block names the model that takes over
        return [StreamEvent(self.idle().kind, model=model)] if model else []

    def _block_stop(self) -> list[StreamEvent]:
        silent, self._silent_tool = self._silent_tool, False
        return [StreamEvent(EventKind.TOKEN, TokenKind.TOOL_CALL, "{}")] if silent else []

    def _delta(self, delta: dict[str, Any]) -> list[StreamEvent]:
        kind = text(delta.get("type"))
        field, token = _DELTAS.get(kind, ("", TokenKind.TEXT))
        self._thought = self._thought or kind in _THOUGHTS  # some gateways leave the blocks' own events out
        said = text(delta.get(field))
        if not said:
            return []
        if token is TokenKind.TOOL_CALL:
            self._silent_tool = False
        return [StreamEvent(EventKind.TOKEN, token, said)]

    def _message_delta(self, chunk: dict[str, Any]) -> list[StreamEvent]:
        events = []
        if reason := text(obj(chunk.get("delta")).get("stop_reason")):
            events.append(StreamEvent(EventKind.FINISH, finish_reason=reason[:100]))
        usage = self._usage(obj(chunk.get("usage")), final=True)
        server = body_timings(chunk)
        if usage is not None or server:
            events.append(StreamEvent(EventKind.USAGE, tokens=usage, server=server))
        return events

    def _usage(self, usage: dict[str, Any], final: bool) -> Tokens | None:
        read = count(usage.get("cache_read_input_tokens"))
        parts = [count(usage.get("input_tokens")), read, count(usage.get("cache_creation_input_tokens"))]
        output = count(usage.get("output_tokens")) if final else None
        found = tokens(
            output=output,
            reasoning=self._reasoning(usage) if output is not None else None,
            given=None if parts[0] is None else sum(part or 0 for part in parts),
            cached=read,
        )
        return None if found == Tokens() else refined(self.seen.tokens, found)

    def _reasoning(self, usage: dict[str, Any]) -> int | None:
        """Thinking has blocks or deltas of its own: a message without any has none; else only newer servers count."""
        told = count(obj(usage.get("output_tokens_details")).get("thinking_tokens"))
        return told if told is not None or self._thought else 0
