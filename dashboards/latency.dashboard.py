"""Latency: how long the first token, the whole answer and the pauses take, by whatever one likes to compare."""

from __future__ import annotations

from grafanalib.core import Time
from panels import Board, Heatmap, Sentence, Table, TimeSeries, override
from queries import (
    CHOSEN,
    COUNTS,
    FACTS,
    FILTER,
    HOURS,
    OF_FACTS,
    TAG,
    TIMES,
    UID,
    custom,
    links,
    notes,
    percentiles,
    prom,
    rank,
    ranked,
    record_variables,
    sql,
)

BY = "${by:raw}"
"""The column that the variable `by` names; its values are fixed."""
HERE = {"interval": "1h", "unit": "s", "minimum": 0}

SPEED = f"""WITH {TIMES}, bins AS (
  SELECT time, {BY} AS name, bin, {COUNTS} AS n
  FROM hourly_bins JOIN hours USING (hour) WHERE measure = 'token' AND {HOURS} AND {FILTER} GROUP BY 1, 2, 3
), ranked AS (
  SELECT time, name, bin, sum(n) OVER (PARTITION BY time, name ORDER BY bin) AS upto,
    sum(n) OVER (PARTITION BY time, name) AS total
  FROM bins
)
SELECT time, name || ' ' || label AS metric, 1 / bin_seconds(min(bin)) AS value
FROM ranked CROSS JOIN (VALUES (0.5, 'median'), (0.95, 'slowest 5 %')) AS q(rank, label)
WHERE upto >= rank * total GROUP BY time, name, label ORDER BY time, metric"""

STALLS = f"""SELECT ($__timeGroup(hour, $__interval))::bigint AS time, {BY} AS metric,
  100 * sum(stalls)::double precision / nullif(sum(success), 0) AS value
FROM hourly_counts WHERE {HOURS} AND {FILTER} GROUP BY 1, 2 ORDER BY time, metric"""

FAILED = f"""SELECT ($__timeGroup(hour, $__interval))::bigint AS time, {BY} AS metric,
  sum(failed)::double precision / nullif(sum(success + failed), 0) AS value
FROM hourly_counts WHERE {HOURS} AND {FILTER} GROUP BY 1, 2 ORDER BY time, metric"""

WEEK = f"""WITH slots AS MATERIALIZED (
  SELECT hour, extract(isodow FROM hour AT TIME ZONE 'UTC')::int AS day,
    extract(hour FROM hour AT TIME ZONE 'UTC')::int AS at
  FROM generate_series(date_trunc('hour', $__timeTo()::timestamptz - interval '14 days'), $__timeTo()::timestamptz,
    interval '1 hour') AS hour
), {FACTS}, bins AS (
  SELECT day, at, bin, {COUNTS} AS n FROM series_bins JOIN slots USING (hour)
  WHERE measure = 'ttft' AND hour >= $__timeTo()::timestamptz - interval '14 days' AND hour <= $__timeTo()::timestamptz
    AND {OF_FACTS}
  GROUP BY 1, 2, 3
), ranked AS (
  SELECT day, at, bin, sum(n) OVER (PARTITION BY day, at ORDER BY bin) AS upto,
    sum(n) OVER (PARTITION BY day, at) AS total
  FROM bins
), medians AS (
  SELECT day, at, bin_seconds(min(bin)) AS p50 FROM ranked WHERE upto >= 0.5 * total GROUP BY day, at
)
SELECT lpad(at::text, 2, '0') || ' h' AS hour, {
    ", ".join(
        f'max(p50) FILTER (WHERE day = {number}) AS "{name}"'
        for number, name in enumerate(("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"), 1)
    )
}
FROM medians GROUP BY at ORDER BY at"""

NUMBERS = f"""WITH {ranked("ttft", "provider, model, probe, target", "first")},
{ranked("total", "provider, model, probe, target", "whole")},
{ranked("token", "provider, model, probe, target", "step")},
ttft AS (SELECT provider, model, probe, target, {rank(0.5)} AS p50, {rank(0.95)} AS p95, {rank(0.99)} AS p99,
  max(total) AS n FROM first GROUP BY provider, model, probe, target),
total AS (SELECT provider, model, probe, target, {rank(0.5)} AS p50 FROM whole GROUP BY provider, model, probe, target),
speed AS (SELECT provider, model, probe, target, {rank(0.5)} AS p50 FROM step GROUP BY provider, model, probe, target)
SELECT provider, model, target, probe, ttft.n AS "attempts", ttft.p50 AS "TTFT p50", ttft.p95 AS "TTFT p95",
  ttft.p99 AS "TTFT p99", total.p50 AS "total p50", 1 / speed.p50 AS "tokens/s"
FROM ttft LEFT JOIN total USING (provider, model, probe, target) LEFT JOIN speed USING (provider, model, probe, target)
ORDER BY ttft.p50"""

