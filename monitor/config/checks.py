"""What only shows across keys and entries: each check notes its mistakes and leaves out what is already known bad."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeVar
from urllib.parse import urlsplit

from monitor.config.kinds import show_duration
from monitor.config.mistake import did_you_mean, listed, quoted
from monitor.config.notes import Notes
from monitor.config.reading import Entry
from monitor.config.shape import MAX_ENDPOINTS, EndpointKeys, PlaceKeys, ProbeKeys, TargetKeys, VantageKeys, WitnessKeys
from monitor.model import DialectName

MAX_SLOTS_PER_SECOND = 50
"""Attempts that one vantage point may start in a second."""
MAX_SERIES = 5_000
MAX_COMPARED = 100
"""Entries that are compared pairwise."""

POLITE_SECONDS = 30.0
"""Strangers' machines are not looked at more often than that without being told so."""

T = TypeVar("T")

_LEAF_PATHS: Mapping[DialectName, str] = {
    DialectName.OPENAI_CHAT: "/chat/completions",
    DialectName.OPENAI_RESPONSES: "/responses",
    DialectName.ANTHROPIC: "/messages",
    DialectName.GEMINI: ":streamGenerateContent",
    DialectName.OLLAMA: "/api/chat",
    DialectName.BEDROCK: "/converse-stream",
    DialectName.COHERE: "/v2/chat",
}
"""The paths that dialects add themselves; one that is there already does no harm, another dialect's does."""
_OWN_BODY_KEYS = ("model", "stream", "messages", "input")


@dataclass(frozen=True, slots=True)
class File:
    """What was read, good or bad."""

    vantages: Mapping[str, Entry[VantageKeys]]
    targets: Mapping[str, Entry[TargetKeys]]
    probes: Mapping[str, Entry[ProbeKeys]]
    sections: Mapping[str, Entry[Any]]


def check(notes: Notes, file: File) -> None:
    """All checks across keys."""
    for vantage in file.vantages.values():
        if vantage.good("latitude", "longitude"):
            _check_place(notes, vantage.path, vantage.line, vantage.value)
    for target in file.targets.values():
        _check_target(notes, target)
    for probe in file.probes.values():
        _check_times(notes, probe)
        _check_checks(notes, probe)
        _check_names(notes, probe, "targets", file.targets)
        _check_names(notes, probe, "vantages", file.vantages)
    _check_sections(notes, file)
    _check_witness(notes, file)
    _check_use(notes, file)
    _check_twins(notes, file)
    _check_load(notes, file)


def _check_place(notes: Notes, path: str, line: int, place: PlaceKeys) -> None:
    if (place.latitude is None) != (place.longitude is None):
        notes.wrong(line, path, "only one of latitude and longitude", "both or none")


def _check_target(notes: Notes, entry: Entry[TargetKeys]) -> None:
    target = entry.value
    if entry.good("served_from"):
        _check_place(notes, f"{entry.path}.served_from", entry.at("served_from"), target.served_from)
    if entry.good("url") and target.url:
        _check_url(notes, entry)
    for name in _OWN_BODY_KEYS:
        if name in target.body:
            found = f"the key {name}, which the probe sets itself"
            notes.wrong(entry.at("body"), f"{entry.path}.body", found, f"other keys than {listed(_OWN_BODY_KEYS)}")


def _check_url(notes: Notes, entry: Entry[TargetKeys]) -> None:
    url, path, line = entry.value.url, f"{entry.path}.url", entry.at("url")
    address = urlsplit(url)
    leaf = next((leaf for leaf in _LEAF_PATHS.values() if address.path.endswith(leaf)), None)
    if leaf:
        base = address._replace(path=address.path.removesuffix(leaf)).geturl()
        allowed = f"the base URL, here {quoted(base)}; the dialect adds the rest"
        dialect = entry.value.dialect if entry.good("dialect") else None
        own = dialect is not None and leaf == _LEAF_PATHS[dialect]
        note = notes.warn if own else notes.wrong
        note(line, path, f"a URL that already ends in {leaf}", allowed)
    has_key = {"api_key", "api_key_file"} & entry.lines.keys()
    if address.scheme == "http" and has_key and not _is_near(address.hostname or ""):
        notes.warn(line, path, "http:// with a key: it travels readable", "https://")


