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

    def over(self, minutes: int, step: int = 1) -> dict[str, str]:
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
        return {name: compress(row[::step]) for name, row in rows.items()}

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


def seen(minutes: int, *probings: Probing, step: int = 1) -> dict[str, str]:
    """All series of several probings, a sample each `step` minutes."""
    found: dict[str, str] = {}
    for one in probings:
        found |= one.over(minutes, step)
    return found


def steps(minutes: int, *values: tuple[int, float]) -> str:
    """A gauge that takes each value from its minute on."""
    return compress([next(value for first, value in reversed(values) if first <= minute) for minute in range(minutes)])


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
    dead_line = between(30, 90, "connect_timeout connect")
    two = [("chat", "acme"), ("embed", "acme"), ("own", "self")]

    def refused(minute: int) -> Said:
        return None if not 30 <= minute < 60 else "forbidden wait" if minute % 3 else "connect_timeout connect"

    def always(minute: int) -> Said:
        return "server_error wait"

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
                at(59, "TargetDown"),
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
            (at(31, "TargetDown"), at(40, "TargetDown", CHAT), at(59, "TargetDown")),
        ),
        Case(
            "votes expire: places that say no more have no say",
            seen(70, *(Probing(place, says=late, ends=34) for place in PLACES)),
            (at(36, "TargetDown", CHAT), at(50, "TargetDown")),
        ),
        Case(
            "a probe of five minutes is counted in its own intervals",
            seen(120, *everywhere(between(30, 80, "server_error wait"), interval=5)),
            (at(39, "TargetDown"), at(50, "TargetDown", CHAT), at(75, "TargetDown", CHAT), at(110, "TargetDown")),
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
                at(60, "ProviderDown"),
            ),
        ),
        Case(
            "a dead line in Lagos is about Lagos, and no target is down for it",
            seen(120, *lines),
            (
                at(31, "LineDown"),
                at(36, "LineDown", lagos()),
                at(45, "TargetDown"),
                at(45, "ProviderDown"),
                at(45, "TargetDownFromVantage"),
                at(85, "ErrorBudgetBurn"),
                at(85, "LineDown", lagos()),
                at(100, "LineDown"),
            ),
        ),
        Case(
            "a place whose line is dead has no say: one more that fails is one of two, not two of three",
            seen(
                70,
                *(one for one in lines if (one.vantage, one.target) != ("london", "own")),
                Probing("london", target="own", provider="self", says=always),
            ),
            (at(60, "LineDown", lagos()), at(60, "TargetDown")),
        ),
        Case(
            "and of two places the other decides alone",
            seen(
                70,
                *(one for one in lines if one.vantage == "lagos"),
                Probing("london"),
                Probing("london", target="own", provider="self", says=always),
            ),
            (
                at(60, "LineDown", lagos()),
                at(60, "TargetDown", {"provider": "self", "target": "own", "model": "small"}),
            ),
        ),
        Case(
            "a place that everybody refuses, most of the time, has a line",
            seen(
                70,
                *(Probing("lagos", target=target, provider=provider, says=refused) for target, provider in two),
                *(Probing("london", target=target, provider=provider) for target, provider in two),
            ),
            (
                at(50, "LineDown"),
                at(
                    50,
                    "TargetDownFromVantage",
                    *(lagos(provider=provider, target=target, model="small") for target, provider in two),
                ),
                at(50, "TargetDown"),
            ),
        ),
    ]


