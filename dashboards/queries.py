"""Queries, variables and links that the dashboards share: one way to filter, to group by time, to take a percentile.

Live panels ask Prometheus (`prom`), history asks the hourly rollups in Postgres (`sql`) through the views of migration
0005. Every panel obeys the same six variables. They are matched as regular expressions in both languages, so that
"All" is `.*` and needs no list. Percentiles come from merged histogram bins, never from averaged percentiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from panels import METRICS, RECORD, Json

LABELS = ("vantage", "country", "provider", "target", "model", "probe")
TITLES = {"overview": "Overview", "geography": "Geography", "latency": "Latency", "cold-starts": "Cold starts",
          "incidents": "Incidents and SLO", "fleet": "Fleet"}  # fmt: skip
UID = {name: f"firsttoken-{name}" for name in TITLES}
TAG = "firsttoken"

CHOSEN = ",".join(f'{label}=~"${label}"' for label in LABELS)
"""The variables as a PromQL selector's inside."""
FILTER = " AND ".join(
    f"('${{{label}:regex}}' = '.*' OR {label} ~ '^(${{{label}:regex}})$')" for label in LABELS
)
"""The variables as SQL over a view that carries the names. The planner leaves out what is about all, instead of
guessing how few rows a regular expression may let through."""
HOURS = "hour >= date_trunc('hour', $__timeFrom()::timestamptz) AND hour <= $__timeTo()::timestamptz"
"""The dashboard's time range, its first hour whole: a range of minutes lies inside one hour."""
TIMES = """hours AS MATERIALIZED (
  SELECT hour, ($__timeGroup(hour, $__interval))::bigint AS time FROM generate_series(
    date_trunc('hour', $__timeFrom()::timestamptz), $__timeTo()::timestamptz, interval '1 hour') AS hour
)"""
"""A WITH clause: each hour of the range and the time that it is drawn at, reckoned once and not for every bin."""
FACTS = f"facts AS MATERIALIZED (SELECT vantage_id, series_id FROM series_facts WHERE {FILTER})"
"""A WITH clause: the series that are chosen."""
OF_FACTS = "(vantage_id, series_id) IN (SELECT vantage_id, series_id FROM facts)"
COUNTS = "sum(n::int)::int"
"""Attempts added up as what they are: a sum of bigint is a numeric, which costs thrice as much."""

_OF_HOUR = 'vantage=~"$vantage",target=~"$target"'

def quiet(by: str, chosen: str = CHOSEN) -> str:
    """Whether what `by` tells apart is silent, as the alert NoDataFromVantage has it: a scrape and a delivery take
    their time. Each is counted once, whoever is scraped that tells of it.
    """
    at = f"max by ({by}) (firsttoken_last_attempt_timestamp_seconds{{{chosen}}})"
    return f"(time() - {at}) > bool (3 * min by ({by}) (firsttoken_interval_seconds{{{chosen}}}) + 120)"


_DONE = f"sum by (vantage) (increase(firsttoken_attempts_total{{{CHOSEN}}}[1h]))"
_MISSED = f"sum by (vantage) (increase(firsttoken_missed_slots_total{{{CHOSEN}}}[1h]))"
COVERAGE = (
    f"sum by (vantage) (firsttoken_coverage_measured_slots{{{_OF_HOUR}}}) / "
    f"(sum by (vantage) (firsttoken_coverage_owed_slots{{{_OF_HOUR}}}) > 0) or {_DONE} / ({_DONE} + {_MISSED})"
)
"""Coverage by vantage, live: of the last whole hour; before there is one, of what this process planned."""
COVERED = f"FROM hourly_coverage WHERE {HOURS} AND {FILTER}"
"""Coverage from the record (SQL): ended hours, put right when rows come late."""


# ---------------------------------------------------------------------------------------------------- targets


def prom(expr: str, legend: str = "", *, ref: str = "A", instant: bool = False, form: str = "time_series") -> Json:
    """A query of Prometheus; `instant`: only at the end of the range."""
    return {
        "datasource": METRICS, "refId": ref, "expr": expr, "legendFormat": legend or "__auto", "format": form,
        "instant": instant, "range": not instant, "editorMode": "code",
    }  # fmt: skip


def sql(text: str, *, ref: str = "A", form: str = "table") -> Json:
    """A query of Postgres; as `time_series` it has the columns `time`, `metric` and `value`."""
    return {
        "datasource": RECORD, "refId": ref, "rawSql": text, "rawQuery": True, "format": form, "editorMode": "code"
    }  # fmt: skip


def percentiles(measure: str, by: str, ranks: Sequence[float] = (0.5, 0.95), *, where: str = "true") -> Json:
    """Percentiles of a measure over time: one line for each rank and value of `by` (SQL)."""
    wanted = ", ".join(f"({rank}, 'p{rank * 100:g}')" for rank in ranks)
    return sql(
        f"""WITH {TIMES}, bins AS (
  SELECT time, {by} AS name, bin, {COUNTS} AS n
  FROM hourly_bins JOIN hours USING (hour)
  WHERE measure = '{measure}' AND {HOURS} AND {FILTER} AND {where}
  GROUP BY 1, 2, 3
), ranked AS (
  SELECT time, name, bin, sum(n) OVER (PARTITION BY time, name ORDER BY bin) AS upto,
    sum(n) OVER (PARTITION BY time, name) AS total
  FROM bins
)
SELECT time, name || ' ' || label AS metric, bin_seconds(min(bin)) AS value
FROM ranked CROSS JOIN (VALUES {wanted}) AS q(rank, label)
WHERE upto >= rank * total
GROUP BY time, name, label ORDER BY time, metric""",
        form="time_series",
    )


