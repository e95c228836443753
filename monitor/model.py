"""The nouns: vantage points, targets, probes, slots and attempts, as frozen records that every layer shares.

Nothing here does anything. Times are aware UTC datetimes or integer nanoseconds; durations say their unit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache

from monitor.timeline import Gaps, Phase, Timeline


class MonitorError(Exception):
    """Root of the product's own errors: each carries one sentence that says what to do."""


class ConfigError(MonitorError):
    """The configuration cannot be used; the message lists every mistake."""

    mistakes: Sequence[object] = ()  # `config.Mistake`s when a file was read


class SpoolFull(MonitorError):
    """The spool has reached its bound, or its disk is full."""


class StoreUnavailable(MonitorError):
    """Postgres, or the hub, cannot be reached now; what was to be stored is still in the spool."""

    retry_after_seconds = 0.0  # it asked to be left alone for so long


class StoreRefuses(StoreUnavailable):
    """It will take nothing until somebody does what the sentence says; asking on does no harm."""


class DialectName(StrEnum):
    """The wire protocols of streaming APIs."""

    OPENAI_CHAT = "openai_chat"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    OLLAMA = "ollama"
    BEDROCK = "bedrock"
    COHERE = "cohere"


class Outcome(StrEnum):
    SUCCESS = "success"
    FAILED = "failed"
    MISSED = "missed"


class MissReason(StrEnum):
    """Why a slot was not measured (closed list)."""

    OVERLAP = "overlap"  # the previous attempt of the series still ran
    LATE = "late"  # the machine slept or was too busy; the slot's time had passed
    CAPACITY = "capacity"  # the agent's own concurrency cap
    BUDGET = "budget"  # a daily cap would be passed
    RETRY_AFTER = "retry_after"  # the provider answered 429 and asked to be left alone until later
    PAUSED = "paused"
    SHUTDOWN = "shutdown"


class FailureKind(StrEnum):
    """What went wrong (closed list). `failures.py` maps foreign errors onto it and says what to do about each."""

    DNS = "dns"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS = "tls"
    TLS_EXPIRED = "tls_expired"
    TLS_SELF_SIGNED = "tls_self_signed"
    TLS_WRONG_NAME = "tls_wrong_name"
    PROXY = "proxy"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"  # 404 that does not name the model: most often a wrong URL
    MODEL_GONE = "model_gone"
    BAD_REQUEST = "bad_request"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    OVERLOADED = "overloaded"
    LOADING = "loading"
    SERVER_ERROR = "server_error"
    REDIRECT = "redirect"
    NOT_A_STREAM = "not_a_stream"  # a whole JSON answer, an HTML page, with 200
    PROTOCOL_ERROR = "protocol_error"
    STREAM_ERROR = "stream_error"  # an error object inside a 200
    TRUNCATED = "truncated"  # the body ended cleanly without its end marker or finish reason
    DISCONNECTED = "disconnected"  # the connection broke
    EMPTY_ANSWER = "empty_answer"
    REASONING_ONLY = "reasoning_only"  # the budget went into reasoning, nothing visible came
    FILTERED = "filtered"  # content filter or refusal
    STALLED = "stalled"
    FIRST_TOKEN_DEADLINE = "first_token_deadline"
    TOTAL_DEADLINE = "total_deadline"
    TOO_LARGE = "too_large"  # a line, event, body or header block beyond its bound
    CHECK_FAILED = "check_failed"
    INTERNAL = "internal"  # a defect of our own; never the target's fault


class VerdictKind(StrEnum):
    """What a verdict says about the model when an attempt reached it."""

    COLD = "cold"  # it had to be loaded first
    WARM = "warm"  # it was loaded; the attempt may have been slow for another reason
    UNCLEAR = "unclear"  # the evidence does not tell


class ClockSource(StrEnum):
    KERNEL = "kernel"
    USER = "user"


class Doubt(StrEnum):
    """Reasons in `validity`: what about the measurement itself is in doubt (closed list)."""

    LOOP_LAG = "loop_lag"  # our event loop was blocked over 50 ms during the attempt
    COALESCED = "coalesced"  # segments merged before we read them: gaps and bursts are left out
    FIRST_TOKEN_COALESCED = "first_token_coalesced"  # the same on the read that holds a first token: ttft is uncertain
    CPU_THROTTLED = "cpu_throttled"
    CPU_STEAL = "cpu_steal"  # the host of this virtual machine ran something else on our processors
    CLOCK_STEP = "clock_step"
    WARM_UP = "warm_up"  # first attempt of the process
    RECONNECTED = "reconnected"  # a `reused` probe had to open a new connection


