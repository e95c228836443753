"""`firsttoken dashboards`: list the dashboards that come with this version, or upload them to a running Grafana.

The only place that speaks to Grafana's HTTP API. A Grafana that is provisioned from files needs none of this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import typer

from monitor import __version__
from monitor.cli import terminal
from monitor.model import MonitorError

FOLDER = {"uid": "firsttoken", "title": "First Token"}
EXISTS = (409, 412)
ADVICE = {
    401: "the token is not known there: make a service account with the role Editor and put its token into the file",
    403: "the token's account may not write dashboards: give it the role Editor",
    404: "is this Grafana's address, with its sub-path if it has one?",
}
TIMEOUT_SECONDS = 20.0
MAX_TOKEN_BYTES = 4096


class GrafanaRefused(MonitorError):
    """Grafana did not take something; the message says what, why and what to do."""


class Action(StrEnum):
    LIST = "list"
    PUSH = "push"


def dashboards(
    action: Annotated[Action, typer.Argument(help="list: what there is; push: upload all of it.")],
    url: Annotated[str | None, typer.Option("--url", help="Grafana's address, as in a browser.")] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the token of a service account (role Editor).")
    ] = None,
) -> None:
    """The Grafana dashboards of this version. Uploading again replaces them: their uids stay the same.

    They look for data sources with the uids firsttoken-prometheus and firsttoken-postgres; where yours have others,
    choose them in each dashboard's settings, under the variables `metrics` and `record`.
    """
    found = generated()
    if action is Action.LIST:
        for board in found:
            terminal.say(f"{board['uid']}  {board['title']}: {board['description']}")
        return
    if url is None or token_file is None:
        raise GrafanaRefused("push needs --url and --token-file")
    with _connected(_checked(url), _token(token_file)) as grafana:
        _ask(grafana, "/api/folders", FOLDER, EXISTS)
        for board in found:
            answer = _ask(grafana, "/api/dashboards/db", _upload(board))
            terminal.say(f"{board['title']}: version {answer.get('version', '?')} at {answer.get('url', '?')}")


def location() -> Path:
    """The folder of the generated dashboards: inside the installed package, or beside it in a checkout."""
    package = Path(str(resources.files("monitor")))
    for folder in (package / "_dashboards", package.parent / "dashboards" / "generated"):
        if folder.is_dir():
            return folder
    raise GrafanaRefused(f"the dashboards are missing from this installation (looked beside {package})")


def generated() -> list[dict[str, Any]]:
    """Every dashboard of this version."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(location().glob("*.json"))]


def _upload(board: dict[str, Any]) -> dict[str, Any]:
    said = f"firsttoken {__version__}"
    return {"dashboard": {**board, "id": None}, "folderUid": FOLDER["uid"], "overwrite": True, "message": said}


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise GrafanaRefused(f"--url must look like https://grafana.example.com, not {parts.scheme or 'a path'}")
    if parts.username or parts.password:
        raise GrafanaRefused("--url must carry no password: the token file is for that")
    return url.rstrip("/")


def _token(file: Path) -> str:
    try:
        with file.open(encoding="ascii") as opened:
            token = opened.read(MAX_TOKEN_BYTES).strip()
    except UnicodeDecodeError:
        raise GrafanaRefused(f"the token file {file} holds no token: tokens are ASCII") from None
    except OSError as error:
        raise GrafanaRefused(f"the token file {file} cannot be read: {(error.strerror or 'error').lower()}") from None
    if not token or len(token.split()) != 1:
        raise GrafanaRefused(f"the token file {file} must hold one token and nothing else")
    return token


@contextmanager
def _connected(url: str, token: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {token}"}
    try:
        # a redirect would carry the token elsewhere, and an environment's proxy sees it: neither
        with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            yield client
    except httpx.HTTPError as error:
        why = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        raise GrafanaRefused(f"Grafana at {url} cannot be reached: {why}") from None


def _ask(grafana: httpx.Client, path: str, body: dict[str, Any], also_good: tuple[int, ...] = ()) -> dict[str, Any]:
    answer = grafana.post(path, json=body)
    if not answer.is_success and answer.status_code not in also_good:
        advice = ADVICE.get(answer.status_code, _reason(answer))
        raise GrafanaRefused(f"Grafana answered {answer.status_code} to {path}: {advice}")
    try:
        found = answer.json()
    except ValueError:
        raise GrafanaRefused(f"what answers at {grafana.base_url} is no Grafana: it sends no JSON") from None
    return found if isinstance(found, dict) else {}


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase
