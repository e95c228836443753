"""`firsttoken alertmanager`: Alertmanager's configuration, with the receivers that the environment describes."""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from monitor.cli import terminal
from monitor.model import MonitorError
from monitor.rules import Thresholds, every_alert
from monitor.rules.alertmanager import HEAD, Pace, configuration
from monitor.rules.groups import to_yaml
from monitor.rules.receivers import VARIABLES, from_environment

_DURATION = re.compile(r"([1-9]\d*(ms|[smhd]))+")


class Missing(MonitorError):
    """A file of this installation is not there; the sentence says which."""


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
    show_templates: Annotated[
        bool, typer.Option("--show-templates", help="Print firsttoken.tmpl instead: how messages read.")
    ] = False,
) -> None:
    """Print alertmanager.yml: by incident, without what a wider alert covers, to whom the environment names.

    FIRSTTOKEN_ALERT_WEBHOOK_URL, ..._EMAIL_TO, ..._SLACK_URL_FILE, ..._PAGERDUTY_KEY_FILE and their companions are
    described in docs/alerts.md. Secrets are files that Alertmanager reads itself.
    """
    if show_templates:
        terminal.say(template_file().read_text(encoding="utf-8"), nl=False)
        return
    receivers = from_environment(os.environ)
    if not receivers.everything and not receivers.critical:
        names = ", ".join(name for name in VARIABLES if name.endswith(("WEBHOOK_URL", "EMAIL_TO", "SLACK_URL_FILE")))
        sentence = f"firsttoken: nobody is told: alerts show on Alertmanager's page only; set {names} or others"
        terminal.say(sentence, err=True)
    pace = Pace(
        wait=_checked("--group-wait", wait),
        interval=_checked("--group-interval", interval),
        repeat=_checked("--repeat", repeat),
    )
    tree = configuration(every_alert(Thresholds()), receivers, templates, pace)
    terminal.say(HEAD + to_yaml(tree), nl=False)


def template_file() -> Path:
    """firsttoken.tmpl of this version: inside the installed package, or beside it in a checkout."""
    package = Path(str(resources.files("monitor")))
    for folder in (package / "_templates", package.parent / "deploy" / "alertmanager"):
        if (folder / "firsttoken.tmpl").is_file():
            return folder / "firsttoken.tmpl"
    raise Missing(f"firsttoken.tmpl is missing from this installation (looked beside {package})")


def _checked(option: str, text: str) -> str:
    if not _DURATION.fullmatch(text):
        raise BadPace(f"{option} is a duration such as 30s, 5m or 4h, not {text!a}")
    return text
