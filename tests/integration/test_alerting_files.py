"""The files in deploy/ before the programs that read them: promtool, amtool, and a real Prometheus."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from monitor.rules import Thresholds, every_alert
from monitor.rules.alertmanager import Pace, configuration
from monitor.rules.groups import to_yaml
from monitor.rules.receivers import from_environment
from tests.ports import free_port

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TEMPLATES = DEPLOY / "alertmanager" / "firsttoken.tmpl"
PROMTOOL, PROMETHEUS, AMTOOL = (shutil.which(name) for name in ("promtool", "prometheus", "amtool"))
needs_prometheus = pytest.mark.skipif(
    not (PROMTOOL and PROMETHEUS), reason="Debian package prometheus is not installed"
)
needs_amtool = pytest.mark.skipif(AMTOOL is None, reason="Debian package prometheus-alertmanager is not installed")
KINDS = {
    "webhook": {"WEBHOOK_URL": "https://alerts.example.com/hook", "WEBHOOK_TOKEN_FILE": "/run/secrets/hook"},
    "email": {
        "EMAIL_TO": "ops@example.com, night@example.com",
        "EMAIL_FROM": "firsttoken@example.com",
        "SMTP_HOST": "mail.example.com:587",
        "SMTP_USER": "firsttoken",
        "SMTP_PASSWORD_FILE": "/run/secrets/smtp",
    },
    "slack": {"SLACK_URL_FILE": "/run/secrets/slack", "SLACK_CHANNEL": "#alerts"},
    "pagerduty": {"PAGERDUTY_KEY_FILE": "/run/secrets/pagerduty"},
}
COMBINATIONS = [names for n in range(len(KINDS) + 1) for names in itertools.combinations(KINDS, n)]


def written(folder: Path, names: tuple[str, ...]) -> Path:
    """Alertmanager's configuration for some kinds of receivers."""
    given = {f"FIRSTTOKEN_ALERT_{key}": value for name in names for key, value in KINDS[name].items()}
    tree = configuration(every_alert(Thresholds()), from_environment(given), str(TEMPLATES), Pace())
    file = folder / "alertmanager.yml"
    file.write_text(to_yaml(tree), encoding="utf-8")
    return file


@needs_amtool
@pytest.mark.parametrize("names", COMBINATIONS, ids=lambda names: "+".join(names) or "nobody")
def test_alertmanager_takes_every_combination_of_receivers(tmp_path: Path, names: tuple[str, ...]) -> None:
    """amtool has no complaint, templates included; critical alerts alone go to the pager, and to everyone too."""
    file = written(tmp_path, names)
    done = subprocess.run([str(AMTOOL), "check-config", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 templates" in done.stdout
    pager = ["firsttoken-pager", "firsttoken"] if "pagerduty" in names else ["firsttoken"]
    assert routed(file, "critical") == pager
    assert routed(file, "warning") == ["firsttoken"]


def routed(file: Path, severity: str) -> list[str]:
    """The receivers that an alert of a severity reaches."""
    command = [str(AMTOOL), "config", "routes", "test", f"--config.file={file}", f"severity={severity}", "incident=x"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip().split(",")


@needs_amtool
def test_the_committed_configuration_is_good(tmp_path: Path) -> None:
    """What compose mounts is taken as it is, but for the template's place."""
    text = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text("utf-8")
    assert "/etc/alertmanager/firsttoken.tmpl" in text
    file = tmp_path / "alertmanager.yml"
    file.write_text(text.replace("/etc/alertmanager/firsttoken.tmpl", str(TEMPLATES)))
    done = subprocess.run([str(AMTOOL), "check-config", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_prometheus_loads_what_is_deployed(tmp_path: Path) -> None:
    """promtool has no complaint, and a real Prometheus starts with the file as it is and knows all rules."""
    config = DEPLOY / "prometheus" / "prometheus.yml"
    checked = subprocess.run([str(PROMTOOL), "check", "config", config], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    address = f"127.0.0.1:{free_port()}"
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        groups = loaded_groups(address)
    finally:
        running.terminate()
        running.wait(20)
    assert [group["name"].startswith("firsttoken-") for group in groups] == [True] * 5
    names = {rule["name"] for group in groups for rule in group["rules"] if rule["type"] == "alerting"}
    assert names == {alert.full_name for alert in every_alert(Thresholds())}


def loaded_groups(address: str) -> list[dict[str, object]]:
    """The rule groups of a Prometheus, once it is up."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            with urllib.request.urlopen(f"http://{address}/api/v1/rules", timeout=10) as answer:
                if groups := json.load(answer)["data"]["groups"]:
                    return list(groups)
        except OSError:
            pass  # not up yet
        time.sleep(0.2)
    raise AssertionError("Prometheus never told its rules")
