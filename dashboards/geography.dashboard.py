"""Geography: what distance costs, and who else makes the wait. Hourly rollups in Postgres."""

from __future__ import annotations

from grafanalib.core import Time
from panels import (
    GREEN,
    RED,
    YELLOW,
    BarChart,
    Board,
    Geomap,
    Sentence,
    StateTimeline,
    Table,
    TimeSeries,
    override,
    steps,
    words,
)
from queries import (
    COUNTS,
    FACTS,
    FILTER,
    HOURS,
    OF_FACTS,
    TAG,
    TIMES,
    UID,
    links,
    notes,
    percentiles,
    rank,
    ranked,
    record_variables,
    sql,
)

NOW = "hour >= date_trunc('hour', $__timeTo()::timestamptz) - interval '1 hour'"
"""The last full hour and the one that runs."""

AGAINST_NORMAL = f"""WITH {ranked("ttft", "vantage", "usual")}, {ranked("ttft", "vantage", "recent", where=NOW)},
normal AS (SELECT vantage, {rank(0.5)} AS usual_p50 FROM usual GROUP BY vantage),
now AS (SELECT vantage, {rank(0.5)} AS now_p50 FROM recent GROUP BY vantage)
SELECT f.vantage, f.city, f.latitude, f.longitude, now_p50 AS "TTFT now", usual_p50 AS "usual",
  now_p50 / usual_p50 AS "times usual"
FROM (SELECT DISTINCT vantage, city, latitude, longitude FROM series_facts WHERE {FILTER}) f
JOIN normal USING (vantage) LEFT JOIN now USING (vantage)
WHERE f.latitude IS NOT NULL ORDER BY 1"""

SERVED_FROM = f"""SELECT DISTINCT served_from_city AS city, served_from_latitude AS latitude,
  served_from_longitude AS longitude
FROM series_facts WHERE {FILTER} AND served_from_latitude IS NOT NULL ORDER BY 1"""

GAP = f"""WITH {TIMES}, {FACTS}, bins AS (
  SELECT time, series_id, bin, {COUNTS} AS n
  FROM series_bins JOIN hours USING (hour) WHERE measure = 'ttft' AND {HOURS} AND {OF_FACTS} GROUP BY 1, 2, 3
), ranked AS (
  SELECT time, series_id, bin, sum(n) OVER (PARTITION BY time, series_id ORDER BY bin) AS upto,
    sum(n) OVER (PARTITION BY time, series_id) AS total
  FROM bins
), medians AS (
  SELECT time, series_id, bin_seconds(min(bin)) AS p50 FROM ranked WHERE 2 * upto >= total GROUP BY time, series_id
), gaps AS (
  SELECT m.time, f.vantage, m.p50 - min(m.p50) OVER (PARTITION BY m.time, f.target, f.probe) AS gap
  FROM medians m JOIN series_facts f USING (series_id)
)
SELECT time, vantage AS metric, avg(gap) AS value FROM gaps GROUP BY time, vantage ORDER BY time, vantage"""

PARTS = f"""WITH means AS (
  SELECT vantage_id, series_id, measure, sum(sum_seconds) / sum(n) AS mean FROM hourly_sums
  WHERE measure IN ('ttft', 'resolve', 'connect', 'tls', 'send', 'control', 'rtt') AND {HOURS} AND {FILTER}
  GROUP BY vantage_id, series_id, measure
), wide AS (
  SELECT vantage_id, series_id,
    max(mean) FILTER (WHERE measure = 'ttft') AS ttft,
    coalesce(max(mean) FILTER (WHERE measure = 'resolve'), 0) AS resolve,
    coalesce(max(mean) FILTER (WHERE measure = 'connect'), 0) AS connect,
    coalesce(max(mean) FILTER (WHERE measure = 'tls'), 0) AS tls,
    coalesce(max(mean) FILTER (WHERE measure = 'send'), 0) AS send,
    coalesce(max(mean) FILTER (WHERE measure = 'rtt'), max(mean) FILTER (WHERE measure = 'connect')) AS rtt,
    max(mean) FILTER (WHERE measure = 'control') AS control
  FROM means GROUP BY vantage_id, series_id
), told AS (
  SELECT f.vantage, w.*, least(coalesce(w.rtt, 0), greatest(w.ttft - resolve - connect - tls - send, 0)) AS asked,
    CASE WHEN f.edge IS NULL AND f.floor_seconds <= w.rtt THEN f.floor_seconds END AS floor
  FROM wide w JOIN series_facts f USING (vantage_id, series_id) WHERE w.ttft IS NOT NULL
), split AS (
  SELECT vantage, resolve, tls, send, connect + asked AS road,
    CASE WHEN connect > 0 THEN 2 ELSE 1 END * floor AS distance,
    greatest(ttft - resolve - connect - tls - send - asked, 0) AS rest,
    CASE WHEN control IS NOT NULL THEN greatest(control - rtt, 0) END AS behind
  FROM told
)
SELECT vantage,
  avg(resolve) AS "name lookup",
  avg(CASE WHEN distance IS NULL THEN 0 ELSE least(distance, road) END) AS "distance",
  avg(CASE WHEN distance IS NULL THEN 0 ELSE greatest(road - distance, 0) END) AS "line",
  avg(CASE WHEN distance IS NULL THEN road ELSE 0 END) AS "distance and line",
  avg(tls) AS "TLS",
  avg(send) AS "send",
  avg(CASE WHEN behind IS NULL THEN 0 ELSE least(behind, rest) END) AS "behind the edge, at most",
  avg(CASE WHEN behind IS NULL THEN 0 ELSE greatest(rest - behind, 0) END) AS "provider",
  avg(CASE WHEN behind IS NULL THEN rest ELSE 0 END) AS "behind the edge and provider"
FROM split GROUP BY vantage ORDER BY avg(resolve + tls + send + road + rest)"""
"""Means, because only means add up. The road is two round trips of a fresh connection (connect, request), one of a kept
one. What cannot be told apart stays one part: the distance behind an edge or beyond what the round trip allows, and the
provider without a control request. Each average is over all series of the vantage, so that the parts add up to TTFT."""

