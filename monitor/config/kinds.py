"""What a value may look like: one `Kind` per sort of text, with its parser, its sentence and its JSON Schema.

A parser takes the text of the file (after `${NAME}`) and returns the value. It raises ValueError, or Refused with a
sentence that says better than the kind's own what is allowed.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from monitor.config.answers import MAX_PATTERN, Unusable, pattern
from monitor.config.countries import COUNTRIES
from monitor.witness import Reach

T = TypeVar("T")

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
NAME_ALLOWED = "small letters, digits, - and _, at most 63, a letter or digit first"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|kB|KB|MB|GB|KiB|MiB|GiB)?")
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")
OUR_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "expect", "accept-encoding"}
)
"""What the measurement sets itself."""
ROUTING_HEADERS = frozenset(
    {
        "forwarded",
        "x-forwarded-host",
        "x-forwarded-server",
        "x-host",
        "x-http-host-override",
        "x-original-host",
        "x-original-url",
        "x-rewrite-url",
    }
)
"""By these some fronts choose whom a request is for, as by `Host`: in a fleet nobody may send a key elsewhere so."""
_SECRET_QUERY = re.compile(r"key|token|secret|passw|sig|auth|credential", re.IGNORECASE)


class Refused(ValueError):
    """A value that is not allowed; the message says what is."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    parse: Callable[[str], T]
    allowed: str
    schema: Mapping[str, object] = field(default_factory=lambda: {"type": "string"})
    secret: bool = False  # never repeated in a message
    options: tuple[str, ...] = ()  # a closed list, for "did you mean"
    bounds: str = ""  # what the reference adds to `allowed`


def allowed_by(kind: Kind[Any], error: ValueError) -> str:
    """What a refusal allows: its own sentence, else its kind's. Other ValueErrors repeat values and are never shown."""
    return str(error) if isinstance(error, Refused) else kind.allowed


def text(limit: int, allowed: str = "") -> Kind[str]:
    """Some words, not empty, at most `limit` characters, on one line."""
    sentence = allowed or f"text of 1 to {limit} characters"

    def parse(value: str) -> str:
        if not value.strip() or len(value) > limit or not value.isprintable():
            raise ValueError
        return value.strip()

    return Kind(parse, sentence, {"type": "string", "minLength": 1, "maxLength": limit})


def matching(pattern: str, allowed: str) -> Kind[str]:
    """A word of a certain form."""

    def parse(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError
        return value

    return Kind(parse, allowed, {"type": "string", "pattern": f"^{pattern}$"})


def prompt(limit: int) -> Kind[str]:
    """Words for a model: not only white space, at most `limit` characters, line ends welcome."""

    def parse(value: str) -> str:
        if not value.strip() or len(value) > limit or "\x00" in value:
            raise ValueError
        return value

    return Kind(parse, f"a text of 1 to {limit:,} characters", {"type": "string", "minLength": 1, "maxLength": limit})


def duration(least: str, most: str) -> Kind[float]:
    """Seconds from `60s`, `5m`, `1h30m`, `250ms` or a number of seconds, within bounds."""
    low, high = parse_duration(least), parse_duration(most)

    def parse(value: str) -> float:
        seconds = parse_duration(value)
        if not low <= seconds <= high:
            raise Refused(f"a duration from {least} to {most}")
        return seconds

    pattern = r"^(\d+(\.\d+)?(ms|s|m|h|d))+$|^\d+(\.\d+)?$"
    schema = {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "number", "minimum": low, "maximum": high}]}
    return Kind(parse, "a duration such as 60s, 5m", schema, bounds=f"from {least} to {most}")


def parse_duration(value: str) -> float:
    """Seconds; raises ValueError for anything else than a duration."""
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    parts = _DURATION.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError
    return round(sum(float(number) * _SECONDS[unit] for number, unit in parts), 9)


def show_duration(seconds: float) -> str:
    """Seconds as the file would spell them: 0.25 -> `250ms`, 90 -> `90s`, 3600 -> `1h`."""
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


