"""Panels and dashboards as Grafana 13 stores them (schema 42), on grafanalib's base classes.

Hides grafanalib's age: it knows panels that Grafana has since replaced and writes keys that no longer exist. What it
lacks are small `Panel` subclasses here, each with the current options of its kind; the keys that are gone are left out.
Names of options come from `@grafana/schema`, against whose types a test validates what is generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attr
from grafanalib.core import Dashboard, Panel

SCHEMA_VERSION = 42
METRICS = {"type": "prometheus", "uid": "${metrics}"}
RECORD = {"type": "grafana-postgresql-datasource", "uid": "${record}"}
PANEL_KEYS = (
    "id", "type", "title", "description", "datasource", "targets", "gridPos", "links", "fieldConfig", "options",
    "transformations", "interval", "transparent",
)  # fmt: skip
DASHBOARD_KEYS = (
    "annotations", "description", "editable", "graphTooltip", "links", "panels", "refresh", "schemaVersion", "tags",
    "templating", "time", "timepicker", "timezone", "title", "uid", "version",
)  # fmt: skip
GREEN, YELLOW, RED, BLUE, GREY = "green", "yellow", "red", "blue", "text"
"""Grafana's own names: each theme, light or dark, shows its own readable shade."""
LEGEND = {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True}
TOOLTIP = {"mode": "multi", "sort": "desc"}
REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}

Json = dict[str, Any]


def steps(*bounds: tuple[float, str], base: str = GREEN) -> list[Json]:
    """Threshold steps: `base` below the first bound, then each colour from its bound up."""
    return [{"color": base, "value": None}, *({"color": color, "value": value} for value, color in bounds)]


def words(*ranges: tuple[float | None, float | None, str, str]) -> list[Json]:
    """Value mappings: from, to, the word that is shown, its colour."""
    return [
        {"type": "range", "options": {"from": low, "to": high, "result": {"text": text, "color": color, "index": n}}}
        for n, (low, high, text, color) in enumerate(ranges)
    ]


def states(**named: tuple[str, str]) -> list[Json]:
    """Value mappings: `_0=("fails", RED)` shows 0 as "fails"."""
    shown = {
        name.removeprefix("_"): {"text": text, "color": color, "index": n}
        for n, (name, (text, color)) in enumerate(named.items())
    }
    return [{"type": "value", "options": shown}]


def override(field: str, **properties: Any) -> Json:
    """Field options of the column or series of that name; `_` in a property's name stands for a dot."""
    return {
        "matcher": {"id": "byName", "options": field},
        "properties": [{"id": name.replace("__", "."), "value": value} for name, value in properties.items()],
    }


@attr.s(auto_attribs=True, kw_only=True)
class Current(Panel):  # type: ignore[misc]
    """A panel of today's Grafana. `kind` is its plugin."""

    kind: ClassVar[str] = ""
    custom: ClassVar[Json] = {}
    unit: str | None = None
    decimals: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    color: str = "palette-classic"
    mappings: list[Json] = attr.Factory(list)
    overrides: list[Json] = attr.Factory(list)
    no_value: str | None = None
    drill: str | None = None  # uid of the dashboard behind a click on a value
    high: int = 8  # rows of the grid
    wide: int = 0  # columns; 0: its share of the row

    def options(self) -> Json:
        """The plugin's own options."""
        raise NotImplementedError

    def field_options(self) -> Json:
        """The plugin's options of each field."""
        return dict(self.custom)

    def to_json_data(self) -> Json:
        """What Grafana stores."""
        self.thresholds = self.thresholds or steps(base=GREY)
        written = self.panel_json({"type": self.kind, "options": self.options()})
        defaults = {
            "color": {"mode": self.color},
            "custom": self.field_options(),
            "decimals": self.decimals,
            "links": [click(self.drill)] if self.drill else [],
            "mappings": self.mappings,
            "max": self.maximum,
            "min": self.minimum,
            "noValue": self.no_value,
            "thresholds": written["fieldConfig"]["defaults"]["thresholds"],
            "unit": self.unit,
        }
        written["fieldConfig"] = {"defaults": present(defaults), "overrides": self.overrides}
        return {key: written[key] for key in PANEL_KEYS if written.get(key) is not None}


