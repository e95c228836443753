"""The SDKs of Google, Cohere, Mistral and AWS as judges of recorded streams, as `test_sdk_judges.py` has it for two.

Each reads the recorded body as the answer of its own provider: google-genai, cohere and mistralai through their HTTP
client, botocore from a server on loopback, with its own signing, checksums and event stream. What they make of it is
the golden table `tests/golden/streams/judged_more.jsonl`; `python tests/integration/test_more_sdk_judges.py` writes it
anew.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STREAMS = ROOT.parent / "shared" / "recorded_streams" / "streams.jsonl.gz"
GOLDEN = ROOT / "tests" / "golden" / "streams" / "judged_more.jsonl"


def digest(said: str) -> str:
    """A text without the text: its length and a hash."""
    return f"{len(said)}:{hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"


def inputs(objects: Iterable[Any]) -> str:
    return digest("".join(json.dumps(value, sort_keys=True) for value in objects))


def replaying(body: bytes) -> Any:
    """An HTTP client that gets `body` as the answer to whatever it asks."""
    import httpx

    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    return httpx.Client(transport=httpx.MockTransport(lambda request: response))


def judge_gemini(body: bytes) -> dict[str, Any]:
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="none", http_options=types.HttpOptions(httpx_client=replaying(body)))
    parts, finish, model, usage = [], None, None, None
    for chunk in client.models.generate_content_stream(model="m", contents="x"):
        usage, model = chunk.usage_metadata or usage, chunk.model_version or model
        for candidate in chunk.candidates or []:
            finish = candidate.finish_reason.value if candidate.finish_reason else finish
            parts += (candidate.content and candidate.content.parts) or []
    return {
        "text": digest("".join(part.text or "" for part in parts if not part.thought)),
        "reasoning_text": digest("".join(part.text or "" for part in parts if part.thought)),
        "calls": inputs(part.function_call.args for part in parts if part.function_call),
        "finish": finish,
        "model": model,
        "output": usage and _sum(usage.candidates_token_count, usage.thoughts_token_count),
        "reasoning": usage and usage.thoughts_token_count,
        "input": usage and usage.prompt_token_count,
        "cached": usage and usage.cached_content_token_count,
    }


def _sum(said: int | None, thought: int | None) -> int | None:
    return None if said is None else said + (thought or 0)


def judge_cohere(body: bytes) -> dict[str, Any]:
    import cohere

    text = thought = calls = ""
    end: Any = None
    for event in cohere.ClientV2(api_key="none", httpx_client=replaying(body)).chat_stream(model="m", messages=[]):
        message = event.delta.message if getattr(event, "delta", None) and event.type != "message-end" else None
        match event.type:
            case "content-delta":
                text += message.content.text or ""
                thought += getattr(message.content, "thinking", None) or ""
            case "tool-plan-delta":
                text += message.tool_plan or ""
            case "tool-call-start" | "tool-call-delta":
                calls += message.tool_calls.function.arguments or ""
            case "message-end":
                end = event.delta
    usage = end.usage
    return {
        "text": digest(text),
        "reasoning_text": digest(thought),
        "calls": digest(calls),
        "finish": end.finish_reason,
        "output": int(usage.tokens.output_tokens),
        "input": int(usage.tokens.input_tokens),
        "cached": int(usage.cached_tokens) if usage.cached_tokens is not None else None,
    }


def judge_mistral(body: bytes) -> dict[str, Any]:
    from mistralai.client import Mistral

    text, thought, calls, finish, model, usage = "", "", "", None, None, None
    question = [{"role": "user", "content": "x"}]
    for event in Mistral(api_key="none", client=replaying(body)).chat.stream(model="m", messages=question):
        chunk = event.data
        usage, model = chunk.usage or usage, chunk.model
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            content = choice.delta.content or ""
            for part in [content] if isinstance(content, str) else content:
                text += part if isinstance(part, str) else getattr(part, "text", "")
                thought += "".join(inner.text for inner in getattr(part, "thinking", []))
            calls += "".join(_arguments(call.function.arguments) for call in choice.delta.tool_calls or [])
    return {
        "text": digest(text),
        "reasoning_text": digest(thought),
        "calls": digest(calls),
        "finish": finish,
        "model": model,
        "output": usage and usage.completion_tokens,
        "input": usage and usage.prompt_tokens,
    }


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@contextmanager
def served(body: bytes) -> Iterator[str]:
    """A server on loopback that answers every POST with `body`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/vnd.amazon.eventstream")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


