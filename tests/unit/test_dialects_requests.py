"""How a prompt is asked in each dialect: address, headers, body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitor.agent.dialects import DIALECTS, header_timings
from monitor.model import DialectName, Probe, Secret, Target

CHAT, RESPONSES, ANTHROPIC = DialectName.OPENAI_CHAT, DialectName.OPENAI_RESPONSES, DialectName.ANTHROPIC
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
    assert DIALECTS[CHAT].request(target(provider="azure"), PROBE, "Hi").headers["api-key"] == KEY
    anthropic = DIALECTS[ANTHROPIC].request(target(ANTHROPIC), PROBE, "Hi")
    assert (anthropic.headers["x-api-key"], anthropic.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "authorization" not in anthropic.headers
    for dialect in DialectName:
        assert "planted" not in repr(DIALECTS[dialect].request(target(dialect), PROBE, "Hi"))
        bare = DIALECTS[dialect].request(target(dialect, api_key=None), PROBE, "Hi").headers
        assert not {"authorization", "x-api-key", "api-key"} & set(bare)


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


@pytest.mark.parametrize("provider", ["openai", "azure"])
def test_the_cap_is_named_as_the_provider_wants_it(provider: str) -> None:
    """OpenAI's newer models refuse max_tokens."""
    body = DIALECTS[CHAT].request(target(provider=provider), PROBE, "Hi").body
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
