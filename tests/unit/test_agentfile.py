"""An agent's own file: everything it may say, and every mistake with its line and what is allowed, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.config import InvalidConfig
from monitor.config.agentfile import load_agent_file
from monitor.model import Secret

TOKEN = "ftv_planted-token-0123456789"
KEY = "sk-planted-0123456789"
START = "hub: https://h.example\ntoken_file: token\n"
GOOD = """hub: https://hub.example.com/
token_file: token
state: state
metrics: 127.0.0.1:9464
spool: {max_bytes: 10MB, max_age: 2d}
secrets:
  OPENAI_API_KEY: {origin: "https://API.openai.com", file: openai.key}
  OWN_KEY: {origin: "http://10.0.0.5:8000", env: MINE}
log: {level: debug, format: json}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "openai.key").write_text(KEY)
    (tmp_path / "ca.pem").write_text("x")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    (folder / "agent.yaml").write_text(text)
    return folder / "agent.yaml"


def mistakes(folder: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        load_agent_file(write(folder, text), environ)
    said = [str(one) for one in caught.value.mistakes]
    assert not any(secret in "".join(said) for secret in (TOKEN, KEY))
    return said


def test_everything_that_it_may_say(folder: Path) -> None:
    """Paths start at the file, secrets come from files or the environment, origins are spelled one way."""
    own = load_agent_file(write(folder, GOOD), {"MINE": "own-secret-value"})
    assert (own.hub, own.token) == ("https://hub.example.com", Secret(TOKEN))
    assert (own.spool.directory, own.spool.max_bytes) == (str(folder / "state"), 10_000_000)
    assert (own.metrics, own.log.level, own.log.format) == (("127.0.0.1", 9464), "debug", "json")
    assert own.trusted.secrets["OPENAI_API_KEY"].origin == "https://api.openai.com:443"
    assert own.trusted.secrets["OPENAI_API_KEY"].value == Secret(KEY)
    assert own.trusted.secrets["OWN_KEY"].value == Secret("own-secret-value")
    assert {Secret(TOKEN), Secret(KEY), Secret("own-secret-value")} <= set(own.known_secrets)
    assert TOKEN not in repr(own)
    assert KEY not in repr(own)


def test_little_is_needed(folder: Path) -> None:
    """A hub and a token; the state folder is the user's own."""
    own = load_agent_file(write(folder, "hub: http://127.0.0.1:8765\ntoken: ${T}\n"), {"T": TOKEN, "HOME": "/home/x"})
    assert own.spool.directory == "/home/x/.local/state/firsttoken"
    assert own.trusted.secrets == {}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("token_file: token\n", 1, "hub: found nothing"),
        ("hub: hub.example.com\ntoken_file: token\n", 1, "http://host or https://host"),
        ("hub: http://hub.example.com\ntoken_file: token\n", 1, "would carry the token readable"),
        ("hub: https://h.example\n", 1, "token_file: found nothing"),
        ("hub: https://h.example\ntoken: ${NOT_SET}\n", 2, "which is not set"),
        ("hub: https://h.example\ntoken_file: nowhere\n", 2, "cannot be read"),
        ("hub: https://h.example\ntoken: ${T}\ntoken_file: token\n", 3, "both token and token_file"),
        ("hub: https://h.example\ntoken_file: token\nca_file: nowhere\n", 3, "a path that is no file"),
        ("hub: https://h.example\ntoken_file: token\nca_files: [nowhere]\n", 3, "a path that is no file"),
        ("hub: https://h.example\ntoken_file: token\nproxy: socks5://x:1\n", 3, "http://host:port"),
        ("hub: https://h.example\ntoken_file: token\nmetrics: 9464\n", 3, "host:port"),
        ("hub: https://h.example\ntoken_file: token\ntokens: x\n", 3, "an unknown key"),
        ("hub: https://h.example\ntoken_file: token\nsecrets: [a]\n", 3, "a mapping such as"),
        ("hub: https://h.example\ntoken_file: token\nsecrets:\n  A: {file: openai.key}\n", 4, "origin: found nothing"),
        (
            "hub: https://h.example\ntoken_file: token\nsecrets:\n  A: {origin: api.openai.com, env: T}\n",
            4,
            "such as https://api.openai.com",
        ),
        (f"{START}secrets:\n  A: {{origin: 'https://a.example/v1', env: T}}\n", 4, "without a path"),
        (f"{START}secrets:\n  A: {{origin: 'https://a.example'}}\n", 3, "neither file"),
        (
            f"{START}secrets:\n  A: {{origin: 'https://a.example', file: token, env: T}}\n",
            3,
            "both file and env",
        ),
        (
            "hub: https://h.example\ntoken_file: token\nsecrets:\n  A: {origin: 'https://a.example', env: NOPE}\n",
            3,
            "NOPE, which is not set",
        ),
        (f"{START}secrets:\n  a-b: {{origin: 'https://a.example', env: T}}\n", 4, "a name such as"),
        ("hub: https://h.example\ntoken_file: token\nspool: {max_age: soon}\n", 3, "max_age"),
        ("[]\n", 1, "a mapping with the keys"),
        ("hub: [\n", 2, "broken YAML"),
    ],
)
def test_each_mistake_has_its_line(folder: Path, text: str, line: int, words: str) -> None:
    """One mistake, one sentence: where, what was found, what is allowed."""
    said = mistakes(folder, text, T=TOKEN)
    assert any(f"agent.yaml:{line}:" in one and words in one for one in said), said
    assert len(said) == 1, said


def test_all_mistakes_at_once(folder: Path) -> None:
    """Whoever mends the file mends it once."""
    said = mistakes(folder, "hub: ftp://x\nproxy: nonsense\nmetrics: no\ntoken_file: nowhere\n")
    assert len(said) == 4


def test_plain_http_is_allowed_on_this_machine_or_when_it_is_said(folder: Path) -> None:
    """Loopback needs no TLS; a tunnel may be said to need none."""
    for text in ("hub: http://localhost:1\n", "hub: http://[::1]:1\n", "hub: http://10.1.2.3:1\ninsecure_hub: true\n"):
        assert load_agent_file(write(folder, f"{text}token_file: token\n"), {})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file is a mistake like any other."""
    with pytest.raises(InvalidConfig, match=r"cannot be read .* such as deploy/agent/agent\.yaml"):
        load_agent_file(tmp_path / "nowhere.yaml", {})
