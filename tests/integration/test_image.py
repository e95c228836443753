"""The Dockerfile's build: what it copies from here is enough for the wheel, and the wheel has what services need."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_build_context_is_enough(tmp_path: Path) -> None:
    """From exactly what the Dockerfile copies, the wheel builds, with migrations, dashboards and templates in it."""
    context, out = tmp_path / "src", tmp_path / "out"
    for line in re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            place = context / (target if target != "./" else source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, place)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(build, cwd=context, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("firsttoken-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"monitor/_migrations/versions/0001_attempts.py", "monitor/_templates/firsttoken.tmpl"} <= names
    assert any(name.startswith("monitor/_dashboards/") for name in names)
    assert "monitor/hub/static/page.js" in names


def test_locked_packages_cover_what_the_image_runs() -> None:
    """The lock that the image installs names every package of the hub, the agent and the simulator."""
    locked = set(re.findall(r"^([a-z0-9][a-z0-9-]*)==", (ROOT / "locks" / "demo.txt").read_text(), re.MULTILINE))
    project = (ROOT / "pyproject.toml").read_text()
    wanted = project.split("dependencies = [")[1].split("]\n")[0]
    for extra in ("hub", "simulator"):
        wanted += re.split(rf"^{extra} = \[", project, flags=re.MULTILINE)[1].split("]\n")[0]
    needed = {name.lower() for name in re.findall(r'"([A-Za-z0-9-]+)[\[><=,]', wanted)}
    assert len(needed) > 15
    assert needed <= locked
