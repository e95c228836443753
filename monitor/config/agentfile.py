"""An agent's own file: where its hub is, who it is, and which of its keys may go where. The rest comes from the hub.

Hides nothing that `loading` does not: the same YAML, the same `${NAME}`, every mistake at once.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping as Map
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from monitor.config import kinds
from monitor.config.document import Mapping
from monitor.config.files import is_pem
from monitor.config.handout import BoundSecret, Trusted, origin
from monitor.config.kinds import Kind
from monitor.config.loading import content, document, state_directory
from monitor.config.mistake import InvalidConfig
from monitor.config.notes import Bad, Notes
from monitor.config.reading import Entry, Reader, describe
from monitor.config.shape import ListOf, LogKeys, MapOf, Section, key
from monitor.config.types import FrozenDict, Log, Spool
from monitor.model import Secret

_ROOT = "agent"


def _parse_origin(text: str) -> str:
    parts = urlsplit(kinds.URL.parse(text))
    if parts.path or parts.query:
        raise ValueError  # a path would promise what nobody keeps
    return origin(text)


_ORIGIN = Kind(_parse_origin, "the origin that may have it, without a path, such as https://api.openai.com")
_VARIABLE = kinds.matching(r"[A-Za-z_][A-Za-z0-9_]{0,100}", "a name such as OPENAI_API_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKeys:
    origin: str = key(_ORIGIN, "The only origin (scheme, host, port) that this key is ever sent to.", required=True)
    file: str | None = key(kinds.PATH, "File that holds it. Relative paths start at this file.")
    env: str | None = key(_VARIABLE, "Environment variable that holds it, instead of a file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpoolKeys:
    max_bytes: int = key(kinds.size("1MB", "1000GB"), "Most disk that waiting attempts take.", 256_000_000)
    max_age: float = key(kinds.duration("1m", "365d"), "Attempts older than this are dropped and counted.", 7 * 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentKeys:
    hub: str = key(kinds.URL, "Base URL of the hub.", required=True)
    token: Secret | None = key(kinds.SECRET, "What `firsttoken vantage add` printed, best as `${NAME}`.")
    token_file: str | None = key(kinds.PATH, "File that holds the token, instead of `token`.")
    ca_file: str | None = key(kinds.PATH, "PEM file of the CA that signed the hub's certificate, instead of the usual.")
    proxy: str | None = key(kinds.PROXY, "HTTP proxy on the way to the hub; probes do not use it.")
    insecure_hub: bool = key(kinds.SWITCH, "Speak plain HTTP with a hub that is not on this machine.", False)
    state: str | None = key(kinds.PATH, "Folder of spool and last configuration.")
    metrics: tuple[str, int] | None = key(kinds.LISTEN, "Where to serve the agent's own /metrics; off without it.")
    ca_files: tuple[str, ...] = key(
        ListOf(kinds.PATH, "a list of PEM files"), "CA files that the hub may name for a target.", ()
    )
    secrets: Map[str, SecretKeys] = key(
        MapOf(_VARIABLE, Section(SecretKeys), "a mapping such as {OPENAI_API_KEY: {origin: ..., file: ...}}"),
        "Keys of providers by the names that the hub's configuration has for them.",
        FrozenDict(),
    )
    spool: AgentSpoolKeys = key(Section(AgentSpoolKeys), "Bounds of what waits on disk.", AgentSpoolKeys())
    log: LogKeys = key(Section(LogKeys), "As in the hub's file.", LogKeys())


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    """The file, completely checked."""

    hub: str  # without a slash at its end
    token: Secret
    spool: Spool
    ca_file: str | None = None
    proxy: str | None = None
    metrics: tuple[str, int] | None = None
    trusted: Trusted = field(default_factory=Trusted)
    log: Log = field(default_factory=Log)
    known_secrets: tuple[Secret, ...] = field(default=(), repr=False)
    files: tuple[Path, ...] = ()  # of token, keys and the hub's CA: what they hold may change without this file


def load_agent_file(path: str | os.PathLike[str], environ: Map[str, str] = os.environ) -> AgentFile:
    """One YAML file -> frozen types. Raises InvalidConfig with every mistake, in file order."""
    notes = Notes(str(path), Path(path).parent, environ)
    tree = document(content(path, "deploy/agent/agent.yaml"), notes)
    for flaw in tree.flaws:
        notes.flaw(flaw)
    if not isinstance(tree.root, Mapping):
        notes.wrong(1, "", describe(tree.root), "a mapping with the keys hub, token_file and more")
        raise InvalidConfig(notes.mistakes)
    entry = Reader(notes).entry(AgentKeys, tree.root, _ROOT, 1)
    token, secrets = _token(notes, entry), _secrets(notes, entry)
    _check_hub(notes, entry)
    ca_file = _existing(notes, entry, "ca_file", entry.value.ca_file)
    ca_files = tuple(filter(None, (_existing(notes, entry, "ca_files", one) for one in entry.value.ca_files or ())))
    if notes.mistakes or token is None:
        raise InvalidConfig([replace(one, key=one.key.removeprefix(f"{_ROOT}.")) for one in notes.mistakes])
    value = entry.value
    state = str(notes.path(value.state)) if value.state else state_directory(environ)
    return AgentFile(
        hub=value.hub,
        token=token,
        spool=Spool(directory=state, max_bytes=value.spool.max_bytes, max_age_seconds=value.spool.max_age),
        ca_file=ca_file,
        proxy=value.proxy,
        metrics=value.metrics,
        trusted=Trusted(secrets=secrets, ca_files=ca_files),
        log=Log(level=value.log.level, format=value.log.format),
        known_secrets=(*notes.secrets, token, *(one.value for one in secrets.values())),
        files=tuple(map(notes.path, filter(None, (value.token_file, value.ca_file, *_key_files(value))))),
    )


def _token(notes: Notes, entry: Entry[AgentKeys]) -> Secret | None:
    value = entry.value
    if value.token is not None and value.token_file is not None:
        notes.wrong(entry.at("token_file"), f"{_ROOT}.token_file", "both token and token_file", "one of them")
    elif value.token_file is not None:
        return _from_file(notes, value.token_file, f"{_ROOT}.token_file", entry.at("token_file"))
    elif value.token is None and entry.good("token", "token_file"):
        notes.wrong(entry.line, f"{_ROOT}.token_file", "nothing", "a file with what `firsttoken vantage add` printed")
    return value.token


def _secrets(notes: Notes, entry: Entry[AgentKeys]) -> dict[str, BoundSecret]:
    found = {}
    line = entry.at("secrets")
    for name, written in (entry.value.secrets or {}).items():
        path = f"{_ROOT}.secrets.{name}"
        if (written.file is None) == (written.env is None):
            told = "neither file nor env" if written.file is None else "both file and env"
            notes.wrong(line, path, told, "one of them")
            continue
        value = (
            _from_file(notes, written.file, f"{path}.file", line)
            if written.file is not None
            else _from_environment(notes, str(written.env), f"{path}.env", line)
        )
        if value is not None:
            found[name] = BoundSecret(value=value, origin=written.origin)
    return found


def _key_files(value: AgentKeys) -> list[str | None]:
    return [one.file for one in value.secrets.values()]


def _from_file(notes: Notes, file: str, path: str, line: int) -> Secret | None:
    try:
        return notes.secret_file(kinds.SECRET, file, path, line)
    except Bad:
        return None


def _from_environment(notes: Notes, name: str, path: str, line: int) -> Secret | None:
    value = notes.environ.get(name)
    if not value:
        notes.wrong(line, path, f"{name}, which is not set", "a variable that is set in the environment")
        return None
    return notes.secret(value.strip())


def _existing(notes: Notes, entry: Entry[AgentKeys], name: str, file: str | None) -> str | None:
    if file is None:
        return None
    path = notes.path(file)
    if not path.is_file():
        notes.wrong(entry.at(name), f"{_ROOT}.{name}", "a path that is no file", "a PEM file")
    elif not is_pem(path):
        notes.wrong(entry.at(name), f"{_ROOT}.{name}", "a file that holds no certificate", "a PEM file")
    return str(path)


def _check_hub(notes: Notes, entry: Entry[AgentKeys]) -> None:
    """A token travels with every request: it must not travel readable, unless somebody says so."""
    parts = urlsplit(entry.value.hub or "")
    if parts.scheme == "http" and not entry.value.insecure_hub and not _is_here(parts.hostname or ""):
        found = "http:// to another machine, which would carry the token readable"
        notes.wrong(entry.at("hub"), f"{_ROOT}.hub", found, "https://, or `insecure_hub: true` inside a tunnel")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