def size(least: str, most: str) -> Kind[int]:
    """Bytes from `64MB`, `1GiB` or a number of bytes, within bounds."""
    low, high = _parse_size(least), _parse_size(most)

    def parse(value: str) -> int:
        found = _parse_size(value)
        if not low <= found <= high:
            raise Refused(f"a size from {least} to {most}")
        return found

    schema = {"anyOf": [{"type": "string", "pattern": f"^{_SIZE.pattern}$"}, {"type": "integer"}]}
    return Kind(parse, "a size such as 64MB, 1GiB", schema, bounds=f"from {least} to {most}")


def _parse_size(value: str) -> int:
    match = _SIZE.fullmatch(value)
    if not match:
        raise ValueError
    return int(float(match[1]) * _BYTES[match[2] or "B"])


def integer(least: int, most: int) -> Kind[int]:
    def parse(value: str) -> int:
        if not re.fullmatch(r"[-+]?\d{1,18}", value) or not least <= int(value) <= most:
            raise ValueError
        return int(value)

    return Kind(parse, f"a whole number from {least} to {most}", {"type": "integer", "minimum": least, "maximum": most})


def number(least: float, most: float, what: str) -> Kind[float]:
    def parse(value: str) -> float:
        if not _NUMBER.fullmatch(value) or not math.isfinite(float(value)) or not least <= float(value) <= most:
            raise ValueError
        return float(value)

    return Kind(parse, f"{what} from {least:g} to {most:,.10g}", {"type": "number", "minimum": least, "maximum": most})


def choice(*options: str) -> Kind[str]:
    def parse(value: str) -> str:
        if value not in options:
            raise ValueError
        return value

    return Kind(parse, ", ".join(options), {"enum": list(options)}, options=options)


E_ = TypeVar("E_", bound=StrEnum)


def member(options: type[E_]) -> Kind[E_]:
    """One of a closed list."""

    def parse(value: str) -> E_:
        try:
            return options(value)
        except ValueError:
            raise ValueError from None

    return Kind(parse, ", ".join(options), {"enum": [*map(str, options)]}, options=tuple(map(str, options)))


def _parse_switch(value: str) -> bool:
    switches = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
    if value.lower() not in switches:
        raise ValueError
    return switches[value.lower()]


def _parse_pattern(value: str) -> str:
    if not value or len(value) > MAX_PATTERN:
        raise ValueError
    try:
        pattern(value)
    except Unusable as error:
        raise Refused(f"a regular expression that RE2 takes (it says: {error})") from None
    return value


def _parse_country(value: str) -> str:
    code = value.upper()
    if code == "UK":
        raise Refused("GB for the United Kingdom")
    if code not in COUNTRIES:
        raise ValueError
    return code


def _parse_name(value: str) -> str:
    if not re.fullmatch(NAME_PATTERN, value):
        raise ValueError
    return value


def _parse_http_version(value: str) -> str:
    versions = {"1.1": "1.1", "2": "2", "2.0": "2"}
    if value not in versions:
        raise ValueError
    return versions[value]


