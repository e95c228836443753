"""A small fleet of child processes: simulator, hubs, agents, one database; and the books that no fault may upset."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text

from monitor import wire
from monitor.clock import instant
from monitor.detect.coverage import micros, segments, spans
from monitor.notes import Note
from monitor.store.coverage import covered
from monitor.store.engine import parse_url
from monitor.store.rows import vantage_id
from tests.integration.running_up import until
from tests.ports import free_port

COMMAND = str(Path(sys.executable).with_name("firsttoken"))
SIM_KEY = "sk-planted-for-the-simulator"
INTERVAL = 0.5
PROBES = {"p": {"prompt": "hi", "interval": "500ms", "deadline": "300ms", "connect_timeout": "200ms"}}


@dataclass
class Child:
    """One process of the fleet, with its log; `start` again after it has ended."""

    arguments: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    command: str = COMMAND
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        clean = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "FIRSTTOKEN_VANTAGE")}
        with self.log.open("ab") as log:
            whole = [*self.prefix, self.command, *self.arguments]
            self.process = subprocess.Popen(whole, env=clean | dict(self.environment), stdout=log, stderr=log)

    def kill(self) -> None:
        """As a power cut would: at once, without a word."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM, seconds: float = 40.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(seconds)

    def said(self, words: str) -> int:
        return self.log.read_text(errors="replace").count(words)

    def until_said(self, words: str, count: int = 1) -> None:
        until(lambda: self.said(words) >= count, f"{words!r} in {self.log.name}:\n{self.log.read_text()[-3000:]}", 60)