def _is_near(host: str) -> bool:
    """Whether the host is this machine or in a private network, where plain HTTP is usual."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".lan", ".localhost"))
    return address.is_private or address.is_loopback


def _check_times(notes: Notes, entry: Entry[ProbeKeys]) -> None:
    probe, deadline = entry.value, show_duration(entry.value.deadline)
    if entry.good("interval", "deadline") and probe.deadline >= probe.interval:
        found = f"{deadline}{_default(entry, 'deadline')}, not below the interval"
        found += f" of {show_duration(probe.interval)}{_default(entry, 'interval')}"
        line = entry.at("deadline" if "deadline" in entry.lines else "interval")
        notes.wrong(line, f"{entry.path}.deadline", found, f"less than {show_duration(probe.interval)}")
    for name in ("first_token_deadline", "connect_timeout", "stall"):
        value = getattr(probe, name)
        if name in entry.lines and entry.good(name, "deadline") and value > probe.deadline:
            found = f"{show_duration(value)}, longer than the deadline of {deadline}"
            notes.wrong(entry.at(name), f"{entry.path}.{name}", found, f"at most {deadline}")


def _check_checks(notes: Notes, entry: Entry[ProbeKeys]) -> None:
    """Checks that no answer, or every answer, would pass."""
    if not entry.good("checks"):
        return
    probe, checks, line = entry.value, entry.value.checks, entry.at("checks")
    path = f"{entry.path}.checks"
    if entry.good("max_output_tokens") and (checks.min_tokens or 0) > probe.max_output_tokens:
        allowed = f"at most max_output_tokens ({probe.max_output_tokens})"
        notes.wrong(line, f"{path}.min_tokens", f"{checks.min_tokens}", allowed)
    limit = probe.first_token_deadline or probe.deadline
    if entry.good("deadline", "first_token_deadline") and (checks.max_ttft or 0) >= limit:
        found = f"{show_duration(checks.max_ttft or 0)}, not below the deadline of {show_duration(limit)}"
        notes.wrong(line, f"{path}.max_ttft", found, f"less than {show_duration(limit)}")


def _default(entry: Entry[Any], name: str) -> str:
    return "" if name in entry.lines else " (the default)"


def _check_names(notes: Notes, entry: Entry[ProbeKeys], key: str, known: Mapping[str, object]) -> None:
    if not entry.good(key) or not known:
        return
    for place, name in enumerate(getattr(entry.value, key)):
        if name not in known:
            found = f"{quoted(name)}, which is no {key[:-1]}{did_you_mean(name, known)}"
            notes.wrong(entry.at(key), f"{entry.path}.{key}[{place}]", found, listed(list(known)))


def _check_sections(notes: Notes, file: File) -> None:
    storage, limits = file.sections["storage"], file.sections["limits"]
    if storage.good("raw_days", "rollup_days") and storage.value.rollup_days < storage.value.raw_days:
        found = f"{storage.value.rollup_days}, fewer than raw_days ({storage.value.raw_days})"
        line = storage.at("rollup_days" if "rollup_days" in storage.lines else "raw_days")
        notes.wrong(line, "storage.rollup_days", found, f"at least {storage.value.raw_days}")
    _check_keys(notes, file.sections["prices"], "prices", "per_target", file.targets)
    _check_keys(notes, file.sections["budget"], "budget", "per_target", file.targets)
    _check_priced(notes, file)
    providers = {entry.value.provider for entry in file.targets.values() if entry.value.provider}
    for name in limits.value.per_provider:
        if providers and name not in providers:
            found = f"{quoted(name)}, which no target has as its provider{did_you_mean(name, providers)}"
            notes.wrong(limits.at("per_provider"), f"limits.per_provider.{name}", found, listed(sorted(providers)))


def _check_witness(notes: Notes, file: File) -> None:
    entry: Entry[WitnessKeys | None] = file.sections["witness"]
    witness = entry.value
    if witness is None:
        return
    if entry.good("interval", "timeout") and witness.timeout >= witness.interval:
        line = entry.at("timeout" if "timeout" in entry.lines else "interval")
        found = f"{show_duration(witness.timeout)}{_default(entry, 'timeout')}, not below the interval"
        notes.wrong(line, "witness.timeout", found, f"less than {show_duration(witness.interval)}")
    if entry.good("interval") and witness.endpoints is None and witness.interval < POLITE_SECONDS:
        found = f"{show_duration(witness.interval)} for endpoints that others run"
        notes.warn(entry.at("interval"), "witness.interval", found, "endpoints of your own, or 30s and more")
    spoiled = any(one.key.startswith("witness.endpoints") for one in notes.mistakes)
    endpoints = None if spoiled else witness.endpoints
    if endpoints is not None and not 1 <= len(endpoints) <= MAX_ENDPOINTS:
        allowed = f"1 to {MAX_ENDPOINTS}; `witness: off` for none at all"
        notes.wrong(entry.at("endpoints"), "witness.endpoints", f"{len(endpoints)} endpoints", allowed)
    named = {f"witness.endpoints.{name}": one for name, one in (endpoints or {}).items() if not isinstance(one, tuple)}
    for path, one in ({"witness": witness} | named).items():
        _check_names_of(notes, entry.at("endpoints" if one is not witness else "vantages"), path, one, file.vantages)


def _check_names_of(
    notes: Notes, line: int, path: str, keys: WitnessKeys | EndpointKeys, known: Mapping[str, object]
) -> None:
    for place, name in enumerate(keys.vantages):
        if name not in known:
            found = f"{quoted(name)}, which is no vantage{did_you_mean(name, known)}"
            notes.wrong(line, f"{path}.vantages[{place}]", found, listed(list(known)))


def _check_keys(notes: Notes, section: Entry[Any], path: str, key: str, targets: Mapping[str, object]) -> None:
    """Names of targets as keys of a section's mapping."""
    for name in getattr(section.value, key):
        if targets and name not in targets:
            found = f"{quoted(name)}, which is no target{did_you_mean(name, targets)}"
            notes.wrong(section.at(key), f"{path}.{key}.{name}", found, listed(list(targets)))


