"""Behaviours and scenarios: what they accept, how they change with time, and the sentence for each mistake."""

from __future__ import annotations

import math
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.model import ConfigError
from monitor.simulator.behaviour import Behaviour, Content, Fault, behaviour
from monitor.simulator.certificates import Certificate
from monitor.simulator.machine import Sleep
from monitor.simulator.pacer import NS
from monitor.simulator.provider import first_token_seconds
from monitor.simulator.scenario import Change, Distance, Listener, Scenario, behaviour_at
from monitor.simulator.scenario_file import read_scenario, scenario
from monitor.simulator.showcase import MODELS, showcase

FULL: dict[str, Any] = {
    "seed": 7,
    "listeners": [
        {"name": "plain", "models": {"fast": {"tokens": 5}, "odd": {"fault": "truncated", "stall_seconds": "forever"}}},
        {"name": "tls", "tls": "expired", "http": ["1.1"], "api_key": "k"},
    ],
    "distances": {"lagos": {"rtt_ms": 150, "jitter_ms": 5, "loss": 0.01}},
    "timeline": [{"after_seconds": 60, "for_seconds": 30, "model": "fast", "multiply": {"ttft_seconds": 3}}],
}


def test_a_scenario_file_becomes_the_same_frozen_records() -> None:
    """Everything that a file may say arrives typed, and what it leaves out has its default."""
    read = scenario(FULL)
    plain, tls = read.listeners
    assert plain.models["fast"] == Behaviour(tokens=5)
    assert plain.models["odd"] == Behaviour(fault=Fault.TRUNCATED, stall_seconds=math.inf)
    assert (tls.tls, tls.http, tls.api_key) == (Certificate.EXPIRED, ("1.1",), "k")
    assert read.distances == {"lagos": Distance(rtt_ms=150, jitter_ms=5, loss=0.01)}
    assert read.timeline == (
        Change(after_seconds=60, for_seconds=30, model="fast", multiply={"ttft_seconds": 3}, set={}),
    )
    assert read.seed == 7
    assert scenario({}) == Scenario()


def test_a_listeners_key_is_not_in_its_repr() -> None:
    """A key that a simulated vendor expects does not show in tracebacks and logs."""
    assert "planted" not in repr(Listener(api_key="planted"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([], "the scenario is []; it must be a mapping"),
        ({"listener": []}, "unknown key 'listener'; allowed: distances, listeners, seed, timeline"),
        ({"listeners": {}}, "listeners is {}; it must be a list"),
        ({"seed": "x"}, "seed is 'x'; it must be a whole number"),
        ({"listeners": [{"prot": 1}]}, "listeners[0]: unknown key 'prot'"),
        ({"listeners": [{"port": "80"}]}, "listeners[0].port is '80'; it must be int"),
        ({"listeners": [{"port": 70000}]}, "port is 70000; it must be between 0 and 65535"),
        ({"listeners": [{"tls": "best"}]}, "listeners[0].tls is 'best'; allowed: good, expiring, expired"),
        ({"listeners": [{"http": ["3"]}]}, "http is ['3']; allowed: '1.1', '2'"),
        ({"listeners": [{}, {}]}, "two listeners have the same name"),
        ({"listeners": [{"models": {"m": {"ttft": 1}}}]}, "listeners[0].models.m: behaviour has no field 'ttft'"),
        ({"listeners": [{"models": {"m": {"tokens": 1.5}}}]}, "tokens is 1.5; it must be a int"),
        ({"listeners": [{"models": {"m": {"tokens": True}}}]}, "tokens is True; it must be a int"),
        ({"listeners": [{"models": {"m": {"tokens": -1}}}]}, "tokens is -1; it must be 0 or more"),
        ({"listeners": [{"models": {"m": {"capacity": 0}}}]}, "capacity is 0; it must be 1 or more"),
        ({"listeners": [{"models": {"m": {"tokens_per_second": 0}}}]}, "it must be above 0"),
        ({"listeners": [{"models": {"m": {"fault": "bad"}}}]}, "fault is 'bad'; allowed: silence, keep_alives"),
        ({"listeners": [{"models": {"m": {"fault_share": 2}}}]}, "it is a share between 0 and 1"),
        ({"listeners": [{"models": {"m": {"status": 99}}}]}, "it must be an HTTP status from 200 to 599"),
        ({"distances": {"far": {}}}, "distances.far: missing 1 required keyword-only argument: 'rtt_ms'"),
        ({"distances": {"far": {"rtt_ms": -1}}}, "both must be 0 or more"),
        ({"distances": {"far": {"rtt_ms": 1, "loss": 1}}}, "it is a share of at least 0 and below 1"),
        ({"timeline": [{"after_seconds": 1}]}, "timeline[0]: a change needs `multiply` or `set`"),
        ({"timeline": [{"multiply": {"ttft_seconds": "3"}}]}, "multiply.ttft_seconds is '3'"),
        ({"timeline": [{"multiply": {"fault": 2}}]}, "only a number can be multiplied"),
        ({"timeline": [{"set": {"tokens": "x"}}]}, "timeline[0]: tokens is 'x'; it must be a int"),
        ({"timeline": [{"set": {"tokens": 1}, "every_seconds": 5}]}, "every_seconds needs a for_seconds"),
        (
            {"listeners": [{"models": {"a": {}}}], "timeline": [{"model": "b", "set": {"tokens": 1}}]},
            "model 'b': no such model",
        ),
    ],
)
def test_a_mistake_in_a_scenario_is_one_sentence(values: Any, sentence: str) -> None:
    """Whoever writes a scenario learns where the mistake is, what was found and what is allowed."""
    with pytest.raises(ConfigError) as mistake:
        scenario(values)
    assert sentence in str(mistake.value)


