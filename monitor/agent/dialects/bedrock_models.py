"""What model families say through Bedrock's InvokeModel, where each keeps its own request and its own chunks."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any

from monitor.agent.dialects.anthropic import AnthropicDecoder
from monitor.agent.dialects.openai_chat import OpenAIChatDecoder
from monitor.agent.dialects.sse_decoder import DONE, error_event, protocol_error
from monitor.agent.dialects.timings import invocation_timings
from monitor.agent.dialects.usage import converse_tokens, first_count, refined, tokens
from monitor.agent.error_bodies import has_error
from monitor.agent.events import EventKind, Seen, StreamEvent, TokenKind
from monitor.agent.foreign_json import NOT_JSON, items, obj, parse, text
from monitor.model import Tokens

METRICS = "amazon-bedrock-invocationMetrics"
ANTHROPIC_VERSION = "bedrock-2023-05-31"

_Converse = Callable[[str, dict[str, Any]], Iterator[StreamEvent]]


def native_body(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    """The body of the model's family, told by its id; an unknown family is asked in the shape of chat completions."""
    message = {"role": "user", "content": prompt}
    if "anthropic." in model:
        return {"anthropic_version": ANTHROPIC_VERSION, "max_tokens": max_tokens, "messages": [message]}
    if "amazon.nova" in model:
        parts = [{"role": "user", "content": [{"text": prompt}]}]
        return {"messages": parts, "inferenceConfig": {"maxTokens": max_tokens}}
    if "amazon.titan" in model:
        return {"inputText": prompt, "textGenerationConfig": {"maxTokenCount": max_tokens}}
    if "meta.llama" in model:
        return {"prompt": prompt, "max_gen_len": max_tokens}
    if "cohere.command-" in model and "-r" not in model:
        return {"prompt": prompt, "max_tokens": max_tokens, "stream": True}
    return {"messages": [message], "max_tokens": max_tokens}


class ModelReader:
    """Reads `chunk` messages. Shares the account of what was seen with the decoder that it serves."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._anthropic = AnthropicDecoder()
        self._chat = OpenAIChatDecoder()
        self._anthropic.seen = self._chat.seen = seen

    def chunk(self, payload: dict[str, Any], converse: _Converse) -> Iterator[StreamEvent]:
        """The events in one chunk; `converse` reads what has the shape of ConverseStream (Nova)."""
        said = _unwrapped(payload)
        if not isinstance(said, dict):
            yield protocol_error("a chunk whose bytes are no JSON object")
            return
        yield from self._said(said, converse)
        if METRICS in said:
            yield from self._metrics(obj(said[METRICS]))

    def _said(self, said: dict[str, Any], converse: _Converse) -> Iterator[StreamEvent]:
        """DONE comes with the metrics alone: the family's own marker, where it has one, may precede them."""
        if "choices" in said:
            yield from self._chat.read("", said)
        elif text(said.get("type")):
            yield from (event for event in self._anthropic.read("", said) if event.kind is not EventKind.DONE)
        elif (name := next((key for key in said if key in _NOVA), None)) is not None:
            events = converse(name, obj(said[name]))
            yield from (event for event in events if event.kind is not EventKind.DONE)
        elif has_error(said):
            yield error_event(said)
        else:
            yield from _completion(said)

    def _metrics(self, metrics: dict[str, Any]) -> Iterator[StreamEvent]:
        counted = tokens(
            output=first_count(metrics.get("outputTokenCount")),
            reasoning=None,
            given=None,
            cached=None,
        )
        given = converse_tokens(
            {
                "inputTokens": metrics.get("inputTokenCount"),
                "cacheReadInputTokens": metrics.get("cacheReadInputTokenCount"),
                "cacheWriteInputTokens": metrics.get("cacheWriteInputTokenCount"),
            }
        )
        known = self._seen.tokens  # the family's own counts stand; the metrics add what it does not say
        found = refined(refined(given or Tokens(), counted), known)
        yield StreamEvent(EventKind.USAGE, tokens=found, server=invocation_timings(metrics))
        yield DONE


_NOVA = frozenset(
    {"messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)
_TEXTS = ("completion", "outputText", "generation", "text")
_REASONS = ("stop_reason", "completionReason", "finish_reason")


def _completion(said: dict[str, Any]) -> Iterator[StreamEvent]:
    """The flat shapes: Claude's old completions, Titan, Llama, Cohere; Mistral's list of outputs."""
    for part in [said, *map(obj, items(said.get("outputs")))]:
        for key in _TEXTS:
            if told := text(part.get(key)):
                yield StreamEvent(EventKind.TOKEN, TokenKind.TEXT, told)
        for key in _REASONS:
            if reason := text(part.get(key)):
                yield StreamEvent(EventKind.FINISH, finish_reason=reason[:100])


def _unwrapped(payload: dict[str, Any]) -> Any:
    try:
        return parse(base64.b64decode(text(payload.get("bytes")), validate=True).decode("utf-8", "replace"))
    except (binascii.Error, ValueError):
        return NOT_JSON
