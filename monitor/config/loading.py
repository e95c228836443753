"""File -> Config: reads, checks, and either returns all of it or raises all mistakes at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from collections.abc import Mapping as Map
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from monitor.config import checks, kinds, presets, shape
from monitor.config.document import MAX_BYTES, Document, Mapping, Node, Scalar, Unreadable, parse
from monitor.config.files import is_pem, read_bounded
from monitor.config.mistake import InvalidConfig, Mistake, did_you_mean, in_file_order, listed, quoted
from monitor.config.notes import MAX_MISTAKES, Bad, Enough, Notes, Party
from monitor.config.reading import Entry, Reader, describe
from monitor.config.shape import (
    BudgetKeys,
    CapKeys,
    ChecksKeys,
    EndpointKeys,
    LimitsKeys,
    PlaceKeys,
    PriceKeys,
    PricesKeys,
    ProbeKeys,
    ProviderLimitKeys,
    StorageKeys,
    TargetKeys,
    VantageKeys,
    WitnessKeys,
)
from monitor.config.types import Budget, Cap, Config, FrozenDict, Limits, Log, Prices, Spool, Storage, Web, Witness
from monitor.model import (
    AwsCredentials,
    Checks,
    ColdStartRule,
    DialectName,
    Place,
    Price,
    Probe,
    Secret,
    Target,
    Vantage,
)
from monitor.witness import DEFAULT_ENDPOINTS, Endpoint

T = TypeVar("T")

MAX_ENTRIES = 500
"""Vantage points, targets, probes: at most so many of each."""
_TOP = (*shape.NAMED, *shape.SECTIONS)


def load(
    path: str | os.PathLike[str], environ: Map[str, str] = os.environ, *, allow_missing_secrets: bool = False
) -> Config:
    """One YAML file -> frozen types. Raises InvalidConfig (a ConfigError) with every mistake, in file order.

    `environ` serves `${NAME}`, DATABASE_URL and FIRSTTOKEN_VANTAGE. With `allow_missing_secrets` a secret that is not
    set is a warning and the target has none: for checking a file where its keys are not.
    """
    data = content(path)
    place = Path(path).parent
    return loads(data, environ, name=str(path), directory=place, allow_missing_secrets=allow_missing_secrets)


def content(path: str | os.PathLike[str], example: str = "examples/minimal.yaml") -> bytes:
    """The bytes of a configuration file such as `example`, no more than may be read. Raises InvalidConfig."""
    try:
        return read_bounded(path, MAX_BYTES + 1)
    except OSError as error:
        found = f"a file that cannot be read ({(error.strerror or 'error').lower()})"
        raise InvalidConfig([Mistake(str(path), None, "", found, f"a YAML file such as {example}")]) from None


def loads(
    data: bytes | str,
    environ: Map[str, str] = os.environ,
    *,
    name: str = "configuration",
    directory: Path | None = None,
    allow_missing_secrets: bool = False,
) -> Config:
    """The same for a text at hand; `name` stands in messages, relative paths start at `directory`."""
    return understood(document(data, notes := Notes(name, directory or Path(), environ, allow_missing_secrets)), notes)


def document(data: bytes | str, notes: Notes, read: Callable[[bytes], Document] = parse) -> Document:
    """The tree of a text. Raises InvalidConfig for what is no YAML (or whatever `read` reads)."""
    try:
        return read(data.encode() if isinstance(data, str) else data)
    except Unreadable as error:
        notes.flaw(error.flaw)
        raise InvalidConfig(notes.mistakes) from None


def understood(document: Document, notes: Notes) -> Config:
    """What a tree means to the party that `notes` belong to. Raises InvalidConfig."""
    name, config = notes.file, None
    try:
        for flaw in document.flaws:
            notes.flaw(flaw)
        config = _Loading(notes, document.root).config()
    except Enough:
        last = Mistake(name, None, "", f"more than {MAX_MISTAKES} mistakes", f"none; the first {MAX_MISTAKES} follow")
        notes.mistakes.append(last)
    if config is None or notes.mistakes:
        raise InvalidConfig(notes.mistakes)
    return config


@dataclass(slots=True)
class _Loading:
    notes: Notes
    root: Node
    keys: dict[str, Node] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def config(self) -> Config | None:
        if not isinstance(self.root, Mapping):
            self.notes.wrong(self.root.line, "", describe(self.root), f"a mapping with the keys {listed(_TOP)}")
            return None
        self.top(self.root)
        vantages = self.named("vantages", VantageKeys)
        written = self.named("targets", TargetKeys)
        targets = {name: presets.completed(self.notes, entry) for name, entry in written.items()}
        probes = self.named("probes", ProbeKeys)
        if not vantages:
            vantages = {"local": Entry("vantages.local", 1, VantageKeys())}
        sections = {name: self.section(name, form) for name, form in shape.SECTIONS.items()}
        prices = _prices(sections["prices"].value)
        built_targets = {name: self.target(name, entry, prices) for name, entry in targets.items()}
        storage = self.storage(sections["storage"])
        checks.check(self.notes, checks.File(vantages, targets, probes, sections))
        if self.notes.mistakes:
            return None
        return Config(
            vantages=FrozenDict({name: _vantage(name, entry.value) for name, entry in vantages.items()}),
            targets=FrozenDict(built_targets),
            probes=FrozenDict({name: _probe(name, entry.value) for name, entry in probes.items()}),
            storage=storage,
            spool=self.spool(sections["spool"].value),
            web=Web(host=sections["web"].value.listen[0], port=sections["web"].value.listen[1]),
            limits=_limits(sections["limits"].value),
            budget=_budget(sections["budget"].value),
            prices=prices,
            witness=_witness(sections["witness"].value),
            log=Log(level=sections["log"].value.level, format=sections["log"].value.format),
            chosen_vantage=self.notes.environ.get("FIRSTTOKEN_VANTAGE") or None,
            path=self.notes.file,
            warnings=in_file_order(self.notes.warnings),
            missing_secrets=in_file_order(self.notes.absent),
            known_secrets=tuple(self.notes.secrets),
        )

    def top(self, root: Mapping) -> None:
        for name, node in root.entries.items():
            if name in _TOP and name not in shape.HANDED_OUT and self.notes.party is Party.AGENT:
                allowed = listed(shape.HANDED_OUT)
                self.notes.wrong(root.lines[name], name, "a section that is each machine's own", allowed)
            elif name in _TOP:
                self.keys[name], self.lines[name] = node, root.lines[name]
            elif not name.startswith("x-"):  # as in compose files: a place for anchors
                self.notes.wrong(root.lines[name], name, f"an unknown key{did_you_mean(name, _TOP)}", listed(_TOP))
        for name in ("targets", "probes"):
            if name not in root.entries:
                self.notes.wrong(root.line, name, "nothing", "a mapping of names to their keys, at least one")

    def named(self, section: str, form: type[T]) -> dict[str, Entry[T]]:
        """A top-level mapping of names to entries."""
        node, line = self.keys.get(section), self.lines.get(section, 1)
        if node is None:
            return {}
        if not isinstance(node, Mapping) or not node.entries:
            found = "an empty mapping" if isinstance(node, Mapping) else describe(node)
            self.notes.wrong(line, section, found, "a mapping of names to their keys, at least one")
            return {}
        if len(node.entries) > MAX_ENTRIES:
            self.notes.wrong(line, section, f"{len(node.entries)} {section}", f"at most {MAX_ENTRIES}")
            return {}
        for name in node.entries:
            if not re.fullmatch(kinds.NAME_PATTERN, name):
                self.notes.wrong(node.lines[name], section, f"the name {quoted(name)}", kinds.NAME_ALLOWED)
        return {
            name: Reader(self.notes).entry(form, child, f"{section}.{name}", node.lines[name])
            for name, child in node.entries.items()
        }

    def section(self, name: str, form: type[Any]) -> Entry[Any]:
        node, line = self.keys.get(name), self.lines.get(name, 1)
        if name in shape.SWITCHED and isinstance(node, Scalar) and not node.is_null:
            return Entry(name, line, self.switched(form, node, name, line))
        return Reader(self.notes).entry(form, node, name, line)

    def switched(self, form: type[T], node: Scalar, name: str, line: int) -> T | None:
        """A section that is one word: None when that switches it off."""
        with suppress(Bad):
            if not Reader(self.notes).scalar(kinds.OFF, node, name, line):
                return None
        return form()

    def target(self, name: str, entry: Entry[TargetKeys], prices: Prices) -> Target:
        written = entry.value
        return Target(
            name=name,
            provider=written.provider,
            model=written.model,
            dialect=written.dialect or DialectName.OPENAI_CHAT,  # there is one, or a mistake was noted
            url=written.url,
            api_key=self.from_file(entry, "api_key", kinds.SECRET),
            served_from=_place(written.served_from),
            headers=written.headers,
            body=written.body,
            http_version=written.http_version,
            address_family=written.address_family,
            ca_file=self.ca_file(entry),
            simulated=written.simulated,
            price=prices.of(name, written.model),
            auth_header=written.auth_header,
            cap_field=written.cap_field,
            aws=_aws(written),
            cold_start=ColdStartRule(factor=written.cold_start.factor, minimum_seconds=written.cold_start.minimum),
        )

    def from_file(self, entry: Entry[Any], key: str, kind: kinds.Kind[str]) -> Secret | None:
        """A secret that is written, or stands in the file that `KEY_file` names."""
        direct: Secret | None = getattr(entry.value, key)
        file: str | None = getattr(entry.value, f"{key}_file")
        if file is None:
            return direct
        path, line = f"{entry.path}.{key}_file", entry.at(f"{key}_file")
        if key in entry.lines:
            self.notes.wrong(line, path, f"both {key} and {key}_file", "one of them")
            return None
        try:
            return self.notes.secret_file(kind, file, path, line)
        except Bad:
            return None

    def ca_file(self, entry: Entry[TargetKeys]) -> str | None:
        if entry.value.ca_file is None:
            return None
        if self.notes.party is Party.HUB:  # a file of the agents' machines
            return entry.value.ca_file
        if self.notes.party is Party.AGENT:  # not looked at before the agent's own list allows it
            return str(self.notes.path(entry.value.ca_file))
        file = self.notes.path(entry.value.ca_file)
        if not file.is_file():
            path, line = f"{entry.path}.ca_file", entry.at("ca_file")
            try:
                self.notes.missing(
                    line, path, f"{quoted(entry.value.ca_file)}, which is no file", "a PEM file", secret=True
                )
            except Bad:
                return None
        elif not is_pem(file):
            found = f"{quoted(entry.value.ca_file)}, which holds no certificate"
            self.notes.wrong(entry.at("ca_file"), f"{entry.path}.ca_file", found, "a PEM file")
        return str(file)

    def storage(self, entry: Entry[StorageKeys]) -> Storage:
        url = self.from_file(entry, "database_url", kinds.DATABASE_URL)
        if url is None and not {"database_url", "database_url_file"} & entry.lines.keys():
            url = self.database_from_environ()
        if url is not None:
            self.remember_password(url)
        return Storage(database_url=url, raw_days=entry.value.raw_days, rollup_days=entry.value.rollup_days)

    def database_from_environ(self) -> Secret | None:
        written = self.notes.environ.get("DATABASE_URL")
        if not written:
            return None
        try:
            return self.notes.secret(kinds.DATABASE_URL.parse(written))
        except ValueError:
            self.notes.wrong(
                None, "DATABASE_URL", "a value in the environment that is not shown", kinds.DATABASE_URL.allowed
            )
            return None

    def remember_password(self, url: Secret) -> None:
        """The password alone is a secret too, as written and as decoded: drivers name it without its URL."""
        parts = urlsplit(url.reveal())
        written = [value for name, value in parse_qsl(parts.query) if name in ("password", "sslpassword")]
        for password in filter(None, [parts.password, *written]):
            self.notes.secret(password)
            self.notes.secret(unquote(password))

    def spool(self, written: shape.SpoolKeys) -> Spool:
        if written.directory is not None:
            directory = str(self.notes.path(written.directory))
        else:
            directory = state_directory(self.notes.environ)
        return Spool(directory=directory, max_bytes=written.max_bytes, max_age_seconds=written.max_age)


def _limits(written: LimitsKeys) -> Limits:
    given = {
        name: ProviderLimitKeys(concurrent=limit) if isinstance(limit, int) else limit
        for name, limit in written.per_provider.items()
    }
    return Limits(
        max_concurrent=written.max_concurrent,
        per_provider=FrozenDict({name: one.concurrent for name, one in given.items() if one.concurrent is not None}),
        per_minute=FrozenDict({name: one.per_minute for name, one in given.items() if one.per_minute is not None}),
    )


def _budget(written: BudgetKeys) -> Budget:
    per_target = FrozenDict({name: _cap(cap) for name, cap in written.per_target.items()})
    return Budget(overall=_cap(written), per_target=per_target, share=written.share)


def _cap(written: CapKeys) -> Cap:
    return Cap(money=written.money_per_day, tokens=written.tokens_per_day)


def _prices(written: PricesKeys) -> Prices:
    def table(prices: Map[str, PriceKeys]) -> FrozenDict[str, Price]:
        return FrozenDict({name: _price(price, written.currency) for name, price in prices.items()})

    return Prices(currency=written.currency, per_model=table(written.per_model), per_target=table(written.per_target))


def _witness(written: WitnessKeys | None) -> Witness:
    if written is None:
        return Witness()
    given = [_endpoint(name, one) for name, one in (written.endpoints or {}).items()]
    return Witness(
        interval_seconds=written.interval,
        timeout_seconds=written.timeout,
        endpoints=DEFAULT_ENDPOINTS if written.endpoints is None else tuple(given),
        vantages=written.vantages,
    )


def _endpoint(name: str, written: Any) -> Endpoint:
    """One endpoint, from its address alone or with more keys."""
    keys = written if isinstance(written, EndpointKeys) else EndpointKeys(address=written)
    reach, host, port = keys.address
    return Endpoint(name=name, reach=reach, host=host, port=port, vantages=keys.vantages)


def _price(written: PriceKeys, currency: str) -> Price:
    return Price(input=written.input, output=written.output, cached=written.cached, currency=currency)


def state_directory(environ: Map[str, str]) -> str:
    """Where this user's programs keep state: systemd's answer, else the XDG one."""
    if environ.get("STATE_DIRECTORY"):
        return environ["STATE_DIRECTORY"].split(":")[0]
    if environ.get("XDG_STATE_HOME"):
        return str(Path(environ["XDG_STATE_HOME"]) / "firsttoken")
    if environ.get("HOME"):
        return str(Path(environ["HOME"]) / ".local" / "state" / "firsttoken")
    return "firsttoken-state"


def _aws(written: TargetKeys) -> AwsCredentials | None:
    if written.aws_access_key_id is None or written.aws_secret_access_key is None:
        return None
    return AwsCredentials(
        access_key_id=written.aws_access_key_id,
        secret_access_key=written.aws_secret_access_key,
        session_token=written.aws_session_token,
        region=written.aws_region,
    )


def _place(written: PlaceKeys) -> Place:
    return Place(city=written.city, country=written.country, latitude=written.latitude, longitude=written.longitude)


def _vantage(name: str, written: VantageKeys) -> Vantage:
    return Vantage(
        name=name,
        place=_place(written),
        network=written.network,
        proxy=written.proxy,
        simulated=written.simulated,
    )


def _probe(name: str, written: ProbeKeys) -> Probe:
    return Probe(
        name=name,
        prompt=written.prompt,
        max_output_tokens=written.max_output_tokens,
        interval_seconds=written.interval,
        deadline_seconds=written.deadline,
        connect_timeout_seconds=written.connect_timeout,
        first_token_deadline_seconds=written.first_token_deadline,
        stall_seconds=written.stall,
        connection=written.connection,
        control=written.control,
        nonce=written.nonce,
        targets=written.targets,
        vantages=written.vantages,
        checks=_checks(written.checks),
    )


def _checks(written: ChecksKeys) -> Checks:
    return Checks(
        contains=_many(written.contains),
        not_contains=_many(written.not_contains),
        regex=written.regex,
        json=written.json,
        min_tokens=written.min_tokens,
        finish_reasons=_many(written.finish_reason),
        max_ttft_seconds=written.max_ttft,
    )


def _many(written: str | tuple[str, ...]) -> tuple[str, ...]:
    """One or several."""
    return (written,) if isinstance(written, str) else written
