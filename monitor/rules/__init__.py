"""What Prometheus computes and calls about: recording rules, alerts, and what Alertmanager does with them.

One table of thresholds (`thresholds`) feeds the recording rules (`recording`), the alerts (`targets`, `fleet`) and
docs/alerts.md. An alert says itself which others it makes superfluous, so that Alertmanager's inhibition
(`alertmanager`) cannot disagree with the rules. Nothing here reads a file, a database or a clock.
"""

from __future__ import annotations

from monitor.rules.alert import PREFIX, Alert, Links
from monitor.rules.alerts import every_alert
from monitor.rules.groups import rule_file
from monitor.rules.thresholds import BadThreshold, Thresholds

__all__ = ["PREFIX", "Alert", "BadThreshold", "Links", "Thresholds", "every_alert", "rule_file"]
