"""Timings that servers report about themselves, as seconds in one flat dict. Stored beside ours, never instead.

| key | meaning |
| --- | --- |
| `queue` | waiting for a slot, before any work |
| `load` | loading the model |
| `pre_inference` | filters, routing and queue before the engine (Azure) |
| `prefill` | reading the prompt |
| `decode` | generating |
| `total` | as the provider defines it (Groq's leaves its queue out) |
| `ttft` | to the first token, queue included |
| `engine_ttft` | the same from the moment the engine began: queue excluded |
| `visible_ttft` | to the first visible token |
| `itl` | mean time from token to token |
| `engine_total` | the whole generation inside the engine |
| `processing` | header: the API's own time until it answered |
| `upstream` | header: gateway to origin until the response headers |
| `origin` | header `server-timing`: edge to origin until the response headers |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from monitor.agent.foreign_json import obj, quantity

_S, _MS = 1.0, 1e-3

Field = tuple[str, str, float]  # their name, our key, unit in seconds

_USAGE: tuple[Field, ...] = (  # Groq; GPUStack
    ("queue_time", "queue", _S),
    ("prompt_time", "prefill", _S),
    ("completion_time", "decode", _S),
    ("total_time", "total", _S),
    ("time_to_first_token_ms", "ttft", _MS),
    ("time_per_output_token_ms", "itl", _MS),
)
_TIME_INFO: tuple[Field, ...] = _USAGE[:4]  # Cerebras
_TIMINGS: tuple[Field, ...] = (  # llama.cpp
    ("prompt_ms", "prefill", _MS),
    ("predicted_ms", "decode", _MS),
)
_CHECKPOINT: tuple[Field, ...] = (  # Azure
    ("pre_inference_ms", "pre_inference", _MS),
    ("engine_ttft_ms", "engine_ttft", _MS),
    ("engine_tbt_ms", "itl", _MS),
    ("engine_ttlt_ms", "engine_total", _MS),
    ("service_ttft_ms", "ttft", _MS),
    ("user_visible_ttft_ms", "visible_ttft", _MS),
    ("service_ttlt_ms", "total", _MS),
)
_METRICS: tuple[Field, ...] = (  # vLLM: its time to first token starts when the request is scheduled
    ("queue_time_ms", "queue", _MS),
    ("time_to_first_token_ms", "engine_ttft", _MS),
    ("generation_time_ms", "decode", _MS),
    ("mean_itl_ms", "itl", _MS),
)
_SLA: tuple[Field, ...] = (("ttft_ms", "ttft", _MS),)  # Novita

_NS = 1e-9
_OLLAMA: tuple[Field, ...] = (
    ("load_duration", "load", _NS),
    ("prompt_eval_duration", "prefill", _NS),
    ("eval_duration", "decode", _NS),
    ("total_duration", "total", _NS),
)
_CONVERSE: tuple[Field, ...] = (("latencyMs", "total", _MS),)
_INVOCATION: tuple[Field, ...] = (
    ("firstByteLatency", "ttft", _MS),
    ("invocationLatency", "total", _MS),
)

_HEADERS: tuple[Field, ...] = (
    ("openai-processing-ms", "processing", _MS),
    ("x-envoy-upstream-service-time", "upstream", _MS),
    ("x-kong-upstream-latency", "upstream", _MS),
    ("x-queue-time", "queue", _MS),
    ("x-inference-time", "decode", _MS),
    ("x-total-time", "total", _MS),
    ("x-metrics-ttft-ms", "ttft", _MS),
    ("x-metrics-mean-itl-ms", "itl", _MS),
    ("x-metrics-e2e-ms", "total", _MS),
)
_SERVER_TIMING = re.compile(r"\bdur\s*=\s*([0-9.]{1,15})")


def _read(source: Any, fields: tuple[Field, ...]) -> dict[str, float]:
    source = obj(source)
    values = ((key, unit, quantity(source.get(name))) for name, key, unit in fields)
    return {key: value * unit for key, unit, value in values if value is not None}


def body_timings(chunk: Mapping[str, Any]) -> dict[str, float]:
    """What a chunk of an OpenAI-shaped stream says about the server's own time; {} mostly."""
    found: dict[str, float] = {}
    for name, fields in _BODY_PLACES:
        if chunk.get(name):
            found |= _read(chunk[name], fields)
    if chunk.get("x_groq"):
        found |= _read(obj(chunk["x_groq"]).get("usage"), _USAGE)
    return found


_BODY_PLACES: tuple[tuple[str, tuple[Field, ...]], ...] = (
    ("usage", _USAGE),
    ("time_info", _TIME_INFO),
    ("timings", _TIMINGS),
    ("latency_checkpoint", _CHECKPOINT),
    ("metrics", _METRICS),
    ("sla_metrics", _SLA),
)


def ollama_timings(line: Mapping[str, Any]) -> dict[str, float]:
    """What Ollama's last line says about the server's own time, seconds; a value of 0 is left out by the server."""
    return _read(line, _OLLAMA)


def bedrock_timings(metadata: Mapping[str, Any]) -> dict[str, float]:
    """What the `metadata` of ConverseStream says: the total alone."""
    return _read(metadata.get("metrics"), _CONVERSE)


def invocation_timings(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What the metrics of an InvokeModel stream say: total and time to the first byte inside Bedrock."""
    return _read(metrics, _INVOCATION)


def header_timings(headers: Mapping[str, str]) -> dict[str, float]:
    """What response headers (lower-case names) say about the server's own time, seconds."""
    found: dict[str, float] = {}
    for name, key, unit in _HEADERS:
        value = _number(headers.get(name, ""))
        if value is not None and key not in found:
            found[key] = value * unit
    stamp = _SERVER_TIMING.search(headers.get("server-timing", ""))
    if stamp and (value := _number(stamp.group(1))) is not None:
        found["origin"] = value * _MS
    return found


def _number(value: str) -> float | None:
    try:
        return quantity(float(value))
    except ValueError:
        return None
