"""A fleet's configuration: written once on the hub, handed out to each vantage point, completed there with its keys.

Hides who may know what. The hub reads the file without the keys of targets: they stay names (`${OPENAI_API_KEY}`), and
everything else is filled in. A vantage point is told what concerns it. The agent looks names up in its own list alone,
and only for a target at the origin (scheme, host, port) to which that list binds the name: so whoever takes over the
hub can make agents ask other questions, but not send a key to anybody else. Nothing of the agent's environment and none
of its files can be named by the hub, except CA files that the agent's own list allows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from collections.abc import Mapping as Map
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from monitor.config.document import Document, Mapping, Node, Scalar, Sequence, parse_json
from monitor.config.files import is_pem
from monitor.config.loading import content, document, understood
from monitor.config.mistake import InvalidConfig, Mistake
from monitor.config.notes import Notes, Party
from monitor.config.reading import JSON_NUMBER, JSON_WORDS
from monitor.config.shape import SHARED
from monitor.config.types import Config
from monitor.model import Secret, Target, Vantage

Json = object
"""What `json` takes."""

HANDED_OUT = "the hub's configuration"
_PORTS = {"http": 80, "https": 443}
_VERBATIM = (("targets", "body"), ("probes", "checks", "json"))
"""Where a number is a number and `true` a truth, not a text."""
_SECRET_KEYS = frozenset({"api_key", "aws_access_key_id", "aws_secret_access_key", "aws_session_token"})


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet's configuration as the hub has it."""

    config: Config  # targets without keys
    _tree: Document
    _notes: Notes

    def handout(self, vantage: str) -> bytes:
        """What a vantage point is told, as JSON; equal bytes for equal content. Raises ConfigError for an unknown name.

        All probes and targets, also those of others: a share of a cap follows from who else asks. Of the other vantage
        points the names alone.
        """
        self.config.series(vantage)
        root = self._tree.root
        assert isinstance(root, Mapping)
        shared = {name: root.entries[name] for name in SHARED if name in root.entries}
        told: dict[str, Json] = {name: self._plain(node, (name,)) for name, node in shared.items()}
        for section in ("targets", "probes"):
            told[section] = {name: self._plain(node, (section,)) for name, node in _entries(root, section).items()}
        told["vantages"] = {
            name: self._plain(node, ("vantages",)) if name == vantage else {}
            for name, node in _entries(root, "vantages").items()
        }
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()

    def _plain(self, node: Node, place: tuple[str, ...]) -> Json:
        if isinstance(node, Mapping):
            return {name: self._plain(child, (*place, name)) for name, child in node.entries.items()}
        if isinstance(node, Sequence):
            return [self._plain(item, place) for item in node.items]
        return self._scalar(node, place)

    def _scalar(self, node: Scalar, place: tuple[str, ...]) -> Json:
        if node.plain and any(place[: len(start)] == start for start in _VERBATIM):
            if node.text.lower() in JSON_WORDS:
                return JSON_WORDS[node.text.lower()]
            if match := JSON_NUMBER.fullmatch(node.text):
                return float(match[0]) if match[2] or match[3] else int(match[0])
        if node.is_null:
            return None
        if place[0] == "targets" and (place[1:2] == ("headers",) or place[-1] in _SECRET_KEYS):
            return node.text
        filled = self._notes.substitute(node.text, ".".join(place), node.line, secret=False)
        return (filled or "").replace("${", "$${")


def load_fleet(path: str | os.PathLike[str], environ: Map[str, str] = os.environ) -> Fleet:
    """The file of a fleet, as a hub reads it. Raises InvalidConfig."""
    notes = Notes(str(path), Path(path).parent, environ, party=Party.HUB)
    tree = document(content(path), notes)
    return Fleet(understood(tree, notes), tree, notes)


def digest(handout: bytes) -> str:
    """Content hash (16 hex digits) of a handout: what hub and agent compare."""
    return hashlib.blake2b(handout, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundSecret:
    """A secret of the agent's own list, with the only origin that may receive it."""

    value: Secret
    origin: str  # scheme://host[:port]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """What an agent's own file lets the hub name."""

    secrets: Map[str, BoundSecret] = field(default_factory=dict)
    ca_files: tuple[str, ...] = ()


def accept(handout: bytes, vantage: str, trusted: Trusted) -> Config:
    """The handout with the agent's own keys in place, for the vantage point that it plays.

    Raises InvalidConfig when it cannot be read, when a target that is probed from here needs a secret that the agent
    does not have or a file that it does not allow, or when a secret would go to another origin than its own.
    """
    own = {name: one.value.reveal() for name, one in trusted.secrets.items()}
    notes = Notes(HANDED_OUT, Path("/"), own, allow_missing_secrets=True, party=Party.AGENT)
    try:
        config = understood(document(handout, notes, parse_json), notes)
    except InvalidConfig as error:
        raise InvalidConfig([replace(one, line=None) for one in error.mistakes]) from None
    probed = {one.target.name: one.target for one in config.series(vantage)}
    mistakes = [
        *(replace(one, line=None) for one in config.missing_secrets if one.key.split(".")[1] in probed),
        *_astray(config.vantages[vantage], probed, notes, trusted),
        *_foreign_files(probed, trusted),
    ]
    if mistakes:
        raise InvalidConfig(mistakes)
    return config


def origin(url: str) -> str:
    """scheme://host:port of a URL, in small letters and with the port: what two URLs of one origin have in common."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme.lower()}://{host}:{parts.port or _PORTS.get(parts.scheme.lower(), 0)}"


def _astray(start: Vantage, probed: Map[str, Target], notes: Notes, trusted: Trusted) -> Iterator[Mistake]:
    """One mistake for each secret that would go where its owner did not send it."""
    for path, name in notes.taken:
        target, bound = probed.get(path.split(".")[1]), trusted.secrets.get(name)
        if target is None or bound is None:
            continue
        to, own = origin(target.url), origin(bound.origin)
        if to != own:
            yield Mistake(HANDED_OUT, None, path, f"${{{name}}} for {to}", f"{own} alone: the agent's own file says so")
        elif start.proxy and not own.startswith("https:"):
            yield Mistake(HANDED_OUT, None, path, f"${{{name}}} over plain HTTP through a proxy", "https, or no proxy")


def _foreign_files(probed: Map[str, Target], trusted: Trusted) -> Iterator[Mistake]:
    """A CA that the hub chose could vouch for anybody: only files that the agent's own list names are looked at."""
    for one in probed.values():
        path = f"targets.{one.name}.ca_file"
        if one.ca_file is None:
            continue
        if one.ca_file not in trusted.ca_files:
            yield Mistake(HANDED_OUT, None, path, "a file that the agent does not list", "a file of its `ca_files`")
        elif not is_pem(Path(one.ca_file)):
            yield Mistake(HANDED_OUT, None, path, "a file that holds no certificate any more", "a PEM file")


def _entries(root: Mapping, section: str) -> Map[str, Node]:
    node = root.entries.get(section)
    return node.entries if isinstance(node, Mapping) else {}
