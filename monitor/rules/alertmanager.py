"""Alertmanager's configuration: told together by incident, narrower alerts left out, receivers from the environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from monitor.rules.alert import PREFIX, Alert
from monitor.rules.receivers import Receivers

EVERYONE, PAGER = "firsttoken", "firsttoken-pager"
HEAD = "# Made by `firsttoken alertmanager` from the environment (docs/alerts.md): do not edit, make it again.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long Alertmanager waits; durations as it writes them."""

    wait: str = "1m"  # for what belongs to the same incident: rules are computed once a minute
    interval: str = "5m"  # until news of an incident are told
    repeat: str = "4h"  # until what still fires is told again


def configuration(alerts: Iterable[Alert], receivers: Receivers, templates: str, pace: Pace) -> dict[str, Any]:
    """The tree of alertmanager.yml; `templates` is the path of firsttoken.tmpl as Alertmanager sees it."""
    pager = bool(receivers.critical)
    return {
        "templates": [templates],
        "route": {
            "receiver": EVERYONE,
            "group_by": ["incident"],
            "group_wait": pace.wait,
            "group_interval": pace.interval,
            "repeat_interval": pace.repeat,
            **({"routes": _pages_besides()} if pager else {}),
        },
        "inhibit_rules": list(_inhibitions(alerts)),
        "receivers": [
            {"name": EVERYONE, **receivers.everything},
            *([{"name": PAGER, **receivers.critical}] if pager else []),
        ],
    }


def _pages_besides() -> list[dict[str, Any]]:
    """Critical alerts go to the pager, and like all others to everyone, so that an incident stays together there."""
    return [{"receiver": PAGER, "matchers": ['severity="critical"'], "continue": True}, {"receiver": EVERYONE}]


def _inhibitions(alerts: Iterable[Alert]) -> Iterator[dict[str, Any]]:
    for alert in alerts:
        own = [f'alertname="{alert.full_name}"', *([f'window="{alert.window}"'] if alert.window else [])]
        for silenced in alert.silences:
            names = "|".join(PREFIX + name for name in silenced.names)
            yield {
                "source_matchers": own,
                "target_matchers": [
                    f'alertname=~"{names}"',
                    *([f'window=~"{silenced.windows}"'] if silenced.windows else []),
                ],
                **({"equal": list(silenced.equal)} if silenced.equal else {}),
            }
