"""All alerts, in the order of the page: what targets do, what lies between, what is our own."""

from __future__ import annotations

from monitor.rules.alert import Alert
from monitor.rules.fleet import fleet_alerts
from monitor.rules.targets import target_alerts
from monitor.rules.thresholds import Thresholds


def every_alert(thresholds: Thresholds) -> list[Alert]:
    """Each alert once, with the given thresholds."""
    return [*target_alerts(thresholds), *fleet_alerts(thresholds)]
