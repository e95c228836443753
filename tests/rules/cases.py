"""Cases for `promtool test rules`: what probes saw, minute by minute, and which alerts shall fire when.

`tools/rules.py` writes them as YAML beside this file and lets promtool fill in the texts of the alerts that fire; the
diff of those files is where texts are read. What fires and what stays silent stands here and is never filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

DAY = 24 * 60
Said = str | None
"""What an attempt came to: None for success, or `kind phase`."""


@dataclass(frozen=True)
class Check:
    """At this minute, exactly these (labels besides those of the rule itself) fire under this name."""

    minute: int
    alert: str
    firing: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Case:
    """One test of promtool's."""

    name: str
    series: Mapping[str, str]
    checks: tuple[Check, ...]
    interval: str = "1m"


def at(minute: int, alert: str, *firing: Mapping[str, str]) -> Check:
    return Check(minute, alert, firing)


# ---------------------------------------------------------------------------------------------------- what was seen


def compress(values: Iterable[float | None]) -> str:
    """promtool's notation for a list of values: runs with a constant step; None is a missing sample."""
    out: list[str] = []
    rest = list(values)
    while rest:
        first = rest[0]
        if first is None:
            n = next((i for i, value in enumerate(rest) if value is not None), len(rest))
            out.append(f"_x{n}")
        else:
            n = 1
            if len(rest) > 1 and rest[1] is not None:
                step = rest[1] - first
                while n < len(rest) and rest[n] is not None and rest[n] - rest[n - 1] == step:  # type: ignore[operator]
                    n += 1
            else:
                step = 0
            out.append(f"{first:g}" if n == 1 else f"{first:.17g}{'+' if step >= 0 else '-'}{abs(step):.17g}x{n - 1}")
        rest = rest[n:]
    return " ".join(out)


def labelled(metric: str, **labels: str) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{metric}{{{inside}}}" if inside else metric


COUNTRY = {"lagos": "NG", "london": "GB", "virginia": "US"}


@dataclass
class Probing:
    """One series as the product's metrics would show it: an attempt each `interval` minutes."""

    vantage: str
    target: str = "chat"
    provider: str = "acme"
    model: str = "small"
    probe: str = "short"
    interval: int = 1
    says: Callable[[int], Said] = lambda minute: None
    ttft: Callable[[int], float] = lambda minute: 0.5
    begins: int = 0
    ends: int | None = None  # from this minute on no attempt is made
    instance: str = "hub:8765"
    job: str = "firsttoken"
    verdict: Callable[[int], str] | None = None
    doubt: Callable[[int], bool] = lambda minute: False
    simulated: str = "false"
    missed: Callable[[int], str | None] = lambda minute: None
    gone: Callable[[int], bool] = lambda minute: False  # the process cannot be scraped
    made: dict[str, list[float | None]] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        return {
            "vantage": self.vantage, "country": COUNTRY[self.vantage], "provider": self.provider, "target": self.target,
            "model": self.model, "probe": self.probe, "instance": self.instance, "job": self.job,
        }  # fmt: skip

    @property
    def pair(self) -> dict[str, str]:
        return {name: self.labels[name] for name in ("vantage", "country", "provider", "target", "model")}

    def over(self, minutes: int) -> dict[str, str]:
        """promtool's input series for that long."""
        counts: dict[str, float] = {self._name("attempts_total", outcome=one): 0 for one in ("success", "failed")}
        counts |= {
            self._name("failures_total", kind=kind, phase="wait"): 0 for kind in ("rate_limited", "server_error")
        }
        counts[self._name("ttft_seconds_count")] = 0
        if self.verdict:
            counts |= {self._name("verdicts_total", verdict=one): 0 for one in ("cold", "warm")}
        counts[self._name("interval_seconds")] = self.interval * 60
        counts[self._name("series_info", simulated=self.simulated)] = 1
        rows: dict[str, list[float | None]] = {}
        for minute in range(minutes):
            if minute >= self.begins:
                self._live(counts, minute)
            shown = {} if self.gone(minute) or minute < self.begins else counts
            for name in {**rows, **shown}:
                rows.setdefault(name, [None] * minute).append(shown.get(name))
        return {name: compress(row) for name, row in rows.items()}

    def _live(self, counts: dict[str, float], minute: int) -> None:
        if (minute - self.begins) % self.interval or (self.ends is not None and minute >= self.ends):
            return

        def add(name: str, **more: str) -> None:
            counts[self._name(name, **more)] = counts.get(self._name(name, **more), 0) + 1

        if reason := self.missed(minute):
            add("missed_slots_total", reason=reason)
            return
        said = self.says(minute)
        add("attempts_total", outcome="failed" if said else "success")
        counts[self._name("last_attempt_timestamp_seconds")] = minute * 60
        counts[self._name("last_attempt_success")] = 0 if said else 1
        if self.doubt(minute):
            add("doubts_total", reason="cpu_throttled")
        if said:
            kind, phase = said.split()
            add("failures_total", kind=kind, phase=phase)
            return
        counts[self._name("last_success_timestamp_seconds")] = minute * 60
        add("ttft_seconds_count")
        counts[self._name("last_ttft_seconds")] = self.ttft(minute)
        if self.verdict:
            add("verdicts_total", verdict=self.verdict(minute))

    def _name(self, metric: str, **more: str) -> str:
        return labelled(f"firsttoken_{metric}", **self.labels, **more)


