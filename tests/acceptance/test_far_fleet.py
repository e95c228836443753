"""A fleet over real distances: hub, model and Postgres in one place, agents in Lagos, London and Virginia.

Network namespaces with true round trips between them. Needs root, /dev/net/tun and the emulator of far hosts beside the
project. Only one such network can be on a machine.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from monitor.detect.line import Line, LineState, line
from monitor.store import embedded, witness
from monitor.store.engine import parse_url
from tests.acceptance.test_distance import CLOUD, FARNET, NAME, alone, ended, files_of, first_line
from tests.integration.running_fleet import SIM_KEY, Child, Fleet, wait
from tests.integration.running_up import until

pytestmark = pytest.mark.timeout(400)
RTT = {"lagos": 0.105, "london": 0.076, "virginia": 0.002}
LINKS = ["lagos=105,jitter=6", "london=76", "virginia=2"]
TTFT = 0.15


class FarFleet(Fleet):
    """The same books, kept over other processes: each in its namespace."""

    def __init__(self, folder: Path, database: str, model: dict[str, Any]) -> None:
        self.folder = folder
        self.database = database
        self.engine = create_engine(parse_url(database))
        self.children: list[Child] = []
        self.agents: dict[str, Child] = {}
        self.ended: dict[str, datetime] = {}
        self.port = 8765
        self.hub_url = f"http://{CLOUD}:{self.port}"
        self.sections: dict[str, Any] = {}
        self.model_port = model["listeners"]["tls"]["port"]
        self.model = model
        self.write(self.configuration())
        self.hub = self.child("hub", ["hub", str(self.file), "--listen", f"{CLOUD}:{self.port}"])
        self.hub.prefix = ["ip", "netns", "exec", "far-cloud"]

    def configuration(self, **sections: Any) -> dict[str, Any]:
        port, ca_file = self.model["listeners"]["tls"]["port"], self.model["ca_file"]
        return {
            "vantages": {name: {} for name in RTT},
            "targets": {
                "t": {
                    "provider": "sim",
                    "model": "m",
                    "dialect": "openai_chat",
                    "url": f"https://{NAME}:{port}/v1",
                    "ca_file": ca_file,
                    "api_key": "${SIM_KEY}",
                    "simulated": True,
                }
            },
            "probes": {"p": {"prompt": "hi", "interval": "2s", "deadline": "1500ms", "connect_timeout": "1s"}},
            "storage": {"database_url": self.database},
            "spool": {"directory": str(self.folder / "hub-state")},
            "log": {"format": "json"},
            "witness": {
                "interval": "2s",
                "timeout": "1s",
                "endpoints": {"hub": f"tcp://{CLOUD}:{self.port}", "model": f"tcp://{CLOUD}:{port}"},
            },
        }

    def start_far_agent(self, name: str) -> Child:
        agent = self.agent(
            name,
            insecure_hub=True,
            ca_files=[self.model["ca_file"]],
            secrets={
                "SIM_KEY": {"origin": f"https://{NAME}:{self.model['listeners']['tls']['port']}", "env": "SIM_KEY"}
            },
        )
        agent.prefix = ["ip", "netns", "exec", f"far-{name}"]
        agent.start()
        return agent

    def seconds(self, vantage: str) -> dict[str, list[float]]:
        """Phases and TTFT of the good attempts of a vantage point."""
        query = text(
            "SELECT (connect_end_ns - connect_start_ns) / 1e9 AS connect, (tls_end_ns - tls_start_ns) / 1e9 AS tls, "
            "first_token_ns / 1e9 AS ttft, tcp_min_rtt_seconds AS rtt FROM attempts a "
            "JOIN vantages v USING (vantage_id) WHERE v.name = :name AND outcome = 'success' AND try = 0"
        )
        with self.engine.connect() as connection:
            rows = [row._mapping for row in connection.execute(query, {"name": vantage})]
        return {key: [float(row[key]) for row in rows] for key in ("connect", "tls", "ttft", "rtt")}

    def line(self, vantage: str, at: datetime) -> Line:
        """The line of a vantage point as the record tells it afterwards."""
        looks = witness.between(self.engine, vantage, at - timedelta(hours=1), at)
        return line(looks, at, timedelta(seconds=2))


@dataclass
class World:
    fleet: FarFleet

    def set(self, link: str) -> None:
        """Change a path: `lagos=105,down=1`."""
        subprocess.run([sys.executable, str(FARNET), "set", link], check=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[World]:
    """Everything up: Postgres on a socket, model and hub in the cloud, three agents far away."""
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists() or not shutil.which("ip"):
        pytest.skip("emulating distance needs root, iproute2 and /dev/net/tun")
    if not FARNET.exists():
        pytest.skip("the emulator of far hosts is not here")
    behaviour = {"ttft_seconds": TTFT, "headers_seconds": 0.0, "tokens": 5, "tokens_per_second": 200.0}
    listener = {"name": "tls", "host": CLOUD, "models": {"m": behaviour}, "tls": "wrong_name"}
    scenario = json.dumps({"listeners": [listener]})
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE, "text": True}
    cloud = ["ip", "netns", "exec", "far-cloud", sys.executable, "-m", "monitor.simulator"]
    with ExitStack() as stack:
        stack.enter_context(alone())
        network = stack.enter_context(ended(subprocess.Popen([sys.executable, str(FARNET), "up", *LINKS], **pipes)))
        assert first_line(network) == "ready"
        for name in RTT:
            stack.enter_context(files_of(f"far-{name}", hosts=f"127.0.0.1 localhost\n{CLOUD} {NAME}\n"))
        command = [*cloud, "--config", scenario, "--until-stdin-closes"]
        simulator = stack.enter_context(ended(subprocess.Popen(command, **pipes)))
        model = json.loads(first_line(simulator))
        folder = run_folder / "far-fleet"
        folder.mkdir()
        server = stack.enter_context(embedded.start(folder / "postgres"))
        fleet = FarFleet(tmp_path_factory.mktemp("far-fleet"), server.url, model)
        stack.callback(fleet.engine.dispose)
        try:
            fleet.start_hub()
            for name in RTT:
                fleet.start_far_agent(name)
            yield World(fleet)
        finally:
            for child in fleet.children:
                if child.process is not None and child.process.poll() is None:
                    child.process.kill()
                    child.process.wait()


def test_phases_show_the_round_trips_and_geography_explains_ttft(world: World) -> None:
    """Connecting takes one round trip, TLS 1.3 one more, the first token a third; what is left is the model's."""
    for name in RTT:
        world.fleet.until_rows(8, name, seconds=120)
    found = {name: world.fleet.seconds(name) for name in RTT}
    least = {name: {key: min(values) for key, values in one.items()} for name, one in found.items()}
    ttft = {name: statistics.median(one["ttft"]) for name, one in found.items()}
    for name, rtt in RTT.items():
        spread = 0.006 if name == "lagos" else 0.0
        assert rtt - spread <= least[name]["connect"] <= rtt * 1.15 + 0.01, (name, least)
        assert rtt - spread <= least[name]["tls"] <= rtt * 1.15 + 0.03, (name, least)
        assert rtt - spread <= least[name]["rtt"] <= rtt * 1.15 + 0.01, (name, least)
    assert ttft["lagos"] > ttft["london"] > ttft["virginia"]
    for near, far in (("virginia", "london"), ("virginia", "lagos"), ("london", "lagos")):
        distance = 3 * (RTT[far] - RTT[near])
        assert ttft[far] - ttft[near] == pytest.approx(distance, rel=0.2, abs=0.03), ttft


