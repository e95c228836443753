"""Gemini: Google's API and Vertex, which differ in address and key alone.

Hides that a chunk is a whole response of its own. A generated token is a part with non-empty text (`thought: true`
makes it reasoning), a function call, or code to be executed; a signature alone and an empty part are none. Usage is in
most chunks, cumulative; thoughts are counted beside the candidates' tokens and added to the output here.

Terminal marker: there is none. The stream is complete when the body ends after a chunk with a `finishReason`. A
blocked prompt has no candidate but a `blockReason`, which counts as its finish reason. Errors come as
bare JSON without `data:`.

The newer interactions API (`interaction.*` and `step.*` events) is read as well; its marker is `interaction.completed`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from monitor.agent.dialects import gemini_interactions
from monitor.agent.dialects.asking import keyed_headers, merged
from monitor.agent.dialects.contract import RequestParts
from monitor.agent.dialects.sse_decoder import DONE, SSEDecoder, error_event
from monitor.agent.dialects.usage import tokens
from monitor.agent.error_bodies import has_error
from monitor.agent.events import EventKind, StreamEvent, TokenKind
from monitor.agent.foreign_json import count, items, obj, text
from monitor.agent.sse import Frame
from monitor.model import DialectName, Probe, Target, Tokens

API_VERSION = "v1beta"
KEY_HEADER = "x-goog-api-key"


class Gemini:
    name = DialectName.GEMINI

    def request(self, target: Target, probe: Probe, prompt: str) -> RequestParts:
        body = {
            "contents": [{"role": "user", "parts": [{"text": prompt}]}],
            "generationConfig": {"maxOutputTokens": probe.max_output_tokens},
        }
        url = _url(target.url, f"/models/{quote(target.model, safe='')}:streamGenerateContent", "alt=sse")
        return RequestParts(url, keyed_headers(target, KEY_HEADER), merged(body, target.body))

    def control_url(self, target: Target) -> str:
        return _url(target.url, "/models")

    def decoder(self) -> GeminiDecoder:
        return GeminiDecoder()


def _url(base: str, path: str, query: str = "") -> str:
    """The vendor's SDK takes a base without a version; people write it with, and Vertex's has a project behind it."""
    parts = urlsplit(base)
    stem = parts.path.rstrip("/")
    if not any(piece[:1] == "v" and piece[1:2].isdigit() for piece in stem.split("/")):
        stem += f"/{API_VERSION}"
    return urlunsplit((parts.scheme, parts.netloc, stem + path, "&".join(filter(None, (parts.query, query))), ""))


class GeminiDecoder(SSEDecoder):
    def __init__(self) -> None:
        super().__init__()
        self._whole = True  # the last frame could be read

    def recognises(self, event: str, chunk: dict[str, Any]) -> bool:
        return not _KEYS.isdisjoint(chunk) or gemini_interactions.recognises(event, chunk)

    def read(self, event: str, chunk: dict[str, Any]) -> list[StreamEvent]:
        self._whole = True
        if gemini_interactions.recognises(event, chunk):
            return list(gemini_interactions.read(event, chunk, self.seen))
        if chunk.get("error") or (_KEYS.isdisjoint(chunk) and has_error(chunk)):
            return [error_event(chunk)]
        candidates = [obj(candidate) for candidate in items(chunk.get("candidates"))]
        events = list(self._facts(chunk))
        for candidate in candidates:
            for part in map(obj, items(obj(candidate.get("content")).get("parts"))):
                events += _tokens(part)
        events += self._finishes(chunk, candidates)
        return events

    def finish(self) -> list[StreamEvent]:
        """The end of the body after a finish reason is the end of the answer, unless a chunk was cut off there."""
        events = super().finish()
        if self.finished and self._whole and not self.done and self.seen.failure is None:
            self.seen.add(DONE)
            events.append(DONE)
        return events

    def _unreadable(self, frame: Frame, data: str, chunk: Any) -> StreamEvent:
        self._whole = False
        return super()._unreadable(frame, data, chunk)

    def _facts(self, chunk: dict[str, Any]) -> Iterator[StreamEvent]:
        usage = obj(chunk.get("usageMetadata"))
        found = _usage(usage, self.seen.counts[TokenKind.REASONING] > 0)
        model = text(chunk.get("modelVersion"))[:200]
        model = model if model != self.seen.model else ""
        facts = self.news(
            tier=usage.get("trafficType") or usage.get("serviceTier"), response_id=chunk.get("responseId")
        )
        if found != Tokens() or model or facts:
            kind = self.idle().kind if found == Tokens() else EventKind.USAGE
            yield StreamEvent(kind, tokens=None if found == Tokens() else found, model=model or None, facts=facts)

    def _finishes(self, chunk: dict[str, Any], candidates: list[dict[str, Any]]) -> Iterator[StreamEvent]:
        for candidate in candidates:
            if reason := text(candidate.get("finishReason")):
                yield StreamEvent(EventKind.FINISH, finish_reason=reason[:100])
        if blocked := text(obj(chunk.get("promptFeedback")).get("blockReason")):
            plain = blocked if blocked not in _VAGUE else f"blocked: {blocked}"
            yield StreamEvent(EventKind.FINISH, finish_reason=plain[:100])


_KEYS = frozenset({"candidates", "usageMetadata", "promptFeedback", "modelVersion"})
_VAGUE = frozenset({"OTHER", "BLOCK_REASON_UNSPECIFIED"})
"""Reasons of a blocked prompt that would say nothing without the word before them."""


def _usage(usage: dict[str, Any], thought: bool) -> Tokens:
    """Output is candidates plus thoughts. A count that is 0 is left out by the server, but only beside a known sum."""
    said, thoughts = count(usage.get("candidatesTokenCount")), count(usage.get("thoughtsTokenCount"))
    given, total = count(usage.get("promptTokenCount")), count(usage.get("totalTokenCount"))
    if said is None and given is not None and total is not None:
        tool_use = count(usage.get("toolUsePromptTokenCount")) or 0
        rest = total - given - tool_use - (thoughts or 0)
        said = rest if rest >= 0 else None
    if thoughts is None and said is not None and not thought:
        thoughts = 0
    return tokens(
        output=None if said is None else said + (thoughts or 0),
        reasoning=thoughts,
        given=given,
        cached=count(usage.get("cachedContentTokenCount")),
    )


def _tokens(part: dict[str, Any]) -> Iterator[StreamEvent]:
    if said := text(part.get("text")):
        kind = TokenKind.REASONING if part.get("thought") is True else TokenKind.TEXT
        yield StreamEvent(EventKind.TOKEN, kind, said)
    call = obj(part.get("functionCall"))
    if call.get("name"):
        yield StreamEvent(EventKind.TOKEN, TokenKind.TOOL_CALL, json.dumps(obj(call.get("args"))))
    if code := text(obj(part.get("executableCode")).get("code")):
        yield StreamEvent(EventKind.TOKEN, TokenKind.TOOL_CALL, code)
