"""Whether an answer that came whole is what the probe wants: judged after all marks, on what was kept of it.

Pure but for `judged`, which moves the costly checks off the measuring loop. Checks never stand inside the measured
time: they see a finished attempt, and of its record they change the outcome alone. Its times stay.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Never

from monitor.agent.scrub import scrub
from monitor.config.answers import first_mistake, pattern
from monitor.model import Attempt, Checks, Failure, FailureKind, Outcome, Secret
from monitor.timeline import Phase

MAX_CHARACTERS = 65_536
"""What is kept of a visible answer, where a check needs it."""
SHOWN = 120

Verdict = tuple[FailureKind, str]


@dataclass(slots=True)
class Answer:
    """The visible text of an answer, as far as it is kept."""

    pieces: list[str] = field(default_factory=list)
    kept: int = 0
    cut: bool = False

    def add(self, text: str) -> None:
        """Take what a token adds."""
        room = MAX_CHARACTERS - self.kept
        self.cut = self.cut or len(text) > room
        if room > 0 and text:
            self.pieces.append(text[:room])
            self.kept += min(room, len(text))

    @property
    def text(self) -> str:
        return "".join(self.pieces)


async def judged(attempt: Attempt, checks: Checks, answer: Answer | None, secrets: Iterable[Secret]) -> Attempt:
    """The attempt, or where it succeeded and a check fails, the same with the failure `check_failed`."""
    if attempt.outcome is not Outcome.SUCCESS or checks == Checks():
        return attempt
    kept = answer or Answer()
    if checks.regex or checks.json:
        verdict = await asyncio.to_thread(run_checks, checks, kept, attempt)
    else:
        verdict = run_checks(checks, kept, attempt)
    if verdict is None:
        return attempt
    kind, text = verdict
    failure = Failure(kind=kind, phase=Phase.GENERATE, text=scrub(text, secrets))
    return replace(attempt, outcome=Outcome.FAILED, failure=failure)


def run_checks(checks: Checks, answer: Answer, attempt: Attempt) -> Verdict | None:
    """None when all checks hold, else `check_failed` with a sentence: which check, what was found, what is allowed.

    The sentence holds some of the answer and is not scrubbed yet.
    """
    for check in (_finish_reason, _contains, _not_contains, _regex, _json, _min_tokens, _max_ttft):
        for name, found, allowed in check(checks, answer, attempt):
            return FailureKind.CHECK_FAILED, f"check {name}: found {found}; allowed: {allowed}"
    return None


Complaint = tuple[str, str, str]  # the check's name, what was found, what is allowed
Check = Callable[[Checks, Answer, Attempt], Iterator[Complaint]]


def _finish_reason(checks: Checks, _: Answer, attempt: Attempt) -> Iterator[Complaint]:
    allowed = {reason.lower() for reason in checks.finish_reasons}
    if allowed and (attempt.finish_reason or "").lower() not in allowed:
        yield "finish_reason", attempt.finish_reason or "none", ", ".join(checks.finish_reasons)


def _contains(checks: Checks, answer: Answer, _: Attempt) -> Iterator[Complaint]:
    for text in checks.contains:
        if text not in answer.text:
            yield "contains", _shown(answer), f"an answer with {_quoted(text)} in it"


def _not_contains(checks: Checks, answer: Answer, _: Attempt) -> Iterator[Complaint]:
    for text in checks.not_contains:
        if text in answer.text:
            yield "not_contains", _shown(answer, text), f"an answer without {_quoted(text)}"


def _regex(checks: Checks, answer: Answer, _: Attempt) -> Iterator[Complaint]:
    if checks.regex is not None and not pattern(checks.regex).search(answer.text):
        yield "regex", _shown(answer), f"an answer that matches {_quoted(checks.regex)}"


def _json(checks: Checks, answer: Answer, _: Attempt) -> Iterator[Complaint]:
    if not checks.json:
        return
    try:
        value = json.loads(answer.text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        yield "json", _shown(answer), "one JSON value and nothing else"
        return
    if isinstance(checks.json, str):
        mistake = _first_mistake(checks.json, value)
        if mistake is not None:
            yield "json", _clipped(mistake), "JSON that fits the schema"


def _first_mistake(schema: str, value: object) -> str | None:
    try:
        return first_mistake(schema, value)
    except RecursionError:
        return "JSON that is nested too deeply"


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON")


def _min_tokens(checks: Checks, _: Answer, attempt: Attempt) -> Iterator[Complaint]:
    """Tokens as the provider counts them, reasoning left out where it is told; uncounted: events with tokens."""
    if checks.min_tokens is None:
        return
    tokens = attempt.tokens
    counted = tokens.visible if tokens.visible is not None else tokens.output
    found = attempt.token_events if counted is None else counted
    if found < checks.min_tokens:
        unit = "events with tokens" if counted is None else "tokens"
        yield "min_tokens", f"{found} {unit}", f"at least {checks.min_tokens}"


def _max_ttft(checks: Checks, _: Answer, attempt: Attempt) -> Iterator[Complaint]:
    """Only where the measurement can be trusted: our own slowness is not the target's fault."""
    limit, ttft = checks.max_ttft_seconds, attempt.timeline.ttft
    if limit is not None and ttft is not None and ttft > limit and attempt.valid:
        yield "max_ttft", f"a first token after {ttft:.3f} s", f"at most {limit:g} s"


def _shown(answer: Answer, around: str = "") -> str:
    """The beginning of the answer, or the place that is meant."""
    text = answer.text
    begin = max(0, text.find(around) - 20) if around else 0
    end = f" (only the first {MAX_CHARACTERS:,} characters are looked at)" if answer.cut else ""
    return _quoted(text[begin:]) + end


def _quoted(text: str) -> str:
    return f'"{_clipped(text)}"'


def _clipped(text: str) -> str:
    line = " ".join(text[: 4 * SHOWN].split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"
