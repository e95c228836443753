"""A fleet's configuration reaches each agent whole and without keys; a stolen hub cannot make agents send keys away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml

from monitor.config import InvalidConfig, loads
from monitor.config.handout import BoundSecret, Fleet, Trusted, accept, digest, load_fleet, origin
from monitor.config.mistake import InvalidConfig as Invalid
from monitor.model import ConfigError, Secret

ROOT = Path(__file__).parents[2]
KEY = "sk-planted-0123456789"
OPENAI = Trusted(secrets={"OPENAI_API_KEY": BoundSecret(value=Secret(KEY), origin="https://api.openai.com")})
FLEET = """
vantages:
  lagos: {city: Lagos, country: NG, latitude: 6.5, longitude: 3.4, network: MainOne}
  london: {city: London, country: GB}
targets:
  openai:
    provider: openai
    dialect: openai_chat
    model: "1.10"
    api_key: ${OPENAI_API_KEY}
    headers: {x-team: "${TEAM_HEADER:-none}", x-plain: plain}
    body: {temperature: 0.5, seed: 7, stop: "7", user: null, deep: {on: true}}
    url: ${OPENAI_URL:-https://api.openai.com/v1}
  own:
    provider: mine
    model: m
    dialect: openai_chat
    url: https://own.example/v1
    api_key: ${OWN_KEY}
probes:
  short: {prompt: "costs $${HOME}?", interval: 1m, deadline: 30s, targets: [openai]}
  local: {prompt: hi, targets: [own], vantages: [london], checks: {json: {type: object, maxProperties: 3}}}
budget: {money_per_day: 3, per_target: {own: {tokens_per_day: 1000}}}
prices: {per_model: {m: {input: 1, output: 2}, "1.10": {input: 1, output: 2}}}
limits: {max_concurrent: 7}
storage: {database_url: "postgresql://hub:dbpass@db/ft"}
web: {listen: "127.0.0.1:1"}
"""


def fleet(tmp_path: Path, text: str = FLEET, **environ: str) -> Fleet:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    return load_fleet(file, environ)


def mistakes(handout: bytes | dict[str, Any], trusted: Trusted = OPENAI, vantage: str = "lagos") -> list[str]:
    data = handout if isinstance(handout, bytes) else json.dumps(handout).encode()
    with pytest.raises(InvalidConfig) as caught:
        accept(data, vantage, trusted)
    said = [str(one) for one in caught.value.mistakes]
    assert KEY not in "".join(said)
    return said


def evil(**changes: Any) -> dict[str, Any]:
    """What a hub in wrong hands may hand out: a good document with one target changed."""
    target = {
        "provider": "openai",
        "model": "m",
        "dialect": "openai_chat",
        "url": "https://api.openai.com/v1",
        "api_key": "${OPENAI_API_KEY}",
        **changes,
    }
    return {
        "vantages": {"lagos": {}},
        "targets": {"t": {name: value for name, value in target.items() if value is not None}},
        "probes": {"p": {"prompt": "hi"}},
    }


def test_agent_and_single_process_mean_the_same(tmp_path: Path) -> None:
    """What an agent makes of the handout is what one process makes of the file, for the vantage's own series."""
    told = fleet(tmp_path).handout("lagos")
    agents = accept(told, "lagos", OPENAI)
    whole = loads(FLEET, {"OPENAI_API_KEY": KEY, "OWN_KEY": "k" * 20})
    ours = {(one.target.name, one.probe.name): one for one in whole.series("lagos")}
    theirs = {(one.target.name, one.probe.name): one for one in agents.series("lagos")}
    assert theirs == ours
    assert theirs["openai", "short"].probe.prompt == "costs ${HOME}?"
    assert (agents.limits, agents.budget, agents.prices) == (whole.limits, whole.budget, whole.prices)
    assert list(agents.vantages) == list(whole.vantages)


def test_the_hub_needs_no_key_and_tells_none(tmp_path: Path) -> None:
    """The file loads without any key in the environment, and with one there it is not looked at."""
    told = fleet(tmp_path, OPENAI_API_KEY=KEY, OWN_KEY=KEY, TEAM_HEADER=KEY).handout("london")
    assert KEY.encode() not in told
    assert b"dbpass" not in told
    assert fleet(tmp_path).config.targets["openai"].api_key is None


def test_other_vantage_points_are_names(tmp_path: Path) -> None:
    """A vantage point learns that others exist, which its rotation needs, and nothing else about them."""
    told = json.loads(fleet(tmp_path).handout("lagos"))
    assert told["vantages"]["london"] == {}
    assert told["vantages"]["lagos"]["city"] == "Lagos"
    assert {"storage", "web", "spool", "log"}.isdisjoint(told)


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    """Equal content, equal digest; another prompt, another one."""
    first, same = fleet(tmp_path).handout("lagos"), fleet(tmp_path).handout("lagos")
    other = fleet(tmp_path, FLEET.replace("prompt: hi", "prompt: ho")).handout("lagos")
    assert digest(first) == digest(same) != digest(other)


def test_the_example_can_be_handed_out(tmp_path: Path) -> None:
    """The example file serves a hub as it stands, with no key set, for each of its vantage points."""
    example = load_fleet(ROOT / "examples" / "firsttoken.yaml", {})
    for vantage in example.config.vantages:
        assert json.loads(example.handout(vantage))["probes"].keys() == example.config.probes.keys()


def test_an_unknown_vantage_is_told_nothing(tmp_path: Path) -> None:
    """There is no handout for a name that the file does not have."""
    with pytest.raises(ConfigError, match="paris"):
        fleet(tmp_path).handout("paris")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("    api_key: sk-literal-secret-value", "a secret written into a fleet's file"),
        ("    api_key_file: /etc/passwd", "a file of a secret"),
        ("    headers: {authorization: Bearer literal-secret}", "a secret written into a fleet's file"),
    ],
)
def test_a_fleets_file_holds_no_keys(tmp_path: Path, line: str, words: str) -> None:
    """A key in the hub's file is refused: it would be on the hub, and in every handout."""
    text = FLEET.replace("    api_key: ${OWN_KEY}", line)
    with pytest.raises(Invalid) as caught:
        fleet(tmp_path, text)
    assert words in str(caught.value.mistakes[0])
    assert "literal-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/v1",
        "http://api.openai.com/v1",
        "https://api.openai.com:8443/v1",
        "https://api.openai.com.evil.example/v1",
        "https://evil.example/api.openai.com/v1",
        "https://api-openai.com/v1",
    ],
)
def test_a_key_goes_to_its_origin_only(url: str) -> None:
    """Another host, scheme or port is refused, whatever it looks like."""
    (said,) = mistakes(evil(url=url))
    assert "https://api.openai.com:443 alone" in said