def test_a_scenario_file_that_cannot_be_read_is_named(tmp_path: Any) -> None:
    """The sentence begins with the file: it is missing, no YAML, or says something impossible."""
    file = tmp_path / "s.yaml"
    for content, words in ((None, "cannot be read: no such file"), ("a: [", "not YAML"), ("seed: x", "seed")):
        if content is not None:
            file.write_text(content)
        with pytest.raises(ConfigError, match=f"^{file}: .*{words}"):
            read_scenario(file)


def test_the_showcase_is_a_scenario_and_its_ports_follow_each_other() -> None:
    """What is served without a file is valid, and predictable from the first port."""
    shown = showcase(port=9000)
    ports = [item.port for item in shown.listeners] + [item.port for item in shown.distances.values()]
    assert ports == list(range(9000, 9000 + len(ports)))
    assert set(MODELS) <= set(shown.listeners[0].models)
    faults = {item.fault for item in MODELS.values()}
    assert faults >= set(Fault) - {Fault.UNMARKED}


def test_a_change_holds_only_in_its_time() -> None:
    """After 60 s, for 30 s, every 100 s: edges included at the beginning, excluded at the end."""
    change = Change(after_seconds=60, for_seconds=30, every_seconds=100, multiply={"ttft_seconds": 3})
    active = [second for second in (0, 59.9, 60, 89.9, 90, 159, 160, 189, 190) if change.active(second)]
    assert active == [60, 89.9, 160, 189]
    assert Change(after_seconds=5, set={"tokens": 1}).active(1e9)


def test_changes_apply_in_order_to_the_base() -> None:
    """Multiplying and setting combine; a change that does not hold leaves the very same record."""
    base = Behaviour(ttft_seconds=0.2, tokens=3)
    triple, cut = Change(multiply={"ttft_seconds": 3, "tokens": 1.5}), Change(after_seconds=9, set={"tokens": 1})
    assert behaviour_at(base, [(1, triple), (1, cut)]) == replace(base, ttft_seconds=0.2 * 3, tokens=4)
    assert behaviour_at(base, [(1, triple), (9, cut)]).tokens == 1
    assert behaviour_at(base, [(1, cut)]) is base


def test_behaviours_from_a_mapping_know_their_types() -> None:
    """Enumerations, `forever` and null arrive as what they mean."""
    made = behaviour({"content": "refusal", "stall_seconds": "forever", "headers_seconds": None, "ttft_seconds": 1})
    assert made == Behaviour(content=Content.REFUSAL, stall_seconds=math.inf, ttft_seconds=1)


def test_draws_repeat_with_the_seed_and_keep_their_median() -> None:
    """The same seed gives the same times to first token, and the spread leaves the median in place."""
    behaving = Behaviour(ttft_seconds=0.5, ttft_sigma=0.3, prefill_seconds_per_token=0.01)
    one, two = (
        [first_token_seconds(behaving, 10, chance) for _ in range(999)]
        for chance in (random.Random(1), random.Random(1))
    )
    assert one == two
    assert sorted(one)[499] == pytest.approx(0.6, abs=0.05)
    assert (
        min(
            first_token_seconds(Behaviour(ttft_seconds=0, ttft_jitter_seconds=1), 0, random.Random(s))
            for s in range(50)
        )
        == 0
    )


def test_an_idle_model_sleeps_and_all_who_come_while_it_loads_share_one_load() -> None:
    """Idle for its time: the next request waits for the load, one in the middle for the rest, one after for nothing."""
    sleep, behaving = Sleep(0), Behaviour(sleeps_after_seconds=10, load_seconds=2)
    assert sleep.ready_ns(9 * NS, behaving) == 9 * NS
    sleep.used(10 * NS)
    assert sleep.ready_ns(20 * NS, behaving) == 22 * NS
    assert sleep.ready_ns(21 * NS, behaving) == 22 * NS
    assert sleep.ready_ns(23 * NS, behaving) == 23 * NS


def test_a_model_may_be_asleep_at_first_and_only_then() -> None:
    """`starts_asleep` costs the first request a load, and no other."""
    sleep, behaving = Sleep(0), Behaviour(starts_asleep=True, load_seconds=2)
    assert sleep.ready_ns(0, behaving) == 2 * NS
    assert sleep.ready_ns(1000 * NS, behaving) == 1000 * NS


def test_the_documentation_knows_every_field_and_its_example_is_a_scenario() -> None:
    """docs/simulator.md lists each field with its default and each fault, and its scenario can be served."""
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()

    for field in fields(Behaviour):
        default = getattr(Behaviour(), field.name)
        shown = "a sentence" if field.name == "text" else "" if default == {} else _word(default)
        assert f"| `{field.name}` | {shown} |" in page
    for fault in Fault:
        assert f"`{fault}`" in page
    example = page.partition("```yaml\n")[2].partition("```")[0]
    assert scenario(yaml.safe_load(example)).timeline[1].set == {"fault": None}


def _word(value: Any) -> Any:
    """A default as the page writes it."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "true", False: "false"}[value]
    return "forever" if value == math.inf else value
