"""The configuration: one YAML file, read once and completely into frozen types, or refused with every mistake named.

Hides YAML, `${NAME}` and the spelling of durations and sizes: the rest of the program sees the nouns of `model`.
"""

from __future__ import annotations

from monitor.config.loading import load, loads
from monitor.config.mistake import InvalidConfig, Mistake
from monitor.config.types import Budget, Cap, Config, FrozenDict, Limits, Log, Prices, Spool, Storage, Web, Witness
from monitor.model import ConfigError

__all__ = [
    "Budget",
    "Cap",
    "Config",
    "ConfigError",
    "FrozenDict",
    "InvalidConfig",
    "Limits",
    "Log",
    "Mistake",
    "Prices",
    "Spool",
    "Storage",
    "Web",
    "Witness",
    "load",
    "loads",
]