def ranked(measure: str, keys: str, name: str, *, where: str = "true") -> str:
    """A WITH clause `name`(keys, upto, total, bin): the merged bins of a measure for each value of `keys` (columns)."""
    return f"""{name}_bins AS (
  SELECT {keys}, bin, {COUNTS} AS n FROM hourly_bins
  WHERE measure = '{measure}' AND {HOURS} AND {FILTER} AND {where}
  GROUP BY {keys}, bin
), {name} AS (
  SELECT {keys}, bin, n, sum(n) OVER (PARTITION BY {keys} ORDER BY bin) AS upto,
    sum(n) OVER (PARTITION BY {keys}) AS total
  FROM {name}_bins
)"""


def rank(share: float) -> str:
    """SQL over a `ranked` clause: seconds at a nearest-rank percentile."""
    return f"bin_seconds(min(bin) FILTER (WHERE upto >= {share} * total))"


# ---------------------------------------------------------------------------------------------------- variables

ORDER = ("country", "vantage", "provider", "model", "target", "probe")
"""As they stand across the top: each narrows those behind it."""
_ALL = {"text": "All", "value": "$__all"}


def datasources() -> list[Json]:
    """Which Prometheus and which Postgres: those that are provisioned, or any others of a Grafana that exists."""
    known = (("metrics", "Prometheus", "prometheus", "firsttoken-prometheus"),
             ("record", "Postgres", "grafana-postgresql-datasource", "firsttoken-postgres"))  # fmt: skip
    return [
        {"type": "datasource", "name": name, "label": label, "query": plugin, "hide": 2, "refresh": 1,
         "current": {"text": f"First Token {label}", "value": uid}, "options": [], "multi": False, "includeAll": False}
        for name, label, plugin, uid in known
    ]  # fmt: skip


def choice(name: str, query: Any, source: Json) -> Json:
    """A variable with "All", whose options a query gives."""
    return {
        "type": "query", "name": name, "label": name, "datasource": source, "query": query, "allValue": ".*",
        "current": _ALL, "includeAll": True, "multi": True, "options": [], "refresh": 2, "sort": 1, "hide": 0,
    }  # fmt: skip


def live_variables() -> list[Json]:
    """The six, from what is configured now: each is narrowed by those before it."""
    return [*datasources(), *(choice(name, _live_query(name), METRICS) for name in ORDER)]


def _live_query(name: str) -> Json:
    narrowed = ",".join(f'{label}=~"${label}"' for label in _narrowing(name))
    return {"query": f"label_values(firsttoken_series_info{{{narrowed}}},{name})", "qryType": 1, "refId": name}


def record_variables() -> list[Json]:
    """The six, from all that was ever measured."""
    return [*datasources(), *(choice(name, _record_query(name), RECORD) for name in ORDER)]


def _record_query(name: str) -> str:
    narrowed = " AND ".join(f"{label} ~ '^(${{{label}:regex}})$'" for label in _narrowing(name))
    return f"SELECT DISTINCT {name} FROM series_facts WHERE {name} <> ''{narrowed and ' AND ' + narrowed} ORDER BY 1"


def _narrowing(name: str) -> Sequence[str]:
    return {"vantage": ("country",), "target": ("provider", "model"), "model": ("provider",)}.get(name, ())


def custom(name: str, label: str, values: Sequence[str]) -> Json:
    """A variable with fixed values; the first is chosen."""
    options = [{"text": value, "value": value, "selected": n == 0} for n, value in enumerate(values)]
    return {
        "type": "custom", "name": name, "label": label, "query": ",".join(values), "options": options,
        "current": {"text": values[0], "value": values[0]}, "multi": False, "includeAll": False, "hide": 0,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------- around them


def links() -> list[Json]:
    """All six dashboards, in a row; time and variables go along."""
    return [
        {"type": "link", "title": title, "url": f"/d/{UID[name]}", "asDropdown": False, "icon": "external link",
         "includeVars": True, "keepTime": True, "tags": [], "targetBlank": False, "tooltip": ""}
        for name, title in TITLES.items()
    ]  # fmt: skip


ALERTS = 'ALERTS{alertstate="firing",vantage=~"$vantage|",provider=~"$provider|",target=~"$target|"}'
"""Alerts about what is chosen, and those that name no vantage, provider or target."""


def notes() -> list[Json]:
    """Firing alerts as marks on every time axis."""
    return [
        {
            "name": "Incidents", "datasource": METRICS, "enable": True, "hide": False, "iconColor": "red",
            "titleFormat": "{{alertname}}", "textFormat": "{{target}} {{provider}} from {{vantage}}",
            "target": prom(f"max by (alertname, vantage, provider, target) ({ALERTS})", ref="Incidents"),
        }
    ]  # fmt: skip
