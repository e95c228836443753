"""Cold starts: when a model had to be loaded first, how long that took, after how much idleness."""

from __future__ import annotations

from grafanalib.core import Time
from panels import (
    BLUE,
    GREY,
    RED,
    YELLOW,
    Board,
    Histogram,
    Scatter,
    Sentence,
    StackedBars,
    Stat,
    Table,
    TimeSeries,
    override,
    steps,
)
from queries import FILTER, TAG, UID, links, notes, record_variables, sql

RANGE = f"$__timeFilter(scheduled_at) AND {FILTER} AND try = 0"

SHARE = f"""SELECT count(*) FILTER (WHERE kind = 'cold')::double precision
  / nullif(count(*) FILTER (WHERE kind IN ('cold', 'warm')), 0) AS "cold" FROM judged_attempts WHERE {RANGE}"""
COUNT = f"SELECT count(*) FILTER (WHERE kind = 'cold') AS \"cold starts\" FROM judged_attempts WHERE {RANGE}"
PENALTY = f"""SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY penalty_seconds) AS "median penalty"
FROM judged_attempts WHERE {RANGE} AND kind = 'cold'"""
SHORTEST = f"""SELECT min(idle_before_seconds) AS "shortest" FROM judged_attempts WHERE {RANGE} AND kind = 'cold'"""
KINDS = f"""SELECT ($__timeGroup(scheduled_at, $__interval))::bigint AS time, kind AS metric, count(*) AS value
FROM judged_attempts WHERE {RANGE} GROUP BY 1, 2 ORDER BY time, metric"""
BY_TARGET = f"""SELECT ($__timeGroup(scheduled_at, $__interval))::bigint AS time, target AS metric, count(*) AS value
FROM judged_attempts WHERE {RANGE} AND kind = 'cold' GROUP BY 1, 2 ORDER BY time, metric"""
COLD = f"""SELECT ttft_seconds AS "cold" FROM judged_attempts
WHERE {RANGE} AND kind = 'cold' AND ttft_seconds IS NOT NULL ORDER BY scheduled_at DESC LIMIT 5000"""
WARM = f"""SELECT ttft_seconds AS "warm" FROM judged_attempts
WHERE {RANGE} AND kind = 'warm' AND ttft_seconds IS NOT NULL ORDER BY scheduled_at DESC LIMIT 5000"""
IDLE = f"""SELECT idle_before_seconds AS "idle before", ttft_seconds AS "TTFT", kind, target FROM judged_attempts
WHERE {RANGE} AND kind IN ('cold', 'warm') AND ttft_seconds IS NOT NULL AND idle_before_seconds IS NOT NULL
ORDER BY scheduled_at DESC LIMIT 2000"""
TARGETS = f"""SELECT target, provider, model, count(*) FILTER (WHERE kind = 'cold') AS "cold",
  count(*) FILTER (WHERE kind = 'warm') AS "warm", count(*) FILTER (WHERE kind = 'unclear') AS "unclear",
  percentile_disc(0.5) WITHIN GROUP (ORDER BY ttft_seconds) FILTER (WHERE kind = 'cold') AS "cold TTFT, median",
  percentile_disc(0.5) WITHIN GROUP (ORDER BY ttft_seconds) FILTER (WHERE kind = 'warm') AS "warm TTFT, median",
  max(penalty_seconds) AS "worst penalty",
  min(idle_before_seconds) FILTER (WHERE kind = 'cold') AS "shortest idle that slept",
  max(idle_before_seconds) FILTER (WHERE kind = 'warm') AS "longest idle still awake"
FROM judged_attempts WHERE {RANGE} GROUP BY target, provider, model ORDER BY 4 DESC, 1"""
LATEST = f"""SELECT scheduled_at AS "when", target, vantage, probe, idle_before_seconds AS "idle before",
  ttft_seconds AS "TTFT", penalty_seconds AS "penalty", array_to_string(reasons, ', ') AS "why"
FROM judged_attempts WHERE {RANGE} AND kind = 'cold' ORDER BY scheduled_at DESC LIMIT 200"""

dashboard = Board(
    title="First Token / Cold starts",
    uid=UID["cold-starts"],
    description="When a model had to be loaded first, how long that took, after how much idleness.",
    tags=[TAG],
    time=Time("now-24h", "now"),
    refresh="1m",
    links=links(),
    variables=record_variables(),
    notes=notes(),
    rows_of_panels=[
        [
            Sentence(
                text="**Look for the idle time from which on answers turn cold: a target that is asked more often than "
                "that stays awake.**"
            )
        ],
        [
            Stat(
                title="Cold share of the attempts judged",
                description="Yellow from 5 %, red from 20 %.",
                targets=[sql(SHARE)],
                unit="percentunit",
                decimals=1,
                thresholds=steps((0.05, YELLOW), (0.2, RED)),
                high=4,
            ),
            Stat(title="Cold starts", targets=[sql(COUNT)], thresholds=steps(base=GREY), high=4),
            Stat(
                title="Median penalty",
                description="What loading added to a warm first token.",
                targets=[sql(PENALTY)],
                unit="s",
                decimals=2,
                thresholds=steps(base=GREY),
                no_value="no cold start",
                high=4,
            ),
            Stat(
                title="Shortest idleness before a cold start",
                targets=[sql(SHORTEST)],
                unit="s",
                decimals=0,
                thresholds=steps(base=GREY),
                no_value="no cold start",
                high=4,
            ),
        ],
        [
            StackedBars(
                title="When: verdicts over time",
                description="Unclear: the evidence did not tell; the table of verdicts says why.",
                targets=[sql(KINDS, form="time_series")],
                interval="1m",
                overrides=[
                    override("cold", color={"mode": "fixed", "fixedColor": BLUE}),
                    override("warm", color={"mode": "fixed", "fixedColor": "orange"}),
                    override("unclear", color={"mode": "fixed", "fixedColor": GREY}),
                ],
                minimum=0,
            ),
            TimeSeries(
                title="Cold starts by target",
                targets=[sql(BY_TARGET, form="time_series")],
                interval="1m",
                minimum=0,
                drill=UID["latency"],
            ),
        ],
        [
            Scatter(
                title="After which idleness: TTFT against the time since the target was last asked",
                description="Over all vantage points and probes. Answers that were cold lie high; the idle time where "
                "they begin is when the model is unloaded.",
                targets=[sql(IDLE)],
                x="idle before",
                y="TTFT",
                unit="s",
                high=10,
            ),
            Histogram(
                title="How long: TTFT of cold and of warm answers",
                targets=[sql(COLD), sql(WARM, ref="B")],
                unit="s",
                overrides=[
                    override("cold", color={"mode": "fixed", "fixedColor": BLUE}),
                    override("warm", color={"mode": "fixed", "fixedColor": "orange"}),
                ],
                high=10,
            ),
        ],
        [
            Table(
                title="By target",
                targets=[sql(TARGETS)],
                unit="s",
                decimals=2,
                overrides=[override(name, unit="short", decimals=0) for name in ("cold", "warm", "unclear")],
                high=9,
                drill=UID["latency"],
            )
        ],
        [
            Table(
                title="The latest cold starts",
                targets=[sql(LATEST)],
                unit="s",
                decimals=2,
                overrides=[override("when", unit="dateTimeAsIso")],
                no_value="none in this range",
                high=9,
            )
        ],
    ],
)
