"""What a simulated model will say, before any dialect words it: tokens of three kinds and an ending."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

from monitor.simulator.behaviour import Behaviour, Content, ErrorKind
from monitor.simulator.question import Question
from monitor.simulator.refusals import known_error
from monitor.simulator.sendlog import SendKind

TOOL_NAME = "report_weather"


class Frame(NamedTuple):
    """One event ready for the wire. `step` is its place on the grid: -1 goes with the headers, k with token k."""

    kind: SendKind
    step: int
    data: bytes
    token: int | None = None  # its number


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The plan of one answer."""

    id: str
    model: str
    created: int  # Unix seconds
    reasoning: tuple[str, ...]
    visible: tuple[str, ...]  # words, or pieces of a tool call's JSON arguments
    content: Content
    finish: str  # stop, length, tool_calls, refusal or content_filter: the dialects translate
    question: Question
    timings: Callable[[], dict[str, Any] | None]  # llama.cpp's, asked when the usage is written
    error: Callable[[ErrorKind], dict[str, Any]]  # the vendor's JSON of an error

    @property
    def tokens(self) -> int:
        """All generated tokens: what `output` usage says."""
        return len(self.reasoning) + len(self.visible)

    @property
    def text(self) -> str:
        return "".join(self.visible)


def plan(
    behaviour: Behaviour,
    question: Question,
    *,
    id: str,
    created: int,
    timings: Callable[[], dict[str, Any] | None] = lambda: None,
) -> Answer:
    """Decide the answer: reasoning first, then the visible part, both under the request's cap."""
    cap = question.cap if question.cap is not None else behaviour.tokens + behaviour.reasoning_tokens
    thought = min(behaviour.reasoning_tokens, cap)
    said = min(behaviour.tokens, cap - thought)
    cut = thought + said < behaviour.tokens + behaviour.reasoning_tokens
    return Answer(
        id=id,
        model=question.model,
        created=created,
        reasoning=tuple(islice(_words("Let me think about that step by step. "), thought)),
        visible=tuple(_visible(behaviour, said)),
        content=behaviour.content,
        finish=behaviour.finish_reason or ("length" if cut else _natural(behaviour.content)),
        question=question,
        timings=timings,
        error=lambda kind: known_error(question.dialect, kind, id)[1],
    )


def _natural(content: Content) -> str:
    return {Content.TEXT: "stop", Content.TOOL_CALL: "tool_calls", Content.REFUSAL: "refusal"}[content]


def _visible(behaviour: Behaviour, count: int) -> Iterator[str]:
    if behaviour.content is Content.TOOL_CALL:
        return iter(_arguments(count))
    text = "I cannot help with that request. " if behaviour.content is Content.REFUSAL else behaviour.text
    return islice(_words(text), count)


def _words(text: str) -> Iterator[str]:
    """Words for ever, each after the first with its leading space, as tokenizers cut them."""
    words = text.split(" ")
    words = [w for w in words if w] or ["."]
    for number, word in enumerate(cycle(words)):
        yield f" {word}" if number else word


def _arguments(count: int) -> list[str]:
    """A JSON object cut into `count` pieces that together parse."""
    if count < 3:
        return [[], ['{"city":"Lagos"}'], ['{"city":', '"Lagos"}']][count]
    return ['{"city":"', *(["Lagos "] * (count - 2)), '"}']
