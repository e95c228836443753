"""What decoders yield: one small record for everything a stream can say, whatever the dialect.

Hides nothing of its own; it is the vocabulary between the dialects (which know the wire) and the probe (which sets
marks). One wire frame may yield several events: a last chunk can hold a token, the finish reason and the usage.
`Seen` adds events up to what a whole body said, so that nobody keeps that account twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from monitor.model import FailureKind, Tokens


class TokenKind(StrEnum):
    """What a generated token belongs to. TEXT and REFUSAL are visible output."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    REFUSAL = "refusal"


VISIBLE = frozenset({TokenKind.TEXT, TokenKind.REFUSAL})
"""The kinds whose arrival is `first_visible`."""


class EventKind(StrEnum):
    PREAMBLE = "preamble"  # role-only, empty or metadata frame before the first token: never a token
    TOKEN = "token"
    USAGE = "usage"
    FINISH = "finish"
    ERROR = "error"
    KEEPALIVE = "keepalive"  # comment, ping, empty data: proves liveness only
    DONE = "done"  # the dialect's terminal marker
    OTHER = "other"  # a frame without meaning for the measurement, after the first token


class StreamEvent(NamedTuple):
    """One thing a stream said.

    `text` is what a token adds: visible text, reasoning, or a tool's input (empty when only the tool was named).
    `tokens`, `server` and `model` may ride on an event of any kind. `tokens` is cumulative: each one replaces the one
    before. `server` holds provider-reported timings in seconds, keys as in `dialects/timings.py`. `failure` is set on
    ERROR alone; its text is scrubbed of what looks like a key, not yet of the caller's own secrets. `facts`: what the
    body says about its making (`fingerprint`, `tier`, `region`, `upstream`, `response_id`).
    """

    kind: EventKind
    token: TokenKind | None = None
    text: str = ""
    tokens: Tokens | None = None
    finish_reason: str | None = None
    server: Mapping[str, float] = MappingProxyType({})
    model: str | None = None
    failure: tuple[FailureKind, str] | None = None
    facts: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Seen:
    """What a body has said so far: the sum of its events."""

    frames: int = 0  # events that carried data: everything but keepalives
    keepalives: int = 0
    counts: dict[TokenKind, int] = field(default_factory=lambda: dict.fromkeys(TokenKind, 0))
    tokens: Tokens = field(default_factory=Tokens)
    finish_reason: str | None = None
    server: dict[str, float] = field(default_factory=dict)
    model: str | None = None
    failure: tuple[FailureKind, str] | None = None  # the first error: later ones are its echo
    done: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    understood: bool | None = None  # whether any object belonged to the dialect, whatever it said; None: there was none

    @property
    def token_events(self) -> int:
        """Events that carried generated tokens, of any kind."""
        return sum(self.counts.values())

    @property
    def visible_events(self) -> int:
        """Events that carried visible output."""
        return sum(self.counts[kind] for kind in VISIBLE)

    def add(self, event: StreamEvent) -> None:
        """Take one more event into account."""
        if event.kind is EventKind.KEEPALIVE:
            self.keepalives += 1
            return
        self.frames += 1
        if event.token is not None:
            self.counts[event.token] += 1
        self._add_facts(event)

    def _add_facts(self, event: StreamEvent) -> None:
        self.finish_reason = event.finish_reason or self.finish_reason
        self.tokens = event.tokens or self.tokens
        self.model = event.model or self.model
        self.failure = self.failure or event.failure
        self.done = self.done or event.kind is EventKind.DONE
        if event.server:
            self.server.update(event.server)
        if event.facts:
            self.facts.update(event.facts)
