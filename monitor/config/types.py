"""The configuration as the program uses it: frozen, hashable, equal by content, so that a reload can tell a change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Never, TypeVar

from monitor.config.mistake import Mistake, did_you_mean, listed
from monitor.model import ConfigError, Price, Probe, Secret, Series, Target, Vantage
from monitor.witness import Endpoint

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that cannot change and can be hashed; still a dict, so that json and `{**x}` take it."""

    def __hash__(self) -> int:  # type: ignore[override]  # dict has none
        return hash(frozenset(self.items()))

    def _refuse(self, *_: object, **__: object) -> Never:
        raise TypeError("the configuration is frozen; read a new one instead")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[K, V]]]:
        return (FrozenDict, (dict(self),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    database_url: Secret | None = None  # from the file, else from DATABASE_URL, else None: embedded Postgres
    raw_days: int = 30
    rollup_days: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    directory: str = "firsttoken-state"
    max_bytes: int = 256_000_000
    max_age_seconds: float = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    host: str = "127.0.0.1"
    port: int = 8765


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_concurrent: int = 50  # attempts at one time in this process
    per_provider: Mapping[str, int] = field(default_factory=FrozenDict)  # provider -> attempts at one time
    per_minute: Mapping[str, int] = field(default_factory=FrozenDict)  # provider -> attempts begun in 60 seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What tokens cost; each target carries its own price."""

    currency: str = "USD"
    per_model: Mapping[str, Price] = field(default_factory=FrozenDict)
    per_target: Mapping[str, Price] = field(default_factory=FrozenDict)

    def of(self, target: str, model: str) -> Price | None:
        """The price of a target, None when there is none."""
        return self.per_target.get(target) or self.per_model.get(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The most of a day (UTC)."""

    money: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Hard daily caps of all agents together."""

    overall: Cap = field(default_factory=Cap)
    per_target: Mapping[str, Cap] = field(default_factory=FrozenDict)
    share: float | None = None  # of one process; None: by the vantage points that it plays


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """Neutral endpoints that vantage points look at; none: it is off."""

    interval_seconds: float = 60.0
    timeout_seconds: float = 5.0
    endpoints: tuple[Endpoint, ...] = ()
    vantages: tuple[str, ...] = ()  # that look; empty: all

    def seen_from(self, vantage: str) -> list[Endpoint]:
        """What one vantage point looks at."""
        if self.vantages and vantage not in self.vantages:
            return []
        return [one for one in self.endpoints if not one.vantages or vantage in one.vantages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    level: str = "info"  # debug, info, warning, error
    format: str = "text"  # text, json


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One configuration file, completely checked. Equal when its content is equal, secrets included."""

    vantages: Mapping[str, Vantage]
    targets: Mapping[str, Target]
    probes: Mapping[str, Probe]
    storage: Storage = field(default_factory=Storage)
    spool: Spool = field(default_factory=Spool)
    web: Web = field(default_factory=Web)
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=Prices)
    budget: Budget = field(default_factory=Budget)
    witness: Witness = field(default_factory=Witness)
    log: Log = field(default_factory=Log)
    chosen_vantage: str | None = field(default=None, compare=False)  # FIRSTTOKEN_VANTAGE of the environment
    path: str | None = field(default=None, compare=False)
    warnings: tuple[Mistake, ...] = field(default=(), compare=False)
    missing_secrets: tuple[Mistake, ...] = field(default=(), compare=False)  # with `allow_missing_secrets`
    known_secrets: tuple[Secret, ...] = field(default=(), compare=False, repr=False)

    def series(self, vantage: str) -> list[Series]:
        """What one vantage point measures, in the order of the file. Raises ConfigError for an unknown name."""
        start = self._vantage(vantage)
        return [
            Series(vantage=start, target=target, probe=probe)
            for probe in self.probes.values()
            if not probe.vantages or vantage in probe.vantages
            for target in self.targets.values()
            if not probe.targets or target.name in probe.targets
        ]

    def select_vantages(self, name: str | None = None) -> list[Vantage]:
        """The vantage points that this process plays.

        A given name (or FIRSTTOKEN_VANTAGE) is that one alone. Without a name: the only real one and all simulated
        ones. Raises ConfigError when there are two real ones and no choice, or when the name is unknown.
        """
        chosen = name or self.chosen_vantage
        if chosen:
            return [self._vantage(chosen)]
        real = [vantage.name for vantage in self.vantages.values() if not vantage.simulated]
        if len(real) > 1:
            raise ConfigError(
                f"the configuration has {len(real)} vantage points ({listed(real)}) and this process is one of them: "
                f"say which with --vantage {real[0]} or FIRSTTOKEN_VANTAGE={real[0]}"
            )
        return list(self.vantages.values())

    def secrets(self) -> list[Secret]:
        """Every secret of the configuration, also the parts of composed ones: what outputs are scrubbed of."""
        return list(self.known_secrets)

    @property
    def database_url(self) -> str | None:
        """Where Postgres is, password included: never show it. None: the embedded one."""
        return self.storage.database_url.reveal() if self.storage.database_url else None

    @property
    def digest(self) -> str:
        """Content hash (16 hex digits) of what the file says; secrets count as present or absent, not by value."""
        content = {item.name: _plain(getattr(self, item.name)) for item in fields(self) if item.compare}
        content["spool"] = [self.spool.max_bytes, self.spool.max_age_seconds]  # its directory is this machine's
        return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()

    def _vantage(self, name: str) -> Vantage:
        if name not in self.vantages:
            known = list(self.vantages)
            near = did_you_mean(name, known)
            raise ConfigError(f'no vantage point "{name}"{near}; the configuration has {listed(known)}')
        return self.vantages[name]


def _plain(value: object) -> object:
    """The value as JSON has it, secrets as a star."""
    if isinstance(value, Secret):
        return "*"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return dict(_named(value))
    return value


def _named(record: Any) -> Iterator[tuple[str, object]]:
    for item in fields(record):
        yield item.name, _plain(getattr(record, item.name))