class TimeSeries(Current):
    kind = "timeseries"
    custom: ClassVar[Json] = {
        "drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "pointSize": 5, "showPoints": "auto", "spanNulls": False,
        "axisPlacement": "auto",
    }  # fmt: skip

    def options(self) -> Json:
        return {"legend": LEGEND, "tooltip": TOOLTIP}


class StackedBars(TimeSeries):
    custom: ClassVar[Json] = {
        **TimeSeries.custom, "drawStyle": "bars", "fillOpacity": 70, "stacking": {"mode": "normal", "group": "A"}
    }  # fmt: skip


class StateTimeline(Current):
    kind = "state-timeline"
    custom: ClassVar[Json] = {"fillOpacity": 80, "lineWidth": 0}

    def options(self) -> Json:
        return {
            "alignValue": "left", "legend": LEGEND, "mergeValues": True, "rowHeight": 0.85, "showValue": "never",
            "tooltip": {"mode": "single", "sort": "none"}, "perPage": 20,
        }  # fmt: skip


class Stat(Current):
    kind = "stat"

    def options(self) -> Json:
        return {
            "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
            "percentChangeColorMode": "standard", "reduceOptions": REDUCED, "showPercentChange": False,
            "textMode": "auto", "wideLayout": True,
        }  # fmt: skip


@attr.s(auto_attribs=True, kw_only=True)
class Table(Current):
    kind = "table"
    sort_by: str | None = None
    coloured: bool = False  # cells wear the colour of their threshold

    def field_options(self) -> Json:
        cell = {"type": "color-background", "mode": "basic"} if self.coloured else {"type": "auto"}
        return {"align": "auto", "cellOptions": cell, "inspect": False, "filterable": True}

    def options(self) -> Json:
        sort = [{"displayName": self.sort_by, "desc": True}] if self.sort_by else []
        return {"cellHeight": "sm", "frameIndex": 0, "showHeader": True, "sortBy": sort}


class BarChart(Current):
    """Horizontal stacked bars, one for each row of a table."""

    kind = "barchart"
    custom: ClassVar[Json] = {"fillOpacity": 80, "lineWidth": 0, "axisPlacement": "auto"}

    def options(self) -> Json:
        return {
            "barRadius": 0, "barWidth": 0.8, "fullHighlight": False, "groupWidth": 0.7, "legend": LEGEND,
            "orientation": "horizontal", "showValue": "auto", "stacking": "normal", "tooltip": TOOLTIP,
            "xTickLabelMaxLength": 0, "xTickLabelRotation": 0, "xTickLabelSpacing": 0,
        }  # fmt: skip


@attr.s(auto_attribs=True, kw_only=True)
class Heatmap(Current):
    """Of Prometheus's classic buckets, already in rows."""

    kind = "heatmap"
    rows_unit: str = "s"
    custom: ClassVar[Json] = {"scaleDistribution": {"type": "linear"}}

    def options(self) -> Json:
        return {
            "calculate": False, "cellGap": 1, "cellValues": {},
            "color": {
                "exponent": 0.5, "fill": "blue", "mode": "scheme", "reverse": False, "scale": "exponential",
                "scheme": "Blues", "steps": 32,
            },
            "exemplars": {"color": "rgba(255,0,255,0.7)"}, "filterValues": {"le": 1e-9}, "legend": {"show": True},
            "rowsFrame": {"layout": "auto"}, "showValue": "never",
            "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": True},
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": self.rows_unit},
        }  # fmt: skip


class Histogram(Current):
    kind = "histogram"
    custom: ClassVar[Json] = {"fillOpacity": 60, "lineWidth": 1, "gradientMode": "none"}

    def options(self) -> Json:
        return {"bucketCount": 40, "combine": False, "legend": LEGEND, "tooltip": TOOLTIP}


@attr.s(auto_attribs=True, kw_only=True)
class Scatter(Current):
    """Points of one field against another."""

    kind = "xychart"
    x: str
    y: str
    custom: ClassVar[Json] = {"show": "points", "pointSize": {"fixed": 6}, "pointShape": "circle", "fillOpacity": 50}

    def options(self) -> Json:
        by_name = {name: {"matcher": {"id": "byName", "options": name}} for name in (self.x, self.y)}
        series = [{"frame": {"matcher": {"id": "byIndex", "options": 0}}, "x": by_name[self.x], "y": by_name[self.y]}]
        return {
            "legend": LEGEND, "mapping": "manual", "series": series, "tooltip": {"mode": "single", "sort": "none"}
        }  # fmt: skip


