"""The rules as data: every alert says what it must, every metric exists, and the documentation tells of all."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from monitor.cli.alertmanager import alertmanager
from monitor.cli.rules import rules, table
from monitor.metrics import Metrics
from monitor.metrics.fleet import FleetMetrics
from monitor.model import MonitorError
from monitor.rules import PREFIX, BadThreshold, Links, Thresholds, every_alert, rule_file
from monitor.rules.receivers import VARIABLES, BadReceiver, from_environment
from monitor.rules.thresholds import duration

ROOT = Path(__file__).resolve().parents[2]
ALERTS = every_alert(Thresholds())
TREE = rule_file(Thresholds(), Links())
RULES: list[dict[str, Any]] = [rule for group in TREE["groups"] for rule in group["rules"]]
ALERTING = [rule for rule in RULES if "alert" in rule]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text("utf-8")
PAGE = (ROOT / "docs" / "alerts.md").read_text("utf-8")
PROMISED = {"firsttoken_witness_up"}
"""Metrics that the witness will bring; rules work without them."""


@pytest.mark.parametrize("rule", ALERTING, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_it_must(rule: dict[str, Any]) -> None:
    """Severity, scope, incident; a summary with since when; a runbook line and link; a dashboard that exists."""
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["labels"]["scope"] in ("everything", "process", "vantage", "provider", "target", "pair")
    assert rule["labels"]["incident"]
    texts = rule["annotations"]
    assert re.search(r"since \{\{", texts["summary"])
    assert texts["summary"].endswith(".")
    assert texts["runbook"].endswith((".", "?"))
    uid = re.search(r"/d/(firsttoken-[a-z-]+)\?", texts["dashboard"])
    assert uid is not None
    assert (ROOT / "dashboards" / "generated" / f"{uid[1].removeprefix('firsttoken-')}.json").exists()
    assert texts["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name + alert.window)
def test_labels_in_texts_are_those_of_the_expression(alert: Any) -> None:
    """No text names a label that the alert does not have."""
    rule = alert.rule(Links())
    named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule)))
    assert named <= set(alert.labels)


def test_the_runbook_has_a_section_for_each_alert_and_no_other() -> None:
    """Links lead somewhere, and nothing is told of alerts that are gone."""
    sections = re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)
    assert sections == list(dict.fromkeys(alert.full_name for alert in ALERTS))
    for section in re.split(r"^## ", RUNBOOK, flags=re.MULTILINE)[1:]:
        assert all(f"**{part}:**" in section for part in ("Means", "Look at", "Do")), section[:40]


def known_metrics() -> set[str]:
    """Every sample name that the product can expose."""
    registry = CollectorRegistry()
    FleetMetrics(registry)
    found = set(PROMISED)
    for family in (*Metrics().registry.collect(), *registry.collect()):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
        found |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    return found


def test_every_metric_in_the_rules_exists() -> None:
    """A renamed metric cannot leave a rule behind that never fires."""
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for rule in RULES:
        text = rule["expr"] + json.dumps(rule.get("annotations", {}))
        used = set(re.findall(r"(?<![\w:/-])(firsttoken_\w+)", re.sub(r"\w+:firsttoken_\w+:\w+", "", text)))
        assert used <= known_metrics(), used - known_metrics()
        assert set(re.findall(r"\w+:firsttoken_\w+:\w+", text)) <= recorded


def test_every_alert_has_cases_that_fire_stay_silent_and_resolve() -> None:
    """In tests/rules: fired and later not any more within one case, and silent in one before it fired."""
    fired, silent, resolved = defaultdict(bool), defaultdict(bool), defaultdict(bool)
    for file in (ROOT / "tests" / "rules").glob("*.yml"):
        for test in yaml.load(file.read_text("utf-8"), Loader=yaml.CSafeLoader)["tests"]:
            windows: dict[str, bool] = {}
            for check in sorted(test["alert_rule_test"], key=lambda one: int(one["eval_time"][:-1])):
                name = check["alertname"]
                fires = bool(check["exp_alerts"])
                fired[name] |= fires
                silent[name] |= not fires and not windows.get(name, False)
                resolved[name] |= not fires and windows.get(name, False)
                windows[name] = fires
    names = {alert.full_name for alert in ALERTS}
    assert {name for name in names if not (fired[name] and silent[name] and resolved[name])} == set()


def test_what_is_left_out_for_another_exists_and_is_narrower() -> None:
    """Inhibition names alerts that there are, and no two leave out each other."""
    names = {alert.name for alert in ALERTS}
    edges = {
        (alert.name + alert.window, other)
        for alert in ALERTS
        for silenced in alert.silences
        for other in silenced.names
        if not silenced.windows
    }
    assert {other for _, other in edges} <= names
    assert not {(a, b) for a, b in edges if (b, a) in edges}


def test_the_page_lists_every_alert_threshold_and_variable() -> None:
    """docs/alerts.md is as the code is."""
    assert table(Thresholds()) in PAGE, "make rules"
    for alert in ALERTS:
        assert f"`{alert.name}`" in PAGE, alert.name
    for name, meaning in VARIABLES.items():
        assert f"| `{name}` | {meaning} |" in PAGE, name


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("latency_ratio", "NAME=VALUE"),
        ("nonsense=1", "NAME=VALUE"),
        ("latency_window=30", "a duration such as 90s"),
        ("latency_window=30m5", "a duration such as 90s"),
        ("latency_window=0s", "above 0"),
        ("latency_ratio=much", "a number above 0"),
        ("latency_ratio=nan", "a number above 0"),
        ("latency_ratio=-1", "a number above 0"),
        ("objective=1", "between 0 and 1"),
        ("quorum_share=1.5", "between 0 and 1"),
    ],
)
def test_bad_thresholds_get_a_sentence(change: str, complaint: str) -> None:
    """A threshold that Prometheus could not use is refused with its name."""
    with pytest.raises(BadThreshold, match=complaint):
        Thresholds().with_set([change])


def test_thresholds_change_rules() -> None:
    """`--set` reaches the expressions, in Prometheus's notation."""
    changed = Thresholds().with_set(["latency_window=1h30m", "objective=0.995", "quorum=3", "quorum_share=1"])
    text = json.dumps(rule_file(changed, Links()))
    assert "firsttoken_last_ttft_seconds[90m]" in text
    assert "/ 0.005" in text
    assert ">= bool 3" in text
    assert duration(0.25) == "250ms"
    assert duration(7 * 86_400) == "7d"


