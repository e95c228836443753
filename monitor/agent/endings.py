"""The rule what a body that ended means: success needs a finish reason, the terminal marker and no error object."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.agent.dialects.contract import Decoder
from monitor.agent.events import Seen, TokenKind
from monitor.agent.scrub import scrub
from monitor.model import FailureKind

K = FailureKind

FILTERED_REASONS = frozenset(
    {
        "content_filter",
        "refusal",
        "safety",
        "content_filtered",
        "guardrail_intervened",
        "prohibited_content",
        "blocklist",
        "recitation",
        "spii",
        "jailbreak",
        "model_armor",
        "image_safety",
        "image_prohibited_content",
    }
)
FAILED_REASONS = frozenset(
    {"error", "failed", "cancelled", "abort", "timeout", "insufficient_system_resource"}
    | {"malformed_function_call", "unexpected_tool_call", "too_many_tool_calls"}  # Gemini: the answer cannot be used
    | {"malformed_model_output", "malformed_tool_use"}
)  # Bedrock
"""Finish reasons that mean the server gave up (OpenRouter, Mistral, vLLM, SGLang, DeepSeek, Responses)."""

_ANSWERS = (TokenKind.REFUSAL, TokenKind.TEXT, TokenKind.TOOL_CALL)
_OUTRIGHT = frozenset({K.PROTOCOL_ERROR, K.TOO_LARGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is known when the body of a 200 has ended cleanly, or its terminal marker came."""

    content_type: str = ""
    opening: bytes = b""  # the first 2 kB
    body_bytes: int = 0
    seen: Seen = field(default_factory=Seen)

    @classmethod
    def of(cls, decoder: Decoder, content_type: str = "") -> Ending:
        """The ending as a decoder saw it (after its `finish`)."""
        return cls(content_type=content_type, opening=decoder.opening, body_bytes=decoder.body_bytes, seen=decoder.seen)


def judge(ending: Ending) -> tuple[FailureKind, str] | None:
    """None for a success, else the failure kind and its sentence.

    An error object inside the 200 is `stream_error` whatever it complains about; the sentence says what. Whether the
    body is a stream at all is decided by what came, not by the content type, which is wrong too often.
    """
    return _error(ending.seen) or _not_a_stream(ending) or _cut(ending) or _content(ending.seen)


def _error(seen: Seen) -> tuple[FailureKind, str] | None:
    if seen.failure is not None:
        kind, text = seen.failure
        if kind in _OUTRIGHT:
            return kind, scrub(text)
        meaning = "" if kind is K.STREAM_ERROR else f" ({kind.value})"
        return K.STREAM_ERROR, scrub(f"error inside a 200{meaning}: {text}")
    if (seen.finish_reason or "").lower() in FAILED_REASONS:
        return K.STREAM_ERROR, f"the stream ended with the finish reason {seen.finish_reason!r}"
    return None


def _not_a_stream(ending: Ending) -> tuple[FailureKind, str] | None:
    first = ending.opening.removeprefix(b"\xef\xbb\xbf").lstrip()
    if first[:1] == b"<":
        return K.NOT_A_STREAM, f"an HTML page instead of a stream: {_begins(ending)}"
    if first[:1] in (b"{", b"[") and not _is_ndjson(ending, first):
        return K.NOT_A_STREAM, f"one JSON answer instead of a stream: {_begins(ending)}"
    silent = not ending.seen.frames and not ending.seen.keepalives
    silent = silent or (not ending.seen.understood and first[:1] == b"\0")  # AWS frames hold line ends and colons
    if not first or not silent:
        return None
    if _is_text(first):
        return K.NOT_A_STREAM, f"plain text instead of a stream: {_begins(ending)}"
    return K.PROTOCOL_ERROR, f"{ending.body_bytes} bytes that are no text ({ending.content_type[:60] or 'no type'})"


def _begins(ending: Ending) -> str:
    return scrub(ending.opening[:300].decode("utf-8", "replace"), limit=200)


def _is_ndjson(ending: Ending, first: bytes) -> bool:
    """Lines of JSON that were understood are a stream, unless it is a single one that calls itself plain JSON."""
    alone = b"\n" not in first.strip() and ending.content_type.lower().startswith("application/json")
    return bool(ending.seen.understood) and not alone


def _is_text(data: bytes) -> bool:
    if any(byte < 9 or 13 < byte < 32 for byte in data):
        return False
    try:
        data[:-3].decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def _cut(ending: Ending) -> tuple[FailureKind, str] | None:
    seen = ending.seen
    if seen.done and seen.finish_reason:
        return None
    if seen.understood is False:
        return K.PROTOCOL_ERROR, f"a stream of another protocol: none of its {seen.frames} events is of this dialect"
    if not ending.body_bytes:
        return K.TRUNCATED, "the response ended without a single byte of body"
    if not seen.frames:
        return K.TRUNCATED, f"the stream ended before its first event, after {seen.keepalives} keep-alives"
    missing = "its end marker" if seen.finish_reason else "a finish reason"
    missing = missing if seen.done or seen.finish_reason else "a finish reason and its end marker"
    return K.TRUNCATED, f"the stream ended without {missing}, after {seen.token_events} token events"


def _content(seen: Seen) -> tuple[FailureKind, str] | None:
    """What a stream that ended properly held."""
    reason = seen.finish_reason or ""
    refused, text, called = (seen.counts[kind] for kind in _ANSWERS)
    if reason.lower() in FILTERED_REASONS or reason.startswith("blocked:"):
        return K.FILTERED, f"the provider withheld the answer: finish reason {reason!r}"
    if refused and not text:
        return K.FILTERED, f"the model refused to answer (finish reason {reason!r})"
    if text or called:
        return None
    thought = seen.tokens.reasoning
    if thought or seen.token_events:
        spent = f"{thought} reasoning tokens" if thought else "the reasoning"
        return K.REASONING_ONLY, f"{spent} used up the output, nothing visible came (finish reason {reason!r})"
    return K.EMPTY_ANSWER, f"the stream ended properly without a single token (finish reason {reason!r})"
