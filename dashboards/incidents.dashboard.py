"""Incidents and SLO: what fires and fired, by scope, and how much failure the objective still allows. Prometheus."""

from __future__ import annotations

from grafanalib.core import Time
from panels import (
    GREEN,
    GREY,
    RED,
    YELLOW,
    Board,
    Sentence,
    Stat,
    StateTimeline,
    Table,
    TimeSeries,
    override,
    states,
    steps,
)
from queries import ALERTS, CHOSEN, TAG, UID, custom, links, live_variables, notes, prom

SCOPE = "incident, scope, alertname, severity, provider, target, vantage"


def failed(span: str, by: str = "") -> str:
    """Share of the attempts of a span that failed; 0 while there were none."""
    grouped = f"sum by ({by})" if by else "sum"
    bad = f'{grouped} (increase(firsttoken_attempts_total{{{CHOSEN},outcome="failed"}}[{span}]))'
    return f"({bad} / ({grouped} (increase(firsttoken_attempts_total{{{CHOSEN}}}[{span}])) > 0))"


def burn(span: str, by: str = "") -> str:
    """How many times faster than allowed the budget is used: at 1 it lasts exactly its 30 days."""
    return f"{failed(span, by)} / (1 - $slo)"


NO_TIME = [{"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True, "alertstate": True}}}]

dashboard = Board(
    title="First Token / Incidents and SLO",
    uid=UID["incidents"],
    description="Firing and past alerts by scope; burn rate and error budget.",
    tags=[TAG],
    time=Time("now-24h", "now"),
    refresh="30s",
    links=links(),
    variables=[*live_variables(), custom("slo", "objective", ("0.99", "0.95", "0.995", "0.999"))],
    notes=notes(),
    rows_of_panels=[
        [
            Sentence(
                text="**An alert here names what, where and since when; a burn rate above 1 spends a month's allowance "
                "of failures before the month ends.**"
            )
        ],
        [
            Stat(
                title="Firing alerts",
                description="Red from 1 on.",
                targets=[prom(f"count({ALERTS}) or vector(0)", instant=True)],
                thresholds=steps((1, RED)),
                mappings=states(_0=("none", GREEN)),
                high=4,
            ),
            Stat(
                title="Error budget left, 30 days",
                description="Of the failures that the objective allows. Yellow below 50 %, red below 10 %.",
                targets=[prom(f"1 - {burn('30d')}", instant=True)],
                unit="percentunit",
                decimals=1,
                thresholds=steps((0.1, YELLOW), (0.5, GREEN), base=RED),
                high=4,
            ),
            Stat(
                title="Burn rate, 1 hour",
                description="At 14.4 two percent of the month's budget go in an hour: red. Yellow from 1.",
                targets=[prom(burn("1h"), instant=True)],
                decimals=1,
                thresholds=steps((1, YELLOW), (14.4, RED)),
                high=4,
            ),
            Stat(
                title="Burn rate, 6 hours",
                description="At 6 five percent of the month's budget go in six hours: red. Yellow from 1.",
                targets=[prom(burn("6h"), instant=True)],
                decimals=1,
                thresholds=steps((1, YELLOW), (6, RED)),
                high=4,
            ),
            Stat(
                title="Succeeded, last 24 hours",
                targets=[prom(f"1 - {failed('24h')}", instant=True)],
                unit="percentunit",
                decimals=2,
                thresholds=steps(base=GREY),
                high=4,
            ),
        ],
        [
            Table(
                title="Firing now, by scope",
                description="One message is sent for an incident; what a wider one explains is left out of it. "
                "No vantage: it is seen from several places. No target: it is the provider's or our own.",
                targets=[prom(f"max by ({SCOPE}) ({ALERTS})", instant=True, form="table")],
                transformations=NO_TIME,
                overrides=[override("Value", custom__hidden=True)],
                no_value="nothing fires",
                high=9,
                wide=10,
                drill=UID["overview"],
            ),
            StateTimeline(
                title="Alerts over time",
                targets=[prom(f"max by ({SCOPE}) ({ALERTS})", "{{incident}}: {{alertname}} {{target}} {{vantage}}")],
                color="thresholds",
                thresholds=steps(base=RED),
                mappings=states(_1=("fires", RED)),
                no_value="nothing fired",
                high=9,
                wide=14,
            ),
        ],
        [
            Table(
                title="Past alerts of the range shown, by scope",
                description="How long each fired, in minutes, at one look each 15 seconds.",
                targets=[
                    prom(
                        f"sort_desc(sum by ({SCOPE}) (sum_over_time(({ALERTS})[$__range:15s])) / 4)",
                        instant=True,
                        form="table",
                    )
                ],
                transformations=NO_TIME,
                overrides=[override("Value", displayName="fired", unit="m")],
                no_value="nothing fired",
                sort_by="fired",
                high=9,
                wide=10,
            ),
            TimeSeries(
                title="Burn rate: one hour and six",
                description="Above 1 the budget does not last its 30 days. Pages are sent from 14.4 and 6.",
                targets=[prom(burn("1h"), "1 hour"), prom(burn("6h"), "6 hours", ref="B")],
                minimum=0,
                thresholds=steps((1, YELLOW), (14.4, RED)),
                high=9,
                wide=14,
            ),
        ],
        [
            TimeSeries(
                title="Burn rate by target, 1 hour",
                targets=[prom(burn("1h", "target"), "{{target}}")],
                minimum=0,
                drill=UID["latency"],
            ),
            TimeSeries(
                title="Burn rate by vantage, 1 hour",
                description="One place alone: its line. All places: the provider.",
                targets=[prom(burn("1h", "vantage"), "{{vantage}}")],
                minimum=0,
                drill=UID["geography"],
            ),
            Table(
                title="Error budget left by target, 30 days",
                description="Yellow below 50 %, red below 10 %; below 0 the objective is missed.",
                targets=[prom(f"sort(1 - {burn('30d', 'target')})", instant=True, form="table")],
                transformations=NO_TIME,
                overrides=[override("Value", displayName="left", color={"mode": "thresholds"})],
                unit="percentunit",
                decimals=1,
                thresholds=steps((0.1, YELLOW), (0.5, GREEN), base=RED),
            ),
        ],
    ],
)
