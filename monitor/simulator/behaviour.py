"""How a simulated model behaves: one frozen record whose defaults make a healthy, quick model.

Hides nothing but the checks: every field is a knob, bad values are refused with a sentence, and `changed` makes
the record a scenario asks for. Durations are seconds, sizes bytes, counts tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from monitor.model import ConfigError


class Fault(StrEnum):
    """What goes wrong (closed list). The starred ones happen after `fault_after_tokens` tokens."""

    SILENCE = "silence"  # the request is read and never answered
    KEEP_ALIVES = "keep_alives"  # 200, then comments for ever
    HTML_PAGE = "html_page"  # 200 with a web page, as captive portals and gateways do
    WHOLE_JSON = "whole_json"  # 200 with one JSON object although a stream was asked for
    TRUNCATED = "truncated"  # * the body ends cleanly without finish reason or end marker
    UNMARKED = "unmarked"  # finish reason, but no end marker
    DISCONNECTED = "disconnected"  # * the connection closes in the middle of the body; HTTP/2: RST_STREAM
    RESET = "reset"  # * TCP reset
    ERROR_EVENT = "error_event"  # * an error object inside the 200; after 0 tokens it is the first event
    LEFT_OPEN = "left_open"  # everything is sent, but the body never ends
    ENDLESS_LINE = "endless_line"  # * one line that does not end, up to 64 MB


class ErrorKind(StrEnum):
    """Which error a refusal or an error event carries, worded as the vendors word it."""

    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    RATE_LIMITED = "rate_limited"
    QUOTA = "quota"
    LOADING = "loading"


class Content(StrEnum):
    """What the visible tokens are."""

    TEXT = "text"
    TOOL_CALL = "tool_call"
    REFUSAL = "refusal"


DEFAULT_TEXT = (
    "The light in a glass fibre covers about two hundred kilometres in one millisecond, so a far city waits longer. "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Everything a simulated model does. Raises ConfigError with one sentence on a value that makes no sense."""

    # first token
    ttft_seconds: float = 0.2  # from admission (after queue and load) to the first token
    ttft_jitter_seconds: float = 0.0  # uniform, both ways
    ttft_sigma: float = 0.0  # lognormal spread: times exp(N(0, sigma)); `ttft_seconds` stays the median
    prefill_seconds_per_token: float = 0.0  # added for every input token
    headers_seconds: float | None = None  # from admission; absent: with the first token, as OpenAI's chat seems to do
    comments_seconds: float | None = None  # headers at once, then a comment this often until the first token

    # answer
    tokens: int = 32  # visible ones; a smaller cap in the request cuts and finishes with `length`
    reasoning_tokens: int = 0  # before the visible ones; they count against the cap
    tokens_per_second: float = 50.0  # token n is due n / rate after the first
    content: Content = Content.TEXT  # text, tool_call or refusal
    text: str = DEFAULT_TEXT  # repeated word by word
    finish_reason: str | None = None  # instead of the natural one, e.g. content_filter

    # capacity
    capacity: int | None = None  # requests served at a time; absent: no limit
    queue_limit: int = 1000  # how many may wait, first come first served; more are refused
    refusal: ErrorKind = ErrorKind.RATE_LIMITED  # how: rate_limited (429) or overloaded (503, Anthropic 529)
    retry_after_seconds: float = 1.0  # what a refusal says, rounded up

    # cold start
    sleeps_after_seconds: float | None = None  # idle time after which the model is unloaded
    starts_asleep: bool = False  # not loaded when the simulator starts
    load_seconds: float = 2.0  # what waking takes; all who come meanwhile wait for the same load
    refuses_while_loading: bool = False  # 503 "loading" instead of holding the request

    # uneven delivery
    stall_after_tokens: int | None = None  # so many tokens, then a pause
    stall_seconds: float = math.inf  # how long; what comes after is late by it
    buffered: bool = False  # the whole response, headers included, in one write at its end
    burst_tokens: int | None = None  # a write holds this many tokens
    burst_bytes: int | None = None  # a write holds at least this many bytes, headers held back too
    gzip: bool = False  # content-encoding gzip though nobody asked
    split_bytes: int | None = None  # every write cut into pieces of this size, anywhere, even inside a character
    split_pause_seconds: float = 0.001  # between the pieces, so that they arrive apart

    # failures
    fault: Fault | None = None  # see the list of faults
    fault_after_tokens: int = 3  # when the faults happen that break off an answer
    fault_share: float = 1.0  # of the requests that meet `fault` or `status`; the others are served well
    error: ErrorKind = ErrorKind.OVERLOADED  # what an error event says
    keep_alive_seconds: float = 0.5  # between the comments of `keep_alives`
    status: int = 200  # anything else is answered without a stream, with `body` or the vendor's JSON
    body: str | None = None  # sent as it is, with 200 as HTML
    headers: Mapping[str, str] = field(default_factory=dict)  # added to the response, e.g. location

    # facts the vendors report
    server_timings: bool = True  # openai-processing-ms, x-envoy-upstream-service-time, server-timing
    body_timings: bool = False  # llama.cpp's `timings` beside the usage
    edge: str | None = None  # airport code in cf-ray

    def __post_init__(self) -> None:
        for name in fields(self):
            _check(name.name, getattr(self, name.name))
        if self.tokens_per_second <= 0:
            raise ConfigError(f"tokens_per_second is {self.tokens_per_second}; it must be above 0")

    def changed(self, multiply: Mapping[str, float] = {}, set: Mapping[str, Any] = {}) -> Behaviour:
        """A copy with fields multiplied (integers are rounded), then set. Raises ConfigError on unknown fields."""
        values: dict[str, Any] = {}
        for name, factor in multiply.items():
            values[name] = _times(name, getattr(self, known(name)), factor)
        for name, value in set.items():
            values[known(name)] = coerce(name, value)
        return replace(self, **values)


