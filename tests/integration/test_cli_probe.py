"""`firsttoken probe` as a person and as a program meet it: exit codes, JSON, sentences, the waterfall."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from monitor.cli import main as command_line
from monitor.cli.waterfall import waterfall
from monitor.model import Attempt, Series
from monitor.simulator import Behaviour, Listener, Simulator, SimulatorProcess
from monitor.timeline import Phase
from tests.integration.probing import GOOD_BODY, STREAM_HEAD, attempt, in_loop, prober, says, series, served, whole
from tests.integration.running_up import until

COMMAND = str(Path(sys.executable).with_name("firsttoken"))
KEY = "sk-Planted+Key/9f8E7d6C5b4A3z1Y=="
QUICK = {"ttft_seconds": 0.02, "tokens": 5, "tokens_per_second": 500.0}


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatorProcess]:
    """Two models behind a key, one behind none, one that takes its time."""
    models = {"m": QUICK, "thinks": {**QUICK, "reasoning_tokens": 3}}
    slow = {"slow": {"ttft_seconds": 30.0}, "long": {"ttft_seconds": 0.01, "tokens": 2000, "tokens_per_second": 20.0}}
    scenario = {
        "listeners": [
            {"name": "open", "models": models},
            {"name": "keyed", "models": models, "api_key": "another", "echo_key": True},
            {"name": "tls", "models": models, "tls": "good"},
            {"name": "slow", "models": slow},
        ]
    }
    with SimulatorProcess(scenario, send_log=tmp_path_factory.mktemp("sim") / "sent") as running:
        yield running


def run(*arguments: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    ours = ("FIRSTTOKEN_VANTAGE", "FORCE_COLOR", "COLUMNS")
    plain = {k: v for k, v in os.environ.items() if k not in ours and not k.lower().endswith("_proxy")}
    env = {**plain, "COLUMNS": "80", **environment}
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=timeout, env=env, check=False)


def at(sim: SimulatorProcess, listener: str = "open", model: str = "m", dialect: str = "openai_chat") -> list[str]:
    return ["probe", "--url", sim.url(listener), "--dialect", dialect, "--model", model]


# For programs.

SECONDS = {"resolve", "connect", "tls", "send", "wait", "ttft", "ttfo", "total", "control"}
KEYS = {
    "": {
        "vantage", "target", "probe", "started_at", "outcome", "failure", "seconds", "tokens", "gaps", "http", "server",
        "tcp", "clock_source", "valid", "validity",
    },
    "seconds": SECONDS,
    "tokens": {"output", "reasoning", "visible", "input", "cached"},
    "gaps": {"p50", "p95", "max", "stalls", "burst_share"},
    "http": {"status", "version", "remote", "edge"},
    "tcp": {"min_rtt", "rtt", "retransmits"},
}  # fmt: skip


def has_every_key(report: dict[str, Any]) -> None:
    """All keys that the format promises, whatever happened."""
    for part, keys in KEYS.items():
        found = report[part] if part else report
        assert keys <= set(found), f"{part}: {keys - set(found)}"


def test_json_of_a_success_has_every_key(sim: SimulatorProcess) -> None:
    """One object a line for each attempt, exit code 0, nothing else on stdout or stderr."""
    done = run(*at(sim, model="thinks"), "--json", "--count", "2", "--control", "--vantage", "lagos")
    assert (done.returncode, done.stderr) == (0, "")
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == 2
    for report in reports:
        has_every_key(report)
        assert (report["vantage"], report["outcome"], report["failure"]) == ("lagos", "success", None)
        times = report["seconds"]
        assert times["resolve"] is None
        assert times["tls"] is None
        assert 0 < times["ttft"] < times["ttfo"] <= times["total"]
        assert times["control"] > 0
        assert report["tokens"]["reasoning"] == 3
        assert report["purpose"] == "one_off"


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic"])
def test_json_of_a_failure_has_every_key_too(sim: SimulatorProcess, dialect: str) -> None:
    """Exit code 1; the failure has kind, phase, text and advice; the wrong key shows nowhere."""
    done = run(*at(sim, "keyed", dialect=dialect), "--api-key-env", "SOME_KEY", "--json", SOME_KEY=KEY)
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    has_every_key(report)
    assert report["outcome"] == "failed"
    assert set(report["failure"]) >= {"kind", "phase", "text"}
    assert (report["failure"]["kind"], report["failure"]["phase"]) == ("unauthorized", "wait")
    assert report["advice"]
    assert {report["seconds"][name] for name in ("ttft", "ttfo", "total", "control", "generate")} == {None}
    assert "Planted" not in done.stdout


# For people.


def test_a_person_sees_phases_in_order_and_no_key(sim: SimulatorProcess) -> None:
    """The waterfall of a success and of a failure at 80 columns, the key nowhere."""
    keyed = {"SOME_KEY": KEY}
    secure = ["--ca-file", str(sim.ca_file), "--http", "2", "--api-key-env", "SOME_KEY"]
    good = run(*at(sim, "tls"), *secure, **keyed)
    assert (good.returncode, good.stderr) == (0, "")
    fits(good.stdout)
    in_order(good.stdout, ["connect", "tls", "send", "wait", "generate", "first token"])
    assert "success" in good.stdout
    bad = run(*at(sim, "keyed"), "--api-key-env", "SOME_KEY", **keyed)
    assert (bad.returncode, bad.stderr) == (1, "")
    fits(bad.stdout)
    in_order(bad.stdout, ["connect", "send", "wait"])
    assert "generate" not in bad.stdout
    assert "What to do: " in bad.stdout
    assert "Planted" not in good.stdout + bad.stdout


def fits(text: str, width: int = 80) -> None:
    """No line is longer than the terminal, and what wraps stays indented."""
    lines = [line.rstrip() for line in text.splitlines()]
    assert all(len(line) <= width for line in lines), max(lines, key=len)
    assert all(line.startswith("  ") or not line for line in lines[1:]), text


def in_order(text: str, words: list[str]) -> None:
    starts = [line.strip() for line in text.splitlines()]
    places = [next(i for i, line in enumerate(starts) if line.startswith(word)) for word in words]
    assert places == sorted(places), text


def drawn(made: Attempt, asked: Series, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False).print(waterfall(made, asked))
    return out.getvalue()


ENDINGS = {
    "good": whole(head=STREAM_HEAD + b"cf-ray: 1-LHR\r\nopenai-processing-ms: 12\r\nx-queue-time: 3\r\n"),
    "truncated": STREAM_HEAD + b"\r\n" + GOOD_BODY[:80],
    "401": b"HTTP/1.1 401 No\r\ncontent-length: 200\r\n\r\n" + b"why " * 50,
    "nothing": b"",
    "no HTTP": b"SSH-2.0\r\n\r\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_waterfall_fits_the_terminal_however_it_ended(ending: str, width: int) -> None:
    """Every row in its line, wrapped text indented; the bars never overlap the durations."""

    async def ask_it() -> tuple[Attempt, Series]:
        async with served(says(ENDINGS[ending])) as port, prober() as one:
            asked = series(f"http://localhost:{port}/v1", name="a target with quite a long name", model="m" * 30)
            return await attempt(one, asked), asked

    made, asked = in_loop(ask_it)
    text = drawn(made, asked, width)
    lines = [line.rstrip() for line in text.splitlines()]
    assert all(len(line) <= width for line in lines)
    in_order(text, [phase.value for phase in Phase if made.timeline.phase(phase) is not None])
    bars = [line for line in lines if "█" in line or "▲" in line]
    assert all(re.search(r"(–|\d (µs|ms|s)) ", line) for line in bars), text
    assert len([line for line in lines if "died here" in line]) <= 1
    assert "Traceback" not in text


# Mistakes.

USAGE: dict[str, tuple[list[str], str]] = {
    "nothing": (["probe"], "nothing to probe"),
    "no dialect": (["probe", "--url", "http://h/v1", "--model", "m"], "--dialect"),
    "no model": (["probe", "--url", "http://h/v1", "--dialect", "anthropic"], "--model"),
    "unknown dialect": (["probe", "--url", "http://h/v1", "--dialect", "smoke", "--model", "m"], "smoke"),
    "file and URL": (["probe", "x.yaml", "--url", "http://h/v1"], "not both"),
    "no such file": (["probe", "/nowhere/x.yaml"], "/nowhere/x.yaml"),
    "no scheme": (["probe", "--url", "host/v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "another scheme": (["probe", "--url", "ftp://host/v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "no host": (["probe", "--url", "http:///v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "bad port": (["probe", "--url", "http://h:99999/v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "port 0": (["probe", "--url", "http://h:0/v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "a host of digits": (["probe", "--url", "http://1.2.3.4.5/v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "a key in the query": (
        ["probe", "--url", f"http://h/v1?key={KEY}", "--dialect", "anthropic", "--model", "m"],
        "without secrets in its query",
    ),
    "a proxy's port 0": (
        ["probe", "--url", "http://h/v1", "--dialect", "anthropic", "--model", "m", "--proxy", "http://h:0"],
        "--proxy",
    ),
    "port of letters": (["probe", "--url", "http://h:x/v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "bad brackets": (["probe", "--url", "http://[h/v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "a blank": (["probe", "--url", "http://h h/v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "a control character": (["probe", "--url", "http://h/v1\x01", "--dialect", "anthropic", "--model", "m"], "'\\x01'"),
    "a line break": (["probe", "--url", "http://h/v\n1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "a carriage return": (["probe", "--url", "http://h/v1\r", "--dialect", "anthropic", "--model", "m"], "--url"),
    "an invisible letter": (["probe", "--url", "http://h/v\u200b1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "an escape in a model": (["probe", "--url", "http://h/v1", "--dialect", "anthropic", "--model", "\x1b[31m"], "x1b"),
    "an escape in a command": (["\x1b[31mnonsense"], "argument 1 holds a control character"),
    "a password": (["probe", "--url", f"http://u:{KEY[:10]}@h/v1", "--dialect", "anthropic", "--model", "m"], "--url"),
    "no such variable": (
        ["probe", "--url", "http://h/v1", "--dialect", "anthropic", "--model", "m", "--api-key-env", "NOWHERE_SET"],
        "NOWHERE_SET",
    ),
    "no such CA file": (
        ["probe", "--url", "http://h/v1", "--dialect", "anthropic", "--model", "m", "--ca-file", "/nowhere/ca.pem"],
        "/nowhere/ca.pem",
    ),
    "no PEM": (
        ["probe", "--url", "http://h/v1", "--dialect", "anthropic", "--model", "m", "--ca-file", __file__],
        "holds no certificate",
    ),
    "a device for a CA file": (
        ["probe", "--url", "http://h/v1", "--dialect", "anthropic", "--model", "m", "--ca-file", "/dev/zero"],
        "no such file",
    ),
    "a break in a proxy": (
        ["probe", "--url", "http://h/v1", "--dialect", "anthropic", "--model", "m", "--proxy", "http://h:1\n"],
        "--proxy",
    ),
    "no proxy": (
        ["probe", "--url", "http://h/v1", "--dialect", "anthropic", "--model", "m", "--proxy", "nonsense"],
        "--proxy",
    ),
    "a proxy with a password": (
        ["probe", "--url", "http://h/v1", "--dialect", "anthropic", "--model", "m", "--proxy", f"http://u:{KEY}@h:1"],
        "--proxy",
    ),
    "count of none": (["probe", "--url", "http://h/v1", "--count", "0"], "count"),
    "deadline of none": (["probe", "--url", "http://h/v1", "--deadline", "0"], "deadline"),
    "unknown option": (["probe", "--nonsense"], "nonsense"),
    "unknown command": (["nonsense"], "nonsense"),
}


@pytest.mark.parametrize("case", USAGE)
def test_bad_usage_is_a_sentence_and_exit_code_2(
    case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, naming what is wrong; no traceback, nothing on stdout, no secret."""
    arguments, word = USAGE[case]
    monkeypatch.setattr(sys, "argv", ["firsttoken", *arguments])
    with pytest.raises(SystemExit) as left:
        command_line.main()
    out, err = capsys.readouterr()
    assert left.value.code == 2
    assert word in err
    assert "Traceback" not in err
    assert out == ""
    assert "lanted+Ke" not in err


