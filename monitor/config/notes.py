"""What one reading of a file collects (mistakes, warnings, secrets), and the look-up of `${NAME}` and secret files.

`${NAME}` is replaced after YAML has been read: its value can never become structure, and no message repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from monitor.config.document import Flaw
from monitor.config.files import read_bounded
from monitor.config.kinds import Kind, allowed_by
from monitor.config.mistake import Mistake, did_you_mean, quoted
from monitor.model import Secret

MAX_SECRET_FILE = 65_536
MAX_MISTAKES = 200
SHORTEST_PART = 6
"""Shorter parts of a composed secret are no secrets (`none`, `v1`), and scrubbing them would garble every text."""

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


class Party(StrEnum):
    """Who reads, which decides what `${NAME}` may be replaced by."""

    ONE = "one"  # one process that does everything: its environment
    HUB = "hub"  # its environment, but never for a target: the keys of targets are the agents' alone
    AGENT = "agent"  # a document from the hub: secrets from the agent's own list, nothing else


class Enough(Exception):
    """So many mistakes that a person will not read on."""


class Bad(Exception):
    """A value that cannot be used; the mistake is already noted."""


@dataclass(slots=True)
class Notes:
    file: str
    directory: Path  # where relative paths start
    environ: Mapping[str, str]
    allow_missing_secrets: bool = False
    party: Party = Party.ONE
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[Mistake] = field(default_factory=list)
    absent: list[Mistake] = field(default_factory=list)  # those of the warnings that are secrets not to be had here
    secrets: dict[Secret, None] = field(default_factory=dict)  # in the order of the file, each once
    taken: list[tuple[str, str]] = field(default_factory=list)  # (path, NAME) of each secret that was looked up

    def wrong(self, line: int | None, path: str, found: str, allowed: str) -> None:
        if len(self.mistakes) >= MAX_MISTAKES:
            raise Enough
        self.mistakes.append(Mistake(self.file, line, path, found, allowed))

    def warn(self, line: int | None, path: str, found: str, allowed: str) -> None:
        if len(self.warnings) < MAX_MISTAKES:
            self.warnings.append(Mistake(self.file, line, path, found, allowed))

    def flaw(self, flaw: Flaw) -> None:
        self.wrong(flaw.line, flaw.key, flaw.found, flaw.allowed)

    def refuse(self, line: int, path: str, found: str, allowed: str) -> Bad:
        """Note a mistake; the caller raises what comes back."""
        self.wrong(line, path, found, allowed)
        return Bad()

    def missing(self, line: int, path: str, found: str, allowed: str, *, secret: bool) -> None:
        """Something that is not on this machine: raises Bad, or warns where it is a secret and that is allowed."""
        if not (secret and self.allow_missing_secrets):
            raise self.refuse(line, path, found, allowed)
        self.warn(line, path, found, allowed)
        self.absent.append(Mistake(self.file, line, path, found, allowed))

    def secret(self, value: str) -> Secret:
        """The value as a secret, remembered for scrubbing.

        A URL is remembered by its password alone: scrubbing takes out parts of secrets too, and hosts are no secret.
        """
        found = Secret(value)
        if "://" not in value:
            self.secrets[found] = None
        return found

    def path(self, name: str) -> Path:
        """A path that the file names: `~` is the user's, a relative one starts at the file."""
        home = self.environ.get("HOME")
        return Path(home) / name[2:] if home and name.startswith("~/") else self.directory / name

    def substitute(self, written: str, path: str, line: int, *, secret: bool) -> str | None:
        """The text with its `${NAME}` replaced; None when a secret is not to be had here and may be. Raises Bad."""
        if has_reference(written):
            if self.party is Party.AGENT and not secret:
                raise self.refuse(line, path, "a ${NAME} where no secret belongs", "text that the hub has filled in")
            if self.party is Party.HUB and secret and path.startswith("targets."):
                return None
        pieces: list[str] = []
        place = 0
        for match in _REFERENCE.finditer(written):
            value = "${" if match[1] is None else self._variable(match, path, line, secret=secret)
            if value is None:
                return None
            pieces += [written[place : match.start()], value]
            place = match.end()
        return "".join(pieces) + written[place:]

    def _variable(self, match: re.Match[str], path: str, line: int, *, secret: bool) -> str | None:
        parts = _VARIABLE.fullmatch(match[1])
        if not parts or not match[0].endswith("}") or "${" in (parts[2] or ""):
            allowed = "${NAME} or ${NAME:-default}; to write the characters ${ themselves: $${"
            raise self.refuse(line, path, "a ${...} that names no variable", allowed)
        name, default = parts[1], parts[2]
        if secret:
            self.taken.append((path, name))
        value = self.environ.get(name)
        if default is not None:
            value = value or default
        if value is None:
            found = f"{_shown(name)}, which is not set{did_you_mean(name, self.environ)}"
            allowed = "a variable that is set in the environment, or ${NAME:-default}"
            if self.party is Party.AGENT:
                allowed = "a name in the agent's own list of secrets"
            self.missing(line, path, found, allowed, secret=secret)
        elif secret and len(value.strip()) >= SHORTEST_PART:
            self.secret(value.strip())
        return value

    def warn_literal(self, written: str, path: str, line: int) -> None:
        if not has_reference(written):
            if self.party is Party.HUB and path.startswith("targets."):
                found = "a secret written into a fleet's file"
                raise self.refuse(line, path, found, "${NAME}: only agents have the keys")
            self.warn(
                line, path, "a secret written into the file", "${NAME} from the environment, or a file of its own"
            )

    def secret_file(self, kind: Kind[str], name: str, path: str, line: int) -> Secret | None:
        """The secret that a file holds, without the white space around it; None when it may be missing. Raises Bad."""
        if self.party is not Party.ONE and path.startswith("targets."):
            raise self.refuse(line, path, "a file of a secret", "${NAME}: files stand in the agent's own list")
        try:
            data = read_bounded(self.path(name), MAX_SECRET_FILE + 1)
        except OSError as error:
            found = f"{quoted(name)}, which cannot be read ({(error.strerror or 'error').lower()})"
            self.missing(line, path, found, "a file that this user can read", secret=True)
            return None
        try:
            value = kind.parse(data.decode().strip())
        except ValueError as error:
            found = f"{quoted(name)}, whose content cannot be used"
            raise self.refuse(line, path, found, allowed_by(kind, error)) from None
        return self.secret(value)


def has_reference(written: str) -> bool:
    """Whether the text takes something from the environment."""
    return any(match[1] is not None for match in _REFERENCE.finditer(written))


def _shown(name: str) -> str:
    """`${NAME}`, unless a key itself stands between the braces by mistake: names are short or in capitals."""
    return f"${{{name}}}" if len(name) <= 24 or name.isupper() else "a variable"
