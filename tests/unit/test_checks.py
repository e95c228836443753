"""Checks on answers: what each lets pass, what it says of the rest, and that no answer can make one hang."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from monitor.agent.checks import MAX_CHARACTERS, Answer, judged, run_checks
from monitor.config.answers import Unusable, first_mistake, pattern, schema_text
from monitor.model import Attempt, Checks, Doubt, Failure, FailureKind, Outcome, Probe, Secret, Tokens
from monitor.timeline import Mark, Phase, Timeline

AT = datetime(2026, 3, 1, tzinfo=UTC)
GOOD = Attempt(
    vantage="lagos",
    target="t",
    probe="q",
    probe_version="v",
    scheduled_at=AT,
    started_at=AT,
    outcome=Outcome.SUCCESS,
    timeline=Timeline({Mark.FIRST_TOKEN: 250_000_000, Mark.END: 900_000_000}),
    tokens=Tokens(output=12, reasoning=4, visible=8),
    token_events=9,
    finish_reason="stop",
)
TEXT = "One, two, three."
SUM = schema_text({"type": "object", "required": ["sum"], "properties": {"sum": {"const": 42}}})


def answer(*pieces: str) -> Answer:
    kept = Answer()
    for piece in pieces:
        kept.add(piece)
    return kept


def complaint(checks: Checks, text: str = TEXT, attempt: Attempt = GOOD) -> str | None:
    verdict = run_checks(checks, answer(text), attempt)
    if verdict is None:
        return None
    assert verdict[0] is FailureKind.CHECK_FAILED
    return verdict[1]


@pytest.mark.parametrize(
    ("checks", "text"),
    [
        (Checks(), ""),
        (Checks(contains=("One", "three")), TEXT),
        (Checks(not_contains=("four",)), TEXT),
        (Checks(regex=r"(?i)\bTWO\b"), TEXT),
        (Checks(json=True), ' {"a": [1, 2.5e3, null]}\n'),
        (Checks(json=SUM), '{"sum": 42, "more": "x"}'),
        (Checks(min_tokens=8), TEXT),
        (Checks(finish_reasons=("end_turn", "STOP")), TEXT),
        (Checks(max_ttft_seconds=0.25), TEXT),
    ],
)
def test_what_passes(checks: Checks, text: str) -> None:
    """An answer that is as wanted, at the bounds too, is no failure."""
    assert complaint(checks, text) is None


@pytest.mark.parametrize(
    ("checks", "text", "said"),
    [
        (
            Checks(contains=("One", "four")),
            TEXT,
            'check contains: found "One, two, three."; allowed: an answer with "four" in it',
        ),
        (
            Checks(not_contains=("two",)),
            TEXT,
            'check not_contains: found "One, two, three."; allowed: an answer without "two"',
        ),
        (
            Checks(regex=r"^\d+$"),
            TEXT,
            r'check regex: found "One, two, three."; allowed: an answer that matches "^\d+$"',
        ),
        (
            Checks(json=True),
            "```json\n{}\n```",
            'check json: found "```json {} ```"; allowed: one JSON value and nothing else',
        ),
        (Checks(json=True), "[NaN]", 'check json: found "[NaN]"; allowed: one JSON value and nothing else'),
        (Checks(json=True), "", 'check json: found ""; allowed: one JSON value and nothing else'),
        (Checks(json=SUM), '{"sum": 41}', "check json: found sum: 42 was expected; allowed: JSON that fits the schema"),
        (Checks(json=SUM), "[]", "check json: found [] is not of type 'object'; allowed: JSON that fits the schema"),
        (Checks(min_tokens=9), TEXT, "check min_tokens: found 8 tokens; allowed: at least 9"),
        (Checks(finish_reasons=("end_turn",)), TEXT, "check finish_reason: found stop; allowed: end_turn"),
        (
            Checks(max_ttft_seconds=0.2),
            TEXT,
            "check max_ttft: found a first token after 0.250 s; allowed: at most 0.2 s",
        ),
    ],
)
def test_what_is_said(checks: Checks, text: str, said: str) -> None:
    """Which check, what was found, what is allowed; in that order."""
    assert complaint(checks, text) == said


def test_tokens_without_a_count() -> None:
    """Where the provider counts nothing, its events with tokens are what is known; reasoning counts where not told."""
    uncounted = replace(GOOD, tokens=Tokens(), token_events=3)
    assert complaint(Checks(min_tokens=3), attempt=uncounted) is None
    assert "found 3 events with tokens" in str(complaint(Checks(min_tokens=4), attempt=uncounted))
    assert "found 12 tokens" in str(complaint(Checks(min_tokens=13), attempt=replace(GOOD, tokens=Tokens(output=12))))


def test_our_own_slowness_is_not_the_targets_fault() -> None:
    """`max_ttft` is left out where the measurement is in doubt."""
    assert complaint(Checks(max_ttft_seconds=0.1), attempt=replace(GOOD, validity=(Doubt.LOOP_LAG,))) is None
    assert complaint(Checks(max_ttft_seconds=0.1), attempt=replace(GOOD, validity=(Doubt.COALESCED,))) is not None


def test_the_answer_is_kept_up_to_a_bound() -> None:
    """A huge answer costs bounded memory, and a check that looked at its beginning alone says so."""
    kept = answer(*["x" * 10_000] * 500, "needle")
    assert len(kept.text) == MAX_CHARACTERS
    verdict = run_checks(Checks(contains=("needle",)), kept, GOOD)
    assert verdict is not None
    assert "only the first 65,536 characters are looked at" in verdict[1]
    assert len(verdict[1]) < 500


def test_a_failed_check_changes_the_outcome_alone() -> None:
    """Times, tokens and facts stay; the failure is scrubbed of the target's secrets."""
    checks = Checks(contains=("four",))
    key = Secret("a-planted-key-0123456789")
    made = asyncio.run(judged(GOOD, checks, answer(f"my key is {key.reveal()}"), [key]))
    assert made.failure is not None
    assert (made.failure.kind, made.failure.phase) == (FailureKind.CHECK_FAILED, Phase.GENERATE)
    assert key.reveal() not in made.failure.text
    assert "my key is ***" in made.failure.text
    assert replace(made, outcome=Outcome.SUCCESS, failure=None) == GOOD


