"""Token counts in every accounting that OpenAI-shaped providers use, as one `Tokens`.

`output` is all generated tokens with reasoning; `visible` is output minus reasoning when both are known. Where a
provider counts reasoning beside the completion (xAI chat: 496 in + 77 out + 121 reasoning = 694 total), that is
recognised by its own total, or by more reasoning than output, and added.
"""

from __future__ import annotations

from typing import Any

from monitor.agent.foreign_json import count, obj
from monitor.model import Tokens


def tokens(
    *, output: int | None, reasoning: int | None, given: int | None, cached: int | None, total: int | None = None
) -> Tokens:
    """Counts as reported, `visible` derived, reasoning that the provider left out of `output` added."""
    if output is not None and reasoning:
        beside = given is not None and total == given + output + reasoning
        if beside or reasoning > output:
            output += reasoning
    visible = None if output is None or reasoning is None else output - reasoning
    return Tokens(output=output, reasoning=reasoning, visible=visible, input=given, cached=cached)


def first_count(*candidates: Any) -> int | None:
    """The first candidate that is a count."""
    return next((n for n in map(count, candidates) if n is not None), None)


def openai_tokens(usage: Any, thought: bool = False) -> Tokens | None:
    """The `usage` object of chat completions and of responses, in all known spellings; None when it says nothing.

    `thought`: reasoning was seen in the stream, so that a reported 0 of it (Snowflake) means "not counted".
    """
    usage = obj(usage)
    out_details = obj(usage.get("completion_tokens_details")) or obj(usage.get("output_tokens_details"))
    in_details = obj(usage.get("prompt_tokens_details")) or obj(usage.get("input_tokens_details"))
    reasoning = first_count(out_details.get("reasoning_tokens"), usage.get("reasoning_tokens"))
    found = tokens(
        output=first_count(usage.get("completion_tokens"), usage.get("output_tokens")),
        reasoning=None if thought and not reasoning else reasoning,
        given=first_count(usage.get("prompt_tokens"), usage.get("input_tokens")),
        cached=first_count(
            in_details.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens")
        ),
        total=count(usage.get("total_tokens")),
    )
    return None if found == Tokens() else found


def refined(known: Tokens, later: Tokens) -> Tokens:
    """The later report over the earlier one; what it does not mention stays."""
    return Tokens(
        output=known.output if later.output is None else later.output,
        reasoning=known.reasoning if later.reasoning is None else later.reasoning,
        visible=known.visible if later.output is None else later.visible,
        input=known.input if later.input is None else later.input,
        cached=known.cached if later.cached is None else later.cached,
    )


def converse_tokens(usage: Any) -> Tokens | None:
    """The `usage` object of Bedrock: input is the sum of uncached, cache-read and cache-written tokens."""
    usage = obj(usage)
    read = first_count(usage.get("cacheReadInputTokens"), usage.get("cacheReadInputTokenCount"))
    written = first_count(usage.get("cacheWriteInputTokens"), usage.get("cacheWriteInputTokenCount"))
    given = count(usage.get("inputTokens"))
    found = tokens(
        output=count(usage.get("outputTokens")),
        reasoning=None,
        given=None if given is None else given + (read or 0) + (written or 0),
        cached=read,
    )
    return None if found == Tokens() else found
