"""Make the pictures of the README again: the live page of a running demo, and a waterfall in the terminal.

    .venv/bin/python docs/pictures.py            needs chromium; takes about two minutes

Both show what the product shows; simulated things are labelled in them as everywhere.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.cli.waterfall import waterfall
from monitor.clock import Clock
from monitor.model import DialectName, Place, Probe, Purpose, Series, Slot, Target, Vantage
from monitor.simulator.process import SimulatorProcess

IMAGES = Path(__file__).parent / "images"
WATCHED_SECONDS = 100
TRIES = 30
"""A busy machine puts an attempt in doubt: the picture is of one that is not."""
CHROMIUM = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def page() -> None:
    """A screenshot of the demo's page after its cold starts have been seen."""
    browser = shutil.which("chromium") or sys.exit("chromium is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "firsttoken"), "demo", "--state", f"{folder}/demo"]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            url = _url_of(demo)
            time.sleep(WATCHED_SECONDS)
            target = IMAGES / "page.png"
            where = [f"--user-data-dir={folder}/browser", f"--screenshot={target}", "--window-size=1280,1180"]
            subprocess.run([browser, *CHROMIUM, *where, "--virtual-time-budget=6000", url], check=True, timeout=60)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.communicate(timeout=30)


def _url_of(demo: subprocess.Popen[str]) -> str:
    assert demo.stdout is not None
    for line in demo.stdout:
        found = re.search(r"http://[\w.:]+/", line)
        if found:
            return found.group()
    sys.exit("the demo did not say where its page is")


def terminal() -> None:
    """A probe over TLS from a simulated Lagos, as `firsttoken probe` prints it."""
    scenario = {
        "listeners": [
            {
                "name": "main",
                "tls": "good",
                "models": {
                    "small": {"ttft_seconds": 0.35, "headers_seconds": 0.1, "tokens": 24, "reasoning_tokens": 8}
                },
            }
        ],
        "distances": {"lagos": {"rtt_ms": 105, "jitter_ms": 6}},
    }
    with SimulatorProcess(scenario) as sim:
        series = Series(
            vantage=Vantage(
                name="lagos", place=Place(city="Lagos", country="NG"), proxy=sim.proxy("lagos"), simulated=True
            ),
            target=Target(
                name="assistant",
                provider="simulator",
                model="small",
                dialect=DialectName.OPENAI_CHAT,
                url=sim.url(),
                ca_file=sim.ca_file,
                simulated=True,
            ),
            probe=Probe(name="short", prompt="Count from one to ten in words.", control=True),
        )
        console = Console(record=True, width=92, file=sys.stderr)
        with asyncio.Runner(loop_factory=WatchedLoop) as runner:
            runner.run(_probe(series, console))
        drawing = console.export_svg(title="firsttoken probe")
        drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)  # no font from elsewhere
        (IMAGES / "waterfall.svg").write_text(drawing.replace("Fira Code", "DejaVu Sans Mono"))


async def _probe(series: Series, console: Console) -> None:
    prober = Prober(Clock())
    await prober.start()
    slot = Slot(vantage="lagos", target="assistant", probe="short", scheduled_at=prober.now(), number=0)
    for _ in range(TRIES):
        attempt = await prober.run(slot, series, purpose=Purpose.ONE_OFF)
        if attempt.valid:
            break
    else:
        sys.exit("this machine is too busy for a picture now: every attempt is in doubt")
    console.print(waterfall(attempt, series))
    await prober.close()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    terminal()
    page()