@pytest.fixture
def app() -> typer.Typer:
    """The two commands as the command line registers them."""
    app = typer.Typer()
    app.command()(rules)
    app.command()(alertmanager)
    return app


def test_the_rules_command(app: typer.Typer) -> None:
    """YAML and JSON hold the same; links lead to the Grafana that is named, here or in the environment."""
    given = {"FIRSTTOKEN_GRAFANA_URL": "https://g.example.com/sub/"}
    as_yaml = CliRunner().invoke(app, ["rules"], env=given)
    as_json = CliRunner().invoke(app, ["rules", "--format", "json"], env=given)
    assert yaml.safe_load(as_yaml.stdout) == json.loads(as_json.stdout)
    assert "https://g.example.com/sub/d/firsttoken-overview?" in as_yaml.stdout
    bad = CliRunner().invoke(app, ["rules", "--grafana-url", "https://me:secret@g.example.com"])
    assert isinstance(bad.exception, MonitorError)
    assert "secret" not in str(bad.exception)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"WEBHOOK": "x"}, "FIRSTTOKEN_ALERT_WEBHOOK is unknown"),
        ({"WEBHOOK_URL": "alerts.example.com"}, "must be an address"),
        ({"WEBHOOK_TOKEN_FILE": "/t"}, "means nothing without FIRSTTOKEN_ALERT_WEBHOOK_URL"),
        ({"WEBHOOK_URL": "http://x/", "WEBHOOK_TOKEN_FILE": "t"}, "an absolute path"),
        ({"EMAIL_TO": "a@b"}, "e-mail needs FIRSTTOKEN_ALERT_EMAIL_FROM too"),
        ({"EMAIL_TO": "a", "EMAIL_FROM": "a@b", "SMTP_HOST": "h:25"}, "addresses like"),
        ({"EMAIL_TO": "a@b", "EMAIL_FROM": "a@b", "SMTP_HOST": "h"}, "host:port"),
        ({"EMAIL_TO": "a@b", "EMAIL_FROM": "a@b", "SMTP_HOST": "h:25", "SMTP_USER": "u"}, "go together"),
        ({"EMAIL_TO": "a@b", "EMAIL_FROM": "a@b", "SMTP_HOST": "h:25", "SMTP_TLS": "no"}, "true or false"),
        ({"SLACK_CHANNEL": "#a"}, "means nothing without FIRSTTOKEN_ALERT_SLACK_URL_FILE"),
        ({"PAGERDUTY_KEY_FILE": "key"}, "an absolute path"),
    ],
)
def test_bad_receivers_get_a_sentence(given: dict[str, str], complaint: str) -> None:
    """A receiver that is half described is refused with the variable that is missing or wrong."""
    with pytest.raises(BadReceiver, match=complaint):
        from_environment({f"{'FIRSTTOKEN_ALERT_'}{name}": value for name, value in given.items()})


def test_nobody_to_tell_is_said(app: typer.Typer) -> None:
    """Without a receiver there is a good configuration, and a word on the error stream."""
    done = CliRunner().invoke(app, ["alertmanager"], env=dict.fromkeys(VARIABLES, ""))
    assert done.exit_code == 0
    assert yaml.safe_load(done.stdout)["receivers"] == [{"name": "firsttoken"}]
    assert "nobody is told" in done.stderr


def test_templates_come_along(app: typer.Typer) -> None:
    """Who installed by pip gets the messages' texts from the command."""
    shown = CliRunner().invoke(app, ["alertmanager", "--show-templates"]).stdout
    assert shown == (ROOT / "deploy" / "alertmanager" / "firsttoken.tmpl").read_text("utf-8")


def test_names_have_one_prefix() -> None:
    """So that a Prometheus of many products can tell ours."""
    assert all(rule["alert"].startswith(PREFIX) for rule in ALERTING)
