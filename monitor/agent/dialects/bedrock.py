"""Amazon Bedrock: ConverseStream, and InvokeModelWithResponseStream where the base URL ends with its path.

Hides the binary event stream and, for InvokeModel, that every model family answers in a shape of its own. Of Converse a
generated token is a `contentBlockDelta` with non-empty text, reasoning text or tool input; the name of a tool counts
when its block ends without input. `messageStart`, `contentBlockStart`, citations, signatures and redacted reasoning are
none. Padding (`p`) means nothing.

Terminal marker: `metadata` (Converse); the chunk with `amazon-bedrock-invocationMetrics` (InvokeModel), which alone has
the server's own time to first token. Exceptions inside the 200 are messages of their own kind.

Keys: a Bedrock API key goes as bearer, AWS credentials sign the request (SigV4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from monitor.agent import sigv4
from monitor.agent.dialects.asking import bearer_headers, joined, merged, replaced
from monitor.agent.dialects.bedrock_models import ModelReader, native_body
from monitor.agent.dialects.contract import BodyMemory, RequestParts
from monitor.agent.dialects.sse_decoder import DONE, OTHER, PREAMBLE, error_event, protocol_error
from monitor.agent.dialects.timings import bedrock_timings
from monitor.agent.dialects.usage import converse_tokens
from monitor.agent.error_bodies import has_error
from monitor.agent.events import EventKind, StreamEvent, TokenKind
from monitor.agent.eventstream import EventStreamParser, Message, TooLarge
from monitor.agent.foreign_json import NOT_JSON, obj, parse, text
from monitor.model import DialectName, FailureKind, Probe, Target

_CONVERSE, _INVOKE = "/converse-stream", "/invoke-with-response-stream"


class Bedrock:
    name = DialectName.BEDROCK

    def request(self, target: Target, probe: Probe, prompt: str) -> RequestParts:
        invoke = _invokes(target.url)
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": [{"text": prompt}]}],
            "inferenceConfig": {"maxTokens": probe.max_output_tokens},
        }
        if invoke:
            body = native_body(target.model, prompt, probe.max_output_tokens)
        headers = bearer_headers(target) | {"accept": "application/vnd.amazon.eventstream"}
        stem = replaced(replaced(target.url, _INVOKE, ""), _CONVERSE, "")
        url = joined(stem, f"/model/{quote(target.model, safe='')}{_INVOKE if invoke else _CONVERSE}")
        return RequestParts(url, headers, merged(body, target.body), sign=sigv4.signer(target, "bedrock"))

    def control_url(self, target: Target) -> str:
        """The runtime's host lists no models; it lists asynchronous invocations."""
        stem = replaced(replaced(target.url, _INVOKE, ""), _CONVERSE, "")
        return joined(stem, "/async-invoke")

    def decoder(self) -> BedrockDecoder:
        return BedrockDecoder()


def _invokes(url: str) -> bool:
    return url.partition("?")[0].rstrip("/").endswith(_INVOKE)