def _parse_url(value: str) -> str:
    parts = _split(value, ("http", "https"))
    if parts.username is not None or parts.password is not None:
        raise Refused("a URL without name and password (`api_key` and `headers` carry secrets)")
    if parts.fragment:
        raise Refused("a URL without #fragment")
    if any(_SECRET_QUERY.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise Refused("a URL without secrets in its query (`api_key` and `headers` carry secrets)")
    return value.rstrip("/")


def _parse_url_name(value: str) -> str:
    if not re.fullmatch(r"[a-z][a-z_]{0,40}", value):
        raise ValueError
    return value


def _parse_url_part(value: str) -> str:
    """One label or segment: nothing that could lead the URL to another host or path."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}", value) or ".." in value:
        raise ValueError
    return value


def _parse_header_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", value):
        raise ValueError
    if value.lower() in OUR_HEADERS or value.lower() in ROUTING_HEADERS:
        raise Refused("a header that says nothing about where a request goes or how it is sent")
    return value.lower()


def _parse_proxy(value: str) -> str:
    parts = _split(value, ("http",))
    if parts.port is None or parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError
    return value.rstrip("/")


def _parse_database_url(value: str) -> str:
    parts = urlsplit(value)
    known = parts.scheme in ("postgresql", "postgres", "postgresql+psycopg")
    if not known or not value.startswith(f"{value[: len(parts.scheme)]}://") or len(value) > 2000:
        raise ValueError
    _ = parts.port
    return value


def _parse_header(value: str) -> str:
    bare = value.strip()
    if not bare or len(bare) > 8192 or not bare.isascii() or not bare.isprintable():
        raise ValueError
    return bare


def _parse_secret(value: str) -> str:
    if not value.strip():
        raise Refused("a key that is not empty")
    if value.strip().lower().startswith("bearer "):
        raise Refused("the key alone; the dialect writes Bearer before it")
    if " " in value.strip():
        raise ValueError
    return _parse_header(value)


def _parse_endpoint(value: str) -> tuple[Reach, str, int | None]:
    """What is looked at, where, and at which port; none for a name alone."""
    scheme, _, rest = value.partition("://")
    if scheme not in set(Reach) or len(value) > 300:
        raise ValueError
    if scheme != Reach.DNS:
        host, port = _parse_listen(rest)
        if port == 0:
            raise ValueError
        return Reach(scheme), host, port
    if not _is_host(rest) or "." not in rest or _is_address(rest):
        raise Refused("a name to ask for, such as dns://example.com")
    return Reach.DNS, rest, None


def _parse_listen(value: str) -> tuple[str, int]:
    host, colon, port = value.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535 or not _is_host(bare):
        raise ValueError
    return bare, int(port)


def _split(value: str, schemes: tuple[str, ...]) -> SplitResult:
    if len(value) > 2000 or not value.isprintable() or re.search(r"\s", value):
        raise ValueError
    parts = urlsplit(value)
    if parts.scheme not in schemes or not parts.hostname or not _is_host(parts.hostname) or parts.port == 0:
        raise ValueError
    return parts


def _is_host(host: str) -> bool:
    if _is_address(host):
        return True
    labels = host.rstrip(".").split(".")
    named = all(re.fullmatch(r"(?!-)[\w-]{1,63}(?<!-)", label) for label in labels) and len(host) <= 253
    return named and not labels[-1].isdigit()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


SWITCH = Kind(_parse_switch, "true or false", {"type": "boolean"})
OFF = Kind(_parse_switch, "off, or a mapping of keys", {"enum": [False, "off"]})
PATTERN = Kind(
    _parse_pattern,
    f"a regular expression of at most {MAX_PATTERN:,} characters in the syntax of RE2 (no look-around, no \\1)",
    {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN},
)
COUNTRY = Kind(
    _parse_country, "a country code of two letters (ISO 3166-1) such as NG, GB, US", {"enum": sorted(COUNTRIES)}
)
NAME = Kind(_parse_name, NAME_ALLOWED, {"type": "string", "pattern": NAME_PATTERN})
HTTP_VERSION = Kind(_parse_http_version, "1.1 or 2", {"enum": ["1.1", "2", 1.1, 2]})
URL = Kind(_parse_url, "http://host or https://host with a path, such as https://api.openai.com/v1")
PROXY = Kind(_parse_proxy, "http://host:port (an HTTP proxy that takes CONNECT)")
DATABASE_URL = Kind(_parse_database_url, "postgresql://user:password@host:5432/name", secret=True)
URL_NAME = Kind(_parse_url_name, "a name such as region")
URL_PART = Kind(_parse_url_part, "letters, digits, - _ and dots, such as eu-west-1")
HEADER_NAME = Kind(_parse_header_name, "the name of a header, such as x-api-key")
SECRET = Kind(_parse_secret, "a key of printable ASCII characters without spaces, best as ${NAME}", secret=True)
HEADER = replace(SECRET, parse=_parse_header, allowed="printable ASCII characters on one line, not empty")
LISTEN = Kind(_parse_listen, "host:port such as 127.0.0.1:8765, [::1]:8765, 0.0.0.0:8765")
ENDPOINT = Kind(
    _parse_endpoint,
    "tls://host:port, tcp://host:port or dns://name",
    {"type": "string", "pattern": r"^(tls|tcp)://.+:\d+$|^dns://[^:/]+$"},
)
PATH = text(1000, "the path of a file")


def mask_url(value: str) -> str:
    """A URL fit to be shown: name, password and query values as stars."""
    shown = re.sub(r"//[^/@]*@", "//***@", value)
    return re.sub(r"=[^&#]*", "=***", shown)
