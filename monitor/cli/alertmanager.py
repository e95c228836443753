"""`firsttoken alertmanager`: Alertmanager's configuration, with the receivers that the environment describes."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

import typer

from monitor.model import MonitorError
from monitor.rules import Thresholds, every_alert
from monitor.rules.alertmanager import HEAD, Pace, configuration
from monitor.rules.groups import to_yaml
from monitor.rules.receivers import VARIABLES, from_environment

_DURATION = re.compile(r"([1-9]\d*(ms|[smhd]))+")


class BadPace(MonitorError):
    """A duration that Alertmanager would not take; the sentence says which and what one looks like."""


def alertmanager(
    templates: Annotated[
        str, typer.Option("--templates", help="Path of firsttoken.tmpl, as Alertmanager sees it.")
    ] = "/etc/alertmanager/firsttoken.tmpl",
    wait: Annotated[
        str, typer.Option("--group-wait", help="Wait for what belongs to the same incident.")
    ] = Pace().wait,
    interval: Annotated[
        str, typer.Option("--group-interval", help="Wait before news of an incident are told.")
    ] = Pace().interval,
    repeat: Annotated[str, typer.Option("--repeat", help="Tell again what still fires.")] = Pace().repeat,
) -> None:
    """Print alertmanager.yml: by incident, without what a wider alert covers, to whom the environment names.

    FIRSTTOKEN_ALERT_WEBHOOK_URL, ..._EMAIL_TO, ..._SLACK_URL_FILE, ..._PAGERDUTY_KEY_FILE and their companions are
    described in docs/alerts.md. Secrets are files that Alertmanager reads itself.
    """
    receivers = from_environment(os.environ)
    if not receivers.everything and not receivers.critical:
        names = ", ".join(name for name in VARIABLES if name.endswith(("WEBHOOK_URL", "EMAIL_TO", "SLACK_URL_FILE")))
        sys.stderr.write(
            f"firsttoken: nobody is told: alerts show on Alertmanager's page only; set {names} or others\n"
        )
    pace = Pace(
        wait=_checked("--group-wait", wait),
        interval=_checked("--group-interval", interval),
        repeat=_checked("--repeat", repeat),
    )
    tree = configuration(every_alert(Thresholds()), receivers, templates, pace)
    typer.echo(HEAD + to_yaml(tree), nl=False)


def _checked(option: str, text: str) -> str:
    if not _DURATION.fullmatch(text):
        raise BadPace(f"{option} is a duration such as 30s, 5m or 4h, not {text!a}")
    return text