_clients: list[Any] = []


def bedrock_client(url: str) -> Any:
    import botocore.session
    from botocore.config import Config

    if not _clients:
        _clients.append(botocore.session.Session())
    return _clients[0].create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=Config(retries={"max_attempts": 0}, proxies={}),
    )


def judge_converse(body: bytes) -> dict[str, Any]:
    text, thought, calls, finish, usage, latency = "", "", "", None, {}, None
    with served(body) as url:
        answer = bedrock_client(url).converse_stream(modelId="m", messages=[])
        for event in answer["stream"]:
            delta = event.get("contentBlockDelta", {}).get("delta", {})
            text += delta.get("text", "")
            thought += delta.get("reasoningContent", {}).get("text", "")
            calls += delta.get("toolUse", {}).get("input", "")
            finish = event.get("messageStop", {}).get("stopReason", finish)
            usage = event.get("metadata", {}).get("usage", usage)
            latency = event.get("metadata", {}).get("metrics", {}).get("latencyMs", latency)
    cached, written = usage.get("cacheReadInputTokens"), usage.get("cacheWriteInputTokens")
    return {
        "text": digest(text),
        "reasoning_text": digest(thought),
        "calls": digest(calls),
        "finish": finish,
        "output": usage["outputTokens"],
        "input": usage["inputTokens"] + (cached or 0) + (written or 0),
        "cached": cached,
        "server": {"total": latency / 1000},
    }


def judge_invoke(body: bytes) -> dict[str, Any]:
    """What is common to all model families: botocore hands out their own JSON, in which the metrics stand last."""
    with served(body) as url:
        answer = bedrock_client(url).invoke_model_with_response_stream(modelId="m", body=b"{}")
        chunks = [json.loads(event["chunk"]["bytes"]) for event in answer["body"]]
    metrics = chunks[-1]["amazon-bedrock-invocationMetrics"]
    said = [_family_text(chunk) for chunk in chunks]
    return {
        "text": digest("".join(said)),
        "server": {"ttft": metrics["firstByteLatency"] / 1000, "total": metrics["invocationLatency"] / 1000},
    }


def _family_text(chunk: dict[str, Any]) -> str:
    delta = chunk.get("contentBlockDelta", chunk).get("delta", {})
    flat = next((chunk[key] for key in ("completion", "outputText", "generation", "text") if key in chunk), "")
    return delta.get("text", "") or flat


def judge_of(stream: dict[str, Any]) -> tuple[str, Callable[[bytes], dict[str, Any]]] | None:
    where = stream["host"] + stream["path"]
    if stream["status"] != 200:
        return None
    for part, name, judge in _JUDGES:
        if part in where:
            return name, judge
    return None


_JUDGES: tuple[tuple[str, str, Callable[[bytes], dict[str, Any]]], ...] = (
    ("streamGenerateContent", "gemini", judge_gemini),
    ("/v2/chat", "cohere", judge_cohere),
    ("api.mistral.ai", "openai_chat", judge_mistral),
    ("/converse-stream", "bedrock", judge_converse),
    ("/invoke-with-response-stream", "bedrock", judge_invoke),
)


def judged() -> Iterator[dict[str, Any]]:
    """What the SDKs make of every recorded stream of their providers."""
    with gzip.open(STREAMS, "rt") as file:
        streams = [json.loads(line) for line in file]
    for stream in streams:
        if (found := judge_of(stream)) is not None:
            name, judge = found
            yield {"id": stream["id"], "dialect": name, **judge(base64.b64decode(stream["body"]))}


def test_the_golden_table_is_what_these_sdks_read() -> None:
    """The expected values of the recorded streams are the SDKs' reading, not ours."""
    for name in ("google.genai", "cohere", "mistralai.client", "botocore.session"):
        pytest.importorskip(name, reason="the judges extra is not installed")
    if not STREAMS.exists():
        pytest.skip("recorded streams are not here")
    golden = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    assert list(judged()) == golden


if __name__ == "__main__":
    GOLDEN.write_text("".join(json.dumps(row) + "\n" for row in judged()))
