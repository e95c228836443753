"""The rule file as a tree and as YAML. Hides how Prometheus groups rules and how YAML writes long texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from monitor.rules.alert import Alert, Links
from monitor.rules.alerts import every_alert
from monitor.rules.recording import Recorded, cold_starts, latency, objective, votes
from monitor.rules.thresholds import Thresholds, duration

HEAD = "# Made by `make rules` (firsttoken rules): change monitor/rules/, or render it with other thresholds.\n"


def rule_file(thresholds: Thresholds, links: Links) -> dict[str, Any]:
    """Recording rules and alerts as Prometheus reads them. Within a group each rule sees what those before it gave."""
    every = duration(thresholds.evaluation)
    recorded = {
        "firsttoken-votes": votes(thresholds),
        "firsttoken-latency": latency(thresholds),
        "firsttoken-objective": objective(thresholds),
        "firsttoken-cold-starts": cold_starts(thresholds),
    }
    groups = [{"name": name, "interval": every, "rules": _recording(rules)} for name, rules in recorded.items()]
    alerts = [{"name": "firsttoken-alerts", "interval": every, "rules": _alerting(every_alert(thresholds), links)}]
    return {"groups": [*groups, *alerts]}


def _recording(rules: Iterable[Recorded]) -> list[dict[str, Any]]:
    return [{"record": one.name, "expr": one.expr, **({"labels": one.labels} if one.labels else {})} for one in rules]


def _alerting(alerts: Iterable[Alert], links: Links) -> list[dict[str, Any]]:
    return [alert.rule(links) for alert in alerts]


class _Readable(yaml.SafeDumper):
    """Texts of several lines as blocks, as people write them."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """A node for a text, in the style that fits its length."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _Readable.represent_text)


def to_yaml(tree: dict[str, Any]) -> str:
    """The tree as YAML in its own order; no line is folded."""
    return yaml.dump(tree, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=10_000)