ROADS = f"""facts AS MATERIALIZED (
  SELECT vantage_id, series_id, floor_seconds, distance_km, served_from_city, edge FROM series_facts WHERE {FILTER}
), roads AS (
  SELECT hour, vantage, provider, served_from_city, edge, min(min_seconds) AS rtt, min(floor_seconds) AS floor,
    min(distance_km) AS km
  FROM hourly_sums JOIN facts USING (vantage_id, series_id)
  WHERE measure IN ('rtt', 'connect') AND {HOURS}
  GROUP BY hour, vantage, provider, served_from_city, edge
)"""
"""The smallest round trips: of TCP, or of a connect where the kernel sees only a proxy's. The facts are looked up once:
each series' edge is a look at its last attempt."""
FLOOR = f"""WITH {ROADS}, lines AS (
  SELECT ($__timeGroup(hour, $__interval))::bigint AS time, vantage || ' to ' || served_from_city AS name,
    min(floor) AS floor, min(rtt) AS measured
  FROM roads WHERE floor IS NOT NULL AND edge IS NULL GROUP BY 1, 2
)
SELECT time, name || ', floor' AS metric, floor AS value FROM lines
UNION ALL SELECT time, name || ', measured', measured FROM lines ORDER BY time, metric"""

BY_PROVIDER = f"""WITH {ranked("ttft", "vantage, provider", "merged")}
SELECT vantage, provider, {rank(0.5)} AS p50 FROM merged GROUP BY vantage, provider ORDER BY vantage, provider"""

STRETCH = f"""WITH {ranked("ttft", "vantage, provider", "merged")}, times AS (
  SELECT vantage, provider, {rank(0.5)} AS p50, {rank(0.95)} AS p95 FROM merged GROUP BY vantage, provider
), counts AS (
  SELECT vantage, provider, sum(success) AS good, sum(success + failed) AS made
  FROM hourly_counts WHERE {HOURS} AND {FILTER} GROUP BY vantage, provider
), {ROADS}, ways AS (
  SELECT vantage, provider, min(rtt) AS rtt, min(floor) AS floor, min(km) AS km,
    string_agg(DISTINCT served_from_city, ', ') AS cities, string_agg(DISTINCT edge, ', ') AS edge
  FROM roads GROUP BY vantage, provider
)
SELECT vantage, provider, p50, p95, p50 - min(p50) OVER (PARTITION BY provider) AS "gap to the best",
  good::double precision / nullif(made, 0) AS "success", cities AS "served from", km AS "distance", rtt AS "round trip",
  floor AS "floor", CASE WHEN edge IS NULL AND rtt >= floor THEN rtt / nullif(floor, 0) END AS "stretch", edge
FROM times LEFT JOIN counts USING (vantage, provider) LEFT JOIN ways USING (vantage, provider)
ORDER BY vantage, provider"""

LOOKS = f"""FROM sightings
WHERE started_at >= $__timeFrom()::timestamptz AND started_at <= $__timeTo()::timestamptz AND valid
  AND vantage_id = ANY(ARRAY(SELECT DISTINCT vantage_id FROM series_facts WHERE {FILTER}))"""
"""Of the vantage points from which anything is measured that is chosen; these are looked up first, once."""
LINE = f"""SELECT ($__timeGroup(started_at, $__interval))::bigint AS time, vantage AS metric, avg(up::int) AS value
{LOOKS} GROUP BY 1, 2 ORDER BY 1, 2"""
LINE_TIMES = f"""SELECT ($__timeGroup(started_at, $__interval))::bigint AS time,
  vantage || ' to ' || endpoint AS metric,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY coalesce(connect_seconds, resolve_seconds)) AS value
{LOOKS} AND up GROUP BY 1, 2 ORDER BY 1, 2"""
"""Neutral endpoints: a share of those reached, and the time to each (`connect`, or the lookup where that is all)."""