class Fleet:
    """Everything in one folder; the agents' line to the hub is `hub_url`."""

    def __init__(self, folder: Path, database: str, **sections: Any) -> None:
        self.folder = folder
        self.database = database
        self.engine: Engine = create_engine(parse_url(database))
        self.port = free_port()
        self.hub_url = f"http://127.0.0.1:{self.port}"
        self.children: list[Child] = []
        self.agents: dict[str, Child] = {}
        self.ended: dict[str, datetime] = {}
        self.sections = sections
        self.model_port = self._simulate()
        self.write(self.configuration())
        self.hub = self.child("hub", ["hub", str(self.file), "--listen", f"127.0.0.1:{self.port}"])

    @property
    def file(self) -> Path:
        return self.folder / "fleet.yaml"

    def configuration(self, **sections: Any) -> dict[str, Any]:
        target = {
            "provider": "sim",
            "model": "m",
            "dialect": "openai_chat",
            "url": f"http://127.0.0.1:{self.model_port}/v1",
            "api_key": "${SIM_KEY}",
            "simulated": True,
        }
        return {
            "vantages": {"lagos": {"country": "NG"}, "london": {"country": "GB"}},
            "targets": {"t": target},
            "probes": PROBES,
            "storage": {"database_url": self.database},
            "spool": {"directory": str(self.folder / "hub-state")},
            "log": {"format": "json"},
            "witness": "off",  # what tests look at is on this machine
            **self.sections,
            **sections,
        }

    def write(self, content: Mapping[str, Any]) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(content))
        fresh.replace(self.file)

    def _simulate(self) -> int:
        port = free_port()
        model = {"ttft_seconds": 0.02, "tokens": 4, "tokens_per_second": 400}
        scenario = self.folder / "scenario.json"
        scenario.write_text(json.dumps({"listeners": [{"name": "a", "port": port, "models": {"m": model}}]}))
        simulator = self.child("simulator", ["simulate", "--scenario", str(scenario), "--json"])
        simulator.start()
        simulator.until_said('"ready": true')
        return port

    def child(self, name: str, arguments: Sequence[str], **environment: str) -> Child:
        made = Child(arguments, self.folder / f"{name}.log", environment)
        made.log.touch()
        self.children.append(made)
        return made

    def start_hub(self, hub: Child | None = None) -> None:
        hub = hub or self.hub
        before = hub.said("the hub is up")
        hub.start()
        hub.until_said("the hub is up", before + 1)

    def enrol(self, name: str) -> str:
        """A token for a vantage point."""
        done = self.command("vantage", "add", name, "--config", str(self.file), "--json")
        return str(json.loads(done.stdout)["token"])

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done

    def agent(self, name: str, token: str | None = None, state: Path | None = None, **settings: Any) -> Child:
        """An agent that is ready to start."""
        folder = self.folder / f"agent-{name}"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(token or self.enrol(name))
        own = {
            "hub": self.hub_url,
            "token_file": "token",
            "state": str(state or folder / "state"),
            "secrets": {"SIM_KEY": {"origin": f"http://127.0.0.1:{self.model_port}", "env": "SIM_KEY"}},
            "log": {"format": "json"},
            **settings,
        }
        (folder / "agent.yaml").write_text(json.dumps(own))
        child = self.child(f"agent-{name}", ["agent", "--file", str(folder / "agent.yaml")], SIM_KEY=SIM_KEY)
        self.agents[name] = child
        return child

    def get(self, path: str, port: int | None = None) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port or self.port}{path}", timeout=20) as answer:
            return str(answer.read().decode())

    def post(self, path: str, token: str, body: bytes, port: int | None = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of a request as an agent makes it."""
        url = f"http://127.0.0.1:{port or self.port}/api/v1/agent/{path}"
        asked = urllib.request.Request(url, body, {"authorization": f"Bearer {token}", **headers})
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name: str, port: int | None = None, **labels: str) -> float:
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in self.get("/metrics", port).splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))

    def rows(self, vantage: str = "lagos") -> int:
        """Slots with a row."""
        with self.engine.connect() as connection:
            query = text("SELECT count(*) FROM attempts WHERE vantage_id = :id AND try = 0")
            return int(connection.execute(query, {"id": vantage_id(vantage)}).scalar_one())

    def until_rows(self, more: int, vantage: str = "lagos", seconds: float = 60.0) -> int:
        """Wait until so many more rows have come."""
        goal = self.rows(vantage) + more
        until(lambda: self.rows(vantage) >= goal, f"{goal} rows of {vantage}", seconds)
        return goal

    def settled(self, name: str = "lagos") -> None:
        """Let an agent go in peace: everything that it has is delivered."""
        agent = self.agents[name]
        until(lambda: self.waiting(name) == 0, f"an empty spool of {name}", 90)
        self.ended[name] = datetime.now(UTC)
        assert agent.end() == 0, agent.log.read_text()[-3000:]
        assert self.waiting(name) == 0, "what ended with the agent was not delivered"

    def waiting(self, name: str) -> int | None:
        """Attempts and notes that wait in an agent's spool, as its file says."""
        own = json.loads((self.folder / f"agent-{name}" / "agent.yaml").read_text())
        path = Path(own["state"]) / "spool.sqlite3"
        with suppress(sqlite3.Error):
            db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
            try:
                return sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("attempts", "notes"))
            finally:
                db.close()
        return None

    # ------------------------------------------------------------------------------------------------ the books

    def account(self, vantage: str = "lagos") -> Account:
        """What became of every slot that was owed until the agent was told to end, counted slot by slot, by hand."""
        with self.engine.connect() as connection:
            notes: list[tuple[str, Note]] = [
                (row.agent, wire.decode_note(vantage, row.body))
                for row in connection.execute(
                    text("SELECT agent, body FROM notes WHERE vantage_id = :id"), {"id": vantage_id(vantage)}
                )
            ]
            rows = [
                (row.target, row.probe, micros(row.scheduled_at), row.outcome, row.missed_reason)
                for row in connection.execute(
                    text(
                        "SELECT s.target, s.probe, a.scheduled_at, a.outcome, a.missed_reason FROM attempts a "
                        "JOIN series s USING (vantage_id, series_id) WHERE a.vantage_id = :id AND a.try = 0"
                    ),
                    {"id": vantage_id(vantage)},
                )
            ]
        until_us = micros(self.ended.get(vantage) or datetime.now(UTC))
        account = Account()
        explained = spans(note for _, note in notes)
        answered = {(target, probe, at): (outcome, why) for target, probe, at, outcome, why in rows}
        for key, plan in segments(notes).items():
            for segment in plan:
                for number in segment.numbers(0, until_us):
                    at = segment.grid.instant_us(number)
                    account.owed += 1
                    # after a step of the clock backwards a slot may be walked again, some microseconds behind
                    walks = [answered.pop((*key, at + n)) for n in range(5) if (*key, at + n) in answered]
                    outcome, why = min(walks, key=lambda one: one[0] == "missed", default=(None, None))
                    if outcome == "missed":
                        account.missed[str(why)] += 1
                    elif outcome is not None:
                        account.measured += 1
                    else:
                        known = [one for one in explained if one.concerns(key) and one.from_us <= at <= one.until_us]
                        account.missed[min(known, key=lambda one: one.rank).reason if known else "unexplained"] += 1
                        account.unexplained += [] if known else [instant(at * 1000).isoformat()]
        account.said = [str(note)[:300] for _, note in notes]
        account.beyond = sum(at < until_us for _, _, at in answered)
        return account

    def product_says(self, vantage: str = "lagos") -> tuple[int, int, Counter[str]]:
        """Owed, measured and missed by cause over the last hours, as `store.coverage` counts them."""
        now = datetime.now(UTC)
        since = (now - timedelta(hours=6)).replace(minute=0, second=0, microsecond=0)
        found = covered(self.engine, since, now + timedelta(hours=1), now, vantage=vantage)
        missed: Counter[str] = Counter()
        for one in found:
            missed.update(one.tally.missed)
        return sum(one.tally.owed for one in found), sum(one.tally.measured for one in found), missed


