"""How fast a hub takes attempts in: through HTTP into Postgres, beside a bare COPY of the same rows in the same run.

    python benchmarks/ingest.py [--attempts 20000] [--batch 500] [--limit 2000]

The hub is the real command in a process of its own, with an embedded Postgres (or DATABASE_URL); one agent's token, one
connection, one batch after the other, as an agent sends them. The attempts are generated and all different: marks,
tokens, facts and failures as a fleet has them. `judged_per_second` counts from the first upload until the hub has
given every verdict that was due: the rate that it keeps up with. Exit code 1 when fewer than `--limit` attempts a
second are taken in.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
from rich.progress import track

from monitor.agent.failures import ADVICE
from monitor.clock import Clock
from monitor.model import (
    Attempt,
    ClockSource,
    Doubt,
    Failure,
    FailureKind,
    HttpFacts,
    Outcome,
    ServiceFacts,
    TcpFacts,
    Tokens,
    Vantage,
)
from monitor.store import embedded, fleet, migrate
from monitor.store.engine import open_engine
from monitor.timeline import Gaps, Mark, Phase, Timeline
from monitor.wire import encode
from monitor.wire.fleet import encode_upload

AGENT = "0123456789abcdef" * 2
COMMAND = str(Path(sys.executable).with_name("firsttoken"))
TARGETS = 50


def attempt(chance: random.Random, at: datetime, number: int) -> Attempt:
    """One of many different ones."""
    at_ns = 0
    marks: dict[Mark, int] = {}
    steps = (
        (Mark.RESOLVE_START, 0.0), (Mark.RESOLVE_END, 0.02), (Mark.CONNECT_START, 0.0), (Mark.CONNECT_END, 0.1),
        (Mark.TLS_START, 0.0), (Mark.TLS_END, 0.1), (Mark.SEND_START, 0.0), (Mark.SEND_END, 0.0002),
        (Mark.HEADERS, 0.4), (Mark.FIRST_BYTE, 0.01), (Mark.FIRST_EVENT, 0.0), (Mark.FIRST_TOKEN, 0.05),
        (Mark.FIRST_VISIBLE, 0.0), (Mark.LAST_TOKEN, 1.0), (Mark.FINISH, 0.001), (Mark.DONE, 0.0), (Mark.END, 0.001),
    )  # fmt: skip
    for mark, seconds in steps:
        at_ns += round(seconds * chance.lognormvariate(0, 0.3) * 1e9)
        marks[mark] = at_ns
    failed = chance.random() < 0.03
    return Attempt(
        vantage="lagos",
        target=f"target-{number % TARGETS}",
        probe="p",
        probe_version="8633dfa0ca64",
        scheduled_at=at,
        started_at=at + timedelta(milliseconds=chance.randrange(50)),
        outcome=Outcome.FAILED if failed else Outcome.SUCCESS,
        failure=Failure(kind=FailureKind.OVERLOADED, phase=Phase.WAIT, text=ADVICE[FailureKind.OVERLOADED][:200])
        if failed
        else None,
        timeline=Timeline(marks),
        gaps=Gaps(p50=0.02, p95=chance.random() / 10, max=chance.random(), stalls=0, burst_share=chance.random()),
        tokens=Tokens(output=chance.randrange(20, 60), visible=40, input=chance.randrange(30, 60), cached=0),
        token_events=40,
        finish_reason="stop",
        http=HttpFacts(
            status=200,
            version="1.1",
            remote=f"203.0.113.{chance.randrange(256)}:443",
            family="ipv4",
            tls_version="TLSv1.3",
            edge="LHR",
            request_id=f"req_{chance.getrandbits(96):024x}",
            served_model="model-2026-01-01",
        ),
        server={"processing": chance.random()},
        service=ServiceFacts(version="fp_1", region="eu-west-1"),
        tcp=TcpFacts(min_rtt=0.1, rtt=0.1 + chance.random() / 100, retransmits=0, out_of_order=0),
        clock_source=ClockSource.KERNEL,
        validity=(Doubt.COALESCED,) if chance.random() < 0.1 else (),
        reads=42,
        cost=chance.random() / 1000,
    )


@contextmanager
def database(folder: Path) -> Iterator[str]:
    """DATABASE_URL, or an embedded Postgres for the run; migrated."""
    if given := os.environ.get("DATABASE_URL"):
        migrate.upgrade(given)
        yield given
        return
    with embedded.start(folder / "postgres") as server:
        migrate.upgrade(server.url)
        yield server.url


@contextmanager
def hub(folder: Path, url: str) -> Iterator[int]:
    """The real command, listening on the port that is given."""
    target = {"provider": "sim", "model": "m", "dialect": "openai_chat", "url": "http://127.0.0.1:9/v1"}
    port = 18_765 + os.getpid() % 1000
    file = folder / "fleet.yaml"
    file.write_text(
        json.dumps(
            {
                "vantages": {"lagos": {"country": "NG"}},
                "targets": {f"target-{n}": target for n in range(TARGETS)},
                "probes": {"p": {"prompt": "hi"}},
                "storage": {"database_url": url},
                "spool": {"directory": str(folder / "state")},
                "log": {"level": "error"},
            }
        )
    )
    process = subprocess.Popen([COMMAND, "hub", str(file), "--listen", f"127.0.0.1:{port}"])
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                asked = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                asked.request("GET", "/readyz")
                if asked.getresponse().status == 200:
                    break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def send(port: int, token: str, bodies: list[bytes]) -> list[float]:
    """Seconds of each upload."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"authorization": f"Bearer {token}", "content-encoding": "gzip"}
    lasted = []
    for body in track(bodies, "uploads", transient=True):
        began = time.perf_counter()
        line.request("POST", "/api/v1/agent/attempts", body, headers)
        answer = line.getresponse()
        told = answer.read()
        lasted.append(time.perf_counter() - began)
        if answer.status != 200 or json.loads(told)["rejected"]:
            raise SystemExit(f"the hub refuses: {answer.status} {told[:300]!r}")
    return lasted


