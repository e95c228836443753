"""The keys of the file: what each is called, what it may hold, what it means and what it is without being written.

The reference page and the JSON Schema are generated from these classes, so they cannot say anything else.
"""

# ruff: noqa: RUF009 - `key` makes dataclass fields; its arguments are frozen
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field
from typing import Any

from monitor.config import kinds
from monitor.config.kinds import Kind
from monitor.config.types import FrozenDict
from monitor.model import AddressFamily, ConnectionPolicy, DialectName, Secret
from monitor.witness import Reach

MAX_PROMPT = 20_000
MAX_LIST = 500
MAX_HEADERS = 50


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Kind[Any]
    allowed: str


@dataclass(frozen=True, slots=True)
class MapOf:
    key: Kind[str]
    value: Kind[Any] | Section | Either
    allowed: str


@dataclass(frozen=True, slots=True)
class Headers:
    allowed: str = "a mapping of header names to values"


@dataclass(frozen=True, slots=True)
class Json:
    allowed: str = "a mapping of JSON values"


@dataclass(frozen=True, slots=True)
class Schema:
    allowed: str = "a JSON Schema (a mapping)"


@dataclass(frozen=True, slots=True)
class Either:
    """A single value, or something with an inside."""

    scalar: Kind[Any]
    other: ListOf | Schema | Section

    @property
    def allowed(self) -> str:
        return f"{self.scalar.allowed}, or {self.other.allowed}"


@dataclass(frozen=True, slots=True)
class Section:
    shape: type[Any]
    allowed: str = "a mapping of keys"


Form = Kind[Any] | ListOf | MapOf | Headers | Json | Schema | Section | Either


def key(form: Form, help: str, default: Any = None, *, required: bool = False, shown: str = "") -> Any:
    """A key of the file. `shown` is how the reference spells the default, where the value itself would not tell."""
    metadata = {"form": form, "help": help, "required": required, "shown": shown}
    return field(default=default, metadata=metadata)


def form_of(item: Field[Any]) -> Form:
    form: Form = item.metadata["form"]
    return form


def default_of(item: Field[Any]) -> Any:
    return None if item.default is MISSING else item.default


_NAMES_ALLOWED = "a list of names such as [a, b]; without the key: all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceKeys:
    city: str | None = key(kinds.text(100), "City, for tables and maps.")
    country: str | None = key(kinds.COUNTRY, "Country, a label of every metric.")
    latitude: float | None = key(
        kinds.number(-90, 90, "degrees"),
        "Degrees north. With `longitude` it gives the distance to the serving place.",
    )
    longitude: float | None = key(kinds.number(-180, 180, "degrees"), "Degrees east.")


