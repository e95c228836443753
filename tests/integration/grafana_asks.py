"""What Grafana sends for a panel: its queries with variables and macros filled in.

Follows Grafana's `templateSrv` (formats `regex`, `raw`, and Prometheus's own), its interval calculation and the macros
of its Postgres data source (pkg/tsdb/grafana-postgresql-datasource/macros.go). The range is the dashboard's default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

GENERATED = Path(__file__).resolve().parents[2] / "dashboards" / "generated"
PANEL_WIDTH_POINTS = 1000
STEPS_SECONDS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class Query:
    """One query as it leaves Grafana."""

    where: str  # dashboard, panel title, refId
    text: str
    form: str
    instant: bool = False
    step_seconds: int = 60
    begins: datetime | None = None
    ends: datetime | None = None
    label: str | None = None  # of a variable: the label whose values are asked for


@dataclass(frozen=True, slots=True)
class Asking:
    """One look at one dashboard."""

    board: Mapping[str, Any]
    now: datetime
    chosen: Mapping[str, str] = field(default_factory=dict)  # variables set by hand; the others stand at their default
    scrape_seconds: int = 1
    macros: bool = True  # whether to do what Grafana's server does, too

    @property
    def begins(self) -> datetime:
        return self.now - timedelta(seconds=seconds(self.board["time"]["from"].removeprefix("now-")))

    def values(self) -> dict[str, str]:
        """Variable -> what a query has in its place, before any escaping."""
        found = {}
        for variable in self.board["templating"]["list"]:
            current = variable["current"]["value"]
            found[variable["name"]] = variable["allValue"] if current == "$__all" else current
        return found | dict(self.chosen)

    def queries(self, kind: str) -> Iterator[Query]:
        """The panels' and annotations' queries of one kind of data source (`prometheus`, or Postgres's)."""
        for panel in self.board["panels"]:
            for target in panel.get("targets", []):
                if target["datasource"]["type"] == kind:
                    yield self._filled(target, panel["title"], panel.get("interval"))
        for note in self.board["annotations"]["list"]:
            if note["datasource"]["type"] == kind:
                yield self._filled(note["target"], note["name"], None)

    def variables(self, kind: str) -> Iterator[Query]:
        """The variables' queries of one kind of data source."""
        for variable in self.board["templating"]["list"]:
            if variable["type"] != "query" or variable["datasource"]["type"] != kind:
                continue
            where, asked = f"{self.board['title']}: ${variable['name']}", variable["query"]
            if kind == "prometheus":
                found = re.fullmatch(r"label_values\((.+),\s*(\w+)\)", asked["query"])
                assert found is not None, where
                text = self._fill(found[1], prometheus=True, step=60)
                yield Query(where, text, "series", begins=self.begins, ends=self.now, label=found[2])
            else:
                yield Query(where, self._macros(self._fill(asked, prometheus=False, step=60)), "table")

    def _filled(self, target: Mapping[str, Any], title: str, least: str | None) -> Query:
        step = self._step(least)
        where = f"{self.board['title']}: {title} ({target['refId']})"
        if "expr" in target:
            text = self._fill(target["expr"], prometheus=True, step=step)
            return Query(where, text, target["format"], target["instant"], step, self.begins, self.now)
        text = self._macros(self._fill(target["rawSql"], prometheus=False, step=step))
        return Query(where, text, target["format"], False, step, self.begins, self.now)

    def _step(self, least: str | None) -> int:
        span = (self.now - self.begins).total_seconds()
        wanted = max(span / PANEL_WIDTH_POINTS, seconds(least) if least else self.scrape_seconds)
        return next((step for step in STEPS_SECONDS if step >= wanted), STEPS_SECONDS[-1])

    def _fill(self, text: str, *, prometheus: bool, step: int) -> str:
        span = int((self.now - self.begins).total_seconds())
        globals_ = {
            "__interval": f"{step}s",
            "__interval_ms": str(step * 1000),
            "__rate_interval": f"{max(step + self.scrape_seconds, 4 * self.scrape_seconds)}s",
            "__range": f"{span}s",
            "__range_s": str(span),
        }
        values = self.values()
        several = {one["name"] for one in self.board["templating"]["list"] if one["multi"] or one["includeAll"]}

        def value(found: re.Match[str]) -> str:
            name, form = found[1] or found[2], found[3]
            if name in globals_:
                return globals_[name]
            if name not in values:
                assert name.startswith("__"), f"no variable {name} in {self.board['title']}"
                return found[0]  # a macro of the data source
            shown = values[name]
            if shown == ".*" or form == "raw":
                return shown
            if prometheus:
                return _for_prometheus(shown) if name in several else shown.replace("\\", r"\\")
            return re.sub(r"[\\^$*+?.()|\[\]{}/]", r"\\\g<0>", shown) if form == "regex" else shown

        return re.sub(r"\$(?:(\w+)|\{(\w+)(?::(\w+))?\})", value, text)

    def _macros(self, text: str) -> str:
        return re.sub(r"\$([_a-zA-Z0-9]+)\(([^)]*)\)", self._macro, text) if self.macros else text

    def _macro(self, found: re.Match[str]) -> str:
        name, arguments = found[1], [one.strip() for one in found[2].split(",")]
        begins, ends = (f"'{at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}'" for at in (self.begins, self.now))
        if name == "__timeFilter":
            return f"{arguments[0]} BETWEEN {begins} AND {ends}"
        if name == "__timeGroup":
            width = seconds(arguments[1].strip("'"))
            return f"floor(extract(epoch from {arguments[0]})/{width})*{width}"
        return {"__timeFrom": begins, "__timeTo": ends}[name]


def _for_prometheus(value: str) -> str:
    """`prometheusSpecialRegexEscape`: for a regular expression inside a PromQL string."""
    return re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", value.replace("\\", r"\\\\"))


def seconds(text: str) -> int:
    """`3h` -> 10800."""
    return int(text[:-1]) * UNITS[text[-1]]


def boards() -> dict[str, Mapping[str, Any]]:
    """The generated dashboards by file name without its ending."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(GENERATED.glob("*.json"))}
