"""Ollama's own protocol: newline-delimited JSON of `/api/chat` (and of `/api/generate`, whose answer is read too).

A generated token is a non-empty `message.content` (`response` in generate), `message.thinking`, or a tool call. The
server writes its headers with the first line, so queue, load and prefill all lie before them; the last line says how
long each took (nanoseconds; zero values are left out).

Terminal marker: the line with `done: true`, which also has the reason. A line with `error` after the first token is an
error inside a 200. `eval_count` counts all generated tokens; thinking is not counted apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from monitor.agent.dialects.asking import bearer_headers, joined, merged, replaced
from monitor.agent.dialects.contract import RequestParts
from monitor.agent.dialects.ndjson_decoder import NDJSONDecoder
from monitor.agent.dialects.sse_decoder import DONE, error_event, model_of
from monitor.agent.dialects.timings import ollama_timings
from monitor.agent.dialects.usage import tokens
from monitor.agent.error_bodies import has_error
from monitor.agent.events import EventKind, StreamEvent, TokenKind
from monitor.agent.foreign_json import count, items, obj, text
from monitor.model import DialectName, Probe, Target, Tokens

_PATH = "/api/chat"


class Ollama:
    name = DialectName.OLLAMA

    def request(self, target: Target, probe: Probe, prompt: str) -> RequestParts:
        body = {
            "model": target.model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "options": {"num_predict": probe.max_output_tokens},
        }
        headers = bearer_headers(target) | {"accept": "application/x-ndjson"}
        return RequestParts(joined(target.url, _PATH), headers, merged(body, target.body))

    def control_url(self, target: Target) -> str:
        return replaced(joined(target.url, _PATH), _PATH, "/api/tags")

    def decoder(self) -> OllamaDecoder:
        return OllamaDecoder()


class OllamaDecoder(NDJSONDecoder):
    def read(self, chunk: dict[str, Any]) -> list[StreamEvent]:
        known = "done" in chunk or "message" in chunk or "response" in chunk
        self.seen.understood = self.seen.understood or known
        if chunk.get("error") or (not known and has_error(chunk)):
            return [error_event(chunk)]
        events = list(_tokens(chunk))
        if model := model_of(chunk, self.seen.model):
            events.append(StreamEvent(self.idle().kind, model=model))
        if chunk.get("done") is True:
            events += self._end(chunk)
        return events

    def _end(self, chunk: dict[str, Any]) -> Iterator[StreamEvent]:
        """The last line. Older servers name no reason; `done` itself is one then."""
        yield StreamEvent(EventKind.FINISH, finish_reason=(text(chunk.get("done_reason")) or "done")[:100])
        output = count(chunk.get("eval_count"))
        thought = self.seen.counts[TokenKind.REASONING] > 0
        found = tokens(
            output=output,
            reasoning=0 if output is not None and not thought else None,
            given=count(chunk.get("prompt_eval_count")),
            cached=count(chunk.get("prompt_eval_cached_count")),
        )
        server = ollama_timings(chunk)
        if found != Tokens() or server:
            yield StreamEvent(EventKind.USAGE, tokens=found, server=server)
        yield DONE


def _tokens(chunk: dict[str, Any]) -> Iterator[StreamEvent]:
    message = obj(chunk.get("message"))
    if thought := text(message.get("thinking")) or text(chunk.get("thinking")):
        yield StreamEvent(EventKind.TOKEN, TokenKind.REASONING, thought)
    if said := text(message.get("content")) or text(chunk.get("response")):
        yield StreamEvent(EventKind.TOKEN, TokenKind.TEXT, said)
    for call in map(obj, items(message.get("tool_calls"))):
        function = obj(call.get("function"))
        if function.get("name"):
            yield StreamEvent(EventKind.TOKEN, TokenKind.TOOL_CALL, _json(function.get("arguments")))


def _json(value: Any) -> str:
    return json.dumps(value) if value else ""