dashboard = Board(
    title="First Token / Latency",
    uid=UID["latency"],
    description="TTFT, TTFO, total, speed, pauses: by provider, model, prompt or place.",
    tags=[TAG],
    time=Time("now-24h", "now"),
    refresh="1m",
    links=links(),
    variables=[*record_variables(), custom("by", "compare by", ("provider", "model", "probe", "target", "vantage"))],
    notes=notes(),
    rows_of_panels=[
        [
            Sentence(
                text="**Choose above what to compare by; a line that rises alone is that one's own trouble, lines that "
                "rise together share a cause.**"
            )
        ],
        [
            TimeSeries(
                title="TTFT: start to the first token of any kind",
                description="Percentiles of merged hourly histograms, within 2 %. An attempt that a deadline cut "
                "counts as at least that long.",
                targets=[percentiles("ttft", BY)],
                high=9,
                **HERE,
                drill=UID["geography"],
            ),
            TimeSeries(
                title="TTFO: start to the first visible output",
                description="Above TTFT where a model reasons first.",
                targets=[percentiles("ttfo", BY)],
                high=9,
                **HERE,
            ),
        ],
        [
            TimeSeries(title="Total: start to the end of the answer", targets=[percentiles("total", BY)], **HERE),
            TimeSeries(
                title="Speed: tokens a second between first and last token",
                targets=[sql(SPEED, form="time_series")],
                interval="1h",
                unit="tok/s",
                minimum=0,
            ),
            TimeSeries(
                title="The longest pause within an answer",
                targets=[percentiles("gap", BY)],
                description="Median and p95 of each answer's longest gap between arrivals.",
                **HERE,
            ),
        ],
        [
            TimeSeries(
                title="Stalls: pauses of a second or more, for each hundred answers",
                targets=[sql(STALLS, form="time_series")],
                interval="1h",
                minimum=0,
            ),
            TimeSeries(
                title="Failed share",
                targets=[sql(FAILED, form="time_series")],
                interval="1h",
                unit="percentunit",
                minimum=0,
                drill=UID["incidents"],
            ),
            TimeSeries(
                title="Phases now: where the time goes (means)",
                description="Live, from Prometheus, over everything chosen.",
                targets=[
                    prom(
                        f"sum by (phase) (rate(firsttoken_phase_seconds_sum{{{CHOSEN}}}[$__rate_interval])) "
                        f"/ (sum by (phase) (rate(firsttoken_phase_seconds_count{{{CHOSEN}}}[$__rate_interval])) > 0)",
                        "{{phase}}",
                    )
                ],
                unit="s",
                minimum=0,
            ),
        ],
        [
            Heatmap(
                title="TTFT now: how many attempts took how long",
                description="Live, from Prometheus. Two bands are two kinds of answers: cached or not, warm or cold.",
                targets=[
                    prom(
                        f"sum by (le) (increase(firsttoken_ttft_seconds_bucket{{{CHOSEN}}}[$__rate_interval]))",
                        "{{le}}",
                        form="heatmap",
                    )
                ],
                high=10,
                wide=12,
            ),
            Table(
                title="The hours of the week: median TTFT of two weeks, UTC",
                description="A column or row of darker cells is a rush hour.",
                targets=[sql(WEEK)],
                unit="s",
                decimals=2,
                color="continuous-GrYlRd",
                coloured=True,
                overrides=[override("hour", custom__cellOptions={"type": "auto"}, unit="string")],
                high=10,
                wide=12,
            ),
        ],
        [
            Table(
                title="In numbers",
                targets=[sql(NUMBERS)],
                unit="s",
                decimals=3,
                overrides=[
                    override("attempts", unit="short", decimals=0),
                    override("tokens/s", unit="tok/s", decimals=0),
                ],
                high=10,
            )
        ],
    ],
)
