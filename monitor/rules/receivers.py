"""Who is told, from the environment: webhook, e-mail, Slack, PagerDuty. Hides Alertmanager's keys for each of them.

Secrets are named as files and read by Alertmanager itself, so that its configuration holds none. Keys are those that
Alertmanager 0.25 (Debian 12) knows, as newer ones do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from monitor.model import MonitorError

VARIABLES: Mapping[str, str] = {
    "FIRSTTOKEN_ALERT_WEBHOOK_URL": "where alerts are posted as JSON",
    "FIRSTTOKEN_ALERT_WEBHOOK_TOKEN_FILE": "file with a token that is sent along (`Authorization: Bearer`); optional",
    "FIRSTTOKEN_ALERT_EMAIL_TO": "addresses, with commas between",
    "FIRSTTOKEN_ALERT_EMAIL_FROM": "the sender",
    "FIRSTTOKEN_ALERT_SMTP_HOST": "mail server as host:port",
    "FIRSTTOKEN_ALERT_SMTP_USER": "its user; optional",
    "FIRSTTOKEN_ALERT_SMTP_PASSWORD_FILE": "file with that user's password",
    "FIRSTTOKEN_ALERT_SMTP_TLS": "`true` (the default) or `false`: whether STARTTLS is required",
    "FIRSTTOKEN_ALERT_SLACK_URL_FILE": "file with the address of an incoming webhook of Slack's",
    "FIRSTTOKEN_ALERT_SLACK_CHANNEL": "the channel; optional, the webhook has one of its own",
    "FIRSTTOKEN_ALERT_PAGERDUTY_KEY_FILE": "file with an integration key (Events API v2); told of critical alerts only",
}
"""Every variable and what it is."""
_PREFIX = "FIRSTTOKEN_ALERT_"
_MAIL = re.compile(r"[^\s@,]+@[^\s@,]+")
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}")


class BadReceiver(MonitorError):
    """A variable of a receiver that is unknown, missing or malformed; the sentence names it and what it takes."""


@dataclass(frozen=True, slots=True)
class Receivers:
    """What Alertmanager is to send to: for everything, and for critical alerts besides."""

    everything: dict[str, list[dict[str, Any]]]
    critical: dict[str, list[dict[str, Any]]]


def from_environment(environ: Mapping[str, str]) -> Receivers:
    """The receivers that the variables describe, perhaps none. Raises BadReceiver; an empty variable is none."""
    given = {name.removeprefix(_PREFIX): value for name, value in environ.items() if name.startswith(_PREFIX) and value}
    for name in given:
        if _PREFIX + name not in VARIABLES:
            raise BadReceiver(f"{_PREFIX}{name} is unknown; there are {', '.join(VARIABLES)}")
    kinds = {"webhook_configs": _webhook(given), "email_configs": _email(given), "slack_configs": _slack(given)}
    pager = _pagerduty(given)
    return Receivers(
        {key: [found] for key, found in kinds.items() if found is not None},
        {"pagerduty_configs": [pager]} if pager else {},
    )


def _webhook(given: Mapping[str, str]) -> dict[str, Any] | None:
    url, token = given.get("WEBHOOK_URL"), given.get("WEBHOOK_TOKEN_FILE")
    if url is None:
        _refuse(given, "WEBHOOK_URL", "WEBHOOK_TOKEN_FILE")
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadReceiver(f"{_PREFIX}WEBHOOK_URL must be an address like https://alerts.example.com/hook")
    login = (
        {"http_config": {"authorization": {"credentials_file": _file("WEBHOOK_TOKEN_FILE", token)}}} if token else {}
    )
    return {"url": url, "send_resolved": True, **login}


def _email(given: Mapping[str, str]) -> dict[str, Any] | None:
    names = ("EMAIL_TO", "EMAIL_FROM", "SMTP_HOST")
    if not any(name in given for name in names):
        _refuse(given, "EMAIL_TO", "SMTP_USER", "SMTP_PASSWORD_FILE", "SMTP_TLS")
        return None
    for name in names:
        if name not in given:
            raise BadReceiver(f"e-mail needs {_PREFIX}{name} too: {VARIABLES[_PREFIX + name]}")
    to = [address.strip() for address in given["EMAIL_TO"].split(",")]
    for name, address in (*(("EMAIL_TO", one) for one in to), ("EMAIL_FROM", given["EMAIL_FROM"])):
        if not _MAIL.fullmatch(address):
            raise BadReceiver(f"{_PREFIX}{name} takes addresses like ops@example.com, not {address!a}")
    if not _HOST.fullmatch(given["SMTP_HOST"]):
        raise BadReceiver(
            f"{_PREFIX}SMTP_HOST takes host:port, such as mail.example.com:587, not {given['SMTP_HOST']!a}"
        )
    return {
        "to": ", ".join(to),
        "from": given["EMAIL_FROM"],
        "smarthost": given["SMTP_HOST"],
        **_smtp_login(given),
        "require_tls": _truth("SMTP_TLS", given.get("SMTP_TLS", "true")),
        "send_resolved": True,
        "headers": {"Subject": '{{ template "firsttoken.title" . }}'},
        "html": '{{ template "firsttoken.html" . }}',
        "text": '{{ template "firsttoken.text" . }}',
    }


def _smtp_login(given: Mapping[str, str]) -> dict[str, Any]:
    user, password = given.get("SMTP_USER"), given.get("SMTP_PASSWORD_FILE")
    if (user is None) != (password is None):
        raise BadReceiver(f"{_PREFIX}SMTP_USER and {_PREFIX}SMTP_PASSWORD_FILE go together")
    if user is None or password is None:
        return {}
    return {"auth_username": user, "auth_password_file": _file("SMTP_PASSWORD_FILE", password)}


def _slack(given: Mapping[str, str]) -> dict[str, Any] | None:
    url = given.get("SLACK_URL_FILE")
    if url is None:
        _refuse(given, "SLACK_URL_FILE", "SLACK_CHANNEL")
        return None
    channel = {"channel": given["SLACK_CHANNEL"]} if "SLACK_CHANNEL" in given else {}
    return {
        "api_url_file": _file("SLACK_URL_FILE", url),
        **channel,
        "send_resolved": True,
        "color": '{{ template "firsttoken.color" . }}',
        "title": '{{ template "firsttoken.title" . }}',
        "title_link": '{{ template "firsttoken.link" . }}',
        "text": '{{ template "firsttoken.text" . }}',
        "fallback": '{{ template "firsttoken.title" . }}',
    }


def _pagerduty(given: Mapping[str, str]) -> dict[str, Any] | None:
    key = given.get("PAGERDUTY_KEY_FILE")
    if key is None:
        return None
    return {
        "routing_key_file": _file("PAGERDUTY_KEY_FILE", key),
        "send_resolved": True,
        "severity": "critical",
        "description": '{{ template "firsttoken.title" . }}',
        "client": "First Token",
        "client_url": '{{ template "firsttoken.link" . }}',
        "details": {"text": '{{ template "firsttoken.text" . }}'},
    }


def _refuse(given: Mapping[str, str], missing: str, *names: str) -> None:
    """Raises BadReceiver where variables are there that mean nothing without `missing`."""
    for name in names:
        if name in given:
            raise BadReceiver(f"{_PREFIX}{name} means nothing without {_PREFIX}{missing}")


def _file(name: str, path: str) -> str:
    """An absolute path: Alertmanager takes others from its own folder."""
    if not path.startswith("/"):
        raise BadReceiver(f"{_PREFIX}{name} takes an absolute path as Alertmanager sees it, not a relative one")
    return path


def _truth(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise BadReceiver(f"{_PREFIX}{name} is true or false, not {text!a}")
    return text == "true"