def test_a_line_that_goes_dark_and_comes_back_bad(world: World) -> None:
    """Cut for longer than a heartbeat, then 30 % packet loss: Lagos delivers all it has, and the books balance.

    The witness says afterwards that it was the line, of Lagos alone.
    """
    fleet = world.fleet
    fleet.until_rows(2)
    cut = datetime.now(UTC)
    world.set("lagos=105,down=1")
    fleet.agents["lagos"].until_said("the store is away")
    wait(20.0)
    dark = datetime.now(UTC)
    waiting = fleet.waiting("lagos")
    assert waiting is not None
    assert waiting >= 5
    world.set("lagos=105,down=0,loss=30")
    fleet.until_rows(waiting, seconds=240)
    world.set("lagos=105,loss=0")
    fleet.until_rows(3)
    until(lambda: fleet.waiting("lagos") == 0, "an empty spool", 120)
    fleet.settled()
    account = fleet.account()
    assert account.balanced(), account
    assert set(account.missed) <= {"overlap", "late", "shutdown", "capacity", "unexplained"}, account
    with fleet.engine.connect() as connection:
        query = text(
            "SELECT count(*) FROM attempts WHERE outcome = 'failed' AND failure_phase IN ('resolve', 'connect', 'tls') "
            "AND scheduled_at > :since"
        )
        since = {"since": datetime(2020, 1, 1, tzinfo=UTC)}
        assert connection.execute(query, since).scalar_one() >= 3, "the dark line is not in the record"
    told = until(lambda: (one := fleet.line("lagos", dark)).state is LineState.DOWN and one, "Lagos's line, down", 60)
    assert cut - timedelta(seconds=1) < told.since < cut + timedelta(seconds=10)
    assert fleet.line("london", dark).state is LineState.UP, "it was the line in Lagos, and nobody else's"


def test_no_agent_holds_a_database_password(world: World) -> None:
    """What an agent has on disk leads to the hub alone; the hub's files hold no provider's key."""
    fleet = world.fleet
    for name in RTT:
        for file in (fleet.folder / f"agent-{name}").rglob("*"):
            if file.is_file():
                assert b"postgresql://" not in file.read_bytes(), file
    for file in (fleet.folder / "hub.log", fleet.file):
        assert SIM_KEY not in file.read_text(), file
