"""One alert as a record, and the pieces of Go template that its texts are made of."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.rules.thresholds import duration

PREFIX = "FirstToken"
WHO = ("vantage", "provider", "target", "model", "probe")
"""Labels that a dashboard has variables for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Where the texts of alerts point to."""

    grafana: str = "http://localhost:3000"  # base URL, with a sub-path if Grafana has one
    runbook: str = "docs/runbook.md"  # URL or path of the page; anchors are the alerts' names in small letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Silences:
    """An alert makes others superfluous where all of these labels are equal."""

    names: tuple[str, ...]  # without the prefix; empty: all
    equal: tuple[str, ...]
    windows: str = ""  # of those only the ones with such a label `window` (a regular expression)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert: when it fires, what it says, and what it makes superfluous."""

    name: str  # without the prefix
    expr: str
    lasting: float  # seconds for which the expression holds before it fires
    keep: float | None = None  # seconds for which it goes on firing afterwards
    severity: str  # "critical": somebody gets up; "warning": somebody looks at it today
    scope: str  # what it is about: "everything", "process", "vantage", "provider", "target" or "pair"
    incident: str  # template; alerts with the same text are told together
    labels: tuple[str, ...]  # those that the expression gives
    window: str = ""  # the value of their label `window`, where several alerts have one name
    summary: str  # template: what, where, against what
    runbook: str  # one sentence: what to do first
    dashboard: str = "overview"
    silences: tuple[Silences, ...] = ()

    @property
    def full_name(self) -> str:
        """As Prometheus knows it."""
        return PREFIX + self.name

    def rule(self, links: Links) -> dict[str, object]:
        """The alert as an entry of a rule file."""
        return {
            "alert": self.full_name,
            "expr": self.expr,
            "for": duration(self.lasting),
            **({"keep_firing_for": duration(self.keep)} if self.keep else {}),
            "labels": {"severity": self.severity, "scope": self.scope, "incident": self.incident, **self._window()},
            "annotations": {
                "summary": f"{self.summary}{self._simulated()}{self._since()}.",
                "runbook": self.runbook,
                "runbook_url": f"{links.runbook}#{self.full_name.lower()}",
                "dashboard": self._panel(links),
            },
        }

    def _since(self) -> str:
        """`, since 14:05 UTC`: when the expression became true. Alertmanager knows only when the alert fired."""
        found = ask("ALERTS_FOR_STATE", self._identity(), {"alertname": self.full_name, "window": self.window})
        return (
            "{{ with " + found + ' }}, since {{ (. | first | value | toTime).Format "2006-01-02 15:04 UTC" }}{{ end }}'
        )

    def _window(self) -> dict[str, str]:
        return {"window": self.window} if self.window else {}

    def _identity(self) -> tuple[str, ...]:
        return ("alertname", *self.labels, *(["window"] if self.window else []))

    def _simulated(self) -> str:
        named = tuple(label for label in ("vantage", "target", "provider") if label in self.labels)
        if not named:
            return ""
        found = ask("firsttoken_series_info", ("simulated", *named), {"simulated": "true"})
        return "{{ if " + found + " }} (simulated){{ end }}"

    def _panel(self, links: Links) -> str:
        chosen = "".join(
            f"{{{{ with $labels.{label} }}}}&var-{label}={{{{ . | urlquery }}}}{{{{ end }}}}"
            for label in WHO
            if label in self.labels
        )
        return f"{links.grafana.rstrip('/')}/d/firsttoken-{self.dashboard}?from=now-6h&to=now{chosen}"


def ask(metric: str, labels: tuple[str, ...], fixed: dict[str, str] | None = None, around: str = "%s") -> str:
    """Template pipeline: the samples of a metric with the alert's own values of `labels` (or `fixed` ones).

    `around`: a query whose `%s` takes the selector, such as `topk(1, %s)`.
    """
    fixed = fixed or {}
    selector = ",".join(f"{label}=%q" for label in labels)
    values = " ".join(f'"{fixed[label]}"' if label in fixed else f"$labels.{label}" for label in labels)
    return f"(printf `{around.replace('%s', metric + '{' + selector + '}')}` {values} | query)"


def told(
    metric: str, labels: tuple[str, ...], shown: str, fixed: dict[str, str] | None = None, around: str = "%s"
) -> str:
    """Template: the first such sample, shown by a function such as `humanizeDuration`; "?" when there is none."""
    found = ask(metric, labels, fixed, around)
    return "{{ with " + found + " }}{{ . | first | value | " + shown + " }}{{ else }}?{{ end }}"


def listed(
    metric: str, labels: tuple[str, ...], label: str, around: str = "%s == 1", fixed: dict[str, str] | None = None
) -> str:
    """Template: the values of one label over all such samples, with commas between."""
    found = ask(metric, labels, fixed, around)
    return (
        f'{{{{ range $n, $one := {found} | sortByLabel "{label}" }}}}'
        "{{ if $n }}, {{ end }}{{ $one.Labels." + label + " }}{{ end }}"
    )