def latency() -> list[Case]:
    slow, usual = (lambda minute: 1.6 if 200 <= minute < 300 else 0.5), (lambda minute: 0.5)
    two = [("chat", "acme"), ("embed", "acme"), ("own", "self")]

    def chat(ttft: Callable[[int], float], *, places: Iterable[str] = PLACES, **more: Any) -> list[Probing]:
        return [Probing(place, ttft=ttft if place in places else usual, **more) for place in PLACES]

    return [
        Case(
            "slower from all places on the first day: one alert, which resolves when it has been gone for a while",
            seen(350, *chat(slow)),
            (
                at(199, "Slow"),
                at(225, "Slow", CHAT),
                at(225, "SlowFromVantage"),
                at(250, "ProviderSlow"),
                at(250, "VantageSlow"),
                at(320, "Slow", CHAT),
                at(340, "Slow"),
            ),
        ),
        Case(
            "slower from Lagos alone: later, with what it takes and what is usual there",
            seen(350, *chat(slow, places=("lagos",))),
            (
                at(225, "SlowFromVantage"),
                at(235, "SlowFromVantage", lagos(**CHAT)),
                at(250, "Slow"),
                at(250, "VantageSlow"),
                at(340, "SlowFromVantage"),
            ),
        ),
        Case(
            "a provider that is slow as a whole",
            seen(
                350,
                *chat(slow),
                *chat(slow, target="embed"),
                *chat(usual, target="own", provider="self"),
            ),
            (
                at(199, "ProviderSlow"),
                at(225, "ProviderSlow", {"provider": "acme"}),
                at(250, "VantageSlow"),
                at(340, "ProviderSlow"),
            ),
        ),
        Case(
            "a place from which everything is slow",
            seen(
                350,
                *(
                    p
                    for target, provider in two
                    for p in chat(slow, places=("lagos",), target=target, provider=provider)
                ),
            ),
            (
                at(199, "VantageSlow"),
                at(225, "VantageSlow", lagos()),
                at(250, "Slow"),
                at(250, "ProviderSlow"),
                at(340, "VantageSlow"),
            ),
        ),
        Case(
            "twice as slow, but by a tenth of a second, is nobody's business",
            seen(350, *chat(lambda minute: 0.2 if minute >= 200 else 0.1)),
            (at(250, "Slow"), at(250, "SlowFromVantage"), at(250, "ProviderSlow"), at(250, "VantageSlow")),
        ),
        Case(
            "half a second more on three seconds is no regression",
            seen(350, *chat(lambda minute: 3.5 if minute >= 200 else 3.0)),
            (at(250, "Slow"), at(250, "SlowFromVantage")),
        ),
        Case(
            "a few very slow answers are no regression: medians",
            seen(350, *chat(lambda minute: 20.0 if minute % 4 == 0 and minute >= 200 else 0.5)),
            (at(250, "Slow"), at(250, "SlowFromVantage")),
        ),
        Case(
            "too few measurements say nothing",
            seen(350, *chat(slow, interval=15)),
            (at(250, "Slow"), at(250, "SlowFromVantage")),
        ),
        Case(
            "without two hours of history there is no usual",
            seen(150, *chat(lambda minute: 1.6 if minute >= 60 else 0.5)),
            (at(120, "Slow"), at(149, "SlowFromVantage")),
        ),
        Case(
            "a hub that kept the slow times of a while ago has no say",
            seen(
                350, *chat(lambda minute: 3.0, instance="hub-b:1", ends=10), *chat(usual, instance="hub-a:1", begins=10)
            ),
            (at(250, "Slow"), at(250, "SlowFromVantage")),
        ),
        Case(
            "a restarted process is no regression, and its counters begin anew",
            seen(350, *chat(usual, gone=lambda minute: 220 <= minute < 225)),
            (at(250, "Slow"), at(250, "SlowFromVantage"), at(250, "TargetDown")),
        ),
    ]


def weeks() -> list[Case]:
    def evening(minute: int) -> bool:
        return 18 <= minute % DAY / 60 < 22

    def ttft(minute: int) -> float:
        worse = 3.0 if 9 * DAY + 19 * 60 <= minute < 9 * DAY + 21 * 60 else 1.0
        return (1.5 if evening(minute) else 0.5) * worse

    slow = lagos(**CHAT)
    return [
        Case(
            "slow evenings alert while there is only a day to compare with, and no more after a week; "
            "what is slower than the evenings of other weeks does",
            seen(10 * DAY, Probing("lagos", ttft=ttft), step=10),
            (
                at(2 * DAY + 20 * 60, "SlowFromVantage", slow),
                at(2 * DAY + 23 * 60, "SlowFromVantage"),
                at(8 * DAY + 20 * 60, "SlowFromVantage"),
                at(9 * DAY + 20 * 60, "SlowFromVantage", slow),
                at(9 * DAY + 22 * 60, "SlowFromVantage"),
            ),
            interval="10m",
        )
    ]


