"""`firsttoken rules`: recording and alert rules for Prometheus, with the thresholds and links that are asked for."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

import typer

from monitor.cli import terminal
from monitor.model import MonitorError
from monitor.rules import Links, Thresholds, rule_file
from monitor.rules.groups import HEAD, to_yaml


class BadLink(MonitorError):
    """An address for links in alerts that is none; the sentence says what one looks like."""


class Form(StrEnum):
    YAML = "yaml"
    JSON = "json"
    TABLE = "table"


def rules(
    form: Annotated[
        Form,
        typer.Option(
            "--format", help="yaml: a rule file; json: the same; table: the thresholds, as in the documentation."
        ),
    ] = Form.YAML,
    grafana_url: Annotated[
        str,
        typer.Option("--grafana-url", envvar="FIRSTTOKEN_GRAFANA_URL", help="Grafana's address, for links to panels."),
    ] = Links().grafana,
    runbook_url: Annotated[
        str, typer.Option("--runbook-url", envvar="FIRSTTOKEN_RUNBOOK_URL", help="Where docs/runbook.md can be read.")
    ] = Links().runbook,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another threshold, such as latency_ratio=2; repeatable."),
    ] = None,
) -> None:
    """Print Prometheus's rule file: recording rules and alerts, each with a summary, a link and a runbook line.

    firsttoken rules --set objective=0.995 --grafana-url https://grafana.example.com > firsttoken.rules.yml
    """
    thresholds = Thresholds().with_set(changes or ())
    if form is Form.TABLE:
        terminal.say(table(thresholds))
        return
    tree = rule_file(thresholds, Links(grafana=_address(grafana_url), runbook=runbook_url))
    text = json.dumps(tree, indent=2, ensure_ascii=False) if form is Form.JSON else HEAD + to_yaml(tree)
    terminal.say(text, nl=False)


def table(thresholds: Thresholds) -> str:
    """Every threshold as a Markdown table."""
    rows = ["| threshold | default | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | {value} | {meaning} |" for name, value, meaning in thresholds.rows()]
    return "\n".join(rows)


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise BadLink("--grafana-url must look like https://grafana.example.com, without a password or a query")
    return url