def judged(url: str) -> float:
    """Waits until no verdict is due any more; the instant, monotonic seconds."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        while connection.execute("SELECT EXISTS (SELECT FROM unjudged WHERE due_at <= now())").fetchone() != (False,):
            time.sleep(0.2)
    return time.perf_counter()


def copy(url: str, batch: int) -> tuple[int, float]:
    """Rows and seconds of a bare COPY of what the hub stored, batch by batch, into an equal table without a hub."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE UNLOGGED TABLE taken AS SELECT * FROM attempts")
        connection.execute("CREATE TABLE bare (LIKE attempts INCLUDING ALL)")
        connection.commit()
        text = io.BytesIO()
        with connection.cursor().copy("COPY taken TO STDOUT") as out:
            for part in out:
                text.write(part)
        lines = text.getvalue().splitlines(keepends=True)
        began = time.perf_counter()
        for start in range(0, len(lines), batch):
            with connection.cursor().copy("COPY bare FROM STDIN") as into:
                into.write(b"".join(lines[start : start + batch]))
            connection.commit()
        return len(lines), time.perf_counter() - began


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--limit", type=float, default=2_000.0, help="attempts a second that must be taken in")
    asked = parser.parse_args()
    chance = random.Random(7)
    start = Clock().now() - timedelta(hours=6)
    step = timedelta(hours=5) / asked.attempts
    with tempfile.TemporaryDirectory(prefix="firsttoken-ingest-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with database(folder) as url, hub(folder, url) as port:
            engine = open_engine(url)
            token = fleet.enrol(engine, Vantage(name="lagos"), Clock().now())
            engine.dispose()
            numbers = range(asked.attempts)
            encoded = [
                encode(attempt(chance, start + n * step, n)) for n in track(numbers, "attempts", transient=True)
            ]
            bodies = [
                gzip.compress(encode_upload(AGENT, encoded[at : at + asked.batch]), 6)
                for at in range(0, len(encoded), asked.batch)
            ]
            began = time.perf_counter()
            lasted = send(port, token, bodies)
            all_judged = judged(url) - began
            rows, copied = copy(url, asked.batch)
    per_second = asked.attempts / sum(lasted)
    found = {
        "attempts": asked.attempts,
        "batch": asked.batch,
        "attempts_per_second": round(per_second),
        "judged_per_second": round(asked.attempts / all_judged),
        "upload_seconds_median": round(statistics.median(lasted), 4),
        "upload_seconds_worst": round(max(lasted), 4),
        "upload_kilobytes_median": round(statistics.median(map(len, bodies)) / 1000, 1),
        "rows_in_postgres": rows,
        "bare_copy_rows_per_second": round(rows / copied),
        "ratio_of_bare_copy": round(per_second / (rows / copied), 3),
        "limit": asked.limit,
        "met": per_second >= asked.limit and rows == asked.attempts,
    }
    print(json.dumps(found, indent=2))
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