HARMLESS_DOUBTS = frozenset({Doubt.COALESCED})
"""Doubts that leave the phases and TTFT trustworthy."""


class ConnectionPolicy(StrEnum):
    FRESH = "fresh"
    REUSED = "reused"


class AddressFamily(StrEnum):
    """Which addresses an attempt may use; the policy is documented in docs/measurement.md."""

    AUTO = "auto"  # what getaddrinfo lists first
    IPV4 = "ipv4"
    IPV6 = "ipv6"


class Purpose(StrEnum):
    SCHEDULED = "scheduled"
    ONE_OFF = "one_off"  # `firsttoken probe`: never in the statistics


class Secret:
    """A string that never shows itself: repr, str and pickling give stars; only `reveal` tells."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The secret itself; call it only where it is put on the wire to its own provider."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return (Secret, ("***",))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    city: str | None = None
    country: str | None = None  # ISO 3166-1 alpha-2
    latitude: float | None = None  # degrees
    longitude: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vantage:
    """Where probes start."""

    name: str
    place: Place = field(default_factory=Place)
    network: str | None = None
    proxy: str | None = None  # http://host:port of an HTTP CONNECT proxy through which everything goes
    simulated: bool = False  # its distance is made by the simulator, and says so wherever it shows


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsCredentials:
    """What signs requests to Bedrock, instead of an API key."""

    access_key_id: Secret
    secret_access_key: Secret
    session_token: Secret | None = None
    region: str | None = None  # None: the one in the host's name


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartRule:
    """How much longer than usual the server's part of a first token must take to look like a model being loaded."""

    factor: float = 3.0  # so many times the warm median
    minimum_seconds: float = 0.3  # and so much above it


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a million tokens cost."""

    input: float
    output: float  # reasoning included
    cached: float | None = None  # of input that a prompt cache served; None: as other input
    currency: str = "USD"  # a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is probed: one model behind one endpoint."""

    name: str
    provider: str
    model: str
    dialect: DialectName
    url: str  # base URL as the vendor's SDK takes it
    api_key: Secret | None = None
    served_from: Place = field(default_factory=Place)
    headers: Mapping[str, str | Secret] = field(default_factory=dict)  # added to every request
    body: Mapping[str, object] = field(default_factory=dict)  # merged over the dialect's body
    http_version: str = "1.1"  # "1.1" or "2"
    address_family: AddressFamily = AddressFamily.AUTO
    ca_file: str | None = None  # trusted in addition to the system's
    simulated: bool = False
    auth_header: str | None = None  # the header that takes the key; None: the dialect's own; "authorization": as bearer
    cap_field: str | None = None  # what chat completions call the output cap there; None: max_tokens
    aws: AwsCredentials | None = None
    price: Price | None = None
    cold_start: ColdStartRule = field(default_factory=ColdStartRule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What an answer that came whole must be like; all of it. Without any: as it likes."""

    contains: tuple[str, ...] = ()  # each of these, in the visible text, letter for letter
    not_contains: tuple[str, ...] = ()
    regex: str | None = None  # RE2's syntax; found anywhere in the visible text
    json: bool | str = False  # the visible text is JSON; a text: a JSON Schema that it fits
    min_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()  # any of these, whatever its capitals
    max_ttft_seconds: float | None = None

    @property
    def need_text(self) -> bool:
        """Whether the visible text must be kept for them."""
        return bool(self.contains or self.not_contains or self.regex or self.json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """How a target is asked."""

    name: str
    prompt: str
    max_output_tokens: int = 64
    interval_seconds: float = 60.0
    deadline_seconds: float = 30.0  # the whole attempt, hard
    connect_timeout_seconds: float = 10.0  # resolve, connect and TLS together
    first_token_deadline_seconds: float | None = None  # None: the deadline
    stall_seconds: float = 15.0  # silence between tokens that ends the attempt as `stalled`
    connection: ConnectionPolicy = ConnectionPolicy.FRESH
    control: bool = False
    nonce: bool = True  # a unique prefix against prompt caches
    targets: tuple[str, ...] = ()  # names; empty: all
    vantages: tuple[str, ...] = ()  # names; empty: all
    checks: Checks = field(default_factory=Checks)

    @property
    def version(self) -> str:
        """Content hash (12 hex digits) of what is asked, so that a changed prompt never looks like a regression.

        Checks are no part of it: they judge the answer and change nothing about its times.
        """
        return _version(self.prompt, self.max_output_tokens, self.connection, self.nonce)


@lru_cache(maxsize=1024)  # every attempt says it
def _version(*asked: object) -> str:
    return hashlib.blake2b(json.dumps(asked).encode(), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One planned instant of a series; its identity is (vantage, target, probe, scheduled_at)."""

    vantage: str
    target: str
    probe: str
    scheduled_at: datetime
    number: int  # running number on the series' grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    kind: FailureKind
    phase: Phase
    text: str  # one scrubbed sentence, at most 500 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Counts as the provider reports them; None when unknown."""

    output: int | None = None  # all generated tokens, reasoning included
    reasoning: int | None = None
    visible: int | None = None
    input: int | None = None
    cached: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpFacts:
    status: int | None = None
    version: str | None = None  # "1.1" or "2"
    remote: str | None = None  # resolved address and port
    family: str | None = None  # "ipv4" or "ipv6"
    tls_version: str | None = None
    alpn: str | None = None
    reused: bool = False
    proxied: bool = False
    content_encoding: str | None = None
    edge: str | None = None  # edge location code from cf-ray, x-amz-cf-pop
    request_id: str | None = None
    served_model: str | None = None
    certificate_expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """One thing that the provider counts, as its headers tell."""

    name: str  # as the header has it: requests, tokens, input-tokens, req-10-second ...
    limit: float | None = None
    remaining: float | None = None
    reset_seconds: float | None = None  # from the answer on


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """What the provider says about limits, version, place and origin of its answer; absent where it says nothing."""

    limits: tuple[RateLimit, ...] = ()
    retry_after_seconds: float | None = None
    version: str | None = None  # of the backend: system_fingerprint and its kin
    region: str | None = None  # where it was served, as the provider spells it
    upstream: str | None = None  # whom a router asked
    tier: str | None = None  # capacity class


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpFacts:
    """From TCP_INFO of the attempt's socket, at its end; seconds."""

    min_rtt: float | None = None
    rtt: float | None = None
    retransmits: int | None = None  # of our sends
    out_of_order: int | None = None  # segments that came out of order: losses on the way to us


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The record of one try at a slot. Never amended."""

    vantage: str
    target: str
    probe: str
    probe_version: str
    scheduled_at: datetime
    try_number: int = 0  # 0 the planned one, 1 a confirming one
    purpose: Purpose = Purpose.SCHEDULED
    started_at: datetime
    outcome: Outcome
    failure: Failure | None = None
    missed: MissReason | None = None
    timeline: Timeline = field(default_factory=Timeline)
    gaps: Gaps | None = None
    tokens: Tokens = field(default_factory=Tokens)
    token_events: int = 0  # events that carried generated tokens
    finish_reason: str | None = None  # as the provider spells it
    http: HttpFacts = field(default_factory=HttpFacts)
    server: Mapping[str, float] = field(default_factory=dict)  # reported timings, seconds
    service: ServiceFacts = field(default_factory=ServiceFacts)
    tcp: TcpFacts = field(default_factory=TcpFacts)
    clock_source: ClockSource | None = None  # None: nothing was received
    validity: tuple[Doubt, ...] = ()
    loop_lag_seconds: float = 0.0  # the worst seen during the attempt
    coalesced_reads: int = 0
    reads: int = 0
    cost: float | None = None  # in the currency of the target's price; None: nothing was asked, or there is no price

    @property
    def valid(self) -> bool:
        """Whether phases and TTFT can be trusted."""
        return all(doubt in HARMLESS_DOUBTS for doubt in self.validity)

    @property
    def key(self) -> tuple[str, datetime, str, str, int]:
        """What identifies the attempt everywhere."""
        return (self.vantage, self.scheduled_at, self.target, self.probe, self.try_number)


SeriesKey = tuple[str, str, str]
"""(vantage, target, probe), by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What baselines, metrics and findings belong to, with the labels that describe it (bounded by configuration)."""

    vantage: Vantage
    target: Target
    probe: Probe

    @property
    def key(self) -> SeriesKey:
        """What identifies the series everywhere."""
        return (self.vantage.name, self.target.name, self.probe.name)

    @property
    def labels(self) -> dict[str, str]:
        return {
            "vantage": self.vantage.name,
            "country": self.vantage.place.country or "",
            "provider": self.target.provider,
            "target": self.target.name,
            "model": self.target.model,
            "probe": self.probe.name,
        }

    @property
    def simulated(self) -> bool:
        return self.vantage.simulated or self.target.simulated


def stable_id(*parts: str) -> int:
    """A positive 63-bit number, the same on every machine for the same parts (BLAKE2b): ids of vantages, series."""
    digest = hashlib.blake2b("\x1f".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
