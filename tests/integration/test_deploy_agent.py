"""deploy/agent: a unit that systemd takes and finds safe, a cloud-init that cloud-init takes; both start an agent."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.cli.probing import FINAL_DELIVERY_SECONDS
from monitor.cli.service import DRAIN_SECONDS
from monitor.config.agentfile import load_agent_file
from monitor.config.kinds import parse_duration
from tests.integration.running_fleet import SIM_KEY, running
from tests.integration.running_up import COMMAND

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "deploy" / "agent"
UNIT = AGENT / "firsttoken-agent.service"
SCRIPTS = sorted(ROOT.glob("deploy/**/*.sh"))
MOST_EXPOSED = 1.5
"""Of systemd's own measure, from 0 (safe) to 10; the network is what an agent is for."""


def needs(program: str) -> Any:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def run(*command: str) -> str:
    """What a good command says, on both of its outputs."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def service() -> dict[str, list[str]]:
    """Keys of [Service] with all their values."""
    section = UNIT.read_text().split("[Service]")[1].split("[Install]")[0]
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", section, re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def start_command() -> list[str]:
    (command,) = service()["ExecStart"]
    return shlex.split(command)


@needs("systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Every key is known and well-formed, once the program that it starts is there."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(start_command()[0], str(COMMAND)))
    assert run("systemd-analyze", "verify", str(unit)).strip() == ""


@needs("systemd-analyze")
def test_systemd_finds_it_safe() -> None:
    """Little is left that a stolen agent could do."""
    said = run("systemd-analyze", "security", "--offline=yes", "--no-pager", str(UNIT))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found is not None
    assert float(found[1]) <= MOST_EXPOSED


def test_the_unit_lets_an_agent_finish() -> None:
    """It is killed no sooner than it has drained and delivered, comes back always, and is bounded in memory."""
    keys = service()
    (patience,) = keys["TimeoutStopSec"]
    assert parse_duration(patience) >= DRAIN_SECONDS + FINAL_DELIVERY_SECONDS + 5
    assert keys["Restart"] == ["always"]
    assert keys["MemoryMax"] == ["256M"]
    assert keys["DynamicUser"] == ["yes"]
    assert "StartLimitIntervalSec=0" in UNIT.read_text()


def test_the_unit_is_a_file_of_keys() -> None:
    """No line is lost on a parser that is stricter than systemd, but for keys that stand there twice."""
    parser = RawConfigParser(strict=False)
    parser.read_string(UNIT.read_text())
    assert set(parser.sections()) == {"Unit", "Service", "Install"}


def credentials(folder: Path, token: str, **keys: str) -> Path:
    """What systemd makes of LoadCredential: files of the unit's names."""
    made = folder / "credentials"
    made.mkdir()
    for loaded in service()["LoadCredential"]:
        name, source = loaded.split(":")
        assert source.startswith("/etc/firsttoken/")
        if name == "token":
            (made / name).write_text(token)
        for key, value in keys.items() if name == "keys" else ():
            (made / f"{name}_{key}").write_text(value)
    return made


def test_the_units_command_runs_an_agent(tmp_path: Path, database_url: str) -> None:
    """Started as the unit says, with its credentials and state folder, it measures, delivers, and leaves when told."""
    with running(tmp_path, database_url) as fleet:
        agent = fleet.agent("lagos")
        own = fleet.folder / "agent-lagos"
        handed = credentials(own, (own / "token").read_text(), sim=SIM_KEY)
        written = yaml.safe_load((AGENT / "agent.yaml").read_text())
        origin = f"http://127.0.0.1:{fleet.model_port}"
        written |= {
            "hub": fleet.hub_url,
            "metrics": "127.0.0.1:0",
            "secrets": {"SIM_KEY": {"origin": origin, "file": "${CREDENTIALS_DIRECTORY}/keys_sim"}},
            "log": {"format": "json"},
        }
        (own / "agent.yaml").write_text(json.dumps(written))
        (own / "token").unlink()
        program, *arguments = start_command()
        assert program == "/opt/firsttoken/current/bin/firsttoken"
        agent.arguments = [word.replace("/etc/firsttoken/agent.yaml", str(own / "agent.yaml")) for word in arguments]
        agent.environment = {"CREDENTIALS_DIRECTORY": str(handed), "STATE_DIRECTORY": str(own / "state")}
        agent.start()
        fleet.until_rows(3)
        assert (own / "state" / "spool.sqlite3").exists()
        assert agent.end() == 0


def filled() -> str:
    """The cloud-init with something for everything in <...>."""
    text = (AGENT / "cloud-init.yaml").read_text()
    return re.sub(r"<([^<>]*)>", lambda match: match[1].replace(" ", "-").replace("'", ""), text)


@needs("cloud-init")
def test_cloud_init_takes_it(tmp_path: Path) -> None:
    """Debian's cloud-init finds nothing wrong, as it is and filled in; and would find something."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(filled())
    bad.write_text(filled().replace("packages: [", "packages: [{}, "))
    for file in (AGENT / "cloud-init.yaml", good):
        run("cloud-init", "schema", "--config-file", str(file))
    done = subprocess.run(
        ["cloud-init", "schema", "--config-file", str(bad)], capture_output=True, check=False, timeout=60
    )
    assert done.returncode != 0


def test_cloud_init_writes_what_the_agent_reads(tmp_path: Path) -> None:
    """The agent's file in it is good, with the files beside it as credentials; secrets are root's alone."""
    written = {one["path"]: one for one in yaml.safe_load(filled())["write_files"]}
    handed = tmp_path / "credentials"
    handed.mkdir()
    (handed / "token").write_text(written["/etc/firsttoken/token"]["content"])
    (handed / "keys_openai").write_text(written["/etc/firsttoken/keys/openai"]["content"])
    file = tmp_path / "agent.yaml"
    file.write_text(written["/etc/firsttoken/agent.yaml"]["content"])
    own = load_agent_file(file, {"CREDENTIALS_DIRECTORY": str(handed), "STATE_DIRECTORY": str(tmp_path)})
    assert own.hub == "https://hub.example.com"
    assert set(own.trusted.secrets) == {"OPENAI_API_KEY"}
    for path, one in written.items():
        if Path(path).name == "token" or "/keys/" in path:
            assert one["permissions"] == "0600"


def test_cloud_init_fetches_what_it_runs() -> None:
    """Each file that a later command needs is fetched, held to a sum, and exists here under that name."""
    config = yaml.safe_load(filled())
    (fetch,) = (one["content"] for one in config["write_files"] if one["path"].endswith("/fetch"))
    fetched = re.search(r"for file in (.+); do", fetch)
    assert fetched is not None
    summed = re.findall(r"^sha256  (\S+)$", fetch, re.MULTILINE)
    assert fetched[1].split() == summed
    used = {
        Path(word).name for command in config["runcmd"] for word in command if re.match(r"/opt/firsttoken/\S+\.", word)
    }
    assert used <= set(summed)
    here = {path.name for path in [*AGENT.iterdir(), *(ROOT / "locks").iterdir()]}
    assert {name for name in summed if not name.endswith(".whl")} <= here


@needs("shellcheck")
def test_scripts_are_sound(tmp_path: Path) -> None:
    """shellcheck has nothing to say about any script of deploy/, nor about the one inside cloud-init."""
    (fetch,) = (one["content"] for one in yaml.safe_load(filled())["write_files"] if one["path"].endswith("/fetch"))
    inside = tmp_path / "fetch.sh"
    inside.write_text(fetch)
    assert len(SCRIPTS) >= 4
    run("shellcheck", *map(str, SCRIPTS), str(inside))