@pytest.mark.parametrize(
    "url", ["https://API.openai.com/v1", "https://api.openai.com:443/v1", "https://api.openai.com./v1"]
)
def test_spellings_of_the_origin_are_one(url: str) -> None:
    """Capitals, the default port and the root's dot change nothing."""
    config = accept(json.dumps(evil(url=url)).encode(), "lagos", OPENAI)
    assert config.targets["t"].api_key == Secret(KEY)


def test_a_url_with_a_user_is_refused() -> None:
    """`https://api.openai.com@evil.example` is evil.example, and no URL may have a user part at all."""
    assert mistakes(evil(url="https://api.openai.com@evil.example/v1"))


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "https://api.openai.com/${OPENAI_API_KEY}"},
        {"model": "${OPENAI_API_KEY}"},
        {"body": {"user": "${OPENAI_API_KEY}"}},
        {"body": {"deep": {"list": ["${OPENAI_API_KEY}"]}}},
        {"url_values": {"x": "${OPENAI_API_KEY}"}},
    ],
)
def test_a_key_is_never_part_of_what_is_asked(changes: dict[str, Any]) -> None:
    """A name outside of a secret's place is refused: URLs, models and bodies end up in logs and rows."""
    assert "a ${NAME} where no secret belongs" in "".join(mistakes(evil(**changes)))


