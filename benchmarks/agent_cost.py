"""What an agent costs its machine: memory, processor and disk with many targets at one probe a minute.

    python benchmarks/agent_cost.py [--targets 50] [--interval 60] [--seconds 180]

A real hub with an embedded Postgres, the simulator and the agent, each in a process of its own; the agent alone counts.
Exit code 1 when it takes more than 100 MB of resident memory, 2 % of a core, or 2 ms (median) to append to its spool.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from up_cost import LISTENER, TOKENS, appends, watch

from monitor.clock import Clock
from monitor.model import Vantage
from monitor.simulator import SimulatorProcess
from monitor.store import embedded, fleet, migrate
from monitor.store.engine import open_engine

COMMAND = str(Path(sys.executable).with_name("firsttoken"))
LIMITS = {"resident_mb": 100.0, "share_of_a_core": 0.02, "append_ms": 2.0}


def hub_file(folder: Path, url: str, database: str, targets: int, interval: float) -> Path:
    """The fleet's configuration: so many targets, one probe."""
    one = {"provider": "sim", "model": "m", "dialect": "openai_chat", "url": url}
    told = {
        "vantages": {"lagos": {"country": "NG"}},
        "targets": {f"target-{n}": {**one, "provider": f"provider-{n % 10}"} for n in range(targets)},
        "probes": {
            "short": {
                "prompt": "hi",
                "max_output_tokens": 2 * TOKENS,
                "interval": f"{interval:g}s",
                "deadline": f"{interval / 2:g}s",
            }
        },
        "storage": {"database_url": database},
        "spool": {"directory": str(folder / "hub")},
        "log": {"level": "error"},
        "witness": {"endpoints": {f"near-{n}": f"tcp://{urlsplit(url).netloc}" for n in range(5)}},
    }
    file = folder / "fleet.yaml"
    file.write_text(json.dumps(told), encoding="utf-8")
    return file


def measure(folder: Path, targets: int, interval: float, seconds: float) -> dict[str, Any]:
    """Run all of it for a while and read what the agent took."""
    port = 19_765 + os.getpid() % 1000
    with SimulatorProcess({"listeners": [LISTENER]}) as simulator, embedded.start(folder / "postgres") as server:
        migrate.upgrade(server.url)
        engine = open_engine(server.url)
        (folder / "token").write_text(fleet.enrol(engine, Vantage(name="lagos"), Clock().now()))
        file = hub_file(folder, simulator.url(), server.url, targets, interval)
        own = {"hub": f"http://127.0.0.1:{port}", "token_file": "token", "state": "state", "log": {"level": "warning"}}
        (folder / "agent.yaml").write_text(json.dumps(own), encoding="utf-8")
        hub = subprocess.Popen([COMMAND, "hub", str(file), "--listen", f"127.0.0.1:{port}"])
        await_hub(port)
        agent = subprocess.Popen([COMMAND, "agent", "--file", str(folder / "agent.yaml")])
        figures = watch(agent.pid, seconds)
        figures.pop("window")
        agent.terminate()
        figures["exit_code"] = agent.wait(40)
        with engine.connect() as connection:
            figures["rows_at_the_hub"] = connection.exec_driver_sql("SELECT count(*) FROM attempts").scalar_one()
        engine.dispose()
        hub.terminate()
        hub.wait(20)
        return figures


def await_hub(port: int) -> None:
    """Wait until it answers."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.2)
    raise SystemExit("the hub does not answer")


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=50)
    parser.add_argument("--interval", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=180.0, help="of which the first third is warm-up")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        figures = measure(folder, asked.targets, asked.interval, asked.seconds)
        figures["spool_append"] = asyncio.run(appends(folder))
    met = (
        figures["highest_resident_mb"] <= LIMITS["resident_mb"]
        and figures["processor_share_of_a_core"] <= LIMITS["share_of_a_core"]
        and figures["spool_append"]["median_ms"] <= LIMITS["append_ms"]
        and figures["rows_at_the_hub"] > 0
    )
    told = {"targets": asked.targets, "interval_seconds": asked.interval, **figures, "limits": LIMITS, "met": met}
    json.dump(told, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