SHARES = ("name lookup", "distance", "line", "distance and line", "TLS", "send", "behind the edge, at most", "provider",
          "behind the edge and provider")  # fmt: skip
COLOURS = ("purple", "dark-blue", "blue", "light-blue", "yellow", "text", "light-orange", "orange", "semi-dark-orange")

dashboard = Board(
    title="First Token / Geography",
    uid=UID["geography"],
    description="What distance costs, and who else makes the wait.",
    tags=[TAG],
    time=Time("now-7d", "now"),
    refresh="5m",
    links=links(),
    variables=record_variables(),
    notes=notes(),
    rows_of_panels=[
        [
            Sentence(
                text="**A place that turns yellow or red is slower than its own normal; the bars below it say whether "
                "its line, the distance or the provider makes the wait.**"
            )
        ],
        [
            Geomap(
                title="Vantage points: TTFT of the last hour or two against their own normal",
                description="Green: as usual. Yellow (slower): from 1.5 times. Red (much slower): from twice the "
                "median of the whole range shown. Small grey: where targets are served from, as configured.",
                targets=[sql(SERVED_FROM, ref="B"), sql(AGAINST_NORMAL)],
                layers=[("B", "served from", None, "city"), ("A", "times usual", "times usual", "vantage")],
                color="thresholds",
                thresholds=steps((1.5, YELLOW), (2, RED)),
                overrides=[
                    override("TTFT now", unit="s"),
                    override("usual", unit="s"),
                    override("times usual", decimals=2),
                ],
                high=13,
                wide=12,
            ),
            BarChart(
                title="Where TTFT goes, by vantage (means)",
                description="Distance: light in fibre over the great circle, both ways. Line: what round trips take "
                "beyond it. Behind the edge: a control request's wait minus one round trip, an upper bound. Parts that "
                "cannot be told apart are shown as one.",
                targets=[sql(PARTS)],
                unit="s",
                overrides=[
                    override(name, color={"mode": "fixed", "fixedColor": color})
                    for name, color in zip(SHARES, COLOURS, strict=True)
                ],
                high=13,
                wide=12,
            ),
        ],
        [
            TimeSeries(
                title="TTFT by vantage: p50 and p95",
                targets=[percentiles("ttft", "vantage")],
                unit="s",
                minimum=0,
                interval="1h",
                high=9,
                drill=UID["latency"],
            ),
            TimeSeries(
                title="The latency gap: each vantage's median TTFT above the best one's",
                description="For the same target, probe and time, averaged over them. 0: it is the best place.",
                targets=[sql(GAP, form="time_series")],
                unit="s",
                minimum=0,
                interval="6h",
                high=9,
            ),
        ],
        [
            TimeSeries(
                title="Measured round trip and its physical floor",
                description="The floor is twice the great-circle distance at the speed of light in fibre. A round trip "
                "below it ended nearer than the serving place: at an edge. Series behind a known edge are left out.",
                targets=[sql(FLOOR, form="time_series")],
                unit="s",
                minimum=0,
                interval="1h",
                overrides=[
                    {
                        "matcher": {"id": "byRegexp", "options": "/floor$/"},
                        "properties": [{"id": "custom.lineStyle", "value": {"dash": [6, 6], "fill": "dash"}}],
                    }
                ],
                high=9,
                no_value="needs coordinates of vantage and target",
            ),
            Table(
                title="Median TTFT, vantage by provider",
                targets=[sql(BY_PROVIDER)],
                unit="s",
                decimals=2,
                color="continuous-GrYlRd",
                coloured=True,
                transformations=[
                    {
                        "id": "groupingToMatrix",
                        "options": {"columnField": "provider", "rowField": "vantage", "valueField": "p50"},
                    }
                ],
                high=9,
            ),
        ],
        [
            StateTimeline(
                title="The line: neutral endpoints reached from each vantage",
                description="Nothing but the line is between a vantage point and these endpoints; see docs/witness.md. "
                "No colour: nobody looked, or the agent has not delivered yet.",
                targets=[sql(LINE, form="time_series")],
                interval="5m",
                mappings=words((0.9, 1, "up", GREEN), (0.34, 0.9, "some fail", YELLOW), (0, 0.34, "down", RED)),
                color="thresholds",
                thresholds=steps((0.34, YELLOW), (0.9, GREEN), base=RED),
                high=9,
            ),
            TimeSeries(
                title="The line: time to neutral endpoints",
                description="Median time to connect, or to look the name up where that is all that is done.",
                targets=[sql(LINE_TIMES, form="time_series")],
                unit="s",
                minimum=0,
                interval="30m",
                high=9,
            ),
        ],
        [
            Table(
                title="Vantage by provider in numbers",
                description="Stretch: the smallest round trip over its floor; absent behind an edge.",
                targets=[sql(STRETCH)],
                unit="s",
                decimals=3,
                overrides=[
                    override("success", unit="percentunit", decimals=1),
                    override("distance", unit="lengthkm", decimals=0),
                    override("stretch", unit="none", decimals=1),
                ],
                high=10,
                drill=UID["latency"],
            )
        ],
    ],
)
