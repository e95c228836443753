"""Takes secrets out of foreign texts before anybody sees them: the last step of every failure text."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote, quote_plus

from monitor.model import Secret

LIMIT = 500
"""Characters of a failure text."""
_READ_AT_MOST = 16_384
_PIECE = 10  # that many characters of a secret in a row are taken out, wherever they stand in it
_STARS = "***"

_LAYERS = 3  # so often may an escape be escaped

_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff]")
_ESCAPE = re.compile(
    r"""(?x) %[0-7][0-9A-Fa-f] | \\u\{0{0,6}[0-9A-Fa-f]{1,4}\} | \\u[0-9A-Fa-f]{4} | \\x[0-9A-Fa-f]{2} | \\["'\\/]
    | &(?:\#[0-9]{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});"""
)
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff]+")
_USERINFO = re.compile(r"(?<=://)[^\s/@?#'\"<>]{1,512}@")
_QUERY_VALUE = re.compile(r"([?&;][A-Za-z0-9_.~%\[\]-]{1,64}=)[^\s&;#'\"<>)]{1,4096}")
_SCHEME = re.compile(r"(?i)\b(bearer|basic|token)[ =:]+(?=[A-Za-z]*[0-9_.~+/=-]|[A-Za-z]{16})[A-Za-z0-9._~+/-]{6,}=*")
_NAMED = re.compile(
    r"""(?ix) ((?:api[_-]?key|x-api-key|authorization|access[_-]?token|client[_-]?secret|password|secret)
    ["']?\s*[:=]\s*["']?) (?!\*\*\*) [^\s"',;&}]{4,}"""
)
_KEY = re.compile(
    r"""(?x) \b(?:sk|pk|rk|csk|gsk|xai|pplx|nvapi|hf|r8|fw|ghp|glpat|tgp|key|AIza|AKIA|ASIA)[-_A-Z0-9]
    [A-Za-z0-9_*.-]{7,} | \beyJ[A-Za-z0-9_-]{8,}[A-Za-z0-9_.-]*
    | (?<![A-Za-z0-9_])(?=[A-Za-z_]*[0-9])[A-Za-z0-9_]{32,}(?![A-Za-z0-9_])"""
)