@attr.s(auto_attribs=True, kw_only=True)
class Geomap(Current):
    """A world map: one layer of markers for each query, placed by its columns `latitude` and `longitude`."""

    kind = "geomap"
    layers: Sequence[tuple[str, str, str | None, str]] = ()
    """refId, name in the legend, the field that colours (None: grey), the field whose text stands beside."""

    def options(self) -> Json:
        return {
            "basemap": {"config": {}, "name": "Basemap", "type": "default"},
            "controls": {
                "mouseWheelZoom": False, "showAttribution": True, "showDebug": False, "showMeasure": False,
                "showScale": False, "showZoom": True,
            },
            "layers": [markers(*layer) for layer in self.layers],
            "tooltip": {"mode": "details"},
            "view": {"allLayers": True, "id": "fit", "lat": 20, "lon": 0, "zoom": 2, "padding": 20},
        }  # fmt: skip


def markers(query: str, name: str, colour: str | None, label: str) -> Json:
    """A layer of circles."""
    fill = {"field": colour, "fixed": "dark-green"} if colour else {"fixed": "text"}
    style = {
        "color": fill, "opacity": 0.8, "rotation": {"fixed": 0, "max": 360, "min": -360, "mode": "mod"},
        "size": {"fixed": 9 if colour else 5, "max": 15, "min": 2},
        "symbol": {"fixed": "img/icons/marker/circle.svg", "mode": "fixed"},
        "symbolAlign": {"horizontal": "center", "vertical": "center"},
        "text": {"field": label, "fixed": "", "mode": "field"},
        "textConfig": {"fontSize": 12, "offsetX": 0, "offsetY": -14, "textAlign": "center", "textBaseline": "middle"},
    }  # fmt: skip
    return {
        "config": {"showLegend": bool(colour), "style": style},
        "filterData": {"id": "byRefId", "options": query},
        "location": {"latitude": "latitude", "longitude": "longitude", "mode": "coords"},
        "name": name, "tooltip": True, "type": "markers",
    }  # fmt: skip


@attr.s(auto_attribs=True, kw_only=True)
class Sentence(Current):
    """What to look at, in one sentence, across the top."""

    kind = "text"
    text: str
    high: int = 2

    def options(self) -> Json:
        return {
            "code": {"language": "plaintext", "showLineNumbers": False, "showMiniMap": False},
            "content": self.text, "mode": "markdown",
        }  # fmt: skip

    def to_json_data(self) -> Json:
        written = super().to_json_data()
        return {key: written[key] for key in ("id", "type", "gridPos", "options", "transparent")}


def click(uid: str) -> Json:
    """A link from a value to another dashboard that keeps the time and every variable."""
    return {"title": "Look closer", "url": f"/d/{uid}?${{__url_time_range}}&${{__all_variables}}", "targetBlank": False}


@attr.s(auto_attribs=True, kw_only=True)
class Board(Dashboard):  # type: ignore[misc]
    """A dashboard of today's Grafana, whose panels stand in `rows_of_panels`."""

    rows_of_panels: Sequence[Sequence[Current]] = ()
    variables: Sequence[Json] = ()
    notes: Sequence[Json] = ()  # annotation queries

    def to_json_data(self) -> Json:
        """What Grafana stores."""
        self.panels = place(self.rows_of_panels)
        self.schemaVersion = SCHEMA_VERSION
        written = {**super().to_json_data(), "timepicker": {}, "version": 1, "graphTooltip": 1}
        written["templating"] = {"list": list(self.variables)}
        written["annotations"] = {"list": [present(note) for note in self.notes]}
        return {key: written[key] for key in DASHBOARD_KEYS}


def place(rows: Sequence[Sequence[Current]]) -> list[Current]:
    """Number the panels and lay each row over the grid's 24 columns; returns all panels."""
    top, number, placed = 0, 0, []
    for row in rows:
        left = 0
        free = 24 - sum(panel.wide for panel in row)
        shared = [panel for panel in row if not panel.wide]
        for panel in row:
            number += 1
            width = panel.wide or free // len(shared)
            panel.id, panel.gridPos = number, {"h": panel.high, "w": width, "x": left, "y": top}
            placed.append(panel)
            left += width
        top += max(panel.high for panel in row)
    return placed


def present(options: Mapping[str, Any]) -> Json:
    """Without what is not set."""
    return {key: value for key, value in options.items() if value is not None}
