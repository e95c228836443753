"""What a simulator serves and how that changes with time: listeners, distances, a timeline of changes.

All pure: the behaviour of a model is a function of its base, the changes and the seconds since they began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monitor.model import ConfigError
from monitor.simulator.behaviour import Behaviour
from monitor.simulator.certificates import Certificate

ANY_MODEL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One port and what is behind it."""

    name: str = "main"
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    tls: Certificate | None = None  # None: plain
    http: tuple[str, ...] = ("2", "1.1")  # spoken versions, preferred first; plain HTTP/2 by prior knowledge
    models: Mapping[str, Behaviour] = field(default_factory=lambda: {ANY_MODEL: Behaviour()})  # `*`: any other name
    api_key: str | None = field(default=None, repr=False)  # None: every key is good
    echo_key: bool = False  # repeat a wrong key in the error text, as careless gateways do
    control_seconds: float = 0.0  # what the model list takes
    silent: bool = False  # accept connections and never say a byte, not even TLS

    def __post_init__(self) -> None:
        if not self.http or set(self.http) - {"1.1", "2"}:
            raise ConfigError(f"listener {self.name}: http is {list(self.http)}; allowed: '1.1', '2'")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"listener {self.name}: port is {self.port}; it must be between 0 and 65535")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """A simulated way: what a proxy adds to everything that passes."""

    rtt_ms: float
    jitter_ms: float = 0.0  # uniform, both ways, on each direction's half
    loss: float = 0.0  # share of segments lost; each costs one more round trip, and those behind it wait
    host: str = "127.0.0.1"
    port: int = 0

    def __post_init__(self) -> None:
        if self.rtt_ms < 0 or self.jitter_ms < 0:
            raise ConfigError(f"rtt_ms is {self.rtt_ms} and jitter_ms {self.jitter_ms}; both must be 0 or more")
        if not 0 <= self.loss < 1:
            raise ConfigError(f"loss is {self.loss}; it is a share of at least 0 and below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """From `after_seconds` on, for `for_seconds`, models behave otherwise; again every `every_seconds` if given."""

    after_seconds: float = 0.0
    for_seconds: float | None = None  # None: for good
    every_seconds: float | None = None  # from one beginning to the next
    listener: str | None = None  # None: all
    model: str | None = None  # None: all
    multiply: Mapping[str, float] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.multiply and not self.set:
            raise ConfigError("a change needs `multiply` or `set`")
        if self.after_seconds < 0:
            raise ConfigError(f"after_seconds is {self.after_seconds}; it must be 0 or more")
        if self.every_seconds is not None and (self.for_seconds is None or self.every_seconds < self.for_seconds):
            raise ConfigError("every_seconds needs a for_seconds that is no longer than it")

    def active(self, elapsed_seconds: float) -> bool:
        """Whether it holds, so many seconds after the timeline began."""
        since = elapsed_seconds - self.after_seconds
        if since < 0 or self.for_seconds is None:
            return since >= 0
        return (since % self.every_seconds if self.every_seconds else since) < self.for_seconds

    def concerns(self, listener: str, model: str) -> bool:
        return self.listener in (None, listener) and self.model in (None, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything one simulator does."""

    listeners: tuple[Listener, ...] = (Listener(),)
    distances: Mapping[str, Distance] = field(default_factory=dict)
    timeline: tuple[Change, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        names = [listener.name for listener in self.listeners]
        if len(set(names)) < len(names):
            raise ConfigError(f"two listeners have the same name: {', '.join(names)}")
        for change in self.timeline:
            self._check(change)

    def _check(self, change: Change) -> None:
        served = [(li.name, name, base) for li in self.listeners for name, base in li.models.items()]
        met = [base for listener, name, base in served if change.concerns(listener, name)]
        anything = any(name == ANY_MODEL for _, name, _ in served)
        if not met and not anything:
            raise ConfigError(f"a change names listener {change.listener!r} and model {change.model!r}: no such model")
        for base in met or [Behaviour()]:
            base.changed(change.multiply, change.set)


def behaviour_at(base: Behaviour, changes: Iterable[tuple[float, Change]]) -> Behaviour:
    """`base` under the changes that hold, in their order; each comes with the seconds since its timeline began."""
    for elapsed_seconds, change in changes:
        if change.active(elapsed_seconds):
            base = base.changed(change.multiply, change.set)
    return base
