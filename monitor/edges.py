"""Where a CDN's edge stands: the airport code in its header -> city, country and position. No network, one small table.

An edge is where our connection ended, not where the model runs: the measured round trip may be compared with the
distance to this city. A code that is not in the table is unknown, never guessed.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from monitor.model import Place


def place_of(edge: str | None) -> Place | None:
    """The place of an edge such as `LHR` (cf-ray) or `JFK50-P1` (x-amz-cf-pop); None when it is unknown."""
    code = (edge or "")[:3].upper()
    rest = (edge or "")[3:]
    return _table().get(code) if not rest or not rest[0].isalpha() else None


@cache
def _table() -> dict[str, Place]:
    lines = files("monitor").joinpath("edges.txt").read_text(encoding="utf-8").splitlines()
    return dict(_entry(line) for line in lines if not line.startswith("#"))


def _entry(line: str) -> tuple[str, Place]:
    code, country, latitude, longitude, city = line.split("|")
    return code, Place(city=city, country=country, latitude=float(latitude), longitude=float(longitude))
