"""A planted key is searched for in everything that an attempt leaves, whatever a careless server does with it."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import logging
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote

import pytest
from rich.console import Console

from monitor import wire
from monitor.cli.waterfall import waterfall
from monitor.model import Attempt, ConnectionPolicy, DialectName, Secret, Series
from monitor.simulator import Behaviour, Certificate, Listener, Simulator
from tests.integration.probing import (
    CHUNK,
    DONE,
    FINISH,
    GOOD_BODY,
    STREAM_HEAD,
    Talk,
    attempt,
    in_loop,
    prober,
    request,
    says,
    series,
    served,
    whole,
)

KEY = "sk-Planted+Key/9f8E7d6C5b4A3z1Y=="
HEADER = "hdr:Planted Header/Secret+77xQ"
SPELLINGS = {
    "plain": KEY,
    "header": HEADER,
    "quoted": quote(KEY, safe=""),
    "form": quote_plus(HEADER),
    "base64": base64.b64encode(f"user:{KEY}".encode()).decode(),
    "json": json.dumps(KEY),
    "upper": KEY.upper(),
    "hex": KEY.encode().hex(),
    "entities": html.escape(KEY).replace("+", "&#43;").replace("/", "&#x2F;").replace("=", "&equals;"),
    "escapes": KEY.replace("+", "\\u002b").replace("/", "\\/").replace("=", "\\u003D"),
    "percent": "".join(f"%{ord(char):02x}" if n % 3 == 0 else char for n, char in enumerate(KEY)),
    "spaced": " ".join(KEY),
}


def traces(text: str) -> Iterator[str]:
    """Every run of twelve characters of a secret, in any spelling, that the text holds."""
    read = re.sub(r"\\+u00([0-9a-f]{2})", r"%\1", text.lower()).replace("\\", "")
    read = re.sub(r"\s", "", unquote(html.unescape(read)))
    folded = f"{text}\n{read}".lower()
    for secret in (KEY, HEADER):
        forms = {secret, quote(secret, safe=""), quote_plus(secret), secret.encode().hex()}
        for shift in range(3):  # leave out what depends on the neighbours
            forms.add(base64.b64encode(b"\0" * shift + secret.encode()).decode()[4:-4])
        for form in forms:
            yield from (form[i : i + 12] for i in range(len(form) - 11) if form[i : i + 12].lower() in folded)


def everything(made: Attempt, asked: Series) -> str:
    """All that a person, a log, a row or a page could be given of an attempt."""
    console = Console(width=200, color_system=None, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(waterfall(made, asked))
    stored = wire.encode(made)
    return "\n".join(
        [
            repr(made),
            str(made),
            repr(asked),
            stored.decode() if isinstance(stored, bytes) else str(stored),
            json.dumps(wire.report(made, asked), ensure_ascii=False),
            json.dumps(wire.report(made, asked)),
            console.export_text(),
        ]
    )


def keyed(url: str, **options: object) -> Series:
    return series(url, api_key=Secret(KEY), headers={"x-team": Secret(HEADER)}, **options)  # type: ignore[arg-type]


def data(chunk: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def stream(chunk: dict[str, object]) -> bytes:
    return whole(data(chunk) + GOOD_BODY)


def error(status: int, body: str, headers: str = "") -> bytes:
    raw = body.encode()
    return f"HTTP/1.1 {status} No\r\n{headers}content-length: {len(raw)}\r\n\r\n".encode() + raw


def careless(echo: str) -> dict[str, bytes]:
    """Answers that repeat a secret, wherever an answer can."""
    token = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
    head = STREAM_HEAD
    return {
        "request id": whole(head=head + f"x-request-id: {echo}\r\n".encode()),
        "edge": whole(head=head + f"cf-ray: 1-{echo}\r\nx-amz-cf-pop: {echo}\r\n".encode()),
        "content type": whole(head=f"HTTP/1.1 200 OK\r\ncontent-type: {echo}\r\n".encode()),
        "encoding": whole(head=head + f"content-encoding: {echo}\r\n".encode()),
        "region": whole(head=head + f"x-groq-region: {echo}\r\nx-provider-name: {echo}\r\n".encode()),
        "limits": whole(head=head + f"x-ratelimit-limit-{quote(echo, safe='')}: 5\r\nretry-after: {echo}\r\n".encode()),
        "model": stream({"model": echo, "choices": [token], "system_fingerprint": echo, "id": echo}),
        "finish reason": whole(CHUNK + data({"choices": [{"delta": {}, "finish_reason": echo}]}) + DONE),
        "error event": stream({"error": {"message": f"bad key {echo}", "type": echo, "code": echo}}),
        "broken JSON": whole(b'data: {"key": ' + echo.encode() + b"\n\n" + FINISH + DONE),
        "page": whole(f"<html><title>{echo}</title><body>{echo}</body></html>".encode()),
        "text": whole(f"you sent {echo} to me".encode()),
        "whole JSON": whole(json.dumps({"you": echo}).encode()),
        "401": error(401, json.dumps({"error": {"message": f"Incorrect API key provided: {echo}."}})),
        "403": error(403, f"<html><title>{echo}</title></html>"),
        "404": error(404, json.dumps({"detail": echo})),
        "429": error(429, json.dumps({"error": echo}), f"retry-after: {echo}\r\n"),
        "500": error(500, f"Traceback: headers={{'authorization': 'Bearer {echo}'}}"),
        "redirect": error(302, "", f"location: https://elsewhere.invalid/{quote(echo, safe='')}?key={echo}\r\n"),
        "reason phrase": f"HTTP/1.1 400 {echo}\r\ncontent-length: 0\r\n\r\n".encode(),
        "no HTTP": f"{echo}\r\n{echo}\r\n\r\n".encode(),
        "chunk size": STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + echo.encode() + b"\r\n\r\n",
        "header line": STREAM_HEAD + echo.encode() + b" \r\n\r\n",
    }


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_echo_of_a_key_survives(spelling: str, caplog: pytest.LogCaptureFixture) -> None:
    """In any header, text or name of an answer: repr, wire, report, waterfall and log are clean."""
    caplog.set_level(logging.DEBUG)

    async def ask_all() -> list[tuple[str, Series, Attempt]]:
        found = []
        async with prober() as one:
            for name, answer in careless(SPELLINGS[spelling]).items():
                async with served(says(answer)) as port:
                    asked = keyed(f"http://127.0.0.1:{port}/v1")
                    found.append((name, asked, await attempt(one, asked)))
        return found

    for name, asked, made in in_loop(ask_all):
        left = everything(made, asked)
        assert not list(traces(left)), f"{name}: {left}"
    assert not list(traces(caplog.text))


@pytest.mark.parametrize("dialect", [DialectName.OPENAI_CHAT, DialectName.OPENAI_RESPONSES, DialectName.ANTHROPIC])
@pytest.mark.parametrize(("tls", "version"), [(False, "1.1"), (True, "2")])
def test_a_gateway_that_repeats_a_wrong_key(
    dialect: DialectName, tls: bool, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The simulator's echo in its vendor's words, in every dialect, with all logging on."""
    caplog.set_level(logging.DEBUG)

    async def ask_it() -> tuple[Series, Attempt]:
        listener = Listener(api_key="right", echo_key=True, tls=Certificate.GOOD if tls else None)
        async with Simulator([listener]) as sim, prober() as one:
            asked = keyed(sim.url(), dialect=dialect, http_version=version, ca_file=sim.ca_file)
            return asked, await attempt(one, asked)

    asked, made = in_loop(ask_it)
    assert made.failure is not None
    assert made.failure.kind.value == "unauthorized"
    assert "***" in made.failure.text
    assert not list(traces(everything(made, asked)))
    assert not list(traces(caplog.text))


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_key_is_sent_and_not_logged(version: str, caplog: pytest.LogCaptureFixture) -> None:
    """It reaches its provider, and no library below us writes it into a log, not even at the most talkative level."""
    caplog.set_level(1)

    async def ask_it() -> tuple[Series, Attempt]:
        models = {"m": Behaviour(ttft_seconds=0.01, tokens=2, tokens_per_second=500.0)}
        async with Simulator([Listener(api_key=KEY, models=models)]) as sim, prober() as one:
            probe = {"control": True, "connection": ConnectionPolicy.REUSED}
            asked = keyed(sim.url(), http_version=version, probe=probe)
            await attempt(one, asked)
            return asked, await attempt(one, asked)

    asked, made = in_loop(ask_it)
    assert made.failure is None
    assert made.timeline.control is not None
    assert not list(traces(everything(made, asked)))
    ours = [r for r in caplog.records if "simulator" not in r.pathname]
    assert not list(traces("\n".join(f"{r.getMessage()} {r.args}" for r in ours)))


