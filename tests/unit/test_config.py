"""One file becomes frozen types: what the keys mean, which series it makes, which vantage point a process is."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError

import pytest

from monitor.config import Config, ConfigError, loads
from monitor.config.plan import allowances
from monitor.model import AddressFamily, ColdStartRule, ConnectionPolicy, DialectName, Place, Price

TARGETS = """
targets:
  one: {provider: a, model: m1, dialect: openai_chat, url: "http://127.0.0.1:1/v1"}
  two: {provider: b, model: m2, dialect: anthropic, url: "http://127.0.0.1:2"}
"""
PROBES = """
probes:
  short: {prompt: Count.}
"""


def read(text: str, **environ: str) -> Config:
    """A configuration from text and the given environment alone."""
    return loads(text, environ)


def target_with(line: str, **environ: str) -> Config:
    """A configuration whose only target has one more key."""
    text = "targets:\n  one:\n    provider: a\n    model: m\n    dialect: openai_chat\n    url: https://host/v1\n"
    return read(f"{text}    {line}\n{PROBES}", **environ)


def test_every_key_arrives() -> None:
    """Every key of every section reaches its field, units converted."""
    config = read(
        """
vantages:
  lagos: {city: Lagos, country: ng, latitude: 6.45, longitude: 3.39, network: MTN, proxy: "http://proxy:3128"}
targets:
  one:
    provider: a
    model: 4.10
    dialect: openai_responses
    url: https://host:8443/v1/
    http_version: 2
    address_family: ipv4
    served_from: {city: Oslo, country: NO}
    body: {temperature: 0.5, n: 1, flag: yes, on: true, stop: [a, "1"], deep: {none: null, big: 1e3}}
    headers: {X-Team: latency}
probes:
  short:
    prompt: "Say: 10."
    max_output_tokens: 5
    interval: 1h30m
    deadline: 2m
    connect_timeout: 250ms
    first_token_deadline: 1.5s
    stall: 7
    connection: reused
    control: true
    nonce: no
    targets: [one]
    vantages: [lagos]
storage: {raw_days: 3, rollup_days: 9, database_url: "postgresql://u:p%40ss@db/x"}
spool: {directory: /var/spool/x, max_bytes: 1.5MB, max_age: 2d}
web: {listen: "[::1]:99"}
limits: {max_concurrent: 3, per_provider: {a: 2}}
log: {level: debug, format: json}
""",
    )
    vantage, target, probe = config.vantages["lagos"], config.targets["one"], config.probes["short"]
    assert vantage.place == Place(city="Lagos", country="NG", latitude=6.45, longitude=3.39)
    assert (vantage.network, vantage.proxy, vantage.simulated) == ("MTN", "http://proxy:3128", False)
    assert (target.model, target.url, target.dialect) == ("4.10", "https://host:8443/v1", DialectName.OPENAI_RESPONSES)
    assert (target.http_version, target.address_family) == ("2", AddressFamily.IPV4)
    assert target.served_from == Place(city="Oslo", country="NO")
    assert target.headers == {"X-Team": "latency"}
    deep = {"none": None, "big": 1000.0}
    assert json.loads(json.dumps(target.body)) == {
        "temperature": 0.5, "n": 1, "flag": "yes", "on": True, "stop": ["a", "1"], "deep": deep,
    }  # fmt: skip
    assert (probe.interval_seconds, probe.deadline_seconds, probe.connect_timeout_seconds) == (5400, 120, 0.25)
    assert (probe.first_token_deadline_seconds, probe.stall_seconds, probe.max_output_tokens) == (1.5, 7, 5)
    assert (probe.connection, probe.control, probe.nonce) == (ConnectionPolicy.REUSED, True, False)
    assert (probe.targets, probe.vantages) == (("one",), ("lagos",))
    assert (config.storage.raw_days, config.storage.rollup_days) == (3, 9)
    assert config.database_url == "postgresql://u:p%40ss@db/x"
    assert {secret.reveal() for secret in config.secrets()} == {"p%40ss", "p@ss"}
    assert (config.spool.directory, config.spool.max_bytes, config.spool.max_age_seconds) == (
        "/var/spool/x",
        1_500_000,
        172_800,
    )
    assert (config.web.host, config.web.port) == ("::1", 99)
    assert (config.limits.max_concurrent, config.limits.per_provider) == (3, {"a": 2})
    assert (config.log.level, config.log.format) == ("debug", "json")


def test_what_is_not_written() -> None:
    """Without sections there are defaults: one vantage point named local, loopback only, an embedded Postgres."""
    config = read(TARGETS + PROBES, HOME="/home/me")
    assert [series.vantage.name for series in config.series("local")] == ["local", "local"]
    assert (config.web.host, config.database_url, config.secrets()) == ("127.0.0.1", None, [])
    assert config.spool.directory == "/home/me/.local/state/firsttoken"
    assert config.probes["short"].first_token_deadline_seconds is None


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"STATE_DIRECTORY": "/var/lib/x:/y", "HOME": "/h"}, "/var/lib/x"),
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/firsttoken"),
        ({}, "firsttoken-state"),
    ],
)
def test_spool_directory(environ: dict[str, str], directory: str) -> None:
    """State goes where the service manager or the user's desktop says."""
    assert read(TARGETS + PROBES, **environ).spool.directory == directory