def seen(minutes: int, *probings: Probing, **plain: str) -> dict[str, str]:
    """All series of several probings, with the build info of their processes."""
    found: dict[str, str] = {}
    for one in probings:
        found |= one.over(minutes)
    return found


def between(first: int, last: int, said: str) -> Callable[[int], Said]:
    """Fails so from minute `first` until before `last`."""
    return lambda minute: said if first <= minute < last else None


PLACES = ("lagos", "london", "virginia")


def everywhere(says: Callable[[int], Said], *, places: Iterable[str] = PLACES, **more: Any) -> list[Probing]:
    return [Probing(place, says=says, **more) for place in places]


CHAT = {"provider": "acme", "target": "chat", "model": "small"}


def lagos(**more: str) -> dict[str, str]:
    return {"vantage": "lagos", "country": "NG", **more}


# ---------------------------------------------------------------------------------------------------- the cases


def down() -> list[Case]:
    late = between(30, 50, "server_error wait")
    dead_line = between(30, 50, "connect_timeout connect")
    two = [("chat", "acme"), ("embed", "acme"), ("own", "self")]
    lines = [
        Probing(place, target=target, provider=provider, says=dead_line if place == "lagos" else lambda _: None)
        for place in PLACES
        for target, provider in two
    ]
    return [
        Case(
            "a target that fails from all three places is one alert, which resolves",
            seen(70, *everywhere(late), *everywhere(lambda _: None, target="embed")),
            (
                at(31, "TargetDown"),
                at(37, "TargetDown", CHAT),
                at(45, "ProviderDown"),
                at(45, "LineDown"),
                at(37, "TargetDownFromVantage"),
                at(55, "TargetDown"),
            ),
        ),
        Case(
            "one failed attempt here and there is nobody's business",
            seen(70, *everywhere(lambda minute: "server_error wait" if minute % 7 == 0 else None)),
            tuple(at(minute, name) for minute in (20, 40, 60) for name in ("TargetDown", "TargetDownFromVantage")),
        ),
        Case(
            "a target that fails from one of three places alone is the road's, later and milder",
            seen(70, *(Probing(place, says=late if place == "lagos" else lambda _: None) for place in PLACES)),
            (
                at(45, "TargetDown"),
                at(37, "TargetDownFromVantage"),
                at(45, "TargetDownFromVantage", lagos(**CHAT)),
                at(45, "LineDown"),
                at(55, "TargetDownFromVantage"),
            ),
        ),
        Case(
            "a single place decides alone",
            seen(70, Probing("lagos", says=late)),
            (at(31, "TargetDown"), at(40, "TargetDown", CHAT), at(55, "TargetDown")),
        ),
        Case(
            "votes expire: places that say no more have no say",
            seen(70, *(Probing(place, says=late, ends=34) for place in PLACES)),
            (at(36, "TargetDown", CHAT), at(45, "TargetDown")),
        ),
        Case(
            "a probe of five minutes is counted in its own intervals",
            seen(120, *everywhere(between(30, 80, "server_error wait"), interval=5)),
            (at(39, "TargetDown"), at(50, "TargetDown", CHAT), at(75, "TargetDown", CHAT), at(90, "TargetDown")),
        ),
        Case(
            "another probe that succeeds is a sign of life",
            seen(
                70,
                *everywhere(late),
                *everywhere(lambda _: None, probe="long", interval=5),
            ),
            (at(45, "TargetDown"), at(45, "TargetDownFromVantage")),
        ),
        Case(
            "a target that never answered since its process began",
            seen(40, *everywhere(lambda _: "unauthorized wait")),
            (at(1, "TargetDown"), at(10, "TargetDown", CHAT)),
        ),
        Case(
            "429s to our own key are no outage",
            seen(70, *everywhere(between(30, 60, "rate_limited wait"))),
            (
                at(50, "TargetDown"),
                at(50, "RateLimited", CHAT),
                at(31, "RateLimited"),
                at(69, "TargetDown"),
            ),
        ),
        Case(
            "a provider whose targets all fail is one alert; Alertmanager leaves out the narrower ones",
            seen(
                70,
                *(p for target in ("chat", "embed") for p in everywhere(late, target=target)),
                *everywhere(lambda _: None, target="own", provider="self"),
            ),
            (
                at(31, "ProviderDown"),
                at(37, "ProviderDown", {"provider": "acme"}),
                at(45, "LineDown"),
                at(55, "ProviderDown"),
            ),
        ),
        Case(
            "a dead line in Lagos is about Lagos, and no target is down for it",
            seen(70, *lines),
            (
                at(31, "LineDown"),
                at(36, "LineDown", lagos()),
                at(45, "TargetDown"),
                at(45, "ProviderDown"),
                at(45, "TargetDownFromVantage"),
                at(45, "ErrorBudgetBurn"),
                at(55, "LineDown"),
            ),
        ),
    ]


FILES: dict[str, Callable[[], list[Case]]] = {"down": down}
"""File name without its ending -> its cases."""
