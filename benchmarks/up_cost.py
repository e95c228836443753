"""What `firsttoken up` costs: memory, processor and start-up with many targets, and the spool's append.

    python benchmarks/up_cost.py [--targets 50] [--interval 10] [--seconds 60]

Runs the real command with an embedded Postgres against the simulator in another process, and reads the kernel's
figures of the `up` process alone: neither Postgres nor the simulator count. One JSON object at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from monitor.agent.spool import Spool
from monitor.clock import Clock
from monitor.model import Attempt, Outcome
from monitor.simulator import SimulatorProcess
from monitor.store import embedded
from monitor.store.attempts import recent
from monitor.store.engine import open_engine
from monitor.wire import decode, encode

TOKENS = 100
TTFT_SECONDS, RATE = 0.2, 50
STREAM_SECONDS = TTFT_SECONDS + TOKENS / RATE
LEAST_INTERVAL_SECONDS = STREAM_SECONDS + 1.0
"""The deadline lies below the interval, and a stream must end before it with some time to spare."""
LISTENER = {
    "name": "main",
    "models": {"*": {"ttft_seconds": TTFT_SECONDS, "tokens": TOKENS, "tokens_per_second": RATE}},
}


def configuration(url: str, targets: int, interval: float) -> dict[str, Any]:
    """Many targets, one probe, everything else as it comes."""
    names = [f"target-{n}" for n in range(targets)]
    one = {"provider": "sim", "model": "m", "dialect": "openai_chat", "url": url}
    return {
        "vantages": {"here": {"city": "London", "country": "GB"}},
        "targets": {name: {**one, "provider": f"provider-{n % 10}"} for n, name in enumerate(names)},
        "probes": {
            "short": {
                "prompt": "hi",
                "max_output_tokens": 2 * TOKENS,
                "interval": f"{interval}s",
                "deadline": f"{max(interval * 0.8, STREAM_SECONDS + 0.5):g}s",
            }
        },
        "web": {"listen": "127.0.0.1:0"},
        "log": {"format": "json"},
        "witness": "off",
    }


def resident_mb(pid: int) -> tuple[float, float]:
    """Resident memory now and at its highest, in megabytes (10^6 bytes)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return tuple(int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lines_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)
        else:
            sys.stderr.write(line)


def measure(folder: Path, targets: int, interval: float, seconds: float) -> dict[str, Any]:
    """Run `up` for a while and read what it took."""
    with SimulatorProcess({"listeners": [LISTENER]}) as simulator:
        file = folder / "firsttoken.yaml"
        file.write_text(json.dumps(configuration(simulator.url(), targets, interval)), encoding="utf-8")
        began = Clock().now()
        process = subprocess.Popen(
            [Path(sys.executable).with_name("firsttoken"), "up", str(file), "--state", str(folder / "state")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = lines_of(process)
        next(line for line in lines if line["message"] == "probing")
        threading.Thread(target=lambda: [*lines], daemon=True).start()
        figures = watch(process.pid, seconds)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        figures["exit_code"] = process.wait(30)
        figures["stop_seconds"] = round(time.monotonic() - asked, 2)
        said = rows(folder / "state" / "postgres", began, figures)
        bare = asyncio.run(bare_reader(simulator.url(), targets / interval, seconds / 3))
        return {**figures, **said, "bare_reader_processor_ms_per_stream": round(bare * 1e3, 2)}


async def bare_reader(url: str, per_second: float, seconds: float) -> float:
    """Processor seconds of a reader without HTTP, clock or record for such a stream: what waking up costs here."""
    where = urlsplit(url)
    body = json.dumps(
        {"model": "m", "stream": True, "max_tokens": 2 * TOKENS, "messages": [{"role": "user", "content": ""}]}
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"

    async def one(number: int) -> None:
        await asyncio.sleep(number / per_second)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write((head + body).encode())
        while await reader.read(65536):
            pass
        writer.close()

    streams = round(per_second * seconds)
    began = time.process_time()
    await asyncio.gather(*(one(number) for number in range(streams)))
    return (time.process_time() - began) / streams


def watch(pid: int, seconds: float) -> dict[str, Any]:
    """Memory and processor over `seconds`, after a third of that as warm-up."""
    time.sleep(seconds / 3)
    before, began, since = cpu_seconds(pid), time.monotonic(), Clock().now()
    time.sleep(seconds * 2 / 3)
    spent = cpu_seconds(pid) - before
    share = spent / (time.monotonic() - began)
    resident, highest = resident_mb(pid)
    return {
        "resident_mb": round(resident, 1),
        "highest_resident_mb": round(highest, 1),
        "processor_share_of_a_core": round(share, 4),
        "window": (since, Clock().now(), spent),
    }


def rows(data: Path, began: datetime, figures: dict[str, Any]) -> dict[str, Any]:
    """What the database says about the run; everything that `up` did in the window is shared among its attempts."""
    since, until, spent = figures.pop("window")
    with embedded.start(data) as server:
        engine = open_engine(server.url)
        attempts = recent(engine, 100_000, since=began - timedelta(minutes=1))
        engine.dispose()
    planned = (a for a in attempts if a.missed is None and not a.try_number)  # a confirming attempt follows the first
    lags = sorted((a.started_at - a.scheduled_at).total_seconds() * 1e3 for a in planned)
    measured = sum(since <= a.started_at < until and a.missed is None for a in attempts)
    return {
        "tokens": TOKENS,
        "processor_ms_per_attempt": round(spent / measured * 1e3, 2),
        "attempts": len(attempts),
        "not_good": sum(a.outcome is not Outcome.SUCCESS for a in attempts),
        "start_to_first_probe_seconds": round((min(a.started_at for a in attempts) - began).total_seconds(), 2),
        "start_to_first_slot_seconds": round((min(a.scheduled_at for a in attempts) - began).total_seconds(), 2),
        "lag_ms": {"p50": round(lags[len(lags) // 2], 2), "p99": round(lags[int(len(lags) * 0.99)], 2)},
    }


async def appends(folder: Path, count: int = 500) -> dict[str, float]:
    """One append after the other, each with its fsync; and how fast a burst of them goes in together."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    one = Attempt(
        vantage="here",
        target="t",
        probe="p",
        probe_version="v",
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.SUCCESS,
    )
    assert decode(encode(one)) == one
    spool = Spool(folder / "appends.sqlite3", 10**9, 10**6)
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await spool.append(one)
        took.append(time.perf_counter() - began)
    began = time.perf_counter()
    await asyncio.gather(*(spool.append(one) for _ in range(5_000)))
    burst = 5_000 / (time.perf_counter() - began)
    await spool.close()
    return {"median_ms": round(statistics.median(took) * 1e3, 3), "burst_per_second": round(burst)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=50)
    parser.add_argument("--interval", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    if chosen.interval < LEAST_INTERVAL_SECONDS:
        parser.error(
            f"--interval: found {chosen.interval:g}; allowed: {LEAST_INTERVAL_SECONDS:g} and more, "
            f"as each stream takes {STREAM_SECONDS:g} s"
        )
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        figures = measure(folder, chosen.targets, chosen.interval, chosen.seconds)
        figures["spool_append"] = asyncio.run(appends(folder))
    json.dump({"targets": chosen.targets, "interval_seconds": chosen.interval, **figures}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
