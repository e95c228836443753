"""How a prompt is asked in each dialect: address, headers, body."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from monitor.agent.dialects import DIALECTS, header_timings
from monitor.model import AwsCredentials, DialectName, Probe, Secret, Target

CHAT, RESPONSES, ANTHROPIC = DialectName.OPENAI_CHAT, DialectName.OPENAI_RESPONSES, DialectName.ANTHROPIC
GEMINI, OLLAMA, BEDROCK, COHERE = DialectName.GEMINI, DialectName.OLLAMA, DialectName.BEDROCK, DialectName.COHERE
STREAM = "/models/m:streamGenerateContent?alt=sse"
KEY = Secret("sk-planted-0123456789")
PROBE = Probe(name="short", prompt="Hi", max_output_tokens=16)


def target(dialect: DialectName = CHAT, url: str = "https://host/v1", **fields: Any) -> Target:
    defaults: dict[str, Any] = {"name": "t", "provider": "acme", "model": "m", "api_key": KEY}
    return Target(dialect=dialect, url=url, **(defaults | fields))


def test_every_dialect_has_an_entry() -> None:
    """The table is complete over the enum, and each entry knows its name."""
    assert {name: dialect.name for name, dialect in DIALECTS.items()} == {name: name for name in DialectName}


@pytest.mark.parametrize(
    ("dialect", "base", "url", "control"),
    [
        (CHAT, "https://host/v1", "https://host/v1/chat/completions", "https://host/v1/models"),
        (CHAT, "https://host/v1/", "https://host/v1/chat/completions", "https://host/v1/models"),
        (CHAT, "https://host", "https://host/chat/completions", "https://host/models"),
        (CHAT, "https://host/v1/chat/completions", "https://host/v1/chat/completions", "https://host/v1/models"),
        (
            CHAT,
            "http://[::1]:8000/v1?a=b",
            "http://[::1]:8000/v1/chat/completions?a=b",
            "http://[::1]:8000/v1/models?a=b",
        ),
        (
            CHAT,
            "https://r.openai.azure.com/openai/deployments/d?api-version=2024-10-21",
            "https://r.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21",
            "https://r.openai.azure.com/openai/models?api-version=2024-10-21",
        ),
        (RESPONSES, "https://host/v1", "https://host/v1/responses", "https://host/v1/models"),
        (RESPONSES, "https://host/v1/responses?x=1", "https://host/v1/responses?x=1", "https://host/v1/models?x=1"),
        (ANTHROPIC, "https://host", "https://host/v1/messages", "https://host/v1/models"),
        (ANTHROPIC, "https://host/v1", "https://host/v1/messages", "https://host/v1/models"),
        (ANTHROPIC, "https://host/v1/messages", "https://host/v1/messages", "https://host/v1/models"),
        (
            ANTHROPIC,
            "https://host/anthropic/",
            "https://host/anthropic/v1/messages",
            "https://host/anthropic/v1/models",
        ),
        (
            ANTHROPIC,
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/anthropic",
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/anthropic/models/m:streamRawPredict",
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/anthropic/models",
        ),
        (GEMINI, "https://host", f"https://host/v1beta{STREAM}", "https://host/v1beta/models"),
        (GEMINI, "https://host/v1beta/", f"https://host/v1beta{STREAM}", "https://host/v1beta/models"),
        (GEMINI, "https://host/v1?a=b", f"https://host/v1{STREAM.replace('?', '?a=b&')}", "https://host/v1/models?a=b"),
        (
            GEMINI,
            "https://host/v1/projects/p/locations/l/publishers/google",
            f"https://host/v1/projects/p/locations/l/publishers/google{STREAM}",
            "https://host/v1/projects/p/locations/l/publishers/google/models",
        ),
        (OLLAMA, "http://host:11434", "http://host:11434/api/chat", "http://host:11434/api/tags"),
        (OLLAMA, "http://host/x/api/chat", "http://host/x/api/chat", "http://host/x/api/tags"),
        (COHERE, "https://host", "https://host/v2/chat", "https://host/v1/models"),
        (COHERE, "https://host/v2", "https://host/v2/chat", "https://host/v1/models"),
        (COHERE, "https://host/v2/chat", "https://host/v2/chat", "https://host/v1/models"),
        (BEDROCK, "https://host", "https://host/model/m/converse-stream", "https://host/async-invoke"),
        (BEDROCK, "https://host/converse-stream", "https://host/model/m/converse-stream", "https://host/async-invoke"),
        (
            BEDROCK,
            "https://host/invoke-with-response-stream",
            "https://host/model/m/invoke-with-response-stream",
            "https://host/async-invoke",
        ),
        (ANTHROPIC, "https://host/api/v1?x=1", "https://host/api/v1/messages?x=1", "https://host/api/v1/models?x=1"),
    ],
)
def test_addresses(dialect: DialectName, base: str, url: str, control: str) -> None:
    """The base URL is what the vendor's SDK takes; a query such as ?api-version= stays."""
    asked = target(dialect, base)
    assert DIALECTS[dialect].request(asked, PROBE, "Hi").url == url
    assert DIALECTS[dialect].control_url(asked) == control