def _check_priced(notes: Notes, file: File) -> None:
    """A cap in money needs the price of everything that it caps."""
    prices, budget = file.sections["prices"], file.sections["budget"]
    if not prices.good("per_model", "per_target") or not budget.good("per_target", "money_per_day"):
        return
    capped = [name for name, cap in budget.value.per_target.items() if cap.money_per_day is not None]
    overall = budget.value.money_per_day is not None
    for name in file.targets if overall else capped:
        entry = file.targets.get(name)
        if entry is None or name in prices.value.per_target or entry.value.model in prices.value.per_model:
            continue
        key = "money_per_day" if overall else "per_target"
        allowed = "a price for every target under it (prices.per_model or prices.per_target; own models: 0)"
        notes.wrong(budget.at(key), f"budget.{key}", f"a cap in money, but no price for {name}", allowed)


def _check_use(notes: Notes, file: File) -> None:
    """Entries that nothing uses are most often a forgotten name."""
    used: tuple[tuple[str, Mapping[str, Entry[Any]]], ...] = (("targets", file.targets), ("vantages", file.vantages))
    for key, entries in used:
        probes = list(file.probes.values())
        if not probes or any(not probe.good(key) or not getattr(probe.value, key) for probe in probes):
            continue
        named = {name for probe in probes for name in getattr(probe.value, key)}
        for name, entry in entries.items():
            if name not in named:
                notes.warn(entry.line, entry.path, f"a {key[:-1]} that no probe uses", f"its name in {key} of a probe")


def _check_twins(notes: Notes, file: File) -> None:
    """The same thing measured under two names costs twice and confuses."""
    for first, second in _pairs(file.targets.values()):
        if first.value == second.value:
            notes.warn(second.line, second.path, f"the same as {first.path}", "each target once")
    for one, other in _pairs(file.probes.values()):
        if _same_series(one.value, other.value):
            found = f"the same question as {one.path}, to some of its targets from some of its vantages"
            notes.warn(other.line, other.path, found, "each series once")


def _pairs(entries: Iterable[Entry[T]]) -> Iterator[tuple[Entry[T], Entry[T]]]:
    good = [entry for entry in entries if not entry.bad]
    return combinations(good[:MAX_COMPARED], 2)


def _same_series(first: ProbeKeys, second: ProbeKeys) -> bool:
    same = replace(first, targets=(), vantages=()) == replace(second, targets=(), vantages=())
    return same and _overlap(first.targets, second.targets) and _overlap(first.vantages, second.vantages)


def _overlap(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two lists of names share one; an empty list names all."""
    return not first or not second or not set(first).isdisjoint(second)


def _check_load(notes: Notes, file: File) -> None:
    limits = file.sections["limits"]
    for name, vantage in file.vantages.items():
        probes = list(_probes_from(name, file))
        series = sum(count for _, count in probes)
        rate = sum(count / entry.value.interval for entry, count in probes)
        at_once = sum(count * min(1.0, entry.value.deadline / entry.value.interval) for entry, count in probes)
        if series > MAX_SERIES:
            notes.wrong(vantage.line, vantage.path, f"{series:,} series", f"at most {MAX_SERIES:,} a vantage point")
        if rate > MAX_SLOTS_PER_SECOND:
            allowed = f"at most {MAX_SLOTS_PER_SECOND}: longer intervals, or fewer targets a probe"
            notes.wrong(vantage.line, vantage.path, f"{rate:.0f} slots a second", allowed)
        elif limits.good("max_concurrent") and at_once > limits.value.max_concurrent:
            allowed_now = limits.value.max_concurrent
            found = (
                f"{allowed_now}, but {at_once:.0f} attempts from {name} run at once when all last until their deadlines"
            )
            allowed = "a higher max_concurrent, longer intervals or shorter deadlines; otherwise slots will be missed"
            notes.warn(limits.at("max_concurrent"), "limits.max_concurrent", found, allowed)


def _probes_from(vantage: str, file: File) -> Iterator[tuple[Entry[ProbeKeys], int]]:
    """The probes that start at a vantage point, each with its number of series."""
    for entry in file.probes.values():
        if entry.good("vantages", "targets", "interval", "deadline") and _includes(entry.value.vantages, vantage):
            yield entry, len(entry.value.targets or file.targets)


def _includes(names: Sequence[str], name: str) -> bool:
    return not names or name in names
