"""docker-compose.yml and the Dockerfile keep what docs/compose.md promises.

Read here; tests/integration/test_compose_runs.py starts each service's command as the file says.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONCE = {"first-start", "enrol", "alerting"}
PUBLISHED = {"proxy": "8443", "grafana": "3000"}


def test_it_is_what_the_compose_specification_allows() -> None:
    """The file fits the JSON Schema of the compose specification."""
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, str(ROOT / "docker-compose.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_is_no_formality(tmp_path: Path) -> None:
    """A key that compose does not know is refused by the same check."""
    bad = tmp_path / "docker-compose.yml"
    bad.write_text(TEXT.replace("stop_grace_period: 30s", "stop_grace_time: 30s"))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(bad)]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    """Every image has a whole version, none floats."""
    assert re.search(r":v?\d+\.\d+(\.\d+)?(-[a-z]+)?$", SERVICES[name]["image"]), SERVICES[name]["image"]


@pytest.mark.parametrize("name", SERVICES)
def test_least_privilege(name: str) -> None:
    """No capabilities, no new privileges, nothing written outside volumes; root only where secrets are made."""
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "privileged" not in service
    assert ("cap_add" in service) == (name == "first-start")
    if name == "first-start":
        assert service["network_mode"] == "none"
    elif service["image"].startswith("firsttoken:"):
        assert "user" not in service  # the image's own: see the Dockerfile
    else:
        assert not service["user"].startswith("0:")


@pytest.mark.parametrize("name", SERVICES)
def test_services_come_back_and_say_how_they_are(name: str) -> None:
    """What runs on is restarted and has a health check; what runs once is not and has none."""
    service = SERVICES[name]
    assert service["restart"] == ("no" if name in ONCE else "unless-stopped")
    assert ("healthcheck" in service) == (name not in ONCE)


def test_only_the_proxy_and_grafana_are_published_and_on_loopback() -> None:
    """Nothing else can be reached from outside, and these two only from this machine unless somebody says otherwise."""
    assert {name for name, service in SERVICES.items() if "ports" in service} == set(PUBLISHED)
    for name, port in PUBLISHED.items():
        (published,) = SERVICES[name]["ports"]
        assert re.fullmatch(rf"\$\{{FIRSTTOKEN_PUBLISH\w*:-127\.0\.0\.1\}}:{port}:{port}", published)


def test_no_secret_is_written_or_handed_over_by_environment() -> None:
    """Passwords are files that are made on the first start; the environment names files at most."""
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN|KEY", key.removeprefix("FIRSTTOKEN_")):
                assert key.endswith("_FILE"), f"{name}: {key}"
                assert value is None or str(value).startswith("/run/secrets/")
    assert not re.search(r"(?i)(password|secret|key): *[a-z0-9]{6,}$", TEXT, re.MULTILINE)


def test_each_service_sees_its_own_secrets_only() -> None:
    """Secrets are mounted by subfolder and read-only, but where they are made and where tokens are handed out."""
    whole = {}
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            if isinstance(volume, dict) and volume["source"] == "secrets":
                assert volume["volume"]["subpath"]
                assert volume.get("read_only") or (name, volume["volume"]["subpath"]) == ("enrol", "agents")
            elif isinstance(volume, str) and volume.startswith("secrets:"):
                whole[name] = volume
    assert set(whole) == {"first-start"}


def test_the_database_is_out_of_reach_of_agents() -> None:
    """An agent shares no network with the database."""
    reach = {name: set(service.get("networks", [])) for name, service in SERVICES.items()}
    for agent in ("lagos", "london", "virginia", "one"):
        assert not reach[agent] & reach["postgres"]
    assert COMPOSE["networks"]["back"] == {"internal": True}


def test_what_is_mounted_is_there() -> None:
    """Every file and folder of this repository that a service mounts exists."""
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0] if isinstance(volume, str) else volume["source"]
            default = re.match(r"\$\{\w+:-([^}]+)\}", volume if isinstance(volume, str) else "")
            path = default[1] if default else source
            if path.startswith("./"):
                assert (ROOT / path).exists(), f"{name} mounts {path}"


def test_profiles() -> None:
    """`demo` brings the simulator and three agents, `three` the agents, `one` a single one; the hub runs with each."""

    def of(profile: str) -> set[str]:
        return {name for name, service in SERVICES.items() if profile in service.get("profiles", [profile])}

    always = {"first-start", "postgres", "hub", "proxy", "alerting", "prometheus", "alertmanager", "grafana"}
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == always
    assert of("demo") == always | {"enrol", "simulator", "lagos", "london", "virginia"}
    assert of("three") == always | {"enrol", "lagos", "london", "virginia"}
    assert of("one") == always | {"enrol", "one"}


def test_the_image() -> None:
    """Two stages, no root at run time, hashes for every package, and the same command for hub and agent."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    stages = dockerfile.split("\nFROM ")[1:]
    assert len(stages) == 2
    assert "--require-hashes" in stages[0]
    assert "USER firsttoken" in stages[1]
    assert "--uid 10001" in stages[1]
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", dockerfile, re.MULTILINE)
    assert json.loads(entry) == ["firsttoken"]


def test_the_image_is_given_what_it_copies() -> None:
    """.dockerignore lets through exactly what the Dockerfile copies from here."""
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    wanted = {word.split("/")[0] if word.startswith("locks") else word for line in copied for word in line.split()}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert wanted == let_through