def test_a_prompt_takes_no_key() -> None:
    """The same for a prompt, which other people read."""
    document = evil()
    document["probes"]["p"]["prompt"] = "say ${OPENAI_API_KEY}"
    assert "a ${NAME} where no secret belongs" in mistakes(document)[0]


def test_a_key_in_a_header_is_bound_too() -> None:
    """Composed values and any header count as the key's use."""
    document = evil(url="https://evil.example/v1", api_key=None, headers={"x-any": "Bearer ${OPENAI_API_KEY}"})
    assert "alone" in mistakes(document)[0]


@pytest.mark.parametrize("name", ["Host", "host", ":authority", "connection"])
def test_the_host_is_not_the_hubs_to_say(name: str) -> None:
    """With a `Host` header of its choice a stolen hub could reach another customer of the same front."""
    assert mistakes(evil(headers={name: "evil.example"}))


@pytest.mark.parametrize("name", ["x-forwarded-host", "Forwarded", "X-Original-URL"])
def test_nor_is_what_some_fronts_take_for_the_host(tmp_path: Path, name: str) -> None:
    """The same by other names; the hub's own file may not have them either, so that agents never meet them."""
    assert "somebody else" in mistakes(evil(headers={name: "evil.example"}))[0]
    with pytest.raises(Invalid, match="somebody else"):
        fleet(tmp_path, FLEET.replace("x-plain: plain", f"{name}: elsewhere.example"))


@pytest.mark.parametrize("name", ["Host", "x-forwarded-host", "Transfer-Encoding"])
def test_the_header_of_a_key_is_no_way_around(name: str) -> None:
    """A key that the hub itself wrote, in the header `Host`, beside the agent's key in another one."""
    changes = {"auth_header": name, "api_key": "evil.example", "headers": {"authorization": "Bearer ${OPENAI_API_KEY}"}}
    assert "targets.t.auth_header" in mistakes(evil(**changes))[0]


@pytest.mark.parametrize(
    ("section", "content"),
    [
        ("storage", {"database_url": "postgresql://u:${OPENAI_API_KEY}@evil.example/x"}),
        ("storage", {"database_url_file": "/etc/hostname"}),
        ("spool", {"directory": "/tmp/elsewhere"}),
        ("web", {"listen": "0.0.0.0:80"}),
        ("log", {"level": "debug"}),
    ],
)
def test_what_is_each_machines_own_is_not_the_hubs_to_say(section: str, content: dict[str, str]) -> None:
    """Sections of a process, which name files and addresses of it, are refused as such and not looked into."""
    (said,) = mistakes({**evil(), section: content})
    assert f"{section}: found a section that is each machine's own" in said


def test_a_hub_cannot_ask_which_files_there_are(tmp_path: Path) -> None:
    """The answer is the same for a file that is there, one that is not, and one that is no certificate."""
    (tmp_path / "there").write_text("text")
    said = {name: mistakes(evil(ca_file=str(tmp_path / name))) for name in ("there", "nowhere")}
    assert said["there"] == said["nowhere"]
    assert "does not list" in said["there"][0]


