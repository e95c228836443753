"""What happens to agents and hubs in the field: after each fault rows plus gaps equal the slots owed, none twice.

Compressed time: a slot every half second. The account is made by hand from plans, notes and rows (`Fleet.account`), and
the product's own coverage must agree with it.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.running_fleet import Account, Fleet, Relay, running, wait
from tests.integration.running_up import until
from tests.ports import free_port

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def fleet(tmp_path: Path, database_url: str) -> Iterator[Fleet]:
    with running(tmp_path, database_url) as one:
        yield one


def balanced(fleet: Fleet, *causes: str, vantage: str = "lagos") -> Account:
    """The account, which must balance with no other causes than these; and coverage must say the same."""
    account = fleet.account(vantage)
    assert account.balanced(), account
    assert set(account.missed) - {"unexplained"} <= {*causes, "shutdown", "late", "overlap", "capacity"}, account
    owed, measured, missed = fleet.product_says(vantage)
    assert owed == measured + sum(missed.values())
    assert measured == account.measured, (account, missed)
    return account


def test_a_quiet_day(fleet: Fleet) -> None:
    """Without any fault every slot has its row, from two vantage points at once."""
    for name in ("lagos", "london"):
        fleet.agent(name).start()
    for name in ("lagos", "london"):
        fleet.until_rows(12, name)
    for name in ("lagos", "london"):
        fleet.settled(name)
        assert balanced(fleet, vantage=name).measured >= 12


def test_a_hub_that_is_killed_while_agents_upload(fleet: Fleet) -> None:
    """Killed again and again in the middle of everything, started again: each attempt is in the record exactly once."""
    agent = fleet.agent("lagos")
    agent.start()
    fleet.until_rows(3)
    for _ in range(4):
        wait(random.uniform(0.3, 1.5))
        fleet.hub.kill()
        wait(random.uniform(0.3, 1.5))
        fleet.start_hub()
    fleet.until_rows(3)
    fleet.settled()
    assert balanced(fleet).measured >= 8


def test_an_agent_that_is_killed_at_random_moments(fleet: Fleet) -> None:
    """`kill -9` many times, whatever it was doing: what was written is delivered, the rest is an outage."""
    agent = fleet.agent("lagos")
    agent.start()
    fleet.until_rows(2)
    for _ in range(8):
        wait(random.uniform(0.2, 1.5))
        agent.kill()
        agent.start()
    fleet.until_rows(3)
    fleet.settled()
    account = balanced(fleet, "agent_off")
    assert account.measured >= 5


def test_a_path_that_is_cut_and_then_bad(fleet: Fleet) -> None:
    """Cut for longer than a heartbeat, then 30 % packet loss: the agent probes on, and everything arrives once."""
    line = Relay(fleet.port)
    agent = fleet.agent("lagos", hub=f"http://127.0.0.1:{line.port}")
    try:
        agent.start()
        fleet.until_rows(3)
        line.cut()
        wait(18.0)
        assert (fleet.waiting("lagos") or 0) >= 20
        before = fleet.rows()
        line.mend(loss=0.3)
        until(lambda: fleet.rows() >= before + 20, "the backlog over a bad line", 120)
        line.mend()
        fleet.until_rows(3)
        fleet.settled()
        balanced(fleet)
    finally:
        line.close()


@pytest.mark.parametrize("damage", ["truncated", "zeroed", "garbage"])
def test_a_spool_file_that_was_broken(fleet: Fleet, damage: str) -> None:
    """What it held is lost, and counted as lost with its cause; the agent goes on, the old file is kept aside."""
    agent = fleet.agent("lagos")
    agent.start()
    fleet.until_rows(3)
    fleet.hub.kill()
    wait(2.5)
    agent.kill()
    spool = fleet.folder / "agent-lagos" / "state" / "spool.sqlite3"
    for journal in ("-wal", "-shm"):
        spool.with_name(spool.name + journal).unlink(missing_ok=True)
    size = spool.stat().st_size
    if damage == "truncated":
        with spool.open("r+b") as file:
            file.truncate(size // 2 + 100)
    else:
        spool.write_bytes(bytes(max(size, 8192)) if damage == "zeroed" else bytes(range(256)) * 64)
    agent.start()
    fleet.start_hub()
    fleet.until_rows(3)
    fleet.settled()
    account = balanced(fleet, "spool_corrupt", "agent_off")
    assert account.missed["spool_corrupt"] + account.missed["agent_off"] >= 3
    assert list(spool.parent.glob("spool.sqlite3.corrupt-*"))


def test_two_hubs_and_the_same_batch_to_both(fleet: Fleet) -> None:
    """Any number of copies over one database: one row each, one lease holder, and the other one takes over."""
    second_port = free_port()
    second = fleet.child("hub-2", ["hub", str(fleet.file), "--listen", f"127.0.0.1:{second_port}"])
    fleet.start_hub(second)
    agent = fleet.agent("lagos")
    agent.start()
    fleet.until_rows(3)
    until(
        lambda: fleet.metric("firsttoken_lease_holder") + fleet.metric("firsttoken_lease_holder", second_port) == 1,
        "exactly one lease holder",
    )
    fleet.hub.kill()
    until(lambda: fleet.metric("firsttoken_lease_holder", second_port) == 1, "the second takes over", 60)
    fleet.start_hub()
    fleet.until_rows(3)
    fleet.settled()
    balanced(fleet)


def test_a_token_that_is_revoked_in_flight(fleet: Fleet) -> None:
    """A revoked agent delivers nothing from then on, says so once, loses nothing, and goes on once its token's file
    holds a new one.
    """
    agent = fleet.agent("lagos")
    agent.start()
    fleet.until_rows(3)
    fleet.command("vantage", "revoke", "lagos", "--config", str(fleet.file))
    before = fleet.rows()
    agent.until_said("does not know this agent's token")
    wait(2.0)
    assert fleet.rows() <= before + 3  # what was under way when it was revoked
    done = fleet.command("vantage", "rotate", "lagos", "--config", str(fleet.file), "--json")
    (fleet.folder / "agent-lagos" / "token").write_text(json.loads(done.stdout)["token"])
    fleet.until_rows(6)
    fleet.settled()
    balanced(fleet)
    assert agent.said("does not know this agent's token") == 1


def test_a_cloned_agent(fleet: Fleet, tmp_path: Path) -> None:
    """Two agents with one identity: equal keys with other content are counted and said; the first row stays."""
    agent = fleet.agent("lagos")
    agent.start()
    fleet.until_rows(3)
    agent.end()
    original = tmp_path / "agent-lagos"
    copy = tmp_path / "agent-clone"
    shutil.copytree(original, copy)
    own = (copy / "agent.yaml").read_text().replace(str(original), str(copy))
    (copy / "agent.yaml").write_text(own)
    clone = fleet.child("clone", ["agent", "--file", str(copy / "agent.yaml")], **agent.environment)
    agent.start()
    clone.start()
    until(lambda: fleet.metric("firsttoken_ingest_attempts_total", result="conflict") >= 3, "conflicts are counted", 60)
    until(lambda: agent.said("is this agent a copy") + clone.said("is this agent a copy") >= 1, "an agent says it")
    assert fleet.hub.said("slots were measured twice with other results") == 1
    clone.end()
    fleet.settled()
    with sqlite3.connect(original / "state" / "spool.sqlite3") as db:
        assert db.execute("SELECT count(*) FROM rejected").fetchone() == (0,)
    account = fleet.account()
    assert account.balanced(), account


def test_an_upgrade_loses_no_slot_and_doubles_none(fleet: Fleet) -> None:
    """Stopped and started again, as an upgrade or a rollback does it: between is an outage, nothing is twice."""
    agent = fleet.agent("lagos")
    agent.start()
    for _ in range(3):
        fleet.until_rows(4)
        assert agent.end() == 0
        agent.start()
    fleet.until_rows(3)
    fleet.settled()
    balanced(fleet, "agent_off")


def test_configuration_reaches_agents_and_a_bad_one_does_not(fleet: Fleet) -> None:
    """A new probe is measured without a restart; a file with mistakes changes nothing, on the hub or at the agents."""
    agent = fleet.agent("lagos")
    agent.start()
    fleet.until_rows(3)
    more = {"q": {"prompt": "ho", "interval": "1s", "deadline": "500ms"}}
    fleet.write(fleet.configuration(probes={**fleet.configuration()["probes"], **more}))
    counted = {"vantage": "lagos", "probe": "q", "outcome": "success"}
    until(lambda: fleet.metric("firsttoken_attempts_total", **counted) >= 2, "attempts of the new probe", 60)
    fleet.write({"targets": {}})
    fleet.hub.until_said("the new configuration is refused")
    fleet.until_rows(4)
    fleet.settled()
    balanced(fleet, "agent_off")


def test_an_agent_starts_and_measures_without_its_hub(fleet: Fleet) -> None:
    """From its last good configuration, for as long as it takes; everything arrives when the hub is back."""
    agent = fleet.agent("lagos")
    agent.start()
    fleet.until_rows(3)
    agent.end()
    fleet.hub.kill()
    agent.start()
    wait(4.0)
    assert (fleet.waiting("lagos") or 0) >= 3
    fleet.start_hub()
    fleet.until_rows(6)
    fleet.settled()
    balanced(fleet, "agent_off")

