"""What the demo shows: six simulated providers of different character, a real model, and four vantage points.

Pure data: a scenario for the simulator, and a configuration file for the product itself, which the demo runs like
anybody else's. Everything simulated is marked so; providers and models have names that nobody bears.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from monitor.cli import model_server

KEY_VARIABLE = "FIRSTTOKEN_DEMO_KEY"
"""The demo's own API key comes to the configuration as any other: from the environment."""
MODEL_TARGET = "smollm2"
IDLE_SECONDS = 20
"""After so many idle seconds the real model is unloaded."""

VANTAGES: Mapping[str, dict[str, Any]] = {
    "here": {"network": "this machine"},
    "lagos": {"city": "Lagos", "country": "NG", "latitude": 6.4541, "longitude": 3.3947, "simulated": True},
    "london": {"city": "London", "country": "GB", "latitude": 51.5074, "longitude": -0.1278, "simulated": True},
    "virginia": {"city": "Ashburn", "country": "US", "latitude": 39.0438, "longitude": -77.4874, "simulated": True},
}
DISTANCES = {
    "lagos": {"rtt_ms": 105, "jitter_ms": 6},
    "london": {"rtt_ms": 76, "jitter_ms": 1},
    "virginia": {"rtt_ms": 2},
}
"""Round trips to a data centre in Virginia, as the simulator's proxies make them."""
ASHBURN = {"city": "Ashburn", "country": "US", "latitude": 39.0438, "longitude": -77.4874}

PROVIDERS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "steady": ("openai_chat", {"tls": "good"}, {"ttft_seconds": 0.18, "ttft_sigma": 0.04, "tokens_per_second": 80}),
    "jittery": ("anthropic", {}, {"ttft_seconds": 0.25, "ttft_sigma": 0.5, "burst_tokens": 4}),
    "sleepy": ("openai_chat", {}, {"ttft_seconds": 0.2, "sleeps_after_seconds": 12, "load_seconds": 1.5}),
    "crowded": ("anthropic", {}, {"ttft_seconds": 0.22, "ttft_sigma": 0.1, "tokens_per_second": 120}),
    "flaky": ("openai_responses", {}, {"ttft_seconds": 0.3, "fault": "truncated", "fault_share": 0.12}),
    "drifting": ("openai_responses", {}, {"ttft_seconds": 0.2, "ttft_sigma": 0.05}),
}
"""Name -> dialect, what its listener is like, how its model behaves."""
CHANGES = (
    {
        "listener": "crowded", "after_seconds": 25, "for_seconds": 25, "every_seconds": 80,
        "set": {"capacity": 1, "queue_limit": 1, "refusal": "overloaded", "tokens_per_second": 25},
    },
    {
        "listener": "drifting", "after_seconds": 75, "for_seconds": 90, "every_seconds": 240,
        "multiply": {"ttft_seconds": 2.5},
    },
)  # fmt: skip
"""The script: at times one provider has too many customers, and another gets slower for a while."""


PRICE = {"input": 0.4, "output": 1.6}
"""US dollars for a million tokens: what small hosted models cost. The real model on this machine is free."""


def scenario() -> dict[str, Any]:
    """What the simulator is asked to play."""
    listeners = [
        {"name": name, "models": {f"{name}-1": {"tokens": 24, **behaviour}}, "control_seconds": 0.004, **listener}
        for name, (_, listener, behaviour) in PROVIDERS.items()
    ]
    return {"listeners": listeners, "distances": DISTANCES, "timeline": list(CHANGES), "seed": 7}


def simulator_arguments() -> list[str]:
    """How the simulator's process is started."""
    return ["--config", json.dumps(scenario()), "--until-stdin-closes"]


def configuration(simulator: Mapping[str, Any], model_url: str | None, port: int) -> str:
    """The configuration file (JSON, which is YAML too) for what runs now.

    `simulator` is its ready line; `model_url` the real model's base URL, None without it. The model's key is named, not
    written. No database: the embedded one serves.
    """
    targets = {name: _simulated(name, simulator) for name in PROVIDERS}
    if model_url:
        targets[MODEL_TARGET] = _model(model_url)
    written = {
        "vantages": {name: _vantage(name, simulator) for name in VANTAGES},
        "targets": targets,
        "probes": _probes(with_model=model_url is not None),
        "prices": {"per_target": dict.fromkeys(PROVIDERS, PRICE)},
        "witness": _witness(simulator),
        "spool": {"directory": "."},
        "web": {"listen": f"127.0.0.1:{port}"},
        "log": {"level": "warning"},
    }
    return json.dumps(written, indent=2)


def _vantage(name: str, simulator: Mapping[str, Any]) -> dict[str, Any]:
    proxy = simulator["proxies"].get(name)
    return {**VANTAGES[name], **({"proxy": proxy["url"]} if proxy else {})}


def _witness(simulator: Mapping[str, Any]) -> dict[str, Any]:
    """Two listeners of the simulator stand for neutral endpoints: the demo speaks to nobody else."""
    ports = {name: simulator["listeners"][name]["port"] for name in ("jittery", "drifting")}
    endpoints = {f"sim-{name}": f"tcp://127.0.0.1:{port}" for name, port in ports.items()}
    return {"interval": "10s", "timeout": "4s", "endpoints": endpoints}


def _simulated(name: str, simulator: Mapping[str, Any]) -> dict[str, Any]:
    dialect, listener, _ = PROVIDERS[name]
    secure = {"ca_file": simulator["ca_file"], "http_version": "2"} if "tls" in listener else {}
    return {
        "provider": f"sim-{name}",
        "model": f"{name}-1",
        "dialect": dialect,
        "url": simulator["listeners"][name]["url"],
        "served_from": ASHBURN,
        "simulated": True,
        **secure,
    }


def _model(url: str) -> dict[str, Any]:
    return {
        "provider": "llama-cpp",
        "model": model_server.MODEL_NAME,
        "dialect": "openai_chat",
        "url": url,
        "api_key": f"${{{KEY_VARIABLE}}}",
    }


def _probes(*, with_model: bool) -> dict[str, Any]:
    """Compressed schedules. Lanes lie the closer, the closer the deadline is to the interval (monitor/grid.py).

    The two that watch for cold starts therefore send their four attempts within a few seconds and then leave the
    target alone for longer than it stays awake: the first vantage of a round meets it asleep, the others warm.
    """
    awake = [name for name in PROVIDERS if name != "sleepy"]
    prompt = "Say what a round trip is, in one sentence."
    probes = {
        "short": {
            "prompt": prompt, "max_output_tokens": 24, "interval": "8s", "deadline": "6s", "targets": awake,
            "control": True,
        },
        "after-idle": {
            "prompt": prompt, "max_output_tokens": 24, "interval": "20s", "deadline": "16s", "targets": ["sleepy"],
        },
    }  # fmt: skip
    if with_model:
        probes["cold-start"] = {
            "prompt": prompt, "max_output_tokens": 24, "interval": "32s", "deadline": "28s", "targets": [MODEL_TARGET],
        }  # fmt: skip
    return probes