class BedrockDecoder(BodyMemory):
    def __init__(self) -> None:
        super().__init__()
        self._parser = EventStreamParser()
        self._models = ModelReader(self.seen)
        self._silent_tool = False  # a tool block is open that has streamed no input yet
        self._told = False  # what is wrong with the frames has been said

    def feed(self, data: bytes) -> list[StreamEvent]:
        self.remember(data)
        events: list[StreamEvent] = []
        for message in self._parser.feed(data):
            if self.seen.done:  # what trails after the end marker is not part of the answer
                return events
            events += self._taken(self._message(message))
        return events + self._taken(self._trouble())

    def finish(self) -> list[StreamEvent]:
        """The end of the body: a body that was text from the start may be an error with a 200."""
        if self._told or self.seen.done:
            return []
        self._told = True
        if self._is_text():
            chunk = parse(self.opening.decode("utf-8-sig", "replace"))
            return self._taken([error_event(chunk)] if has_error(chunk) else [])
        if self._parser.finish():
            self.seen.understood = True
            return self._taken([OTHER])  # a message was cut off: told by the missing end
        return []

    def _taken(self, events: list[StreamEvent]) -> list[StreamEvent]:
        for event in events:
            self.seen.add(event)
        return events

    def _trouble(self) -> list[StreamEvent]:
        broken = self._parser.broken
        if broken is None or self._told or self.seen.done or self._is_text():
            return []
        self._told = True
        if isinstance(broken, TooLarge):
            return [StreamEvent(EventKind.ERROR, failure=(FailureKind.TOO_LARGE, f"the stream holds {broken}"))]
        return [protocol_error(f"the event stream broke: {broken}")]

    def _is_text(self) -> bool:
        """Whether the body is JSON, HTML or text instead of an event stream: no length that is allowed begins so."""
        return self.opening[:1] >= b"\t"

    def _message(self, message: Message) -> list[StreamEvent]:
        headers = message.headers
        kind, name = headers.get(":message-type", ""), headers.get(":event-type", "")
        payload = parse(message.payload.decode("utf-8", "replace"))
        if kind in ("exception", "error") or ":exception-type" in headers:
            return [_exception(headers, obj(payload))]
        if payload is NOT_JSON or not isinstance(payload, dict):
            return [protocol_error(f"a {name[:40] or 'nameless'} message that is no JSON object")]
        self.seen.understood = self.seen.understood or name in _NAMES
        if name == "chunk":
            found = list(self._models.chunk(payload, self._converse))
        else:
            found = list(self._converse(name, payload))
        return found or [self._idle()]

    def _idle(self) -> StreamEvent:
        return OTHER if self.seen.token_events else PREAMBLE

    def _converse(self, name: str, payload: dict[str, Any]) -> Iterator[StreamEvent]:
        match name:
            case "contentBlockDelta":
                yield from self._delta(obj(payload.get("delta")))
            case "contentBlockStart":
                self._silent_tool = bool(obj(obj(payload.get("start")).get("toolUse")).get("name"))
            case "contentBlockStop":
                silent, self._silent_tool = self._silent_tool, False
                if silent:
                    yield StreamEvent(EventKind.TOKEN, TokenKind.TOOL_CALL)
            case "messageStop":
                if reason := text(payload.get("stopReason")):
                    yield StreamEvent(EventKind.FINISH, finish_reason=reason[:100])
            case "metadata":
                yield from _metadata(payload)
                yield DONE

    def _delta(self, delta: dict[str, Any]) -> Iterator[StreamEvent]:
        if said := text(delta.get("text")):
            yield StreamEvent(EventKind.TOKEN, TokenKind.TEXT, said)
        if thought := text(obj(delta.get("reasoningContent")).get("text")):
            yield StreamEvent(EventKind.TOKEN, TokenKind.REASONING, thought)
        if called := text(obj(delta.get("toolUse")).get("input")):
            self._silent_tool = False
            yield StreamEvent(EventKind.TOKEN, TokenKind.TOOL_CALL, called)


_NAMES = frozenset(
    {"chunk", "messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)


def _metadata(payload: dict[str, Any]) -> Iterator[StreamEvent]:
    tokens = converse_tokens(obj(payload.get("usage")))
    server = bedrock_timings(payload)
    facts = {"tier": tier} if (tier := text(obj(payload.get("serviceTier")).get("type"))) else {}
    if tokens is not None or server or facts:
        yield StreamEvent(EventKind.USAGE, tokens=tokens, server=server, facts=facts)


def _exception(headers: dict[str, str], payload: dict[str, Any]) -> StreamEvent:
    """An exception of the model or the service, or a fault of the transport, inside the 200."""
    name = headers.get(":exception-type") or headers.get(":error-code") or "exception"
    message = text(payload.get("message")) or text(payload.get("originalMessage")) or headers.get(":error-message", "")
    return error_event({"type": name, "message": message})
