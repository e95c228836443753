"""Fleet: are our own agents, spools, clocks and budgets in order. Prometheus alone; the last row looks back, into the
record.
"""

from __future__ import annotations

from grafanalib.core import Time
from panels import (
    GREEN,
    GREY,
    RED,
    YELLOW,
    Board,
    Json,
    Sentence,
    StackedBars,
    Stat,
    Table,
    TimeSeries,
    override,
    states,
    steps,
)
from queries import CHOSEN, COVERAGE, COVERED, TAG, UID, links, live_variables, notes, prom, quiet, sql

NO_TIME = [{"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True, "Value": True}}}]
SILENT = (
    f"(time() - max by (vantage) (firsttoken_last_attempt_timestamp_seconds{{{CHOSEN}}})) "
    f"/ min by (vantage) (firsttoken_interval_seconds{{{CHOSEN}}})"
)

OF_AGENTS = 'vantage=~"$vantage"'

WITHOUT_HUB = (
    'unless on (instance, job) (firsttoken_series_info{job="firsttoken-agents"} '
    "and on (vantage) firsttoken_agent_last_seen_timestamp_seconds)"
)
"""Leaves out agents that are scraped beside their hub, which tells of them already."""
WAITING_HERE = f"(firsttoken_spool_attempts {WITHOUT_HUB})"

HEARD = (
    f"time() - (max by (vantage) (firsttoken_agent_last_seen_timestamp_seconds{{{OF_AGENTS}}}) or "
    f"max by (vantage) (firsttoken_last_attempt_timestamp_seconds{{{CHOSEN}}}))"
)
AGENTS = {
    "heard of": HEARD,
    "up to date": f"max by (vantage) (firsttoken_agent_up_to_date{{{OF_AGENTS}}})",
    "unsent for": f"max by (vantage) (firsttoken_agent_oldest_unsent_seconds{{{OF_AGENTS}}})",
    "spool filled": f"max by (vantage) (firsttoken_agent_spool_size_bytes{{{OF_AGENTS}}} "
    f"/ firsttoken_agent_spool_limit_bytes{{{OF_AGENTS}}})",
    "lost, ever": f"max by (vantage) (firsttoken_agent_spool_lost_attempts_total{{{OF_AGENTS}}})",
    "clock offset": f"max by (vantage) (firsttoken_agent_clock_offset_seconds{{{OF_AGENTS}}})",
    "starved": f"max by (vantage) (firsttoken_agent_starved{{{OF_AGENTS}}})",
}
"""Column -> its query; a column of agents stays empty where one process does all."""
COVERED_HOURS = f"""SELECT ($__timeGroup(hour, $__interval))::bigint AS time, vantage AS metric,
  sum(measured)::double precision / nullif(sum(owed), 0) AS value {COVERED} GROUP BY 1, 2 ORDER BY 1, 2"""
CAUSES = f"""SELECT ($__timeGroup(hour, $__interval))::bigint AS time, replace(cause, '_', ' ') AS metric,
  sum(n::bigint)::bigint AS value
FROM (SELECT hour, causes {COVERED}) AS hours CROSS JOIN LATERAL jsonb_each_text(causes) AS c(cause, n)
GROUP BY 1, 2 ORDER BY 1, 2"""


def column(ref: str, name: str) -> Json:
    """How a column of `AGENTS` shows."""
    coloured = {"color": {"mode": "thresholds"}}
    look: Json = {
        "heard of": {"unit": "s", "thresholds": bounds((120, YELLOW), (600, RED)), **coloured},
        "up to date": {"mappings": states(_0=("no", YELLOW), _1=("yes", GREEN))},
        "unsent for": {"unit": "s", "thresholds": bounds((120, YELLOW), (600, RED)), **coloured},
        "spool filled": {"unit": "percentunit", "thresholds": bounds((0.5, YELLOW), (0.8, RED)), **coloured},
        "clock offset": {"unit": "s", "decimals": 3},
        "starved": {"unit": "percentunit", "thresholds": bounds((0.05, YELLOW), (0.2, RED)), **coloured},
    }.get(name, {"decimals": 0})
    return override(f"Value #{ref}", displayName=name, **look)


def bounds(*at: tuple[float, str]) -> Json:
    """Thresholds of one column."""
    return {"mode": "absolute", "steps": steps(*at)}


def hourly(metric: str, by: str) -> str:
    """Events an hour, by a label."""
    return f"sum by ({by}) (rate({metric}{{{CHOSEN}}}[$__rate_interval])) * 3600"


dashboard = Board(
    title="First Token / Fleet",
    uid=UID["fleet"],
    description="Are our own agents, spools, clocks and budgets in order.",
    tags=[TAG],
    time=Time("now-3h", "now"),
    refresh="30s",
    links=links(),
    variables=live_variables(),
    notes=notes(),
    rows_of_panels=[
        [
            Sentence(
                text="**Suspect ourselves first: a vantage point that is silent, a spool that grows or a lagging clock "
                "explains more than any provider.**"
            )
        ],
        [
            Stat(
                title="Vantage points that measure",
                description="An attempt within three intervals of their quickest probe, and two minutes.",
                targets=[prom(f"count(({quiet('vantage')}) == 0) or vector(0)", instant=True)],
                thresholds=steps((1, GREEN), base=RED),
                high=4,
            ),
            Stat(
                title="Vantage points that are silent",
                description="Red from 1 on.",
                targets=[prom(f"sum({quiet('vantage')}) or vector(0)", instant=True)],
                thresholds=steps((1, RED)),
                mappings=states(_0=("none", GREEN)),
                high=4,
            ),
            Stat(
                title="Database",
                targets=[prom("min(firsttoken_store_up)", instant=True)],
                thresholds=steps((1, GREEN), base=RED),
                mappings=states(_0=("away", RED), _1=("up", GREEN)),
                high=4,
            ),
            Stat(
                title="Waiting in spools",
                description="Attempts not delivered yet. Yellow from 1,000, red from 10,000.",
                targets=[
                    prom(
                        f"(sum({WAITING_HERE}) or vector(0)) + "
                        f"(sum(firsttoken_agent_spool_attempts{{{OF_AGENTS}}}) or vector(0))",
                        instant=True,
                    )
                ],
                thresholds=steps((1000, YELLOW), (10000, RED)),
                high=4,
            ),
            Stat(
                title="Oldest unsent",
                description="Yellow from 2 minutes, red from 10.",
                targets=[
                    prom(
                        "max(firsttoken_spool_oldest_age_seconds or "
                        f"firsttoken_agent_oldest_unsent_seconds{{{OF_AGENTS}}})",
                        instant=True,
                    )
                ],
                unit="s",
                decimals=0,
                thresholds=steps((120, YELLOW), (600, RED)),
                high=4,
            ),
            Stat(
                title="Configuration",
                targets=[prom("min(firsttoken_config_last_reload_successful)", instant=True)],
                thresholds=steps((1, GREEN), base=RED),
                mappings=states(_0=("refused", RED), _1=("in force", GREEN)),
                high=4,
            ),
        ],
        [
            TimeSeries(
                title="Silence by vantage, in intervals",
                description="Time since the last attempt over the quickest interval. About 1 is right; above 3 it is "
                "silent.",
                targets=[prom(SILENT, "{{vantage}}")],
                minimum=0,
            ),
            TimeSeries(
                title="Coverage by vantage: measured share of the slots owed",
                description="Of the last whole hour, agents that were off included; before there is one, of what this "
                "process planned.",
                targets=[prom(COVERAGE, "{{vantage}}")],
                unit="percentunit",
                maximum=1,
                drill=UID["overview"],
            ),
            TimeSeries(
                title="Missed slots an hour, by reason",
                description="Budget: the daily cap is spent. Capacity: the agent's own cap. Late: it slept.",
                targets=[prom(hourly("firsttoken_missed_slots_total", "reason"), "{{reason}}")],
                minimum=0,
            ),
        ],
        [
            TimeSeries(
                title="Doubts an hour, by reason",
                description="Why a measurement is not trusted: throttled or stolen CPU, a clock step, a lagging loop. "
                "A reason appears when it first occurs.",
                targets=[prom(hourly("firsttoken_doubts_total", "reason"), "{{reason}}")],
                minimum=0,
                no_value="none",
            ),
            TimeSeries(
                title="Invalid share by vantage: attempts kept out of every statistic",
                targets=[
                    prom(
                        f"sum by (vantage) (rate(firsttoken_invalid_attempts_total{{{CHOSEN}}}[$__rate_interval])) / "
                        f"(sum by (vantage) (rate(firsttoken_attempts_total{{{CHOSEN}}}[$__rate_interval])) > 0)",
                        "{{vantage}}",
                    )
                ],
                unit="percentunit",
                minimum=0,
            ),
            TimeSeries(
                title="Lag: p99 of the measuring loop and of the schedule",
                targets=[
                    prom(
                        "histogram_quantile(0.99, sum by (le, instance) "
                        "(rate(firsttoken_loop_lag_seconds_bucket[$__rate_interval])))",
                        "loop {{instance}}",
                    ),
                    prom(
                        "histogram_quantile(0.99, sum by (le, instance) "
                        "(rate(firsttoken_scheduler_lag_seconds_bucket[$__rate_interval])))",
                        "schedule {{instance}}",
                        ref="B",
                    ),
                ],
                unit="s",
                minimum=0,
            ),
        ],
        [
            TimeSeries(
                title="Spool: attempts that wait",
                targets=[
                    prom(f"sum by (vantage) (firsttoken_agent_spool_attempts{{{OF_AGENTS}}}) > -1", "{{vantage}}"),
                    prom(WAITING_HERE, "{{instance}}", ref="B"),
                ],
                minimum=0,
            ),
            TimeSeries(
                title="Unsent age and clock offset, by agent",
                description="How long the oldest attempt has waited there; how far its clock is from the hub's.",
                targets=[
                    prom(
                        f"max by (vantage) (firsttoken_agent_oldest_unsent_seconds{{{OF_AGENTS}}}) or "
                        f"label_replace(max(firsttoken_spool_oldest_age_seconds {WITHOUT_HUB}), "
                        "'vantage', 'this process', '', '')",
                        "unsent {{vantage}}",
                    ),
                    prom(
                        f"max by (vantage) (firsttoken_agent_clock_offset_seconds{{{OF_AGENTS}}})",
                        "clock {{vantage}}",
                        ref="B",
                    ),
                ],
                unit="s",
                no_value="no agents",
            ),
            TimeSeries(
                title="Delivery an hour: acknowledged, failed, lost, refused, late",
                targets=[
                    prom(
                        f"sum(rate(firsttoken_delivered_attempts_total[$__rate_interval]) {WITHOUT_HUB}) * 3600",
                        "acknowledged",
                    ),
                    prom("sum(rate(firsttoken_uplink_failures_total[$__rate_interval])) * 3600", "failed", ref="B"),
                    prom(
                        f"((sum(rate(firsttoken_spool_lost_attempts_total[$__rate_interval]) {WITHOUT_HUB}) "
                        "or vector(0)) "
                        f"+ (sum(rate(firsttoken_agent_spool_lost_attempts_total{{{OF_AGENTS}}}[$__rate_interval])) "
                        "or vector(0))) * 3600",
                        "lost",
                        ref="C",
                    ),
                    prom(
                        f"sum(rate(firsttoken_rejected_attempts_total[$__rate_interval]) {WITHOUT_HUB}) * 3600",
                        "refused",
                        ref="D",
                    ),
                    prom(
                        f"sum(rate(firsttoken_late_attempts_total{{{CHOSEN}}}[$__rate_interval])) * 3600 or vector(0)",
                        "late",
                        ref="E",
                    ),
                ],
                minimum=0,
            ),
            TimeSeries(
                title="Tokens an hour, by provider",
                description="What the budget pays for; money stands on Overview.",
                targets=[
                    prom(
                        "sum by (provider, direction) "
                        f"(rate(firsttoken_tokens_total{{{CHOSEN}}}[$__rate_interval])) * 3600",
                        "{{provider}} {{direction}}",
                    )
                ],
                drill=UID["overview"],
                minimum=0,
            ),
        ],
        [
            Table(
                title="Agents: when heard of, what waits there, their clocks",
                description="Yellow and red: not heard of for 2 and 10 minutes, rows that wait as long, a spool half "
                "and four fifths full, a twentieth and a fifth of attempts short of a processor. Without a hub: the "
                "last attempt alone.",
                targets=[
                    prom(query, ref=ref, instant=True, form="table")
                    for ref, query in zip("ABCDEFG", AGENTS.values(), strict=True)
                ],
                transformations=[
                    {"id": "merge", "options": {}},
                    {"id": "organize", "options": {"excludeByName": {"Time": True}}},
                ],
                overrides=[column(ref, name) for ref, name in zip("ABCDEFG", AGENTS, strict=True)],
            )
        ],
        [
            TimeSeries(
                title="Daily caps: share that is left",
                description="Of each process's part of the caps in `budget`. At 0 probing stops until midnight UTC.",
                targets=[
                    prom(
                        "firsttoken_budget_remaining / (firsttoken_budget_limit > 0)",
                        "{{scope}} {{target}} {{unit}} {{instance}}",
                    )
                ],
                unit="percentunit",
                minimum=0,
                no_value="no caps",
            ),
            Table(
                title="Processes, agents and versions",
                targets=[
                    prom(f"firsttoken_agent_info{{{OF_AGENTS}}} or firsttoken_build_info", instant=True, form="table")
                ],
                transformations=NO_TIME,
                thresholds=steps(base=GREY),
            ),
            TimeSeries(
                title="CPU of our processes",
                description="1 is a whole processor.",
                targets=[
                    prom(
                        "rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) firsttoken_build_info",
                        "{{instance}}",
                    )
                ],
                minimum=0,
            ),
            Table(
                drill=UID["latency"],
                title="Certificates: time until they expire",
                description="Yellow below 14 days, red below 3, as the alerts are.",
                targets=[
                    prom(
                        f"sort(min by (target) (firsttoken_certificate_expiry_timestamp_seconds{{{CHOSEN}}}) - time())",
                        instant=True,
                        form="table",
                    )
                ],
                transformations=[{"id": "organize", "options": {"excludeByName": {"Time": True}}}],
                overrides=[override("Value", displayName="expires in", color={"mode": "thresholds"})],
                unit="s",
                thresholds=steps((3 * 86400, YELLOW), (14 * 86400, GREEN), base=RED),
            ),
        ],
        [
            TimeSeries(
                title="Coverage by the hour, from the record",
                description="Ended hours, put right when rows come late: what an agent delivers after an outage "
                "counts where it was measured.",
                targets=[sql(COVERED_HOURS, form="time_series")],
                unit="percentunit",
                maximum=1,
                interval="1h",
                no_value="no hour has ended yet",
                drill=UID["overview"],
            ),
            StackedBars(
                title="Missed slots by cause, from the record",
                description="docs/coverage.md says what each means and what to do. A cause appears when it occurs.",
                targets=[sql(CAUSES, form="time_series")],
                interval="1h",
                minimum=0,
                no_value="nothing was missed, or no hour has ended yet",
            ),
        ],
    ],
)