@pytest.mark.parametrize(
    "prompt",
    [
        "\U0001f600",
        "a\u2028b\u2029c",
        "a\u0085b",
        "a\x7fb",
        "\ufeffa",
        "\ta\n b \n",
        "$${x} $${",
        "~",
        "true",
        "# x: [y]",
    ],
)
def test_every_character_of_a_prompt_arrives(tmp_path: Path, prompt: str) -> None:
    """Straight from the hub, and from the agent's disk after any other way to write the same JSON."""
    file = yaml.safe_dump({**yaml.safe_load(FLEET), "probes": {"p": {"prompt": prompt}}})
    made = fleet(tmp_path, file)
    told = made.handout("lagos")
    rewritten = json.dumps(json.loads(told), ensure_ascii=True, indent=1).encode()
    both = Trusted(secrets={**OPENAI.secrets, "OWN_KEY": BoundSecret(value=Secret(KEY), origin="https://own.example")})
    for content in (told, rewritten):
        assert accept(content, "lagos", both).probes["p"].prompt == made.config.probes["p"].prompt


def test_the_environment_and_files_are_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that only the environment has does not exist; no file of the agent's machine can be named as a secret."""
    monkeypatch.setenv("AGENTS_OWN", "environment-secret-value")
    assert "the agent's own list of secrets" in mistakes(evil(api_key="${AGENTS_OWN}"))[0]
    private = tmp_path / "private"
    private.write_text("private-file-content")
    assert "a file of a secret" in mistakes(evil(api_key=None, api_key_file=str(private)))[0]


def test_a_ca_of_the_hubs_choice_is_refused(tmp_path: Path) -> None:
    """Only a CA file that the agent's own list names is trusted."""
    pem = tmp_path / "ca.pem"
    pem.write_bytes(Path(certifi.where()).read_bytes())
    assert "ca_file" in mistakes(evil(ca_file=str(pem)))[0]
    allowed = Trusted(secrets=OPENAI.secrets, ca_files=(str(pem),))
    assert accept(json.dumps(evil(ca_file=str(pem))).encode(), "lagos", allowed).targets["t"].ca_file == str(pem)


def test_plain_http_goes_through_no_proxy_of_the_hubs() -> None:
    """A key bound to plain HTTP would be readable at the proxy that the hub names."""
    near = Trusted(secrets={"OPENAI_API_KEY": BoundSecret(value=Secret(KEY), origin="http://10.0.0.5:8000")})
    document = evil(url="http://10.0.0.5:8000/v1")
    assert accept(json.dumps(document).encode(), "lagos", near)
    document["vantages"]["lagos"]["proxy"] = "http://evil.example:3128"
    assert "through a proxy" in mistakes(document, near)[0]


def test_a_missing_key_matters_where_it_is_used(tmp_path: Path) -> None:
    """London probes `own` and has no key for it: refused there by name; Lagos does not probe it and goes on."""
    told = fleet(tmp_path)
    assert accept(told.handout("lagos"), "lagos", OPENAI)
    (said,) = mistakes(told.handout("london"), OPENAI, "london")
    assert "OWN_KEY" in said


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"[]",
        b"nonsense",
        b"\xff",
        b'{"targets": {}}',
        b"{" * 1000,
        b"[" * 100_000,
        b'{"a":' * 30 + b"1" + b"}" * 30,
        b"[" + b"1," * 60_000 + b"1]",
        b" " * 5_000_000,
        b'{"targets": {}, "targets": {}}',
        b'{"targets": "\\ud83d"}',
        b"vantages: {lagos: {}}",
    ],
)
def test_no_configuration_is_a_mistake_like_any_other(junk: bytes) -> None:
    """Whatever arrives instead of a configuration is refused in words."""
    assert mistakes(junk)


def test_origins() -> None:
    """Scheme, host and port, spelled one way."""
    assert origin("HTTPS://Api.Example.com/v1?x=1") == "https://api.example.com:443"
    assert origin("http://[::1]:80/") == "http://[::1]:80"


def test_the_handout_is_a_configuration_file_too(tmp_path: Path) -> None:
    """It can be read as YAML, so that an operator may look at it with the tools at hand."""
    told = fleet(tmp_path).handout("lagos")
    assert yaml.safe_load(told) == json.loads(told)
