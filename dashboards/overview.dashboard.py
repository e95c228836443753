"""Overview: is anything wrong now, where, since when. Prometheus alone, so that it stands when Postgres does not; the
last row alone looks back, into the record.
"""

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
    words,
)
from queries import CHOSEN, COVERAGE, COVERED, TAG, UID, links, live_variables, notes, prom, quiet, sql

WHO = "vantage, target, probe"
SHARE_FAILED = (
    f'sum(increase(firsttoken_attempts_total{{{CHOSEN},outcome="failed"}}[15m])) '
    f"/ sum(increase(firsttoken_attempts_total{{{CHOSEN}}}[15m]))"
)
COVERAGE_TABLE = f"""WITH hours AS (SELECT vantage, target, owed, measured, causes {COVERED}), causes AS (
  SELECT vantage, target, cause, sum(n::bigint) AS n
  FROM hours CROSS JOIN LATERAL jsonb_each_text(causes) AS c(cause, n)
  GROUP BY vantage, target, cause
), told AS (
  SELECT vantage, target, string_agg(n || ' ' || replace(cause, '_', ' '), ', ' ORDER BY n DESC, cause) AS why
  FROM causes GROUP BY vantage, target
)
SELECT vantage, target, sum(measured)::double precision / nullif(sum(owed), 0) AS "covered",
  sum(owed)::bigint AS "owed", (sum(owed) - sum(measured))::bigint AS "missed", coalesce(why, '') AS "why"
FROM hours LEFT JOIN told USING (vantage, target) GROUP BY vantage, target, why ORDER BY 3, vantage, target"""


def mean(span: str) -> str:
    """Mean TTFT of each series over a span."""
    made, count = (f"rate(firsttoken_ttft_seconds_{part}{{{CHOSEN}}}[{span}])" for part in ("sum", "count"))
    return f"(sum by ({WHO}) ({made}) / (sum by ({WHO}) ({count}) > 0))"