def test_only_successes_are_checked() -> None:
    """What failed already keeps its own cause."""
    failure = Failure(kind=FailureKind.TRUNCATED, phase=Phase.GENERATE, text="cut")
    cut = replace(GOOD, outcome=Outcome.FAILED, failure=failure)
    assert asyncio.run(judged(cut, Checks(contains=("four",)), answer(TEXT), [])) is cut


def test_checks_are_no_part_of_the_version() -> None:
    """A new check does not begin a new history."""
    assert Probe(name="q", prompt="hi").version == Probe(name="q", prompt="hi", checks=Checks(regex="x")).version


@pytest.mark.parametrize(
    "hard", [r"(a+)+$", r"(a|aa)+$", r"(x+x+)+y", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(.*)(.*)(.*)x$"]
)
def test_patterns_that_hang_other_engines(hard: str) -> None:
    """RE2 is through in time linear in the text: seconds are what years are elsewhere."""
    began = time.monotonic()
    assert not pattern(hard).search("a" * MAX_CHARACTERS + "!")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "bad", ["(", "(?=x)", r"(a)\1", "a{1,99999999}", "(((((((((a{9}){9}){9}){9}){9}){9}){9}){9}){9})", "*", "x\\"]
)
def test_patterns_that_are_refused(bad: str) -> None:
    """What RE2 cannot do in bounded time and memory it refuses in words."""
    with pytest.raises(Unusable, match=r"[a-z]{3}"):
        pattern(bad)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "text"}, "type"),
        ({"$ref": "https://example.com/schema"}, r"it uses \$ref"),
        ({"items": [{"$ref": "#"}]}, r"it uses \$ref"),
        ({"properties": {"a": {"pattern": "("}}}, "missing"),
        ({"patternProperties": {"(?=a)": {}}}, "invalid perl operator"),
        ({"enum": ["x" * 20_000]}, "characters"),
    ],
)
def test_schemas_that_are_refused(schema: dict[str, object], said: str) -> None:
    """References would fetch, recurse or multiply; a mistake in the schema shows when the file is read."""
    with pytest.raises(Unusable, match=said):
        schema_text(schema)


def test_patterns_inside_schemas_are_re2s() -> None:
    """The three keywords that could hang in jsonschema are our own."""
    hard = schema_text({"items": {"pattern": "^(a+)+$"}, "uniqueItems": True})
    assert first_mistake(hard, ["a" * 5000 + "!"]) is not None
    assert first_mistake(hard, ["a", "aa"]) is None
    assert first_mistake(hard, ["a", "a"]) == "items that occur more than once"
    many = [{"a": number} for number in range(20_000)]
    assert first_mistake(schema_text({"uniqueItems": True}), many) is None
    below = schema_text({"patternProperties": {"^n_": {"type": "integer"}}})
    assert first_mistake(below, {"n_a": 1, "x": "y"}) is None
    assert first_mistake(below, {"n_a": "y"}) == "n_a: 'y' is not of type 'integer'"


@pytest.mark.parametrize("text", ["[" * 60_000, '{"a":' * 20_000, "1" * 60_000, "[" * 900 + "]" * 900])
def test_hostile_json_ends(text: str) -> None:
    """Deep nesting and endless numbers are a failed check at most."""
    run_checks(Checks(json=SUM), answer(text), GOOD)
