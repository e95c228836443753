"""The vendors' own SDKs read the recorded bytes: the independent judges of text, tool calls, finish reason and usage.

Each SDK gets the recorded body as its HTTP response (that is the SDK's input; nothing of ours is replaced), and what
it makes of it is compared with the golden table `tests/golden/streams/judged.jsonl`, against which the unit tests
hold our decoders. `python tests/integration/test_sdk_judges.py` writes the table anew, from the SDKs alone.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STREAMS = ROOT.parent / "shared" / "recorded_streams" / "streams.jsonl.gz"
GOLDEN = ROOT / "tests" / "golden" / "streams" / "judged.jsonl"


def dialect(stream: dict[str, Any]) -> str | None:
    """Which of our dialects a recording speaks, by its path; None for another one."""
    path = stream["path"]
    if path.endswith("/completions"):
        return "openai_chat"
    if "/responses" in path:
        return "openai_responses"
    return "anthropic" if path.endswith("/v1/messages") else None


def digest(said: str) -> str:
    """A text without the text: its length and a hash."""
    return f"{len(said)}:{hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"


def client(library: Any, transport_library: Any, body: bytes) -> Any:
    """An SDK client that gets `body` as the answer to whatever it asks."""
    response = transport_library.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    transport = transport_library.MockTransport(lambda request: response)
    make = library.OpenAI if hasattr(library, "OpenAI") else library.Anthropic
    return make(
        api_key="none",
        base_url="http://judge/v1",
        http_client=transport_library.Client(transport=transport),
        max_retries=0,
    )


def judge_chat(sdk: Any) -> dict[str, Any]:
    text, calls, usage, finish, model = "", "", None, None, None
    for chunk in sdk.chat.completions.create(model="m", messages=[], stream=True):
        usage = chunk.usage or usage
        model = model or chunk.model
        for choice in chunk.choices or []:
            finish = choice.finish_reason or finish
            delta = choice.delta
            if delta is None:
                continue
            if isinstance(delta.content, list):
                text = None
            elif text is not None:
                text += delta.content or ""
            for call in delta.tool_calls or []:
                calls += (call.function.arguments or "") if call.function else ""
    details = usage and usage.completion_tokens_details
    return {
        "text": None if text is None else digest(text),
        "calls": digest(calls),
        "finish": finish,
        "model": model,
        "output": usage and usage.completion_tokens,
        "reasoning": details and details.reasoning_tokens,
        "input": usage and usage.prompt_tokens,
        "cached": usage and usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens,
    }


def judge_responses(sdk: Any) -> dict[str, Any]:
    *_, last = sdk.responses.create(model="m", input="", stream=True)
    response = last.response
    usage = response.usage
    calls = [item.arguments for item in response.output if item.type == "function_call"]
    return {
        "text": digest(response.output_text),
        "calls": digest("".join(calls)),
        "finish": response.incomplete_details.reason if response.incomplete_details else response.status,
        "model": response.model,
        "output": usage and usage.output_tokens,
        "reasoning": usage and usage.output_tokens_details and usage.output_tokens_details.reasoning_tokens,
        "input": usage and usage.input_tokens,
        "cached": usage and usage.input_tokens_details and usage.input_tokens_details.cached_tokens,
    }


def judge_anthropic(sdk: Any) -> dict[str, Any]:
    with sdk.messages.stream(model="m", max_tokens=1, messages=[]) as stream:
        message = stream.get_final_message()
    usage = message.usage
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    inputs = [json.dumps(b.input, sort_keys=True) for b in message.content if b.type == "tool_use"]
    return {
        "text": digest("".join(block.text for block in message.content if block.type == "text")),
        "calls": digest("".join(inputs)),
        "finish": message.stop_reason,
        "model": message.model,
        "output": usage.output_tokens,
        "input": usage.input_tokens + (read or 0) + (written or 0),
        "cached": read,
    }


JUDGES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "openai_chat": judge_chat,
    "openai_responses": judge_responses,
    "anthropic": judge_anthropic,
}


def judged() -> Iterable[dict[str, Any]]:
    """What the SDKs make of every recorded stream of our dialects."""
    import anthropic
    import httpx2
    import openai

    with gzip.open(STREAMS, "rt") as file:
        lines = file.readlines()
    for line in lines:
        stream = json.loads(line)
        name = dialect(stream)
        if name is None:
            continue
        library = anthropic if name == "anthropic" else openai
        sdk = client(library, httpx2, base64.b64decode(stream["body"]))
        try:
            said = JUDGES[name](sdk)
        except library.APIError as error:
            said = {"error": str(error)[:80]}
        yield {"id": stream["id"], "dialect": name, **said}


def test_the_golden_table_is_what_the_official_sdks_read() -> None:
    """The expected values of the recorded streams are the SDKs' reading, not ours."""
    pytest.importorskip("openai", reason="the judges extra is not installed")
    pytest.importorskip("anthropic", reason="the judges extra is not installed")
    if not STREAMS.exists():
        pytest.skip("recorded streams are not here")
    golden = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    assert list(judged()) == golden


if __name__ == "__main__":
    GOLDEN.write_text("".join(json.dumps(row) + "\n" for row in judged()))
