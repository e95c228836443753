"""No secret survives in a text that people see."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.agent.failures import scrub, without_secrets
from monitor.model import Secret

KEY = 'planted/key+with="odd" chars&7'


@pytest.mark.parametrize(
    "echo",
    [
        KEY,
        KEY.upper(),
        quote(KEY, safe=""),
        quote(KEY, safe="").lower(),
        quote_plus(KEY),
        json.dumps(KEY),
        repr(KEY),
        base64.b64encode(KEY.encode()).decode(),
        base64.urlsafe_b64encode(KEY.encode()).decode(),
        base64.b64encode(f"user:{KEY}".encode()).decode(),
        base64.b64encode(f"u:{KEY}:x".encode()).decode(),
        KEY[:16] + "...",
        "..." + KEY[-14:],
    ],
)
def test_a_given_secret_is_removed_in_every_spelling(echo: str) -> None:
    """Clear, encoded, escaped, embedded or cut: what is left holds no piece of ten characters."""
    text = scrub(f"they said: {echo} (sic)", [Secret(KEY)])
    assert "***" in text
    assert text.startswith("they said: ")
    forms = [KEY, quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode()[2:-4], echo]
    for form in forms:
        assert not [
            i
            for i in range(len(form) - 9)
            if form[i : i + 10].lower() in text.lower() and "..." not in form[i : i + 10]
        ]


def _entities(text: str, style: str) -> str:
    return "".join(f"&#{format(ord(char), style)};" for char in text)


ESCAPED: dict[str, str] = {
    "upper-case hex": KEY.encode().hex().upper(),
    "lower-case hex": KEY.encode().hex(),
    "hex with blanks": KEY.encode().hex(" "),
    "all percent": "".join(f"%{ord(char):02x}" for char in KEY),
    "some percent": "".join(f"%{ord(char):02X}" if n % 3 else char for n, char in enumerate(KEY)),
    "percent twice": quote(quote(KEY, safe=""), safe=""),
    "HTML": html.escape(KEY, quote=True),
    "decimal entities": _entities(KEY, "d"),
    "hexadecimal entities": _entities(KEY, "x").replace("&#", "&#x"),
    "named entities": KEY.replace("/", "&sol;").replace("+", "&plus;").replace("=", "&equals;").replace('"', "&quot;"),
    "entities twice": html.escape(html.escape(KEY)),
    "JSON escapes": "".join(f"\\u{ord(char):04x}" for char in KEY),
    "some JSON escapes": KEY.replace("/", "\\/").replace("+", "\\u002B").replace('"', '\\"').replace("&", "\\u0026"),
    "JSON in JSON": json.dumps(json.dumps("\u00e9" + KEY)),
    "JavaScript": "".join(f"\\x{ord(char):02x}" if n % 2 else f"\\u{{{ord(char):x}}}" for n, char in enumerate(KEY)),
    "percent in JSON": json.dumps(quote(KEY, safe="")).replace("%", "\\u0025"),
    "spaced out": " ".join(KEY),
    "broken into lines": KEY[:9] + "\r\n" + KEY[9:18] + "\n" + KEY[18:],
    "NULs between": "\0".join(KEY),
    "zero-width spaces between": "\u200b".join(KEY),
    "base64 in lines": base64.b64encode(KEY.encode()).decode()[:7] + "\n" + base64.b64encode(KEY.encode()).decode()[7:],
}


@pytest.mark.parametrize("echo", ESCAPED.values(), ids=ESCAPED)
def test_a_given_secret_is_removed_however_it_is_escaped(echo: str) -> None:
    """Percent, entities, backslashes, hex, blanks, alone and in layers: nothing of it is left but its surroundings."""
    assert scrub(f"they said: {echo} (sic) 100%", [Secret(KEY)]) in (
        "they said: *** (sic) 100%",
        'they said: "***" (sic) 100%',
        'they said: "\\"\\\\u00e9***\\"" (sic) 100%',
    )
    assert without_secrets(f"<{echo}>", [KEY]).strip('<>"\\') in ("***", "u00e9***")


@pytest.mark.parametrize("shift", range(6))
@pytest.mark.parametrize("length", [6, 7, 12, 13, 14])
def test_base64_is_recognised_at_every_alignment(shift: int, length: int) -> None:
    """Of a secret inside an encoded text no character that hangs on it alone is left."""
    secret = "q~!Kz?^wR}{x;Y"[:length]
    encoded = base64.b64encode(b":" * shift + secret.encode() + b"-tail").decode()
    first, last = -(-8 * shift // 6), 8 * (shift + length) // 6
    assert scrub(f"sent {encoded}", [secret]) == f"sent {encoded[:first]}***{encoded[last:]}"
    safe = encoded.replace("+", "-").replace("/", "_")
    assert scrub(f"sent {safe}", [secret]) == f"sent {safe[:first]}***{safe[last:]}"


def test_ordinary_texts_are_left_alone() -> None:
    """Escapes of other texts stay as they are, and a short secret is not found across blanks."""
    text = r"50%25 of &lt;b&gt; \u00e9 &unknown; &#99999999; &#0; \ud800 \u{41} %zz a b c %"
    assert scrub(text, [KEY, "abc"]) == text


def test_no_more_is_read_than_16_kilobytes_whatever_may_be_shown() -> None:
    """A text without end costs a bounded time."""
    assert len(scrub("word " * 100_000, [KEY], limit=10**9)) == 16_384
    assert len(without_secrets("word " * 100_000, [KEY])) == 16_384


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Incorrect API key provided: sk-proj-abcDEF0123456789", "Incorrect API key provided: ***"),
        ("Incorrect API key provided: sk-abcd****************wxyz.", "Incorrect API key provided: ***"),
        ("authorization: Bearer abc.def-0123456789", "authorization: *** ***"),
        ("sent 'Bearer abcdef0123456789'", "sent 'Bearer ***'"),
        ('{"api_key": "abcd1234"}', '{"api_key": "***"}'),
        ("key AIzaSyA0123456789abcdefghijklmnopqrstu", "key ***"),
        ("gsk_abcdefgh12345678 xai-12345678abcd hf_abcdefghij", "*** *** ***"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "jwt ***"),
        ("hex 0123456789abcdef0123456789abcdef", "hex ***"),
        ("to https://me:pass@host/a?sig=abc&x=1#f", "to https://***@host/a?sig=***&x=***#f"),
        ("model gpt-4.1-mini-2025-04-14 not found", "model gpt-4.1-mini-2025-04-14 not found"),
        ("basic rules and token limits apply", "basic rules and token limits apply"),
        ("request id req_011CSHoEeqs5C35K2UUqR7Fy", "request id req_011CSHoEeqs5C35K2UUqR7Fy"),
        ("a\r\n\x00 b\u2028\tc\u202e", "a b c"),
        ("half \ud800 a character", "half ? a character"),
    ],
)
def test_what_looks_like_a_secret_goes_and_the_rest_stays(text: str, clean: str) -> None:
    """Keys nobody told us of, URLs' users and query values, control characters; ordinary words stay readable."""
    assert scrub(text) == clean


def test_short_secrets_are_removed_whole() -> None:
    """A key of three characters too; the empty one cannot be, and harms nothing."""
    assert scrub("the key abc is bad", ["abc", ""]) == "the key *** is bad"


def test_texts_are_bounded() -> None:
    """At most 500 characters, however long the foreign text."""
    assert len(scrub("word " * 1_000_000)) == 500


def test_a_secret_is_removed_before_the_text_is_cut() -> None:
    """A secret across the cut does not leave its beginning."""
    assert "secret-" not in scrub("x " * 246 + "secret-0123456789-secret", ["secret-0123456789-secret"])


@given(
    secret=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=60),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_no_secret_survives(secret: str, before: str, after: str) -> None:
    """Any printable key in any surroundings."""
    for echo in (secret, quote(secret, safe=""), json.dumps(secret), base64.b64encode(secret.encode()).decode()):
        assert secret not in scrub(before + echo + after, [secret])
        assert echo.strip('"')[3:-4] not in scrub(before + echo + after, [secret])