def test_empty_sections_and_aliases() -> None:
    """A section whose keys are all commented out is empty; anchors, aliases and `<<` work, from `x-` keys too."""
    config = read(
        """
x-common: &common {provider: a, dialect: openai_chat, url: "http://127.0.0.1/v1"}
storage:
log:   # level: debug
targets:
  one: {<<: *common, model: m1}
  two: {<<: [*common], model: m2, provider: b}
probes:
  short: {prompt: &words Count.}
  long: {prompt: *words, max_output_tokens: 500}
"""
    )
    assert [target.provider for target in config.targets.values()] == ["a", "b"]
    assert config.probes["long"].prompt == "Count."


def test_series() -> None:
    """Probes choose targets and vantage points by name, and all of them without names, in the order of the file."""
    config = read(
        "vantages: {lagos: {}, london: {}}\n"
        + TARGETS
        + "probes: {a: {prompt: a}, b: {prompt: b, targets: [two], vantages: [london]}}"
    )
    names = {place: [(s.probe.name, s.target.name) for s in config.series(place)] for place in config.vantages}
    assert names == {
        "lagos": [("a", "one"), ("a", "two")],
        "london": [("a", "one"), ("a", "two"), ("b", "two")],
    }
    with pytest.raises(ConfigError, match=r'no vantage point "lagoss" \(did you mean "lagos"\?\)'):
        config.series("lagoss")


def test_one_process_is_one_real_vantage_point() -> None:
    """A name runs that one; without, all simulated ones and the only real one; two real ones need a choice."""
    one_real = "vantages: {here: {}, lagos: {simulated: true}, london: {simulated: true}}\n" + TARGETS + PROBES
    two_real = one_real.replace("here: {}", "here: {}, there: {}")
    chosen = [vantage.name for vantage in read(one_real).select_vantages()]
    assert chosen == ["here", "lagos", "london"]
    assert [vantage.name for vantage in read(two_real).select_vantages("there")] == ["there"]
    assert [vantage.name for vantage in read(two_real, FIRSTTOKEN_VANTAGE="here").select_vantages()] == ["here"]
    with pytest.raises(ConfigError, match=r"--vantage here or FIRSTTOKEN_VANTAGE=here"):
        read(two_real).select_vantages()
    with pytest.raises(ConfigError, match="the configuration has here, lagos, london"):
        read(one_real).select_vantages("mars")


def test_frozen_and_comparable() -> None:
    """Equal files are equal, hash alike and cannot be changed; entries tell which of them changed."""
    text = (
        TARGETS.replace("/v1", "/v1", 1).replace('"http://127.0.0.1:2"', '"http://127.0.0.1:2", body: {a: [1]}')
        + PROBES
    )
    first, second = read(text), read("# a comment\n" + text)
    assert first == second
    assert hash(first) == hash(second)
    assert first.digest == second.digest
    changed = read(text.replace("Count.", "Count!"))
    assert changed != first
    assert changed.digest != first.digest
    assert changed.targets == first.targets
    with pytest.raises(FrozenInstanceError):
        first.web.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError, match="frozen"):
        first.targets["two"].body["a"] = 2  # type: ignore[index]
    with pytest.raises(TypeError, match="frozen"):
        first.targets.clear()  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(first.targets)) == first.targets


def test_digest_is_blind_to_secrets_and_machines() -> None:
    """The digest does not depend on the value of a secret or on this machine's directories; equality sees secrets."""
    first = target_with("api_key: ${KEY}", KEY="first-key", HOME="/a")
    second = target_with("api_key: ${KEY}", KEY="second-key", HOME="/b")
    assert first.digest == second.digest
    assert first.targets != second.targets
    assert first.digest != target_with("simulated: true").digest


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("api_key: sk-literal-0123456789", "targets.one.api_key: found a secret written into the file"),
        ("headers: {authorization: Bearer abcdefgh}", "targets.one.headers.authorization: found a secret written"),
    ],
)
def test_literal_secrets_warn(text: str, warning: str) -> None:
    """A key in the file works, with a warning that does not repeat it."""
    config = target_with(text)
    assert warning in str(config.warnings[0])
    assert "literal" not in repr(config)
    assert len(config.secrets()) == 1


