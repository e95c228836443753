"""The vendors' own SDKs talk to the simulator: independent judges of its wire formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from monitor.simulator import SimulatorProcess

MODELS: dict[str, dict[str, object]] = {
    "text": {"tokens": 6, "reasoning_tokens": 2},
    "tool": {"tokens": 5, "content": "tool_call"},
    "refusal": {"tokens": 4, "content": "refusal"},
    "crowded": {"status": 429},
    "failing": {"fault": "error_event"},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A simulator with an API key."""
    quick = {name: {"ttft_seconds": 0.01, "tokens_per_second": 500, **more} for name, more in MODELS.items()}
    with SimulatorProcess({"listeners": [{"models": quick, "api_key": "sk-x"}]}) as sim:
        yield sim.url()


@pytest.fixture
def openai(url: str) -> Any:
    library = pytest.importorskip("openai")
    return library.OpenAI(api_key="sk-x", base_url=url, max_retries=0)


@pytest.fixture
def anthropic(url: str) -> Any:
    library = pytest.importorskip("anthropic")
    return library.Anthropic(api_key="sk-x", base_url=url.removesuffix("/v1"), max_retries=0)


def chat(openai: Any, model: str) -> Any:
    """The final completion of a chat stream, accumulated by the SDK."""
    said = [{"role": "user", "content": "x"}]
    more: dict[str, Any] = {"stream_options": {"include_usage": True}}
    with openai.chat.completions.stream(model=model, messages=said, **more) as stream:
        return stream.get_final_completion()


def test_openai_reads_chat_streams(openai: Any) -> None:
    """Text, usage, tool calls and refusals arrive as OpenAI's SDK understands them."""
    text = chat(openai, "text")
    assert text.choices[0].message.content == "The light in a glass fibre"
    assert text.choices[0].finish_reason == "stop"
    assert (text.usage.completion_tokens, text.usage.completion_tokens_details.reasoning_tokens) == (8, 2)
    call = chat(openai, "tool").choices[0]
    assert call.finish_reason == "tool_calls"
    assert call.message.tool_calls[0].function.arguments == '{"city":"Lagos Lagos Lagos "}'
    assert chat(openai, "refusal").choices[0].message.refusal == "I cannot help with"


def test_openai_reads_responses_streams(openai: Any) -> None:
    """The same over the Responses API, whose SDK checks item and part indices while it accumulates."""

    def final(model: str) -> Any:
        with openai.responses.stream(model=model, input="x") as stream:
            return stream.get_final_response()

    text = final("text")
    assert text.output_text == "The light in a glass fibre"
    assert (text.status, text.usage.output_tokens) == ("completed", 8)
    assert text.output[0].summary[0].text == "Let me"
    assert final("tool").output[0].arguments == '{"city":"Lagos Lagos Lagos "}'
    assert final("refusal").output[0].content[0].refusal == "I cannot help with"


def test_anthropic_reads_message_streams(anthropic: Any) -> None:
    """Thinking, text and tool use are accumulated by Anthropic's SDK, with usage and stop reasons."""

    def final(model: str) -> Any:
        said = [{"role": "user", "content": "x"}]
        with anthropic.messages.stream(model=model, max_tokens=100, messages=said) as stream:
            return stream.get_final_message()

    text = final("text")
    assert [block.type for block in text.content] == ["thinking", "text"]
    assert text.content[1].text == "The light in a glass fibre"
    assert (text.stop_reason, text.usage.output_tokens) == ("end_turn", 8)
    tool = final("tool")
    assert (tool.stop_reason, tool.content[0].input) == ("tool_use", {"city": "Lagos Lagos Lagos "})
    assert final("refusal").stop_reason == "refusal"


def test_whole_answers_and_model_lists_are_read(openai: Any, anthropic: Any) -> None:
    """Without streaming, and for the control request, the SDKs find what they expect."""
    said = [{"role": "user", "content": "x"}]
    assert openai.chat.completions.create(model="text", messages=said).choices[0].message.content.startswith("The")
    assert openai.responses.create(model="text", input="x").output_text.startswith("The")
    whole = anthropic.messages.create(model="text", max_tokens=100, messages=said)
    assert whole.content[1].text.startswith("The")
    assert [model.id for model in openai.models.list()] == list(MODELS)
    assert [model.id for model in anthropic.models.list()] == list(MODELS)


def test_the_sdks_raise_the_right_errors(url: str, openai: Any, anthropic: Any) -> None:
    """Wrong key, unknown model, rate limit, and an error inside a stream are each the SDK's own exception."""
    libraries = (pytest.importorskip("openai"), pytest.importorskip("anthropic"))
    said = [{"role": "user", "content": "x"}]
    for library, ask in (
        (libraries[0], lambda model: openai.chat.completions.create(model=model, messages=said)),
        (libraries[1], lambda model: anthropic.messages.create(model=model, max_tokens=9, messages=said)),
    ):
        with pytest.raises(library.NotFoundError):
            ask("gone")
        with pytest.raises(library.RateLimitError):
            ask("crowded")
    with pytest.raises(libraries[0].APIError, match="overloaded"):
        chat(openai, "failing")
    with (
        pytest.raises(libraries[1].APIStatusError, match="Overloaded"),
        anthropic.messages.stream(model="failing", max_tokens=9, messages=said) as stream,
    ):
        stream.get_final_message()
    with pytest.raises(libraries[0].AuthenticationError):
        libraries[0].OpenAI(api_key="bad", base_url=url, max_retries=0).models.list()