@dataclass
class Account:
    """Every owed slot is in `measured` or in `missed` under one cause; rows that nobody owed are `beyond`."""

    owed: int = 0
    measured: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    beyond: int = 0
    unexplained: list[str] = field(default_factory=list)  # instants
    said: list[str] = field(default_factory=list)  # the notes, for whoever has to find out

    def balanced(self) -> bool:
        """Nothing lost silently, nothing twice."""
        return self.owed == self.measured + sum(self.missed.values()) and not self.missed["unexplained"]


@contextmanager
def running(folder: Path, database: str, **sections: Any) -> Iterator[Fleet]:
    """A fleet with its hub up; everything is ended afterwards, and logs are shown when the test fails."""
    fleet = Fleet(folder, database, **sections)
    try:
        fleet.start_hub()
        yield fleet
    except BaseException:
        for child in fleet.children:
            sys.stderr.write(f"--- {child.log.name}\n{child.log.read_text(errors='replace')[-4000:]}\n")
        raise
    finally:
        for child in fleet.children:
            if child.process is not None and child.process.poll() is None:
                child.process.kill()
                child.process.wait()
        fleet.engine.dispose()


def wait(seconds: float) -> None:
    """Let compressed time pass: what a fault lasts is part of the test, not a guess about somebody's speed."""
    time.sleep(seconds)


class Relay:
    """A line between an agent and its hub that can be cut or made bad, whatever the connections over it.

    Cut: nothing passes, and nobody is told, as when a cable is torn. Bad: what TCP makes of 30 % lost packets, pieces
    that come late by a retransmission or several, and now and then a connection that breaks.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._open = threading.Event()
        self._open.set()
        self.loss = 0.0
        self._over = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Nothing passes from now on."""
        self._open.clear()

    def mend(self, loss: float = 0.0) -> None:
        """What waited passes, at this loss."""
        self.loss = loss
        self._open.set()

    def close(self) -> None:
        """Take no more connections."""
        self._over = True
        self._open.set()
        self._server.close()

    def _accept(self) -> None:
        while not self._over:
            with suppress(OSError):
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()
                continue
            time.sleep(0.05)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1400):
                self._open.wait()
                while random.random() < self.loss:
                    time.sleep(0.2)
                if random.random() < self.loss / 100:
                    break
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
