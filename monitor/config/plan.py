"""What a configuration makes run and what it may use: slots and tokens, computed and not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.config.types import Cap, Config
from monitor.model import Probe, Series, Target

DAY_SECONDS = 86_400
MILLION = 1_000_000
BYTES_A_TOKEN = 4
PROMPT_OVERHEAD_TOKENS = 40
"""Nonce, roles and the model's chat template: a round figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetUse:
    """What one target is asked for in a day, over all vantage points; confirming attempts come on top."""

    target: str
    slots_per_hour: float
    output_tokens_per_day: int  # a hard upper bound: the cap of every probe
    prompt_tokens_per_day: int  # an estimate from the length of the prompt
    cost_per_day: float | None  # of all of these, in the currency of `prices`; None without a price


TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one process may spend in a day (UTC): its share of a cap."""

    target: str | None  # None: all together
    unit: str  # TOKENS, or the currency of `prices`
    limit: float


def allowances(config: Config, played: Sequence[str]) -> list[Allowance]:
    """The caps of the process that plays these vantage points.

    Its share is `budget.share`, or else, for each target, the part that it plays of the vantage points that probe it:
    so all agents together stay within the cap without talking to each other.
    """
    budget = config.budget
    found = _allowances(config, None, budget.overall, _share(config, played, None))
    for name, cap in budget.per_target.items():
        found += _allowances(config, name, cap, _share(config, played, name))
    return found


def _allowances(config: Config, target: str | None, cap: Cap, share: float) -> list[Allowance]:
    found: list[Allowance] = []
    if not share:  # not probed from here
        return found
    if cap.money is not None:
        found.append(Allowance(target=target, unit=config.prices.currency, limit=cap.money * share))
    if cap.tokens is not None:
        found.append(Allowance(target=target, unit=TOKENS, limit=int(cap.tokens * share)))
    return found


def _share(config: Config, played: Sequence[str], target: str | None) -> float:
    if config.budget.share is not None:
        return config.budget.share
    probing = {series.vantage.name for series in all_series(config) if target in (None, series.target.name)}
    return len(probing.intersection(played)) / len(probing) if probing else 0.0


def all_series(config: Config) -> list[Series]:
    """Every series of every vantage point, in the order of the file."""
    return [series for name in config.vantages for series in config.series(name)]


def slots_per_hour(probe: Probe) -> float:
    """Slots an hour of one series."""
    return 3600 / probe.interval_seconds


def uses(config: Config) -> list[TargetUse]:
    """What each target that is probed will be asked for."""
    probes: dict[str, list[Probe]] = {name: [] for name in config.targets}
    for series in all_series(config):
        probes[series.target.name].append(series.probe)
    return [_use(config.targets[name], asked) for name, asked in probes.items() if asked]


def prompt_tokens(probe: Probe) -> int:
    """About how many tokens the prompt is."""
    return len(probe.prompt.encode()) // BYTES_A_TOKEN + PROMPT_OVERHEAD_TOKENS


def _use(target: Target, probes: list[Probe]) -> TargetUse:
    slots = [(probe, DAY_SECONDS / probe.interval_seconds) for probe in probes]
    output = round(sum(count * probe.max_output_tokens for probe, count in slots))
    prompt = round(sum(count * prompt_tokens(probe) for probe, count in slots))
    price = target.price
    return TargetUse(
        target=target.name,
        slots_per_hour=sum(slots_per_hour(probe) for probe in probes),
        output_tokens_per_day=output,
        prompt_tokens_per_day=prompt,
        cost_per_day=None if price is None else (prompt * price.input + output * price.output) / MILLION,
    )