def objective() -> list[Case]:
    def fails(first: int, last: int, every: int) -> Callable[[int], Said]:
        return lambda minute: "overloaded wait" if first <= minute < last and minute % every == 0 else None

    fast = [{**CHAT, "window": "1h"}, {**CHAT, "window": "6h"}]
    return [
        Case(
            "every fifth attempt fails: the budget of a month would be gone in a day and a half",
            seen(420, *everywhere(fails(120, 200, 5))),
            (
                at(119, "ErrorBudgetBurn"),
                at(130, "ErrorBudgetBurn"),
                at(190, "ErrorBudgetBurn", *fast),
                at(190, "TargetDown"),
                at(235, "ErrorBudgetBurn"),
            ),
        ),
        Case(
            "two failures of a rarely asked target are no trend",
            seen(
                150,
                Probing("lagos", interval=10, says=lambda minute: "overloaded wait" if minute in (100, 120) else None),
            ),
            (at(121, "ErrorBudgetBurn"), at(135, "ErrorBudgetBurn"), at(149, "ErrorBudgetBurn")),
        ),
        Case(
            "one in fifty, for days: nobody gets up, somebody looks at it",
            seen(2650, *everywhere(fails(0, 2260, 50), places=("lagos",))),
            (
                at(2000, "ErrorBudgetBurn"),
                at(2250, "ErrorBudgetBurn", {**CHAT, "window": "3d"}),
                at(2640, "ErrorBudgetBurn"),
            ),
        ),
        Case(
            "four in a hundred, for most of a day",
            seen(1050, *everywhere(fails(0, 900, 25), places=("lagos",))),
            (
                at(700, "ErrorBudgetBurn"),
                at(850, "ErrorBudgetBurn", {**CHAT, "window": "1d"}),
                at(1040, "ErrorBudgetBurn"),
            ),
        ),
    ]


def limits() -> list[Case]:
    def half_cold(first: int) -> Callable[[int], str]:
        return lambda minute: "cold" if minute >= first and minute % 2 else "warm"

    def storm(minute: int) -> str:
        return half_cold(300)(minute) if minute < 400 else "warm"

    expiry = labelled("firsttoken_certificate_expiry_timestamp_seconds", **Probing("lagos").labels)
    ends = [{**CHAT, "window": "14d"}, {**CHAT, "window": "3d"}]
    spent = Probing("lagos", missed=lambda minute: "budget" if 100 <= minute < 200 else None)
    return [
        Case(
            "a model that was warm all day is cold again and again",
            seen(520, Probing("lagos", verdict=storm, interval=3)),
            (at(299, "ColdStartStorm"), at(360, "ColdStartStorm", CHAT), at(510, "ColdStartStorm")),
        ),
        Case(
            "a probe that comes after idleness on purpose is always cold, which is no storm",
            seen(520, Probing("lagos", verdict=half_cold(0), interval=3)),
            (at(360, "ColdStartStorm"), at(510, "ColdStartStorm")),
        ),
        Case(
            "429s: many, few, gone",
            seen(
                150,
                Probing("lagos", says=between(30, 60, "rate_limited wait")),
                Probing("lagos", target="embed", says=lambda minute: "rate_limited wait" if minute % 20 == 0 else None),
            ),
            (at(29, "RateLimited"), at(50, "RateLimited", CHAT), at(100, "RateLimited")),
        ),
        Case(
            "the daily budget is spent, the counter of which appears only then; at midnight it begins anew",
            seen(300, spent),
            (
                at(99, "BudgetSpent"),
                at(104, "BudgetSpent", lagos()),
                at(199, "BudgetSpent", lagos()),
                at(190, "NoDataFromVantage"),
                at(190, "TargetDown"),
                at(265, "BudgetSpent"),
            ),
        ),
        Case(
            "a certificate, from sixteen days to three, then renewed",
            {
                **seen(40, Probing("lagos")),
                expiry: compress(
                    [16 * 86_400.0] * 10 + [13 * 86_400.0] * 10 + [2 * 86_400.0] * 10 + [90 * 86_400.0] * 10
                ),
            },
            (
                at(9, "CertificateExpiring"),
                at(18, "CertificateExpiring", ends[0]),
                at(28, "CertificateExpiring", *ends),
                at(38, "CertificateExpiring"),
            ),
        ),
        Case(
            "a certificate that has expired is not less bad",
            {**seen(40, Probing("lagos")), expiry: compress([600.0] * 40)},
            (at(30, "CertificateExpiring", *ends),),
        ),
    ]