def scrub(text: str, secrets: Iterable[str | Secret] = (), limit: int = LIMIT) -> str:
    """One line of at most `limit` characters without any of `secrets` or anything that looks like a key.

    A secret is found in clear, in base64 (wherever it lies in the encoded text), in hexadecimal, with any of its
    characters escaped (percent, HTML entities, backslashes as of JSON), spaced out, and by any run of ten of its
    characters; not reversed, not hashed. User names, passwords and query values of URLs go too. What was removed
    shows as ***.
    """
    text = text[:_READ_AT_MOST].encode("utf-8", "replace").decode()
    pieces = _sought(frozenset(map(_revealed, secrets)))
    text = _without(text, pieces)
    text = _without(_BLANKS.sub(" ", text).strip(), pieces)
    for pattern, replacement in _LOOKS:
        text = pattern.sub(replacement, text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def without_secrets(name: str, secrets: Iterable[str | Secret]) -> str:
    """A name that a server told (a request id, a model) in printable characters, without any of `secrets`.

    Unlike `scrub` it leaves what only looks like a key: request ids do.
    """
    name = _without(name[:_READ_AT_MOST], _sought(frozenset(map(_revealed, secrets))))
    return "".join(char if char.isprintable() else "?" for char in name)


@lru_cache(maxsize=1024)  # every attempt of a target asks for the same
def _sought(secrets: frozenset[str]) -> dict[int, set[str]]:
    return _pieces({form for secret in secrets for form in _forms(secret)})


_LOOKS = (
    (_USERINFO, f"{_STARS}@"),
    (_QUERY_VALUE, rf"\1{_STARS}"),
    (_SCHEME, rf"\1 {_STARS}"),
    (_NAMED, rf"\1{_STARS}"),
    (_KEY, _STARS),
)


def _revealed(secret: str | Secret) -> str:
    return (secret.reveal() if isinstance(secret, Secret) else secret).strip()


def _forms(secret: str) -> Iterator[str]:
    """Every spelling under which a secret may be echoed. One of fewer than three characters cannot be searched for."""
    if len(secret) < 3:
        return
    yield secret
    secret = secret.encode("utf-8", "replace").decode()  # bytes of the environment that are no text cannot be quoted
    yield from {quote(secret, safe=""), quote_plus(secret), quote(secret), json.dumps(secret)[1:-1]}
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    raw = secret.encode("utf-8", "replace")
    yield raw.hex()
    for shift in range(3):  # the three ways in which it can lie in the base64 of a longer text
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        inner = encoded[-(-shift * 8 // 6) :]
        inner = inner if len(raw) % 3 == -shift % 3 else inner[:-1]
        if len(inner) >= 6:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")


def _pieces(forms: Iterable[str]) -> dict[int, set[str]]:
    """What to look for, by length: every run of `_PIECE` characters of a form (all of it, when it is shorter)."""
    found: dict[int, set[str]] = {}
    given = set(forms)
    dense = {shape for shape in (_BLANK.sub("", form) for form in given) if len(shape) >= _PIECE}
    for form in map(_folded, given | dense):
        size = min(_PIECE, len(form))
        found.setdefault(size, set()).update(form[i : i + size] for i in range(len(form) - size + 1))
    return found


Span = tuple[int, int]
_View = tuple[str, list[Span]]
"""Another reading of a text: each of its characters with the part of the original that it stands for."""


def _without(text: str, pieces: dict[int, set[str]]) -> str:
    """The text with every run of hits, in any of its readings, replaced by stars."""
    if not pieces:
        return text
    parts: list[str] = []
    end = 0
    for begin, after in sorted(_hits(text, pieces)):
        if begin > end or not parts:
            parts += [text[end:begin], _STARS]
        end = max(end, after)
    return "".join(parts) + text[end:]


def _hits(text: str, pieces: dict[int, set[str]]) -> Iterator[Span]:
    view: _View = (text, [(i, i + 1) for i in range(len(text))])
    for _ in range(_LAYERS + 1):
        yield from _found(view, pieces)
        dense = _replaced(view, _BLANK, lambda blank: "")
        if len(dense[0]) < len(view[0]):  # spaced out; what is shorter would be found in ordinary words
            yield from _found(dense, {_PIECE: pieces.get(_PIECE, set())})
        plain = _replaced(view, _ESCAPE, _unescaped)
        if plain[0] == view[0]:
            return
        view = plain


def _found(view: _View, pieces: dict[int, set[str]]) -> Iterator[Span]:
    text, spans = _folded(view[0]), view[1]
    for size, sought in pieces.items():
        if sought:
            for i in range(len(text) - size + 1):
                if text[i : i + size] in sought:
                    yield spans[i][0], spans[i + size - 1][1]


def _replaced(view: _View, pattern: re.Pattern[str], replace: Callable[[str], str]) -> _View:
    """The view with what matches replaced by one character or none, which stands for all that was matched."""
    text, spans = view
    parts: list[str] = []
    kept: list[Span] = []
    at = 0
    for match in pattern.finditer(text):
        char = replace(match[0])
        parts += [text[at : match.start()], char]
        kept += spans[at : match.start()]
        kept += [(spans[match.start()][0], spans[match.end() - 1][1])] * len(char)
        at = match.end()
    return "".join([*parts, text[at:]]), kept + spans[at:]


def _unescaped(escape: str) -> str:
    if escape[0] == "&":
        char = html.unescape(escape)
        return char if len(char) == 1 else "?"
    if escape[1] in "\"'\\/":
        return escape[1]
    return chr(int(escape.lstrip("%\\ux{").rstrip("}"), 16))


def _folded(text: str) -> str:
    """Lower case without changing length: positions must stay comparable."""
    return text.lower() if text.isascii() else "".join(char.lower() if char.isascii() else char for char in text)
