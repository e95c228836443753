"""docker-compose.yml and the Dockerfile start what they say: read here, and their command run without Docker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitor.config import load
from monitor.model import ConfigError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "firsttoken.yaml"
COMMAND = str(Path(sys.executable).with_name("firsttoken"))
SERVICE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["firsttoken"]
GIVEN = {
    "POSTGRES_PASSWORD": "planted-password",
    "FIRSTTOKEN_VANTAGE": "lagos",
    "OPENAI_API_KEY": "sk-planted-1",
    "ANTHROPIC_API_KEY": "sk-planted-2",
    "OWN_LLAMA_KEY": "sk-planted-3",
}


def environment(given: dict[str, str]) -> dict[str, str]:
    """The service's environment as Compose fills it in; LookupError with the file's words for what is not set."""

    def value(match: re.Match[str]) -> str:
        name, kind, words = match[1], match[2], match[3]
        if given.get(name):
            return given[name]
        if kind == ":-":
            return words
        raise LookupError(f"{name}: {words}")

    fill = re.compile(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}")
    return {name: fill.sub(value, text) for name, text in SERVICE["environment"].items()}


def test_the_service_starts_with_what_the_file_says_to_set() -> None:
    """The example as it stands is good with the service's environment and nothing else, and one vantage is played."""
    filled = environment(GIVEN)
    done = subprocess.run(
        [COMMAND, "validate", str(EXAMPLE)], env=filled, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = load(EXAMPLE, filled)
    assert [vantage.name for vantage in loaded.select_vantages()] == ["lagos"]
    assert loaded.database_url == "postgresql://firsttoken:planted-password@postgres:5432/firsttoken"


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_not_set_is_asked_for_by_name(name: str) -> None:
    """Compose itself stops and says what is missing; an empty value counts as missing."""
    with pytest.raises(LookupError, match=f"{name}: (set|say)"):
        environment({**GIVEN, name: ""})


def test_without_a_vantage_the_example_could_not_run() -> None:
    """Why FIRSTTOKEN_VANTAGE is required: the example has three real ones."""
    filled = environment(GIVEN)
    del filled["FIRSTTOKEN_VANTAGE"]
    with pytest.raises(ConfigError, match="3 vantage points"):
        load(EXAMPLE, filled).select_vantages()


def test_the_image_runs_the_file_that_is_mounted() -> None:
    """The Dockerfile's command is `firsttoken up` with the path that the compose file mounts; volumes agree too."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    command = [json.loads(words) for words in re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", dockerfile, re.MULTILINE)]
    state = re.findall(r"^ENV STATE_DIRECTORY=(\S+)$", dockerfile, re.MULTILINE)
    mounted = [volume.split(":")[1] for volume in SERVICE["volumes"]]
    assert command == [["firsttoken"], ["up", mounted[0]]]
    assert state == mounted[1:]