def fleet() -> list[Case]:
    hub, place = {"instance": "hub:8765", "job": "firsttoken"}, lagos()
    own = {"instance": "lagos:8765", "job": "firsttoken"}
    agent = {"instance": "lagos:9464", "job": "firsttoken-agents"}
    ingest = {labelled("firsttoken_ingest_batches_total", result="stored", **hub): "0+6x99"}

    def of_lagos(metric: str, *values: tuple[int, float], until: int = 100) -> dict[str, str]:
        return {labelled(f"firsttoken_{metric}", **place, **hub): steps(until, *values)}

    def of_process(metric: str, *values: tuple[int, float], until: int = 100, **labels: str) -> dict[str, str]:
        return {labelled(metric, **labels): steps(until, *values)}

    def heard(first: int, last: int, until: int = 100) -> dict[str, str]:
        times = [60.0 * (minute if not first <= minute < last else first) for minute in range(until)]
        return {labelled("firsttoken_agent_last_seen_timestamp_seconds", **place, **hub): compress(times)}

    alone = Probing("lagos", gone=lambda minute: 30 <= minute < 60, **own)
    apart = Probing("lagos", ends=40)
    stopped = Probing("lagos", target="embed", missed=lambda minute: "late")
    return [
        Case(
            "nothing measures anywhere",
            seen(100, Probing("lagos", gone=lambda minute: 30 <= minute < 60, **own)),
            (at(29, "NoData"), at(35, "NoData"), at(47, "NoData", {}), at(65, "NoData")),
        ),
        Case(
            "a process that measures for one place only is that place's agent",
            {**seen(100, alone), **of_process("up", (0, 1), (30, 0), (60, 1), **own)},
            (
                at(29, "AgentSilent"),
                at(33, "AgentSilent"),
                at(40, "AgentSilent", place),
                at(40, "ProcessDown"),
                at(70, "AgentSilent"),
            ),
        ),
        Case(
            "a hub that cannot be scraped is not an agent, though it keeps only one's results",
            {
                **seen(100, Probing("lagos", gone=lambda minute: 30 <= minute < 60)),
                **dict.fromkeys(ingest, "0+6x29 _x30 180+6x39"),
                **of_process("up", (0, 1), (30, 0), (60, 1), **hub),
            },
            (
                at(29, "ProcessDown"),
                at(33, "ProcessDown"),
                at(40, "ProcessDown", hub),
                at(40, "AgentSilent"),
                at(65, "ProcessDown"),
            ),
        ),
        Case(
            "an agent that the hub hears no more: one alert about Lagos, and none about what it would have measured",
            {**seen(100, Probing("lagos", ends=30), Probing("london")), **ingest, **heard(30, 70)},
            (
                at(29, "AgentSilent"),
                at(34, "AgentSilent"),
                at(38, "AgentSilent", place),
                at(60, "TargetDown"),
                at(60, "LineDown"),
                at(80, "AgentSilent"),
            ),
        ),
        Case(
            "no attempt for three intervals and two minutes, while the agent is heard",
            {**seen(100, apart, Probing("london")), **heard(0, 0)},
            (
                at(39, "NoDataFromVantage"),
                at(44, "NoDataFromVantage"),
                at(52, "NoDataFromVantage", lagos(**CHAT)),
                at(52, "AgentSilent"),
            ),
        ),
        Case(
            "a series that never had an attempt, since its process runs; hourly ones have time",
            {
                **seen(100, stopped, Probing("lagos", probe="hourly", interval=60)),
                **of_process("process_start_time_seconds", (0, 0), **hub),
            },
            (
                at(3, "NoDataFromVantage"),
                at(15, "NoDataFromVantage", lagos(**{**CHAT, "target": "embed"})),
                at(59, "NoDataFromVantage", lagos(**{**CHAT, "target": "embed"})),
            ),
        ),
        Case(
            "data that comes again",
            seen(100, Probing("lagos", missed=lambda minute: "late" if 30 <= minute < 60 else None)),
            (at(29, "NoDataFromVantage"), at(50, "NoDataFromVantage", lagos(**CHAT)), at(65, "NoDataFromVantage")),
        ),
        Case(
            "an agent of an old version",
            {
                **of_lagos("agent_up_to_date", (0, 1), (30, 0), (500, 1), until=600),
                labelled("firsttoken_agent_info", **place, version="0.3.0", config_digest="ab12", **hub): "1x599",
                labelled("firsttoken_build_info", version="0.4.0", **hub): "1x599",
            },
            (
                at(29, "AgentOutdated"),
                at(350, "AgentOutdated"),
                at(400, "AgentOutdated", place),
                at(510, "AgentOutdated"),
            ),
        ),
        Case(
            "a configuration that is refused",
            {
                **of_process("firsttoken_config_last_reload_successful", (0, 1), (30, 0), (60, 1), **hub),
                **of_process("firsttoken_config_last_reload_success_timestamp_seconds", (0, 0), **hub),
            },
            (
                at(29, "ConfigurationRefused"),
                at(33, "ConfigurationRefused"),
                at(40, "ConfigurationRefused", hub),
                at(62, "ConfigurationRefused"),
            ),
        ),
        Case(
            "an agent without CPU, as the hub tells",
            of_lagos("agent_starved", (0, 0.1), (20, 0.4), (70, 0.1)),
            (at(19, "AgentStarved"), at(40, "AgentStarved"), at(60, "AgentStarved", place), at(75, "AgentStarved")),
        ),
        Case(
            "the same from the doubts of one process; a tenth of doubtful attempts is not enough",
            seen(
                300,
                Probing("lagos", doubt=lambda minute: 60 <= minute < 150 and minute % 2 == 0),
                Probing("london", doubt=lambda minute: minute % 10 == 0),
            ),
            (at(59, "AgentStarved"), at(145, "AgentStarved", place), at(250, "AgentStarved")),
        ),
        Case(
            "a spool that is two thirds full",
            {
                **of_lagos("agent_spool_size_bytes", (0, 10e6), (20, 66e6), (60, 10e6)),
                **of_lagos("agent_spool_limit_bytes", (0, 100e6)),
                **of_lagos("agent_spool_attempts", (0, 0), (20, 41_000), (60, 0)),
                **of_lagos("agent_oldest_unsent_seconds", (0, 0), (20, 1200), (60, 0)),
            },
            (
                at(19, "SpoolFilling"),
                at(25, "SpoolFilling"),
                at(35, "SpoolFilling", place),
                at(35, "DeliveryBehind"),
                at(35, "SpoolLosing"),
                at(65, "SpoolFilling"),
            ),
        ),
        Case(
            "a spool that gives up attempts, of an agent and of one process",
            {
                **of_lagos("agent_spool_lost_attempts_total", (0, 0), (20, 100), until=200),
                **of_process("firsttoken_spool_lost_attempts_total", (0, 5), until=200, **hub),
                **of_process("firsttoken_spool_lost_attempts_total", (0, 5), (20, 50), until=200, **own),
            },
            (at(19, "SpoolLosing"), at(25, "SpoolLosing", place, own), at(100, "SpoolLosing")),
        ),
        Case(
            "results that wait for half an hour, of an agent and of one process",
            {
                **of_lagos("agent_oldest_unsent_seconds", (0, 0), (20, 1900), (60, 0)),
                **of_process("firsttoken_spool_oldest_age_seconds", (0, 1), (20, 1900), (60, 0), **own),
                **of_process("firsttoken_spool_oldest_age_seconds", (0, 1200), **hub),
            },
            (
                at(19, "DeliveryBehind"),
                at(25, "DeliveryBehind"),
                at(35, "DeliveryBehind", place, own),
                at(65, "DeliveryBehind"),
            ),
        ),
        Case(
            "a hub whose database refuses; one failed batch is nothing",
            {
                **ingest,
                labelled("firsttoken_ingest_batches_total", result="failed", **hub): "0+0x9 1+0x29 2+4x9 38+0x49",
            },
            (at(20, "IngestFailing"), at(48, "IngestFailing", {}), at(80, "IngestFailing")),
        ),
        Case(
            "a process whose database is away",
            {
                **of_process("firsttoken_store_up", (0, 1), (30, 0), (60, 1), **own),
                **of_process("firsttoken_spool_attempts", (0, 0), (30, 17), (60, 0), **own),
            },
            (at(29, "StoreAway"), at(31, "StoreAway"), at(40, "StoreAway", own), at(62, "StoreAway")),
        ),
        Case(
            "two machines with one name, seen by a hub and by a process",
            {
                labelled("firsttoken_ingest_attempts_total", vantage="lagos", result="conflict", **hub): "0x29 3x169",
                **of_process("firsttoken_conflicting_attempts_total", (0, 0), (30, 2), until=200, **own),
            },
            (at(29, "ClonedAgent"), at(40, "ClonedAgent", {"vantage": "lagos"}, own), at(150, "ClonedAgent")),
        ),
        Case(
            "an agent that is scraped beside its hub is told of once, and has no database",
            {
                **heard(100, 100, until=200),
                **of_lagos("agent_oldest_unsent_seconds", (0, 0), (20, 1900), (60, 0), until=200),
                **of_lagos("agent_spool_lost_attempts_total", (0, 0), (70, 100), until=200),
                labelled("firsttoken_ingest_attempts_total", vantage="lagos", result="conflict", **hub): "0x29 3x169",
                **of_process("firsttoken_series_info", (0, 1), until=200, **place, **agent),
                **of_process("firsttoken_spool_oldest_age_seconds", (0, 1), (20, 1900), (60, 0), until=200, **agent),
                **of_process("firsttoken_spool_lost_attempts_total", (0, 5), (70, 105), until=200, **agent),
                **of_process("firsttoken_conflicting_attempts_total", (0, 0), (30, 2), until=200, **agent),
            },
            (
                at(35, "DeliveryBehind", place),
                at(40, "ClonedAgent", {"vantage": "lagos"}),
                at(65, "DeliveryBehind"),
                at(75, "SpoolLosing", place),
            ),
        ),
        Case(
            "a witness that Lagos cannot reach either makes it the line, whatever attempts die of",
            {
                **seen(
                    100,
                    *(Probing("lagos", target=t, says=between(30, 60, "disconnected wait")) for t in ("chat", "embed")),
                ),
                labelled("firsttoken_witness_up", **place, endpoint="a", **hub): steps(100, (0, 1), (30, 0), (60, 1)),
            },
            (
                at(29, "LineDown"),
                at(40, "LineDown", place),
                at(45, "TargetDown"),
                at(45, "ProviderDown"),
                at(70, "LineDown"),
            ),
        ),
        Case(
            "a deaf witness alone is no dead line",
            {
                **seen(100, Probing("lagos")),
                labelled("firsttoken_witness_up", **place, endpoint="a", **hub): steps(100, (0, 0)),
            },
            (at(50, "LineDown"),),
        ),
        Case(
            "one place alone, whose providers all die before TLS: its line",
            seen(
                100,
                *(
                    Probing("lagos", target=target, provider=provider, says=between(30, 60, "dns resolve"))
                    for target, provider in (("chat", "acme"), ("own", "self"))
                ),
            ),
            (at(40, "LineDown", place), at(45, "TargetDown"), at(70, "LineDown")),
        ),
        Case(
            "one provider that nobody reaches is the provider, not every place's line",
            seen(
                100,
                *(
                    p
                    for target in ("chat", "embed")
                    for p in everywhere(between(30, 60, "refused connect"), target=target)
                ),
            ),
            (at(45, "LineDown"), at(45, "ProviderDown", {"provider": "acme"}), at(70, "ProviderDown")),
        ),
        Case(
            "simulated places say so",
            seen(60, Probing("lagos", says=between(30, 50, "server_error wait"), simulated="true")),
            (at(40, "TargetDown", CHAT),),
        ),
        Case(
            "a hub that has only old news does not speak against the one that has new ones",
            seen(
                100,
                *everywhere(lambda _: None, instance="hub-b:1", ends=20),
                *everywhere(between(30, 60, "server_error wait"), instance="hub-a:1", begins=20),
            ),
            (at(29, "TargetDown"), at(45, "TargetDown", CHAT), at(70, "TargetDown")),
        ),
        Case(
            "two hubs that share the work are added up, and their gauges are one",
            seen(
                100,
                *(
                    p
                    for name in ("hub-a:1", "hub-b:1")
                    for p in everywhere(between(30, 60, "server_error wait"), instance=name)
                ),
            ),
            (at(29, "TargetDown"), at(45, "TargetDown", CHAT), at(70, "TargetDown")),
        ),
    ]


FILES: dict[str, Callable[[], list[Case]]] = {
    "down": down,
    "latency": latency,
    "weeks": weeks,
    "objective": objective,
    "limits": limits,
    "fleet": fleet,
}
"""File name without its ending -> its cases."""