@pytest.mark.parametrize("echo", [KEY, quote(KEY, safe="")])
def test_a_proxy_that_repeats_what_it_was_sent(echo: str) -> None:
    """Its status line is shown without the key (which it never gets from us)."""
    heard: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await request(reader))
        writer.write(f"HTTP/1.1 403 {echo}\r\n\r\n".encode())

    async def ask_it() -> tuple[Series, Attempt]:
        async with served(talk) as port, prober() as one:
            asked = keyed("https://example.invalid/v1", proxy=f"http://127.0.0.1:{port}")
            return asked, await attempt(one, asked)

    asked, made = in_loop(ask_it)
    assert not list(traces(everything(made, asked)))
    assert not list(traces(heard[0].decode()))


ODD = "line one\nline two\x1b[31mred\x00nul\ud800half\u202eback"


def test_names_with_odd_characters_can_be_stored_and_printed() -> None:
    """NUL, escape sequences, half surrogates and bidirectional marks do not get into names, texts or terminals."""
    answers: list[Talk] = [
        says(stream({"model": ODD, "choices": [{"index": 0, "delta": {"content": ODD}, "finish_reason": None}]})),
        says(whole(CHUNK + data({"choices": [{"finish_reason": ODD}]}) + DONE)),
        says(stream({"error": {"message": ODD, "type": ODD}})),
        says(error(500, json.dumps({"error": {"message": ODD}}))),
    ]

    async def ask_all() -> list[tuple[Series, Attempt]]:
        found = []
        async with prober() as one:
            for talk in answers:
                async with served(talk) as port:
                    asked = keyed(f"http://127.0.0.1:{port}/v1")
                    found.append((asked, await attempt(one, asked)))
        return found

    for asked, made in in_loop(ask_all):
        told = [made.http.served_model, made.finish_reason, made.failure.text if made.failure else None]
        for text in filter(None, told):
            assert text.isprintable(), repr(text)
            text.encode()
        assert wire.decode(wire.encode(made)) == made
        assert "\x1b" not in everything(made, asked)
