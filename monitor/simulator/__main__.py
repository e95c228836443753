"""`python -m monitor.simulator --config FILE_OR_JSON`: a simulator as a process of its own, for tests and benchmarks.

Prints one JSON line when it is ready (`Simulator.description`), and ends on SIGINT, SIGTERM or, with
`--until-stdin-closes`, when its parent is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

from monitor.model import ConfigError, MonitorError
from monitor.simulator.scenario import Scenario
from monitor.simulator.scenario_file import read_scenario, scenario
from monitor.simulator.server import Simulator
from monitor.simulator.serving import serve_until, told_to_end


def main(arguments: list[str] | None = None) -> int:
    """Run until told to end; 0, or 2 with a sentence on stderr for bad usage."""
    options = _options(arguments)
    try:
        asked = _scenario(options.config)
        asyncio.run(_run(asked, options.send_log, options.until_stdin_closes))
    except (MonitorError, OSError) as wrong:
        sys.stderr.write(f"simulator: {wrong}\n")
        return 2
    return 0


async def _run(asked: Scenario, send_log: str | None, until_stdin_closes: bool) -> None:
    with told_to_end() as ending:
        if until_stdin_closes:
            await _end_with_stdin(ending)
        await _serve(Simulator.of(asked, send_log=send_log, keep_sends=0), ending)


async def _serve(wanted: Simulator, ending: asyncio.Event) -> None:
    async with wanted as simulator:
        sys.stdout.write(json.dumps(simulator.description()) + "\n")
        sys.stdout.flush()
        gc.collect()
        gc.freeze()  # what exists now stays: a collection need not walk it while streams are due
        await serve_until(ending, simulator)


async def _end_with_stdin(ending: asyncio.Event) -> None:
    class Watch(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            ending.set()

    await asyncio.get_running_loop().connect_read_pipe(Watch, sys.stdin)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m monitor.simulator", description=__doc__)
    parser.add_argument("--config", default="{}", help="a scenario: a YAML or JSON file, or JSON itself")
    parser.add_argument("--send-log", help="write every send to this file, a JSON object a line")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when stdin does")
    return parser.parse_args(arguments)


def _scenario(config: str) -> Scenario:
    if not config.lstrip().startswith("{"):
        return read_scenario(Path(config))
    try:
        parsed: Any = json.loads(config)
    except ValueError as wrong:
        raise ConfigError(f"--config: not JSON: {wrong}") from wrong
    return scenario(parsed)


if __name__ == "__main__":
    sys.exit(main())
