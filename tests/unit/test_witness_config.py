"""The witness section: on by itself, off with one word, and told to agents as it stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from monitor.config import Witness, loads
from monitor.config.handout import Trusted, accept, load_fleet
from monitor.witness import DEFAULT_ENDPOINTS, Endpoint, Reach

FILE = """
vantages: {lagos: {}, london: {}}
targets: {a: {provider: p, model: m, dialect: openai_chat, url: "http://127.0.0.1:1/v1"}}
probes: {q: {prompt: hi}}
"""
OWN = """
witness:
  interval: 2m
  timeout: 3s
  endpoints:
    near: tls://192.0.2.1:443
    wide: "tcp://[2001:db8::1]:80"
    name: dns://example.com
    exchange: {address: tcp://ix.example.ng:443, vantages: [lagos]}
"""


def read(section: str = "") -> Witness:
    return loads(FILE + section, {}).witness


def test_it_is_on_by_default() -> None:
    """Nobody has to write anything to have a witness; it looks once a minute from everywhere, as `witness:` alone."""
    assert read() == read("witness:\n") == Witness(endpoints=DEFAULT_ENDPOINTS)
    assert len(DEFAULT_ENDPOINTS) >= 4
    assert {one.reach for one in DEFAULT_ENDPOINTS} == set(Reach)


@pytest.mark.parametrize("word", ["off", "no", "false", '"off"'])
def test_one_word_ends_it(word: str) -> None:
    """`witness: off` and no endpoint is looked at from anywhere."""
    assert read(f"witness: {word}\n").seen_from("lagos") == []


def test_on_is_the_default_too() -> None:
    """`witness: on` is what stands there without it."""
    assert read("witness: on\n") == read()


def test_every_key() -> None:
    """Endpoints, interval and timeout are as written; one vantage point may look at something more."""
    witness = read(OWN)
    assert (witness.interval_seconds, witness.timeout_seconds) == (120.0, 3.0)
    near = Endpoint(name="near", reach=Reach.TLS, host="192.0.2.1", port=443)
    assert witness.seen_from("london")[0] == near
    addresses = ["tls://192.0.2.1:443", "tcp://[2001:db8::1]:80", "dns://example.com"]
    assert [one.address for one in witness.seen_from("london")] == addresses
    assert [one.name for one in witness.seen_from("lagos")] == ["near", "wide", "name", "exchange"]


def test_some_vantage_points_alone() -> None:
    """Others do not look at all."""
    witness = read("witness: {vantages: [london]}\n")
    assert witness.seen_from("lagos") == []
    assert witness.seen_from("london") == list(DEFAULT_ENDPOINTS)


def test_strangers_machines_are_treated_politely() -> None:
    """Looking at the default endpoints every few seconds is warned of; at one's own it is not."""
    (warning,) = loads(FILE + "witness: {interval: 6s}\n", {}).warnings
    assert "endpoints of your own" in str(warning)
    assert loads(FILE + OWN.replace("2m", "6s"), {}).warnings == ()


@pytest.mark.parametrize("section", ["", "witness: off\n", OWN])
def test_a_vantage_point_is_told(tmp_path: Path, section: str) -> None:
    """What an agent makes of the handout is what the hub has."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FILE + section)
    told = accept(load_fleet(file, {}).handout("lagos"), "lagos", Trusted())
    assert told.witness == loads(FILE + section, {}).witness


def test_a_change_is_a_change() -> None:
    """The digest tells another set of endpoints from this one."""
    config = loads(FILE, {})
    assert replace(config, witness=Witness()).digest != config.digest
