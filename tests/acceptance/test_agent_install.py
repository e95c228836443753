"""An agent's machine has an agent's packages: the wheel with what locks/agent.txt names, and none of the hub's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from monitor.extras import HUB_PACKAGES
from tests.integration.running_fleet import running

ROOT = Path(__file__).resolve().parents[2]


def locked() -> list[str]:
    return re.findall(r"^([a-z0-9][a-z0-9-]*)==", (ROOT / "locks" / "agent.txt").read_text(), re.MULTILINE)


def borrow(name: str, packages: Path) -> None:
    """Link a package of this environment into another one: what an index would give, without an index."""
    try:
        found = distribution(name)
    except PackageNotFoundError:  # of another platform
        return
    for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
        target = packages / top
        if not target.exists():
            target.symlink_to(Path(str(found.locate_file(top))))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel and the agent's packages."""
    folder = tmp_path_factory.mktemp("agent-machine")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wheel = next(folder.glob("firsttoken-*.whl"))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pip = [str(folder / "venv/bin/pip"), "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for name in locked():
        borrow(name, packages)
    return folder / "venv" / "bin"


def test_no_package_of_the_hub_is_there(installed: Path) -> None:
    """No database driver, no web framework: nothing that an agent could be led to use."""
    ask = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n)])"
    done = subprocess.run([installed / "python", "-c", ask, *HUB_PACKAGES], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["hub", "up", "migrate", "vantage", "coverage"])
def test_what_needs_the_hubs_packages_says_so(installed: Path, command: str) -> None:
    """One sentence and exit code 2, not a traceback."""
    done = subprocess.run([installed / "firsttoken", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install '.[hub]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_agent_measures_with_these_packages_alone(installed: Path, tmp_path: Path, database_url: str) -> None:
    """It takes its configuration from a hub of another environment, probes, and delivers."""
    with running(tmp_path, database_url) as fleet:
        agent = fleet.agent("lagos")
        agent.command = str(installed / "firsttoken")
        agent.start()
        fleet.until_rows(4)
        fleet.settled()
        assert fleet.account().balanced()


def test_the_install_script_keeps_versions_apart(installed: Path, tmp_path: Path) -> None:
    """Install, upgrade, roll back: `current` is one whole version at any time."""
    script = ROOT / "deploy" / "agent" / "install.sh"
    wheel = next(installed.parent.parent.glob("firsttoken-*.whl"))
    root = tmp_path / "opt"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(script), "--root", str(root), "--no-service", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for name in (f"{version}/installed" for version in ("0.0.1", "0.0.2")):
        (root / "versions" / name).parent.mkdir(parents=True)
        (root / "versions" / name).touch()  # stand here already: what pip does is pip's
    for version in ("0.0.1", "0.0.2"):
        copy = tmp_path / wheel.name.replace(wheel.name.split("-")[1], version)
        shutil.copy(wheel, copy)
        done = run(str(copy))
        assert done.returncode == 0, done.stderr
        assert (root / "current").readlink() == Path("versions") / version
    assert run("--rollback").stdout == "current: 0.0.1\n"
    assert run("--rollback").stdout == "current: 0.0.2\n"
    assert run("--list").stdout.splitlines() == ["0.0.1", "0.0.2 (current)"]
    for bad in ((), ("nothing.whl",), (str(tmp_path / "firsttoken-9-py3-none-any.whl"),), ("--lock",), ("--nonsense",)):
        refused = run(*bad)
        assert (refused.returncode, refused.stderr.startswith("install.sh: ")) == (2, True)
    assert (root / "current").readlink() == Path("versions/0.0.2")


def test_whoever_the_agent_runs_as_may_read_its_programs(tmp_path: Path) -> None:
    """A caller who lets nobody read what he makes installs an agent that another user can start."""
    wheel = tmp_path / "firsttoken-1.0.0-py3-none-any.whl"
    about = "firsttoken-1.0.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("tiny.py", "def main(): print('firsttoken 1.0.0')\n")
        made.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: firsttoken\nVersion: 1.0.0\n")
        made.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{about}/entry_points.txt", "[console_scripts]\nfirsttoken = tiny:main\n")
        made.writestr(f"{about}/RECORD", "")
    script, root = ROOT / "deploy" / "agent" / "install.sh", tmp_path / "opt"
    command = ["sh", str(script), "--root", str(root), "--no-service", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o077)
    assert done.returncode == 0, done.stderr
    program = root / "current" / "bin" / "firsttoken"
    for path in (root, root / "versions", program, *program.resolve().parents[:2]):
        assert path.stat().st_mode & 0o005 == 0o005, path
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "firsttoken 1.0.0\n"
