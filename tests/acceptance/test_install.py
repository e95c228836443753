"""Setting up: a lock with hashes, one sentence for whatever is missing, and the wheel that users install."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import inspect

from monitor.store.engine import open_engine

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ["Makefile", "pyproject.toml", "README.md", "LICENSE", "locks", "tools", "monitor", "migrations"]


@pytest.fixture(scope="module")
def installer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "tools" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without `.venv`, as after a clone."""
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(
        command, cwd=folder, env={**clean, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


def test_an_old_python_gets_a_sentence(installer: ModuleType) -> None:
    """The version check names what is needed, what was found and what to type."""
    assert installer.python_problem((3, 11, 0)) is None
    assert installer.python_problem((4, 0, 0)) is None
    sentence = installer.python_problem((3, 9, 2), ["python3.12"])
    assert sentence == "Python 3.11 or newer is needed, and this one is 3.9. Name another: make ... PYTHON=python3.12"


def test_no_python_gets_a_sentence(checkout: Path) -> None:
    """`make` without an interpreter says so before anything else."""
    done = run(["make", "demo", "PYTHON=no-such-python"], checkout)
    assert done.returncode != 0
    assert done.stderr.startswith("There is no no-such-python on this machine")


def test_no_network_gets_a_sentence(checkout: Path) -> None:
    """Without a package index: one sentence, no traceback, and the next run goes on from there."""
    closed = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_CACHE_DIR": "1"}
    done = run(["make", "demo", "MODEL=none", f"PYTHON={sys.executable}"], checkout, **closed)
    assert done.returncode != 0
    assert "The package index cannot be reached: check the network" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert (checkout / ".venv" / "install.log").exists()


def test_a_python_without_ensurepip_gets_a_sentence(checkout: Path) -> None:
    """Debian's python3 without python3-venv: the sentence names the package to install."""
    hidden = "import sys, runpy; sys.modules['ensurepip'] = None; sys.argv[1:] = ['demo']"
    done = run([sys.executable, "-c", f"{hidden}; runpy.run_path('tools/install.py', run_name='__main__')"], checkout)
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_foreign_folder_is_left_alone(checkout: Path) -> None:
    """A `.venv` that is no virtual environment is not deleted."""
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "precious").write_text("data")
    done = run([sys.executable, "tools/install.py", "demo"], checkout)
    assert done.returncode == 1
    assert "in the way" in done.stderr
    assert (checkout / ".venv" / "precious").read_text() == "data"


@pytest.mark.parametrize(
    ("log", "lock", "expected"),
    [
        ("ERROR: No matching distribution found for xllamacpp==1", "model", "no ready-made package of xllamacpp"),
        ("ERROR: No matching distribution found for xllamacpp==1", "model", "make ... MODEL=none"),
        ("NewConnectionError\nERROR: No matching distribution found for rich==1", "demo", "index cannot be reached"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "test", "is not the one in locks/test.txt"),
        ("OSError: [Errno 28] No space left on device", "demo", "disk is full"),
        ("ERROR: something new", "demo", "ERROR: something new"),
        ("", "demo", "it gave no reason"),
    ],
)
def test_what_pip_says_becomes_a_sentence(installer: ModuleType, log: str, lock: str, expected: str) -> None:
    """Each of pip's known failures is told as what to do about it."""
    assert expected in installer.pip_problem(log, lock)


def test_locks_pin_everything_and_name_no_host() -> None:
    """Every requirement of a lock is exact and hashed; no lock names the index it was resolved from."""
    for lock in sorted((ROOT / "locks").glob("*.txt")):
        text = lock.read_text()
        pinned = re.findall(r"^[a-z0-9][^ ]*==\S+.*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
        assert len(pinned) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE)) > 0, lock
        assert "://" not in text


def test_the_test_lock_contains_the_demo_lock() -> None:
    """`make demo` and `make test` share one `.venv`: installing one never changes what the other needs."""
    demo, test = (
        set(re.findall(r"^[a-z0-9]\S*==\S+", (ROOT / "locks" / name).read_text(), re.MULTILINE))
        for name in ("demo.txt", "test.txt")
    )
    assert demo <= test


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("firsttoken-*.whl"))


def test_the_wheel_carries_its_data(wheel: Path) -> None:
    """Migrations, the page's files, the licence and the type marker are in the wheel; tests are not."""
    names = zipfile.ZipFile(wheel).namelist()
    assert "monitor/_migrations/env.py" in names
    assert any(name.startswith("monitor/_migrations/versions/") and name.endswith(".py") for name in names)
    assert any(name.startswith("monitor/hub/static/") for name in names)
    assert "monitor/py.typed" in names
    assert any(name.endswith("/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "tools/"))]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; third-party packages are borrowed from this one by path."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    assert run([sys.executable, "-m", "venv", str(home)], wheel.parent).returncode == 0
    done = run([str(home / "bin" / "pip"), "install", "-q", "--no-deps", "--no-index", str(wheel)], wheel.parent)
    assert done.returncode == 0, done.stderr
    [packages] = (home / "lib").glob("python*/site-packages")
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "borrowed.pth").write_text(borrowed + "\n")  # plain path: its own .pth files stay unread
    return home / "bin"


def test_the_wheel_runs(installed: Path, tmp_path: Path) -> None:
    """`firsttoken --version` works from an installed wheel, away from the checkout."""
    where = run([str(installed / "python"), "-c", "import monitor; print(monitor.__file__)"], tmp_path)
    assert str(installed.parent) in where.stdout
    done = run([str(installed / "firsttoken"), "--version"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"firsttoken \d+\.\d+\.\d+\S*\n", done.stdout)


def test_the_wheel_migrates(installed: Path, tmp_path: Path, empty_database_url: str) -> None:
    """`firsttoken migrate` finds its migrations inside the wheel; a second run finds nothing to do."""
    for _ in range(2):
        done = run([str(installed / "firsttoken"), "migrate"], tmp_path, DATABASE_URL=empty_database_url)
        assert done.returncode == 0, done.stderr
    engine = open_engine(empty_database_url)
    tables = inspect(engine).get_table_names()
    engine.dispose()
    assert {"attempts", "series"} <= set(tables)
