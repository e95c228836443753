"""Secrets come from the environment or from files, reach their target, and show nowhere."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import Config, ConfigError, InvalidConfig, load, loads
from monitor.model import Secret

PLANTED = "sk-planted-Zq7Vx2Lm9Tr4"
FILE = """
targets:
  one:
    provider: a
    model: m
    dialect: openai_chat
    url: https://host/v1
    {line}
probes:
  short: {{prompt: Count.}}
"""


def read(line: str, **environ: str) -> Config:
    """A configuration whose only target has this line."""
    return loads(FILE.format(line=line), environ)


def test_from_the_environment() -> None:
    """`${NAME}` and `${NAME:-default}` are replaced, an empty variable counts as unset for the default."""
    assert read("api_key: ${KEY}", KEY=PLANTED).targets["one"].api_key == Secret(PLANTED)
    assert read("api_key: ${KEY:-fallback}", KEY="").targets["one"].api_key == Secret("fallback")
    assert read("headers: {X-A: 'v$${KEY}'}").targets["one"].headers == {"X-A": "v${KEY}"}
    config = read("api_key: ${KEY}", KEY=f" {PLANTED}\n")
    assert config.targets["one"].api_key == Secret(PLANTED)


def test_a_value_cannot_add_keys() -> None:
    """A variable is put in after the file is read: its line breaks and braces stay text."""
    with pytest.raises(InvalidConfig) as caught:
        read("served_from: {city: '${CITY}'}", CITY="Oslo\n    api_key: x")
    assert 'served_from.city: found "${CITY}"' in str(caught.value)


def test_from_a_file(tmp_path: Path) -> None:
    """Secret files start at the configuration file; a last line break is no part of the key."""
    (tmp_path / "key").write_text(PLANTED + "\n")
    (tmp_path / "url").write_text(f"postgresql://me:{PLANTED}@db/x\n")
    path = tmp_path / "firsttoken.yaml"
    path.write_text(FILE.format(line="api_key_file: key") + "storage: {database_url_file: url}\n")
    config = load(path, {})
    assert config.targets["one"].api_key == Secret(PLANTED)
    assert config.database_url == f"postgresql://me:{PLANTED}@db/x"
    assert Secret(PLANTED) in config.secrets()
    assert PLANTED not in repr(config)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", f"{PLANTED}\n{PLANTED}".encode(), b"k" * 70_000])
def test_bad_key_file(tmp_path: Path, content: bytes) -> None:
    """An empty, binary, many-lined or huge key file is a mistake that does not show its content."""
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InvalidConfig) as caught:
        loads(FILE.format(line="api_key_file: key"), {}, directory=tmp_path)
    assert 'configuration:8: targets.one.api_key_file: found "key", whose content cannot be used' in str(caught.value)
    assert PLANTED not in str(caught.value)


def test_header_secrets() -> None:
    """A header with `${NAME}` is a secret, scrubbed without the words around it; a plain header is none."""
    config = read("headers: {Authorization: 'Bearer ${KEY}', X-Team: a}", KEY=PLANTED)
    headers = config.targets["one"].headers
    assert headers == {"Authorization": Secret(f"Bearer {PLANTED}"), "X-Team": "a"}
    assert config.secrets() == [Secret(PLANTED)]
    assert config.warnings == ()


def test_missing_secrets_can_be_warnings() -> None:
    """With allow_missing_secrets an unset secret or its file is a warning; any other unset variable stays a mistake."""
    for line in ("api_key: ${NOPE}", "api_key_file: nope", "headers: {authorization: '${NOPE}'}"):
        config = loads(FILE.format(line=line), {}, allow_missing_secrets=True)
        assert len(config.warnings) == 1
        assert config.targets["one"].api_key is None
    with pytest.raises(ConfigError, match=r"found \$\{NOPE\}, which is not set"):
        loads(FILE.format(line="http_version: ${NOPE}"), {}, allow_missing_secrets=True)


def test_database_url_of_the_environment() -> None:
    """DATABASE_URL serves where the file names none; a bad one is a mistake that does not show it."""
    url = f"postgresql://me@db/x?password={PLANTED}"
    config = read("simulated: false", DATABASE_URL=url)
    assert config.database_url == url
    assert Secret(PLANTED) in config.secrets()
    with pytest.raises(ConfigError, match="DATABASE_URL: found a value in the environment that is not shown") as caught:
        read("simulated: false", DATABASE_URL=f"mysql://me:{PLANTED}@db")
    assert PLANTED not in str(caught.value)


KEY_PLACES = (
    "api_key: Bearer {}",
    "api_key: [{}]",
    "api_key: {{a: {}}}",
    "api_key: *{}",
    "api_key: !{} x",
    "api_key: '{}\n    x: y'",
    'api_key: "{}',
    "api_key: é{}",
    "api_key: {} # \x07",
    "apikey: {}",
    "api_key: ${{{}}}",
    "api_key: ${{{}",
    "api_key: '${{NOPE}}{}'",
    "api_key: ${{NOPE:-${{{}}}}}",
    "headers: {}",
    "headers: {{authorization: [{}]}}",
    "headers: {{x-key: 'é{}'}}",
    "url: https://{}@host",
    "url: https://a:{}@host/v1",
    "url: https://host?key={}",
    "served_from: {}",
)


@pytest.mark.parametrize("place", KEY_PLACES)
def test_no_mistake_repeats_a_key(place: str) -> None:
    """A key in any wrong place of a target is refused without being repeated."""
    with pytest.raises(ConfigError) as caught:
        read(place.format(PLANTED))
    assert PLANTED not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`$<~?, \n\t\\0é", max_size=80))
def test_any_text_is_answered_in_words(text: str) -> None:
    """Whatever stands in a file, reading it gives a configuration or a ConfigError, nothing else."""
    for written in (text, FILE.format(line="x: y").replace("x: y", text)):
        with suppress(ConfigError):
            assert loads(written, {}).targets