FIELDS = tuple(f.name for f in fields(Behaviour))
_AT_LEAST_ONE = {"capacity", "burst_tokens", "burst_bytes", "split_bytes"}
_ENUMS: dict[str, type[StrEnum]] = {"fault": Fault, "content": Content, "refusal": ErrorKind, "error": ErrorKind}
_OPTIONAL = {f.name for f in fields(Behaviour) if "None" in str(f.type)}


def known(name: str) -> str:
    """The name itself when Behaviour has such a field; ConfigError with the allowed ones otherwise."""
    if name not in FIELDS:
        raise ConfigError(f"behaviour has no field {name!r}; allowed: {', '.join(FIELDS)}")
    return name


def behaviour(values: Mapping[str, Any]) -> Behaviour:
    """A Behaviour from parsed YAML or JSON; `forever` stands for an infinite duration. Raises ConfigError."""
    return Behaviour(**{known(name): coerce(name, value) for name, value in values.items()})


def coerce(name: str, value: Any) -> Any:
    """A YAML value as the field's type, or ConfigError with what was found and what is allowed."""
    declared = str(Behaviour.__dataclass_fields__[name].type)
    if value is None and name in _OPTIONAL:
        return None
    if name in _ENUMS:
        return _enum(name, value)
    if value == "forever" and declared.startswith("float"):
        return math.inf
    wanted = {"float": (int, float), "int": (int,), "bool": (bool,), "str": (str,), "Mapping": (Mapping,)}
    kinds = next(kinds for prefix, kinds in wanted.items() if declared.startswith(prefix))
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds != (bool,)):
        raise ConfigError(f"{name} is {value!r}; it must be a {declared.split(' |')[0].split('[')[0].lower()}")
    return value


def _enum(name: str, value: Any) -> StrEnum:
    try:
        return _ENUMS[name](value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}; allowed: {', '.join(_ENUMS[name])}") from None


def _times(name: str, value: Any, factor: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r}: only a number can be multiplied")
    product = value * factor
    return round(product) if isinstance(value, int) else product


def _check(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least = 1 if name in _AT_LEAST_ONE else 0
    if math.isnan(value) or value < least:
        raise ConfigError(f"{name} is {value}; it must be {least} or more")
    if name == "fault_share" and value > 1:
        raise ConfigError(f"fault_share is {value}; it is a share between 0 and 1")
    if name == "status" and not 200 <= value <= 599:
        raise ConfigError(f"status is {value}; it must be an HTTP status from 200 to 599")