def test_keys_go_where_each_provider_wants_them_and_stay_secret() -> None:
    """Bearer, x-api-key or Azure's api-key; without a key no such header; never visible in a repr."""
    bearer = DIALECTS[CHAT].request(target(), PROBE, "Hi")
    assert bearer.headers["authorization"] == Secret("Bearer sk-planted-0123456789")
    assert DIALECTS[CHAT].request(target(auth_header="api-key"), PROBE, "Hi").headers["api-key"] == KEY
    anthropic = DIALECTS[ANTHROPIC].request(target(ANTHROPIC), PROBE, "Hi")
    assert (anthropic.headers["x-api-key"], anthropic.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in anthropic.headers
    assert DIALECTS[GEMINI].request(target(GEMINI), PROBE, "Hi").headers["x-goog-api-key"] == KEY
    vertex = DIALECTS[GEMINI].request(target(GEMINI, auth_header="authorization"), PROBE, "Hi").headers
    assert vertex["authorization"] == Secret("Bearer sk-planted-0123456789")
    for dialect in DialectName:
        assert "planted" not in repr(DIALECTS[dialect].request(target(dialect), PROBE, "Hi"))
        bare = DIALECTS[dialect].request(target(dialect, api_key=None), PROBE, "Hi").headers
        assert not {"authorization", "x-api-key", "api-key", "x-goog-api-key"} & set(bare)


def test_own_headers_win_whatever_their_case() -> None:
    """A target's header replaces the dialect's of the same name instead of standing beside it."""
    headers = DIALECTS[CHAT].request(target(headers={"Accept": "*/*", "X-Team": "ops"}), PROBE, "Hi").headers
    assert (headers["accept"], headers["x-team"]) == ("*/*", "ops")
    assert (headers["content-type"], headers["accept-encoding"]) == ("application/json", "identity")


def test_bodies() -> None:
    """The smallest streaming request of each dialect, capped, with usage asked for and nothing stored."""
    message = [{"role": "user", "content": "Hi"}]
    assert DIALECTS[CHAT].request(target(), PROBE, "Hi").body == {
        "model": "m",
        "messages": message,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16,
    }
    assert DIALECTS[RESPONSES].request(target(RESPONSES), PROBE, "Hi").body == {
        "model": "m",
        "input": "Hi",
        "stream": True,
        "max_output_tokens": 16,
        "store": False,
    }
    assert DIALECTS[ANTHROPIC].request(target(ANTHROPIC), PROBE, "Hi").body == {
        "model": "m",
        "max_tokens": 16,
        "messages": message,
        "stream": True,
    }


def test_bodies_beyond_openai_and_anthropic() -> None:
    """The same for Gemini, Vertex Claude, Ollama, Cohere and Bedrock in both forms."""
    message = [{"role": "user", "content": "Hi"}]
    parts = [{"role": "user", "content": [{"text": "Hi"}]}]
    assert DIALECTS[GEMINI].request(target(GEMINI), PROBE, "Hi").body == {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "generationConfig": {"maxOutputTokens": 16},
    }
    vertex = target(ANTHROPIC, "https://host/v1/projects/p/locations/l/publishers/anthropic")
    assert DIALECTS[ANTHROPIC].request(vertex, PROBE, "Hi").body == {
        "anthropic_version": "vertex-2023-10-16",
        "max_tokens": 16,
        "messages": message,
        "stream": True,
    }
    assert DIALECTS[OLLAMA].request(target(OLLAMA), PROBE, "Hi").body == {
        "model": "m",
        "messages": message,
        "stream": True,
        "options": {"num_predict": 16},
    }
    assert DIALECTS[COHERE].request(target(COHERE), PROBE, "Hi").body == {
        "model": "m",
        "messages": message,
        "stream": True,
        "max_tokens": 16,
    }
    converse = {"messages": parts, "inferenceConfig": {"maxTokens": 16}}
    assert DIALECTS[BEDROCK].request(target(BEDROCK), PROBE, "Hi").body == converse


@pytest.mark.parametrize(
    ("model", "cap"),
    [
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "max_tokens"),
        ("amazon.nova-micro-v1:0", "inferenceConfig"),
        ("amazon.titan-text-lite-v1", "textGenerationConfig"),
        ("meta.llama3-8b-instruct-v1:0", "max_gen_len"),
        ("cohere.command-light-text-v14", "max_tokens"),
        ("openai.gpt-oss-120b-1:0", "max_tokens"),
    ],
)
def test_invoke_model_asks_each_family_in_its_own_words(model: str, cap: str) -> None:
    """The model's id tells its family; the id is one segment of the path, its colon encoded."""
    asked = target(BEDROCK, "https://host/invoke-with-response-stream", model=model)
    parts = DIALECTS[BEDROCK].request(asked, PROBE, "Hi")
    assert parts.url.endswith(f"/model/{model.replace(':', '%3A')}/invoke-with-response-stream")
    assert "16" in json.dumps(parts.body[cap])


