"""Scenarios from YAML or JSON: every mistake is a sentence that says where it stands and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from monitor.model import ConfigError
from monitor.simulator.behaviour import Behaviour, behaviour, coerce, known
from monitor.simulator.certificates import Certificate
from monitor.simulator.scenario import Change, Distance, Listener, Scenario

_MAX_FILE_BYTES = 1_000_000
_T = TypeVar("_T", Listener, Distance, Change)


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file. Raises ConfigError with the file's name in front."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"{path}: longer than 1 MB; a scenario is a page or two")
        return scenario(yaml.safe_load(path.read_text()))
    except UnicodeDecodeError as unreadable:
        raise ConfigError(f"{path}: cannot be read: no UTF-8 text") from unreadable
    except OSError as unreadable:
        why = (unreadable.strerror or "error").lower()
        raise ConfigError(f"{path}: cannot be read: {why}") from unreadable
    except yaml.YAMLError as wrong:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(wrong).split())}") from wrong
    except ConfigError as wrong:
        raise wrong if str(wrong).startswith(str(path)) else ConfigError(f"{path}: {wrong}") from wrong


def scenario(values: Any) -> Scenario:
    """A scenario from parsed YAML or JSON. Raises ConfigError."""
    given = _mapping("the scenario", values, {"listeners", "distances", "timeline", "seed"})
    listeners = [_listener(f"listeners[{i}]", item) for i, item in _items("listeners", given.get("listeners"))]
    distances = _mapping("distances", given.get("distances", {}), None)
    seed = given.get("seed", 0)
    if not isinstance(seed, int):
        raise ConfigError(f"seed is {seed!r}; it must be a whole number")
    return Scenario(
        listeners=tuple(listeners) or (Listener(),),
        distances={name: _build(f"distances.{name}", Distance, item) for name, item in distances.items()},
        timeline=tuple(_change(f"timeline[{i}]", item) for i, item in _items("timeline", given.get("timeline"))),
        seed=seed,
    )


def _listener(where: str, values: Any) -> Listener:
    given = dict(_mapping(where, values, {f.name for f in fields(Listener)}))
    if "models" in given:
        models = _mapping(f"{where}.models", given["models"], None)
        given["models"] = {str(name): _behaviour(f"{where}.models.{name}", item) for name, item in models.items()}
    if given.get("tls") is not None:
        given["tls"] = _certificate(where, given["tls"])
    if "http" in given:
        given["http"] = tuple(str(version) for _, version in _items(f"{where}.http", given["http"]))
    return _build(where, Listener, given)


def _certificate(where: str, value: Any) -> Certificate:
    try:
        return Certificate(value)
    except ValueError:
        raise ConfigError(f"{where}.tls is {value!r}; allowed: {', '.join(Certificate)}") from None


def _behaviour(where: str, values: Any) -> Behaviour:
    try:
        return behaviour(_mapping(where, values or {}, None))
    except ConfigError as wrong:
        raise wrong if str(wrong).startswith(where) else ConfigError(f"{where}: {wrong}") from wrong


def _change(where: str, values: Any) -> Change:
    given = dict(_mapping(where, values, {f.name for f in fields(Change)}))
    for part in ("multiply", "set"):
        given[part] = _mapping(f"{where}.{part}", given.get(part, {}), None)
    try:
        for name, factor in given["multiply"].items():
            if known(name) and (isinstance(factor, bool) or not isinstance(factor, int | float) or factor < 0):
                raise ConfigError(f"multiply.{name} is {factor!r}; it must be a number of 0 or more")
        given["set"] = {name: coerce(known(name), value) for name, value in given["set"].items()}
    except ConfigError as wrong:
        raise ConfigError(f"{where}: {wrong}") from wrong
    return _build(where, Change, given)


def _build(where: str, kind: type[_T], values: Any) -> _T:
    given = _mapping(where, values, {f.name for f in fields(kind)})
    for field in fields(kind):
        if field.name in given:
            _check_type(f"{where}.{field.name}", str(field.type), given[field.name])
    try:
        return kind(**given)
    except TypeError as missing:
        raise ConfigError(f"{where}: {str(missing).partition('() ')[2]}") from missing
    except ConfigError as wrong:
        raise ConfigError(f"{where}: {wrong}") from wrong


def _check_type(where: str, declared: str, value: Any) -> None:
    if value is None and "None" in declared:
        return
    kinds: dict[str, tuple[type, ...]] = {"float": (int, float), "int": (int,), "bool": (bool,), "str": (str,)}
    wanted = next((kinds[name] for name in kinds if declared.startswith(name)), None)
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted != (bool,))):
        raise ConfigError(f"{where} is {value!r}; it must be {declared.replace(' | None', '')}")


def _mapping(where: str, values: Any, allowed: set[str] | None) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is {values!r:.60}; it must be a mapping")
    unknown = set(map(str, values)) - allowed if allowed is not None else set()
    if unknown:
        raise ConfigError(f"{where}: unknown key {min(unknown)!r}; allowed: {', '.join(sorted(allowed or ()))}")
    return values


def _items(where: str, values: Any) -> list[tuple[int, Any]]:
    if values is None:
        return []
    if not isinstance(values, list | tuple):
        raise ConfigError(f"{where} is {values!r:.60}; it must be a list")
    return list(enumerate(values))