dashboard = Board(
    title="First Token / Overview",
    uid=UID["overview"],
    description="Is anything wrong now, where, since when.",
    tags=[TAG],
    time=Time("now-3h", "now"),
    refresh="30s",
    links=links(),
    variables=live_variables(),
    notes=notes(),
    rows_of_panels=[
        [
            Sentence(
                text="**Red in the first row or in the timeline says that something is wrong now; the row's name says "
                "which target and from where, the table beside it since when.**"
            )
        ],
        [
            Stat(
                title="Failing now",
                description="Series whose last attempt failed. Red from 1 on.",
                targets=[
                    prom(
                        f"count(min by (vantage, target, probe) (firsttoken_last_attempt_success{{{CHOSEN}}}) == 0)"
                        " or vector(0)",
                        instant=True,
                    )
                ],
                thresholds=steps((1, RED)),
                mappings=states(_0=("none", GREEN)),
                high=4,
                drill=UID["incidents"],
            ),
            Stat(
                title="Targets down from two or more places",
                description="Targets whose last attempt failed from at least two vantage points. Red from 1 on.",
                targets=[
                    prom(
                        "count(count by (target) (min by (target, vantage) "
                        f"(firsttoken_last_attempt_success{{{CHOSEN}}}) == 0) >= 2) or vector(0)",
                        instant=True,
                    )
                ],
                thresholds=steps((1, RED)),
                mappings=states(_0=("none", GREEN)),
                high=4,
            ),
            Stat(
                title="Silent series",
                description="No attempt for more than three intervals and two minutes: no data is a state of its own. "
                "Red from 1 on.",
                targets=[prom(f"sum({quiet('vantage, target, probe')}) or vector(0)", instant=True)],
                thresholds=steps((1, RED)),
                mappings=states(_0=("none", GREEN)),
                high=4,
                drill=UID["fleet"],
            ),
            Stat(
                title="Failed, last 15 minutes",
                description="Share of attempts. Yellow from 1 %, red from 5 %.",
                targets=[prom(SHARE_FAILED, instant=True)],
                unit="percentunit",
                decimals=1,
                thresholds=steps((0.01, YELLOW), (0.05, RED)),
                high=4,
                drill=UID["incidents"],
            ),
            Stat(
                title="p95 of TTFT, last 15 minutes",
                description="Over everything chosen above; it says nothing about what is usual: see the table below.",
                targets=[
                    prom(
                        "histogram_quantile(0.95, sum by (le) "
                        f"(rate(firsttoken_ttft_seconds_bucket{{{CHOSEN}}}[15m])))",
                        instant=True,
                    )
                ],
                unit="s",
                decimals=2,
                thresholds=steps(base=GREY),
                high=4,
                drill=UID["latency"],
            ),
            Stat(
                title="Spent, last 24 hours",
                description="By the price table, in each currency.",
                targets=[
                    prom(
                        f"sum by (currency) (increase(firsttoken_spend_total{{{CHOSEN}}}[24h]))",
                        "{{currency}}",
                        instant=True,
                    )
                ],
                decimals=4,
                no_value="no prices",
                thresholds=steps(base=GREY),
                high=4,
                drill=UID["fleet"],
            ),
        ],
        [
            StateTimeline(
                title="Does it answer? Target and vantage over time",
                description="The outcome of the last attempt. Gaps: nothing was known.",
                targets=[
                    prom(
                        f"min by (target, vantage) (firsttoken_last_attempt_success{{{CHOSEN}}})",
                        "{{target}} from {{vantage}}",
                    )
                ],
                color="thresholds",
                thresholds=steps((1, GREEN), base=RED),
                mappings=states(_0=("fails", RED), _1=("answers", GREEN)),
                high=14,
                wide=15,
                drill=UID["latency"],
            ),
            Table(
                title="Since when: time since the last success",
                description="The longest first. Yellow from 5 minutes, red from 15.",
                targets=[
                    prom(
                        f"sort_desc(max by ({WHO}) (time() - firsttoken_last_success_timestamp_seconds{{{CHOSEN}}}))",
                        instant=True,
                        form="table",
                    )
                ],
                unit="s",
                decimals=0,
                overrides=[override("Value", color={"mode": "thresholds"}, displayName="since")],
                thresholds=steps((300, YELLOW), (900, RED)),
                transformations=[
                    {"id": "organize", "options": {"excludeByName": {"Time": True}, "indexByName": {}}},
                ],
                sort_by="since",
                high=14,
                wide=9,
            ),
        ],
        [
            Table(
                title="Slower than usual: mean TTFT of 15 minutes against the last day",
                description="1 is as usual. Yellow (slower) from 1.5 times, red (much slower) from twice as long.",
                targets=[prom(f"sort_desc({mean('15m')} / {mean('1d')})", instant=True, form="table")],
                decimals=2,
                overrides=[
                    override(
                        "Value",
                        displayName="times usual",
                        custom__cellOptions={"type": "color-background", "mode": "basic"},
                        color={"mode": "thresholds"},
                    ),
                ],
                thresholds=steps((1.5, YELLOW), (2, RED)),
                mappings=words((None, 0.5, "less than half", GREEN)),
                transformations=[{"id": "organize", "options": {"excludeByName": {"Time": True}, "indexByName": {}}}],
                sort_by="times usual",
                high=9,
                drill=UID["geography"],
            ),
            TimeSeries(
                title="p95 of TTFT by vantage",
                targets=[
                    prom(
                        "histogram_quantile(0.95, sum by (le, vantage) "
                        f"(rate(firsttoken_ttft_seconds_bucket{{{CHOSEN}}}[$__rate_interval])))",
                        "{{vantage}}",
                    )
                ],
                unit="s",
                minimum=0,
                high=9,
                drill=UID["geography"],
            ),
        ],
        [
            TimeSeries(
                title="What failed, by kind",
                description="Failed attempts an hour; a kind that never occurred has no line.",
                targets=[
                    prom(
                        f"sum by (kind) (rate(firsttoken_failures_total{{{CHOSEN}}}[$__rate_interval])) * 3600 > 0",
                        "{{kind}}",
                    )
                ],
                no_value="nothing failed",
                minimum=0,
            ),
            TimeSeries(
                title="Coverage by vantage: measured share of the slots owed",
                description="Of the last whole hour, agents that were off included; before there is one, of what this "
                "process planned. Below 99 % something of our own is in the way: see Fleet.",
                targets=[prom(COVERAGE, "{{vantage}}")],
                unit="percentunit",
                maximum=1,
                drill=UID["fleet"],
            ),
            TimeSeries(
                title="Spend an hour by provider",
                description="By the price table.",
                targets=[
                    prom(
                        "sum by (provider, currency) "
                        f"(rate(firsttoken_spend_total{{{CHOSEN}}}[$__rate_interval])) * 3600",
                        "{{provider}} ({{currency}})",
                    )
                ],
                no_value="no prices",
                minimum=0,
            ),
        ],
        [
            Table(
                title="Coverage from the record: what was owed in the ended hours shown, and why the rest is missing",
                description="Late rows put it right. Yellow below 99.9 %, red below 99 %: something of our own is in "
                "the way.",
                targets=[sql(COVERAGE_TABLE)],
                overrides=[
                    override(
                        "covered",
                        unit="percentunit",
                        decimals=1,
                        color={"mode": "thresholds"},
                        custom__cellOptions={"type": "color-background", "mode": "basic"},
                    )
                ],
                thresholds=steps((0.99, YELLOW), (0.999, GREEN), base=RED),
                no_value="no hour has ended yet",
                high=9,
                drill=UID["fleet"],
            )
        ],
    ],
)