def test_bedrock_takes_a_bearer_or_aws_credentials() -> None:
    """An API key is a bearer; credentials sign the request, for the host's region unless another is given."""
    url = "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert DIALECTS[BEDROCK].request(target(BEDROCK, url), PROBE, "Hi").sign is None
    aws = AwsCredentials(access_key_id=Secret("AKIDPLANTED"), secret_access_key=Secret("planted-secret"))
    signed = DIALECTS[BEDROCK].request(target(BEDROCK, url, api_key=None, aws=aws), PROBE, "Hi")
    assert signed.sign is not None
    headers = signed.sign("POST", signed.url, b"{}", datetime(2026, 1, 31, 12, tzinfo=UTC))
    assert isinstance(headers["authorization"], Secret)
    assert "/20260131/eu-west-1/bedrock/aws4_request" in headers["authorization"].reveal()
    assert headers["x-amz-date"] == "20260131T120000Z"
    assert "planted" not in repr(signed).lower()


def test_the_cap_is_named_as_the_provider_wants_it() -> None:
    """OpenAI's newer models refuse max_tokens."""
    body = DIALECTS[CHAT].request(target(cap_field="max_completion_tokens"), PROBE, "Hi").body
    assert body["max_completion_tokens"] == 16
    assert "max_tokens" not in body


def test_the_targets_body_is_merged_over() -> None:
    """Objects merge, None removes a key, everything else replaces; the target itself stays as it is."""
    own = {
        "temperature": 0,
        "stream_options": {"include_obfuscation": False},
        "max_tokens": None,
        "reasoning": {"effort": None, "enabled": False},
    }
    body = DIALECTS[CHAT].request(target(body=own), PROBE, "Hi").body
    assert body["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    assert body["reasoning"] == {"enabled": False}
    assert body["temperature"] == 0
    assert "max_tokens" not in body
    assert own["reasoning"] == {"effort": None, "enabled": False}
    json.dumps(body)
    removed = DIALECTS[CHAT].request(target(body={"stream_options": None}), PROBE, "Hi").body
    assert "stream_options" not in removed


def test_header_timings() -> None:
    """What response headers say about the server's own time, in seconds; nonsense is absent."""
    assert header_timings({"openai-processing-ms": "313", "x-envoy-upstream-service-time": "329"}) == pytest.approx(
        {"processing": 0.313, "upstream": 0.329}
    )
    assert header_timings({"server-timing": "gfet4t7; dur=712"}) == pytest.approx({"origin": 0.712})
    assert header_timings({"openai-processing-ms": "soon", "server-timing": "x;dur=.", "x-queue-time": "-1"}) == {}