@dataclass(frozen=True, slots=True, kw_only=True)
class VantageKeys(PlaceKeys):
    network: str | None = key(kinds.text(100), "Provider or line it stands on, such as `Hetzner` or `MTN`.")
    proxy: str | None = key(kinds.PROXY, "HTTP proxy through which every probe of this vantage point goes.")
    simulated: bool = key(kinds.SWITCH, "Its distance is made by the simulator; says so wherever it shows.", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartKeys:
    factor: float = key(
        kinds.number(1.1, 1000, "a factor"),
        "So many times its warm median the server's part of the first token must take.",
        3.0,
        shown="3",
    )
    minimum: float = key(
        kinds.duration("10ms", "1h"),
        "And so much above it. Half of it counts where the server reports its own times.",
        0.3,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetKeys:
    provider: str = key(kinds.NAME, "Who serves it; a label, and what `limits.per_provider` counts by.", required=True)
    model: str = key(kinds.text(200), "Name of the model as the provider's API takes it.", required=True)
    dialect: DialectName | None = key(
        kinds.member(DialectName), "Wire protocol of the API.", shown="the provider's, if `firsttoken providers` has it"
    )
    url: str = key(
        kinds.URL,
        "Base URL as the vendor's SDK takes it.",
        "",
        shown="the provider's, if `firsttoken providers` has it",
    )
    url_values: Mapping[str, str] = key(
        MapOf(kinds.URL_NAME, kinds.URL_PART, "a mapping such as {region: eu-west-1}"),
        "What stands for the `{names}` in the provider's URL.",
        FrozenDict(),
        shown="none",
    )
    api_key: Secret | None = key(
        kinds.SECRET, "Key for the provider, best as `${NAME}`. Sent to this target only, shown nowhere."
    )
    api_key_file: str | None = key(
        kinds.PATH, "File that holds the key, instead of `api_key`. Relative paths start at the configuration file."
    )
    auth_header: str | None = key(
        kinds.HEADER_NAME,
        "Header that takes the key; `authorization` takes it as a bearer.",
        shown="the provider's, else the dialect's",
    )
    aws_access_key_id: Secret | None = key(
        kinds.SECRET, "With the next two: AWS credentials that sign requests to Bedrock, instead of an `api_key`."
    )
    aws_secret_access_key: Secret | None = key(kinds.SECRET, "The secret half.")
    aws_session_token: Secret | None = key(kinds.SECRET, "Only with temporary credentials.")
    aws_region: str | None = key(kinds.URL_PART, "Region to sign for.", shown="the one in the host's name")
    served_from: PlaceKeys = key(
        Section(PlaceKeys),
        "Where the model runs, if known: a mapping of `city`, `country`, `latitude`, `longitude`.",
        PlaceKeys(),
        shown="unknown",
    )
    headers: Mapping[str, str | Secret] = key(
        Headers(),
        "Headers added to every request. A value with `${NAME}` is a secret and shown nowhere.",
        FrozenDict(),
        shown="none",
    )
    body: Mapping[str, object] = key(
        Json(),
        "JSON merged over the body of every request, such as `{reasoning_effort: low}`.",
        FrozenDict(),
        shown="nothing",
    )
    reasoning: str = key(
        kinds.choice("default", "off"),
        "`off` puts the provider's switch into the body, so that a short answer is not eaten by reasoning.",
        "default",
    )
    cap_field: str | None = key(
        kinds.choice("max_tokens", "max_completion_tokens"),
        "What chat completions call the output cap there.",
        shown="the provider's, else `max_tokens`",
    )
    http_version: str = key(kinds.HTTP_VERSION, "HTTP version to speak.", "1.1")
    address_family: AddressFamily = key(
        kinds.member(AddressFamily),
        "Addresses an attempt may use; `auto` takes the first that the system lists.",
        AddressFamily.AUTO,
    )
    ca_file: str | None = key(
        kinds.PATH,
        "PEM file of certificates trusted beside the system's. Relative paths start at the configuration file.",
    )
    cold_start: ColdStartKeys = key(
        Section(ColdStartKeys, "a mapping such as {factor: 3, minimum: 300ms}"),
        "What looks like a cold start here, see below.",
        ColdStartKeys(),
        shown="`{factor: 3, minimum: 300ms}`",
    )
    simulated: bool = key(kinds.SWITCH, "Served by the simulator; says so wherever it shows.", False)


_TEXT = kinds.prompt(1_000)
_TEXTS = Either(_TEXT, ListOf(_TEXT, "a list of such texts"))
_REASON = kinds.text(60)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksKeys:
    contains: str | tuple[str, ...] = key(_TEXTS, "Texts that the answer must hold, letter for letter.", ())
    not_contains: str | tuple[str, ...] = key(_TEXTS, "Texts that the answer must not hold.", ())
    regex: str | None = key(kinds.PATTERN, "Regular expression that must match somewhere in the answer.")
    json: bool | str = key(
        Either(kinds.SWITCH, Schema()),
        "The answer is one JSON value and nothing else; with a JSON Schema (2020-12, without `$ref`) one that fits it.",
        False,
    )
    min_tokens: int | None = key(
        kinds.integer(1, 16_384),
        "Least tokens of the answer, as the provider counts them, without reasoning. At most `max_output_tokens`.",
    )
    finish_reason: str | tuple[str, ...] = key(
        Either(_REASON, ListOf(_REASON, "a list of such texts")),
        "Finish reasons that are good, as the provider spells them, such as `stop`; capitals do not count.",
        (),
    )
    max_ttft: float | None = key(kinds.duration("1ms", "1h"), "Longest time to the first token. Below `deadline`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeKeys:
    prompt: str = key(
        kinds.prompt(MAX_PROMPT), "What the model is asked. Keep it short: every attempt pays for it.", required=True
    )
    max_output_tokens: int = key(kinds.integer(1, 16_384), "Cap on generated tokens.", 64)
    interval: float = key(kinds.duration("100ms", "7d"), "Time between two slots of one series.", 60.0)
    deadline: float = key(kinds.duration("50ms", "1h"), "End of an attempt, whatever happens. Below `interval`.", 30.0)
    connect_timeout: float = key(kinds.duration("10ms", "5m"), "Time for DNS, connect and TLS together.", 10.0)
    first_token_deadline: float | None = key(
        kinds.duration("10ms", "1h"), "Time until the first token. At most `deadline`.", shown="`deadline`"
    )
    stall: float = key(kinds.duration("10ms", "10m"), "Silence between tokens that ends an attempt as `stalled`.", 15.0)
    connection: ConnectionPolicy = key(
        kinds.member(ConnectionPolicy),
        "`fresh` connects anew and measures the whole journey; `reused` keeps its connection and measures the service.",
        ConnectionPolicy.FRESH,
    )
    control: bool = key(
        kinds.SWITCH,
        "After each attempt, outside its times, ask for the model list on the same connection: the road without a GPU.",
        False,
    )
    checks: ChecksKeys = key(
        Section(ChecksKeys, "a mapping of checks, see below"),
        "What the answer must be like; otherwise the attempt is a failure of the kind `check_failed`.",
        ChecksKeys(),
        shown="none",
    )
    nonce: bool = key(kinds.SWITCH, "Put a unique prefix before the prompt, so that no prompt cache answers.", True)
    targets: tuple[str, ...] = key(ListOf(kinds.NAME, _NAMES_ALLOWED), "Targets to ask.", (), shown="all")
    vantages: tuple[str, ...] = key(ListOf(kinds.NAME, _NAMES_ALLOWED), "Vantage points to ask from.", (), shown="all")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageKeys:
    database_url: Secret | None = key(
        kinds.DATABASE_URL,
        "Postgres that keeps the attempts. Its password is shown nowhere.",
        shown="`DATABASE_URL` of the environment, else an embedded Postgres",
    )
    database_url_file: str | None = key(kinds.PATH, "File that holds the URL, instead of `database_url`.")
    raw_days: int = key(kinds.integer(1, 3650), "Days that single attempts are kept.", 30)
    rollup_days: int = key(kinds.integer(1, 36_500), "Days that hourly rollups are kept. At least `raw_days`.", 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolKeys:
    directory: str | None = key(
        kinds.PATH,
        "Where attempts wait on disk until they are stored. Relative paths start at the configuration file.",
        shown="`STATE_DIRECTORY` (systemd), else `~/.local/state/firsttoken`",
    )
    max_bytes: int = key(
        kinds.size("1MB", "1000GB"),
        "Most disk it takes; beyond it the oldest attempts are dropped and counted.",
        256_000_000,
        shown="256MB",
    )
    max_age: float = key(kinds.duration("1m", "365d"), "Attempts older than this are dropped and counted.", 7 * 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebKeys:
    listen: tuple[str, int] = key(
        kinds.LISTEN,
        "Address of the page, `/metrics` and the health checks. No login: keep it on loopback or behind a proxy.",
        ("127.0.0.1", 8765),
        shown="127.0.0.1:8765",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderLimitKeys:
    concurrent: int | None = key(
        kinds.integer(1, 1000), "Attempts that run at one time against the provider.", shown="no limit of its own"
    )
    per_minute: int | None = key(
        kinds.integer(1, 10_000),
        "Attempts that begin in any 60 seconds, confirming ones included. Keep it below the key's own limit.",
        shown="no limit",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsKeys:
    max_concurrent: int = key(
        kinds.integer(1, 1000),
        "Attempts that run at one time in one process; slots beyond it are recorded as missed.",
        50,
    )
    per_provider: Mapping[str, int | ProviderLimitKeys] = key(
        MapOf(
            kinds.NAME,
            Either(
                kinds.integer(1, 1000), Section(ProviderLimitKeys, "a mapping such as {concurrent: 2, per_minute: 20}")
            ),
            "a mapping of providers to numbers such as {openai: 4} or to mappings, see below",
        ),
        "Limits of single providers; a number is their `concurrent`.",
        FrozenDict(),
        shown="no limit of its own",
    )


_PRICE = kinds.number(0, 100_000, "a price")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceKeys:
    input: float = key(_PRICE, "Of a million prompt tokens.", required=True)
    output: float = key(_PRICE, "Of a million generated tokens, reasoning included.", required=True)
    cached: float | None = key(_PRICE, "Of a million prompt tokens that the provider's cache served.", shown="`input`")


_PRICE_TABLE = Section(PriceKeys, "a mapping such as {input: 0.4, output: 1.6}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesKeys:
    currency: str = key(kinds.text(12), "What all prices are in; a label.", "USD")
    per_model: Mapping[str, PriceKeys] = key(
        MapOf(kinds.text(200), _PRICE_TABLE, "a mapping of models to prices, see below"),
        "Prices of models, by the name that targets have in `model`.",
        FrozenDict(),
        shown="none",
    )
    per_target: Mapping[str, PriceKeys] = key(
        MapOf(kinds.NAME, _PRICE_TABLE, "a mapping of targets to prices, see below"),
        "Prices of single targets; they win over their model's. A model of your own is free: `{input: 0, output: 0}`.",
        FrozenDict(),
        shown="none",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CapKeys:
    money_per_day: float | None = key(
        kinds.number(0, 1_000_000_000, "an amount"), "Most money, in the currency of `prices`."
    )
    tokens_per_day: int | None = key(kinds.integer(0, 10**15), "Most tokens, prompts and answers together.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetKeys(CapKeys):
    per_target: Mapping[str, CapKeys] = key(
        MapOf(kinds.NAME, Section(CapKeys, "a mapping such as {money_per_day: 1.50}"), "a mapping of targets to caps"),
        "Caps of single targets, with the same two keys.",
        FrozenDict(),
        shown="none",
    )
    share: float | None = key(
        kinds.number(0.001, 1, "a share"),
        "Part of every cap that one process may use.",
        shown="the part of the vantage points that it plays",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointKeys:
    address: tuple[Reach, str, int | None] = key(
        kinds.ENDPOINT,
        "How far to go, and where: a secured connection, a bare one, or only the question for a name.",
        required=True,
    )
    vantages: tuple[str, ...] = key(
        ListOf(kinds.NAME, _NAMES_ALLOWED), "Vantage points that look at it.", (), shown="all"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessKeys:
    interval: float = key(
        kinds.duration("1s", "1h"), "Time between two looks at one endpoint, each at its own moment.", 60.0
    )
    timeout: float = key(kinds.duration("100ms", "1m"), "End of a look. Below `interval`.", 5.0)
    endpoints: Mapping[str, tuple[Reach, str, int | None] | EndpointKeys] | None = key(
        MapOf(
            kinds.NAME,
            Either(kinds.ENDPOINT, Section(EndpointKeys, "a mapping such as {address: tls://host:443}")),
            "a mapping of names to addresses such as {near: tls://192.0.2.1:443} or to mappings, see below",
        ),
        "What is looked at, instead of the default endpoints. At most 20.",
        shown="see docs/witness.md",
    )
    vantages: tuple[str, ...] = key(ListOf(kinds.NAME, _NAMES_ALLOWED), "Vantage points that look.", (), shown="all")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKeys:
    level: str = key(kinds.choice("debug", "info", "warning", "error"), "Least severe lines that are written.", "info")
    format: str = key(kinds.choice("text", "json"), "`text` for people, `json` for machines.", "text")


NAMED: Mapping[str, type[Any]] = {"vantages": VantageKeys, "targets": TargetKeys, "probes": ProbeKeys}
"""Top-level mappings of names to entries."""
NESTED: Mapping[str, type[Any]] = {
    "cold_start": ColdStartKeys,
    "checks": ChecksKeys,
    "price": PriceKeys,
    "provider_limit": ProviderLimitKeys,
    "endpoint": EndpointKeys,
}
"""Mappings inside these that have a table of their own in the reference."""
SECTIONS: Mapping[str, type[Any]] = {
    "storage": StorageKeys,
    "spool": SpoolKeys,
    "web": WebKeys,
    "limits": LimitsKeys,
    "prices": PricesKeys,
    "budget": BudgetKeys,
    "witness": WitnessKeys,
    "log": LogKeys,
}
"""Top-level mappings of keys to values."""
SHARED = ("limits", "prices", "budget", "witness")
"""Sections that mean the same everywhere; storage, spool, web and log belong to a process."""
HANDED_OUT = (*NAMED, *SHARED)
"""What a hub may say to an agent."""
SWITCHED = frozenset({"witness"})
"""Sections that may be the word `off` instead of a mapping."""
MAX_ENDPOINTS = 20
