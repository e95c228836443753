"""The wire formats of the simulated vendors: each turns an Answer into frames. A registry, nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monitor.model import DialectName
from monitor.simulator.answer import Answer, Frame
from monitor.simulator.dialects import anthropic, openai_chat, openai_responses


@dataclass(frozen=True, slots=True)
class Wording:
    """One dialect's three ways to answer."""

    frames: Callable[[Answer], Iterator[Frame]]
    error_frames: Callable[[Answer, dict[str, Any], int, int], Iterator[Frame]]  # inside a 200: at step, after events
    whole: Callable[[Answer], dict[str, Any]]


WORDINGS: Mapping[DialectName, Wording] = {
    DialectName.OPENAI_CHAT: Wording(openai_chat.frames, openai_chat.error_frames, openai_chat.whole),
    DialectName.OPENAI_RESPONSES: Wording(
        openai_responses.frames, openai_responses.error_frames, openai_responses.whole
    ),
    DialectName.ANTHROPIC: Wording(anthropic.frames, anthropic.error_frames, anthropic.whole),
}
