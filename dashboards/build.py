"""Writes `generated/*.json` from `*.dashboard.py`; with `--check` it only says what differs (exit code 1)."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from grafanalib._gen import DashboardEncoder

HERE = Path(__file__).resolve().parent
GENERATED = HERE / "generated"


def built() -> dict[str, str]:
    """File name -> JSON text of every dashboard."""
    sys.path.insert(0, str(HERE))
    found = {}
    for source in sorted(HERE.glob("*.dashboard.py")):
        written: Any = runpy.run_path(str(source))["dashboard"].to_json_data()
        name = source.name.removesuffix(".dashboard.py") + ".json"
        found[name] = json.dumps(written, cls=DashboardEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return found


def main() -> int:
    """Build or check; returns the exit code."""
    wanted = built()
    now = {path.name: path.read_text(encoding="utf-8") for path in GENERATED.glob("*.json")}
    different = sorted(name for name in wanted.keys() | now.keys() if wanted.get(name) != now.get(name))
    if "--check" in sys.argv[1:]:
        sys.stdout.writelines(f"generated/{name} is not what the sources give: make dashboards\n" for name in different)
        return 1 if different else 0
    for name in different:
        if name in wanted:
            (GENERATED / name).write_text(wanted[name], encoding="utf-8")
        else:
            (GENERATED / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
