"""How exactly a connect over a real distance is measured: the median against the round trip that the network makes.

    sudo python benchmarks/distance.py --emulator PATH/farnet.py [--probes 21]

The emulator of far hosts gives network namespaces true round trips (root, iproute2, /dev/net/tun). Exit code 1 when a
median is off by more than 3 % and more than 1 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from rich.progress import track

RTT_MS = {"lagos": 105.0, "london": 76.0, "virginia": 2.0}
LINKS = ["lagos=105,jitter=6", "london=76", "virginia=2"]
CLOUD = "10.99.0.1"
COMMAND = str(Path(sys.executable).with_name("firsttoken"))
SCENARIO = {"listeners": [{"name": "a", "host": CLOUD, "models": {"m": {"ttft_seconds": 0.02, "tokens": 3}}}]}


def connects(vantage: str, url: str, probes: int) -> list[float]:
    """Milliseconds of `connect`, each from a fresh process, as `firsttoken probe` reports them."""
    found = []
    for _ in track(range(probes), vantage, transient=True):
        asked = ["probe", "--url", url, "--dialect", "openai_chat", "--model", "m", "--json"]
        done = subprocess.run(
            ["ip", "netns", "exec", f"far-{vantage}", COMMAND, *asked], capture_output=True, text=True, check=True
        )
        found.append(json.loads(done.stdout)["seconds"]["connect"] * 1e3)
    return found


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulator", type=Path, required=True)
    parser.add_argument("--probes", type=int, default=21)
    asked = parser.parse_args()
    pipes = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE, "text": True}
    network = subprocess.Popen([sys.executable, str(asked.emulator), "up", *LINKS], **pipes)
    simulator = None
    try:
        assert network.stdout is not None
        if network.stdout.readline().strip() != "ready":
            raise SystemExit("the emulator did not start: it needs root, iproute2 and /dev/net/tun")
        simulate = [sys.executable, "-m", "monitor.simulator", "--config", json.dumps(SCENARIO), "--until-stdin-closes"]
        simulator = subprocess.Popen(["ip", "netns", "exec", "far-cloud", *simulate], **pipes)
        assert simulator.stdout is not None
        port = json.loads(simulator.stdout.readline())["listeners"]["a"]["port"]
        url = f"http://{CLOUD}:{port}/v1"
        found = {name: statistics.median(connects(name, url, asked.probes)) for name in RTT_MS}
    finally:
        for process in (simulator, network):
            if process is not None:
                process.terminate()
                process.wait(10)
    told = {}
    for name, rtt in RTT_MS.items():
        error = found[name] - rtt
        told[name] = {
            "round_trip_ms": rtt,
            "median_connect_ms": round(found[name], 3),
            "error_ms": round(error, 3),
            "error_percent": round(100 * error / rtt, 2),
            "met": abs(error) <= max(1.0, 0.03 * rtt),
        }
    print(json.dumps({"probes": asked.probes, "vantages": told}, indent=2))
    return 0 if all(one["met"] for one in told.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
