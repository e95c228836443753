"""The dashboards as files: built from their sources, valid by Grafana's own types, complete and linked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "dashboards"
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((DASHBOARDS / "generated").glob("*.json"))}
SCHEMA = json.loads((DASHBOARDS / "schema" / "dashboard.schema.json").read_text("utf-8"))["definitions"]["Checked"]
KINDS = {kind["properties"]["type"]["const"]: kind for kind in SCHEMA["properties"]["panels"]["items"]["anyOf"]}
LIVE = ("overview", "incidents", "fleet")


def complaints(board: dict[str, Any]) -> Iterator[str]:
    """What Grafana's types do not allow in a dashboard; panel by panel, by its kind, so that messages can be read."""
    for error in Draft7Validator(SCHEMA).iter_errors({**board, "panels": []}):
        yield f"{list(error.absolute_path)}: {error.message[:300]}"
    for panel in board["panels"]:
        for error in Draft7Validator(KINDS[panel["type"]]).iter_errors(panel):
            yield f"{panel.get('title')}: {list(error.absolute_path)}: {error.message[:300]}"


def panels(name: str) -> list[dict[str, Any]]:
    return list(BOARDS[name]["panels"])


def test_the_committed_files_are_what_the_sources_give() -> None:
    """Nobody edits generated files by hand, or forgets `make dashboards`."""
    pytest.importorskip("grafanalib", reason="the extra `dashboards` is not installed")
    done = subprocess.run([sys.executable, DASHBOARDS / "build.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_types_allow_every_key_and_value(name: str) -> None:
    """Dashboard, variables, links, grid, options and field options; keys that Grafana does not know are refused."""
    assert list(complaints(BOARDS[name])) == []
    assert BOARDS[name]["schemaVersion"] == 42


def test_the_types_refuse_what_is_wrong() -> None:
    """The test above can fail: a dropped option, a value outside its list, an unknown key."""
    board = json.loads(json.dumps(BOARDS["latency"]))
    panel = next(one for one in board["panels"] if one["type"] == "timeseries")
    panel["options"]["graphMode"] = "area"
    panel["options"]["legend"]["displayMode"] = "fancy"
    board["rows"] = []
    found = "\n".join(complaints(board))
    assert "graphMode" in found
    assert "fancy" in found
    assert "rows" in found


def test_there_are_six_with_stable_uids() -> None:
    """Bookmarks and alerts' links go on working: a uid comes from the file's name."""
    assert {name: board["uid"] for name, board in BOARDS.items()} == {
        name: f"firsttoken-{name}" for name in ("cold-starts", "fleet", "geography", "incidents", "latency", "overview")
    }
    assert all(board["editable"] for board in BOARDS.values())


@pytest.mark.parametrize("name", BOARDS)
def test_each_opens_with_one_sentence(name: str) -> None:
    """What to look at, in one sentence, above everything."""
    first = panels(name)[0]
    assert first["type"] == "text"
    assert first["gridPos"] == {"x": 0, "y": 0, "w": 24, "h": first["gridPos"]["h"]}
    text = first["options"]["content"].strip("*")
    assert re.fullmatch(r"[A-Z][^.!?]+\.", text), text


@pytest.mark.parametrize("name", BOARDS)
def test_panels_stand_in_the_grid_without_overlap(name: str) -> None:
    """24 columns, no two panels on one cell, unique ids."""
    taken: set[tuple[int, int]] = set()
    for panel in panels(name):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert all(0 <= x < 24 for x, _ in cells)
        assert not taken & cells, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in panels(name)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", BOARDS)
def test_colours_are_explained_in_words(name: str) -> None:
    """Where a threshold changes a colour, the description or a word in the panel says what it means."""
    for panel in panels(name):
        defaults = panel.get("fieldConfig", {}).get("defaults", {})
        if len(defaults.get("thresholds", {}).get("steps", [])) > 1:
            mapped = any(option.get("options") for option in defaults["mappings"])
            said = re.search(r"[Yy]ellow|[Rr]ed |[Aa]bove|three intervals", panel.get("description", ""))
            assert mapped or said, panel["title"]


@pytest.mark.parametrize("name", LIVE)
def test_live_dashboards_stand_without_postgres(name: str) -> None:
    """They tell what is wrong now: variables, annotations and panels ask Prometheus; only a last row, which says so in
    each title, looks into the record.
    """
    board = BOARDS[name]
    recorded = [panel for panel in panels(name) if "rawSql" in json.dumps(panel)]
    assert all("from the record" in panel["title"] for panel in recorded)
    top = {panel["gridPos"]["y"] for panel in recorded}
    assert top in (set(), {max(panel["gridPos"]["y"] for panel in panels(name))})
    assert "rawSql" not in json.dumps(board["annotations"])
    kinds = {one["datasource"]["type"] for one in board["templating"]["list"] if one["type"] == "query"}
    assert kinds == {"prometheus"}


@pytest.mark.parametrize("name", BOARDS)
def test_every_dashboard_has_the_six_variables_and_links_that_keep_them(name: str) -> None:
    """One can go from any dashboard, and from values in it, to the others with the same choice and time."""
    board = BOARDS[name]
    names = {one["name"] for one in board["templating"]["list"]}
    assert {"vantage", "country", "provider", "target", "model", "probe"} <= names
    uids = {other["uid"] for other in BOARDS.values()}
    assert {link["url"].removeprefix("/d/") for link in board["links"]} == uids
    assert all(link["includeVars"] and link["keepTime"] for link in board["links"])
    drills = [
        link for panel in board["panels"] for link in panel.get("fieldConfig", {}).get("defaults", {}).get("links", [])
    ]
    for link in drills:
        uid, _, query = link["url"].removeprefix("/d/").partition("?")
        assert uid in uids
        assert query == "${__url_time_range}&${__all_variables}"
    assert drills


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_obeys_the_variables(name: str) -> None:
    """A choice of a vantage or target changes every panel that is not about our own processes."""
    own = re.compile(r"firsttoken_(agent|store|spool|config|build|loop|scheduler|delivered|uplink|rejected|budget)_?")
    for panel in panels(name):
        for target in panel.get("targets", []):
            asked = target.get("expr") or target["rawSql"]
            assert ("vantage" in asked and "$" in asked and "target" in asked) or own.search(asked), panel["title"]


def test_provisioned_data_sources_are_those_that_dashboards_open_with() -> None:
    """Their uids are the defaults of the variables `metrics` and `record`; no password is there."""
    folder = DASHBOARDS / "provisioning"
    sources = yaml.safe_load((folder / "datasources.yaml").read_text("utf-8"))["datasources"]
    given = {source["uid"]: source["type"] for source in sources}
    for board in BOARDS.values():
        wanted = {
            one["current"]["value"]: one["query"] for one in board["templating"]["list"] if one["type"] == "datasource"
        }
        assert wanted == given
    passwords = [source["secureJsonData"]["password"] for source in sources if "secureJsonData" in source]
    assert all(password.startswith("$__file{") for password in passwords)
    providers = yaml.safe_load((folder / "dashboards.yaml").read_text("utf-8"))["providers"]
    assert providers[0]["allowUiUpdates"] is False