def configured(sim: SimulatorProcess, tmp_path: Path) -> str:
    """A configuration of two vantage points, two targets and two probes."""

    def target(model: str) -> dict[str, object]:
        return {"provider": "sim", "model": model, "dialect": "openai_chat", "url": sim.url("open")}

    file = tmp_path / "firsttoken.yaml"
    probe = {"prompt": "hi", "interval": "1m", "deadline": "5s"}
    content = {
        "vantages": {"lagos": {"city": "Lagos", "country": "NG"}, "london": {"city": "London", "country": "GB"}},
        "targets": {"alpha": target("m"), "beta": target("thinks")},
        "probes": {"fresh": probe, "kept": {**probe, "connection": "reused"}},
    }
    file.write_text(json.dumps(content))
    return str(file)


def test_probing_by_a_configuration_file(
    sim: SimulatorProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything of one vantage point, or only what --target and --probe name."""
    file = configured(sim, tmp_path)
    everything = run("probe", file, "--vantage", "lagos", "--json", "--count", "2")
    reports = [json.loads(line) for line in everything.stdout.splitlines()]
    assert everything.returncode == 0, everything.stderr
    assert {(r["vantage"], r["target"], r["probe"]) for r in reports} == {
        ("lagos", target, probe) for target in ("alpha", "beta") for probe in ("fresh", "kept")
    }
    assert sum(r["http"]["reused"] for r in reports) == 2
    one = run("probe", file, "--vantage", "london", "--target", "beta", "--probe", "fresh", "--json")
    assert [(r["vantage"], r["target"]) for r in map(json.loads, one.stdout.splitlines())] == [("london", "beta")]
    for arguments, words in ((["--target", "gamma"], ("gamma", "beta")), (["--vantage", "paris"], ("paris",))):
        monkeypatch.setattr(sys, "argv", ["firsttoken", "probe", file, "--vantage", "london", *arguments])
        with pytest.raises(SystemExit) as left:
            command_line.main()
        err = capsys.readouterr().err
        assert left.value.code == 2
        assert all(word in err for word in words)


# Signals and pipes.


@pytest.mark.parametrize("model", ["slow", "long"])
def test_ctrl_c_ends_it_at_once(sim: SimulatorProcess, model: str) -> None:
    """130, quickly, without a traceback."""
    command = [COMMAND, *at(sim, "slow", model), "--json", "--max-output-tokens", "5000"]
    known = sim.log().keys()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: sim.log().keys() - known, "the request under way")
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = child.communicate(timeout=20)
    assert child.returncode == 130, err
    assert time.monotonic() - began < 15  # the answers take thirty seconds and longer
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize("style", [["--json"], []])
def test_a_reader_that_has_seen_enough(sim: SimulatorProcess, style: list[str]) -> None:
    """`| head -1`: no traceback when the pipe closes."""
    command = [COMMAND, *at(sim), "--count", "40", *style]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline()
        child.stdout.close()
        err = child.stderr.read()
        child.wait(20)
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_a_dead_name_does_not_hold_the_command_up(sim: SimulatorProcess) -> None:
    """A deadline of half a second ends the command soon, whatever the resolver does; a name nobody knows is exit 1."""
    began = time.monotonic()
    arguments = ["--dialect", "openai_chat", "--model", "m", "--json", "--deadline", "0.5"]
    done = run("probe", "--url", "http://nowhere.invalid/v1", *arguments)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["failure"]["phase"] == "resolve"
    assert report["failure"]["kind"] in ("dns", "total_deadline", "connect_timeout")
    assert time.monotonic() - began < 15


def test_attempts_in_the_same_process_leave_the_loop_clean() -> None:
    """What the command does with the core, again and again in one process: no warning of unclosed things."""

    async def ask_thrice() -> list[Attempt]:
        async with Simulator([Listener(models={"m": Behaviour(**QUICK)})]) as near, prober() as one:
            return [await attempt(one, series(near.url())) for _ in range(3)]

    assert all(made.failure is None for made in in_loop(ask_thrice))