def test_the_cold_start_rule_is_the_targets_own() -> None:
    """Each of its two thresholds may be left out; without the key the usual rule holds."""
    assert target_with("cold_start: {minimum: 100ms}").targets["one"].cold_start == ColdStartRule(minimum_seconds=0.1)
    assert target_with("cold_start: {factor: 2}").targets["one"].cold_start == ColdStartRule(factor=2.0)
    assert target_with("simulated: true").targets["one"].cold_start == ColdStartRule()
    with pytest.raises(ConfigError, match=r"one.cold_start.factor: found \"0.5\"; allowed: a factor from 1.1 to 1,000"):
        target_with("cold_start: {factor: 0.5}")


TWINS = """
targets:
  one: &one {provider: a, model: m1, dialect: openai_chat, url: "http://127.0.0.1:1/v1"}
  two: *one
"""


@pytest.mark.parametrize(
    ("targets", "probes", "warning"),
    [
        (TARGETS, "{a: {prompt: a, targets: [two]}}", "targets.one: found a target that no probe uses"),
        (TARGETS, "{a: {prompt: a}, b: {prompt: a, targets: [two]}}", "probes.b: found the same question as probes.a"),
        (TWINS, "{a: {prompt: a}}", "targets.two: found the same as targets.one"),
        (
            TARGETS.replace("1/v1", "1/v1/chat/completions"),
            "{a: {prompt: a}}",
            'base URL, here "http://127.0.0.1:1/v1"',
        ),
        (TARGETS.replace('127.0.0.1:2"', 'example.com", api_key: "${K}"'), "{a: {prompt: a}}", "it travels readable"),
    ],
)
def test_warnings(targets: str, probes: str, warning: str) -> None:
    """What is allowed but most likely not meant is a warning, and the only one."""
    (found,) = read(f"{targets}probes: {probes}", K="some-long-key").warnings
    assert warning in str(found)


def test_more_at_once_than_allowed_warns() -> None:
    """When the attempts of a vantage point would not fit max_concurrent at their deadlines, a warning says so."""
    config = read(TARGETS + "probes: {a: {prompt: a, interval: 10s, deadline: 9s}}\nlimits: {max_concurrent: 1}")
    assert "found 1, but 2 attempts from local run at once" in str(config.warnings[0])


MONEY = """
vantages: {lagos: {}, london: {}, virginia: {}}
targets:
  one: {provider: p, model: small, dialect: openai_chat, url: "https://x/v1"}
  own: {provider: self, model: big, dialect: openai_chat, url: "https://y/v1"}
probes:
  everywhere: {prompt: hi, targets: [own]}
  here: {prompt: hi, targets: [one], vantages: [lagos, london]}
prices:
  currency: EUR
  per_model: {small: {input: 1, output: 2, cached: 0.5}, big: {input: 9, output: 9}}
  per_target: {own: {input: 0, output: 0}}
budget:
  money_per_day: 6
  tokens_per_day: 1000
  per_target: {one: {money_per_day: 2.5}}
limits: {per_provider: {p: {concurrent: 2, per_minute: 20}, self: 3}}
"""


def test_prices_belong_to_targets() -> None:
    """By the target's own entry, else by its model; in the table's currency."""
    targets = loads(MONEY, {}).targets
    assert targets["one"].price == Price(input=1, output=2, cached=0.5, currency="EUR")
    assert targets["own"].price == Price(input=0, output=0, currency="EUR")


@pytest.mark.parametrize(
    ("played", "limits"),
    [
        (["lagos"], [2, 333, 1.25]),  # a third of all, half of what two vantage points probe
        (["virginia"], [2, 333]),  # does not probe the other target
        (["lagos", "london"], [4, 666, 2.5]),
        (["lagos", "london", "virginia"], [6, 1000, 2.5]),
    ],
)
def test_the_share_of_a_process(played: list[str], limits: list[float]) -> None:
    """All agents together stay within each cap, without talking to each other."""
    found = allowances(loads(MONEY, {}), played)
    caps = [(None, "EUR"), (None, "tokens"), ("one", "EUR")]
    assert [(each.target, each.unit) for each in found] == caps[: len(limits)]
    assert [each.limit for each in found] == pytest.approx(limits)


def test_a_share_of_ones_own() -> None:
    """`share` wins over the number of vantage points."""
    config = loads(MONEY.replace("money_per_day: 6", "share: 0.5\n  money_per_day: 6"), {})
    assert [each.limit for each in allowances(config, ["lagos"])] == [3, 500, 1.25]


def test_limits_of_providers() -> None:
    """A number is a cap on what runs at one time; a mapping may cap the pace too."""
    limits = loads(MONEY, {}).limits
    assert limits.per_provider == {"p": 2, "self": 3}
    assert limits.per_minute == {"p": 20}


def test_without_a_budget_there_are_no_caps() -> None:
    """Nothing is limited that nobody limited."""
    text = MONEY[: MONEY.index("budget:")]
    assert allowances(loads(text, {}), ["lagos"]) == []
