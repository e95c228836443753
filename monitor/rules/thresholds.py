"""The one table of thresholds: a default, a unit and a meaning each. Durations are in seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from monitor.model import MonitorError

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
_UNITS = (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", 1.0))
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


class BadThreshold(MonitorError):
    """A threshold that is unknown, no number, or out of its range; the sentence says which and what is allowed."""


def _seconds(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"unit": "duration", "meaning": meaning})


def _count(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"unit": "number", "meaning": meaning})


def _share(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"unit": "share", "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Every number in the rules. `with_set` changes some by name, from text."""

    evaluation: float = _seconds(MINUTE, "how often the rules are computed")

    # -- votes: does a target answer?
    down_intervals: float = _count(
        2, "a series fails when its last attempt failed this many intervals after its last success"
    )
    vote_intervals: float = _count(3, "a vote expires this many intervals after the attempt that it rests on")
    vote_grace: float = _seconds(2 * MINUTE, "and this much later: scrapes, delivery and evaluation take their time")
    alive: float = _seconds(
        20 * MINUTE, "a success of another probe counts as life for two of its intervals, at most this long"
    )
    quorum: float = _count(2, "N: so many vantage points have to agree (where there are several)")
    quorum_share: float = _share(0.5, "and at least this share of those that vote (of M; of a provider's targets, too)")
    down_for: float = _seconds(2 * MINUTE, "a target has to be down this long, from N of M")
    down_from_vantage_for: float = _seconds(
        7 * MINUTE, "the same for one vantage point alone: later, so that the wider alert comes first"
    )

    down_keep: float = _seconds(
        5 * MINUTE, "provider, line and silent agent go on this long, so that what they cover recovers before it speaks"
    )
    target_down_keep: float = _seconds(3 * MINUTE, "the same for a target: shorter, as the wider alert covers it")

    # -- a vantage point's line
    line_window: float = _seconds(30 * MINUTE, "failures of the line are looked at over this time")
    line_share: float = _share(0.6, "so much of them died in resolve, connect or tls")
    line_for: float = _seconds(MINUTE, "and the line has to be down this long")

    # -- latency
    latency_window: float = _seconds(30 * MINUTE, "the median of TTFT over this time is compared ...")
    latency_baseline: float = _seconds(
        DAY, "... with the median of those medians over this time, until there is a week of history"
    )
    latency_gap: float = _seconds(HOUR, "which ends this long ago, so that a regression is not its own baseline")
    latency_history: float = _seconds(2 * HOUR, "and has to reach back at least this much further")
    latency_week: float = _seconds(
        7 * DAY, "later with the same hours (one before, one after) this long ago; up to four weeks, their median"
    )
    latency_ratio: float = _count(1.5, "slower than usual: this many times")
    latency_seconds: float = _seconds(0.25, "and at least by this much")
    latency_samples: float = _count(4, "in so many measurements or more (of the latency window)")
    latency_for: float = _seconds(5 * MINUTE, "a regression from N of M has to last this long")
    latency_from_vantage_for: float = _seconds(15 * MINUTE, "the same for one vantage point alone")
    latency_keep: float = _seconds(
        10 * MINUTE, "and is over only when it has been gone for this long (provider, vantage point)"
    )
    target_latency_keep: float = _seconds(7 * MINUTE, "the same for a target: shorter, as the wider alert covers it")
    latency_from_vantage_keep: float = _seconds(4 * MINUTE, "the same for one vantage point alone")
    vantage_targets: float = _count(3, "a vantage point is slow as a whole when so many of its targets are ...")
    vantage_share: float = _share(0.6, "... and this share of them")

    # -- objective
    objective: float = _share(0.99, "share of attempts that shall succeed, over 30 days")
    burn_failures: float = _count(3, "no burn rate alerts on fewer failures than this in its long window")

    # -- cold starts
    cold_window: float = _seconds(HOUR, "cold starts are counted over this time")
    cold_count: float = _count(4, "a storm has so many of them")
    cold_share: float = _share(0.3, "and this share of the verdicts")
    cold_ratio: float = _count(2, "and this many times the share of the day before")

    # -- limits
    limited_window: float = _seconds(30 * MINUTE, "429s are counted over this time")
    limited_count: float = _count(3, "so many of them")
    limited_share: float = _share(0.2, "and this share of the attempts")
    budget_window: float = _seconds(HOUR, "slots missed for the budget are counted over this time")
    certificate_warning: float = _seconds(14 * DAY, "a certificate ends within this: warning")
    certificate_critical: float = _seconds(3 * DAY, "a certificate ends within this: critical")

    # -- the fleet
    silent: float = _seconds(5 * MINUTE, "an agent that was not heard of for this long is silent")
    silent_for: float = _seconds(MINUTE, "and has to stay so this long")
    scrape_for: float = _seconds(5 * MINUTE, "a process that cannot be scraped for this long")
    absent_for: float = _seconds(10 * MINUTE, "no measurement of anything for this long")
    no_data_for: float = _seconds(5 * MINUTE, "a series without an attempt (votes expired) for this long")
    outdated_for: float = _seconds(6 * HOUR, "an agent with an old version or configuration for this long")
    refused_for: float = _seconds(5 * MINUTE, "a configuration that is refused for this long")
    starved_share: float = _share(0.2, "share of an hour's attempts with throttled or stolen CPU or a lagging loop")
    starved_for: float = _seconds(30 * MINUTE, "and has to stay so this long")
    spool_share: float = _share(0.5, "share of the spool's limit that is in use")
    unsent: float = _seconds(30 * MINUTE, "the oldest attempt has waited for delivery this long")
    spool_for: float = _seconds(10 * MINUTE, "and has to stay so this long")
    ingest_window: float = _seconds(15 * MINUTE, "failed batches are counted over this time")
    ingest_count: float = _count(3, "so many of them")
    ingest_share: float = _share(0.1, "and this share of all batches")
    ingest_for: float = _seconds(2 * MINUTE, "and has to stay so this long; the same for a database that is away")

    def with_set(self, changes: Iterable[str]) -> Thresholds:
        """A copy with `name=value` taken over; durations as in Prometheus (`90s`, `1h30m`). Raises BadThreshold."""
        known = {one.name: one for one in fields(self)}
        found: dict[str, float] = {}
        for change in changes:
            name, equals, text = change.partition("=")
            if not equals or name not in known:
                raise BadThreshold(f"--set takes NAME=VALUE with a name of docs/alerts.md, not {change!a}")
            found[name] = _read(name, text, known[name].metadata["unit"])
        return replace(self, **found)

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value as one would write it, meaning) of each, in order."""
        return [
            (one.name, self._written(one.name, one.metadata["unit"]), one.metadata["meaning"]) for one in fields(self)
        ]

    def _written(self, name: str, unit: str) -> str:
        value = getattr(self, name)
        return duration(value) if unit == "duration" else f"{value:g}"


def _read(name: str, text: str, unit: str) -> float:
    if unit == "duration":
        parts = _DURATION.findall(text)
        if not parts or "".join(number + letter for number, letter in parts) != text:
            raise BadThreshold(f"{name} is a duration such as 90s, 30m or 1h30m, not {text!a}")
        lengths = {**dict(_UNITS), "w": 7 * DAY, "ms": 0.001}
        value = sum(float(number) * lengths[letter] for number, letter in parts)
    else:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
    if not 0 < value < 1e9 or (unit == "share" and value >= 1 + (name != "objective") * 1e-9):
        allowed = "between 0 and 1" if unit == "share" else "above 0"
        raise BadThreshold(f"{name} is {'a share' if unit == 'share' else 'a number'} {allowed}, not {text!a}")
    return value


def duration(seconds: float) -> str:
    """As Prometheus writes it, in its largest whole unit: 5400 -> `90m`, 0.25 -> `250ms`."""
    for unit, length in _UNITS:
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms"
