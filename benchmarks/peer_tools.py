"""Published tools that measure TTFT, in an environment of their own: how each is installed, run and read.

Hides their options and output formats. Both take their durations from `time.perf_counter`, which on Linux and
macOS is the clock of `time.monotonic`, so start and TTFT give the instant at which a tool saw the first token.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Cell, Reading

from monitor.timeline import NS

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "benchmarks" / "peers.lock"
ENVIRONMENT = ROOT / ".venv-peers"
INSTALL_SECONDS = 900.0
RUN_SECONDS = 45.0  # beyond the load's own duration

# aiperf wants a tokenizer although the server counts; its built-in one is downloaded when it is first used.
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "hello": 1}, "unk_token": "[UNK]"},
}
TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}


class PeerError(Exception):
    """A tool that cannot be measured; the message is the sentence that says why."""


def version(tool: str) -> str:
    """As locked."""
    found = re.search(rf"^{tool}==(\S+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else "?"


def install() -> None:
    """Make `.venv-peers` what the lock says, unless it is. Raises PeerError."""
    stamp = ENVIRONMENT / ".installed"
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    print(f"Installing aiperf and llmeter into {ENVIRONMENT.name} (once; about 1.3 GB on disk)", file=sys.stderr)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)],
        [*pip, "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)],
    ):
        said = _said(command, INSTALL_SECONDS)
        if said is not None:
            raise PeerError(f"aiperf and llmeter could not be installed, so they are left out: {said}")
    stamp.write_text(digest, encoding="utf-8")


def aiperf(cell: Cell, url: str) -> list[Reading]:
    """The cell's streams measured by `aiperf profile`. Raises PeerError."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _write_json(directory / "tokenizer" / "tokenizer.json", TOKENIZER)
        _write_json(directory / "tokenizer" / "tokenizer_config.json", TOKENIZER_CONFIG)
        _write_json(directory / "prompts.jsonl", {"text": "hello"})
        command = _aiperf_command(cell, url, directory)
        said = _said(command, RUN_SECONDS + cell.spread_seconds)
        if said is not None:
            raise PeerError(f"aiperf failed: {said}")
        return _aiperf_readings(directory / "out")


def _aiperf_command(cell: Cell, url: str, directory: Path) -> list[str]:
    options = {
        "model": f"rate-{cell.rate}",
        "url": url,
        "endpoint": "/chat/completions",
        "tokenizer": directory / "tokenizer",
        "input-file": directory / "prompts.jsonl",
        "custom-dataset-type": "single_turn",
        "request-rate": cell.streams / cell.spread_seconds,
        "arrival-pattern": "constant",
        "request-count": cell.streams,
        "warmup-request-count": 2,
        "connection-reuse-strategy": "never",
        "export-level": "raw",  # the one that tells the clock's reading at the start
        "ui": "none",
        "artifact-dir": directory / "out",
    }
    flags = ["--streaming", "--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics"]
    values = [text for option, value in options.items() for text in (f"--{option}", str(value))]
    return [str(ENVIRONMENT / "bin" / "aiperf"), "profile", *flags, *values]


def _aiperf_readings(out: Path) -> list[Reading]:
    """aiperf's own TTFT of each request, joined with its raw record's start and the server's name of the stream."""
    ttft_ns = {}
    for record in _json_lines(out / "profile_export.jsonl"):
        metric = record["metrics"].get("time_to_first_token")
        if metric is not None and record["metadata"]["benchmark_phase"] == "profiling":
            ttft_ns[record["metadata"]["x_request_id"]] = round(metric["value"] * _NS_OF[metric["unit"]])
    readings = []
    for record in _json_lines(out / "profile_export_raw.jsonl"):
        duration_ns = ttft_ns.get(record["metadata"]["x_request_id"])
        if duration_ns is not None:
            started_ns = record["start_perf_ns"]
            chunk = json.loads(record["responses"][0]["packets"][0]["value"])
            readings.append(Reading(_stream(chunk["id"]), started_ns, started_ns + duration_ns))
    return readings


_NS_OF = {"ms": 1_000_000, "s": NS}


def llmeter(cell: Cell, url: str, clients: int, turn_seconds: float) -> list[Reading]:
    """About the cell's streams, by `clients` threads whose streams follow one another. Raises PeerError."""
    script = ROOT / "benchmarks" / "llmeter_streams.py"
    numbers = (clients, round(cell.streams / clients), turn_seconds)
    command = [str(ENVIRONMENT / "bin" / "python"), str(script), url, f"rate-{cell.rate}", *map(str, numbers)]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "responses.jsonl"
        said = _said(command, RUN_SECONDS + cell.spread_seconds, out)
        if said is not None:
            raise PeerError(f"llmeter failed: {said}")
        responses = [r for r in _json_lines(out) if r["ttft"] is not None and r["started"] is not None]
    return [
        Reading(_stream(r["id"]), round(r["started"] * NS), round((r["started"] + r["ttft"]) * NS)) for r in responses
    ]


def _stream(completion_id: str) -> str:
    """The simulator names a completion `chatcmpl-X` that it streams in answer to the request `req_X`."""
    return "req_" + completion_id.removeprefix("chatcmpl-")


def _said(command: Sequence[str], seconds: float, output: Path | None = None) -> str | None:
    """Run a command in a process group of its own: None when it ended well, else its last words in one line."""
    with tempfile.TemporaryFile() as words, (output or Path(os.devnull)).open("wb") as out:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=words, env=_environ(), start_new_session=True
            )
        except OSError as error:
            return str(error)
        try:
            status = process.wait(seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return f"it had not ended after {seconds:.0f} s"
            raise
        words.seek(0)
        text = words.read().decode(errors="replace")
    return None if status == 0 else _last_words(text) or f"exit status {status}"


def _last_words(text: str) -> str:
    """The last line that calls itself an error, else the last of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line]
    return (errors or lines or [""])[-1][:300]


def _environ() -> dict[str, str]:
    """Ours, with loopback reached directly. Offline, aiperf would not take a tokenizer from a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "LLMETER_DISABLE_ALL_PROGRESS_BARS": "1"}
    return {**kept, **quiet, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def _json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise PeerError(f"{path.name} was not written")
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]
