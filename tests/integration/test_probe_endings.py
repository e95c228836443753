"""However an attempt ends, it is a record: its failure kind, the phase it died in, a sentence, in bounded time.

Each case is met over plain and TLS connections, HTTP/1.1 and HTTP/2, in all three dialects where that makes a
difference; the ways are walked at once, so that a case costs one deadline.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from monitor.clock import Clock
from monitor.model import AddressFamily, Attempt, ConnectionPolicy, DialectName
from monitor.simulator import Behaviour, Certificate, Content, ErrorKind, Fault, Listener, Simulator
from monitor.simulator.certificates import Authority
from monitor.timeline import Mark, Phase
from tests.integration.probing import (
    CHUNK,
    DONE,
    FINISH,
    GOOD_BODY,
    STREAM_HEAD,
    H2Peer,
    Talk,
    ask,
    attempt,
    chunked,
    failed,
    gathered,
    in_loop,
    prober,
    request,
    reset,
    says,
    series,
    served,
    succeeded,
    whole,
)

WAYS = {f"{scheme} {version}": (scheme, version) for scheme, version in product(("plain", "tls"), ("1.1", "2"))}
DIALECTS = (DialectName.OPENAI_CHAT, DialectName.OPENAI_RESPONSES, DialectName.ANTHROPIC)
QUICK = {"ttft_seconds": 0.02, "tokens": 5, "tokens_per_second": 500.0}


async def every_way(
    behaviour: Behaviour, dialects: tuple[DialectName, ...] = DIALECTS, **probe: Any
) -> dict[str, Attempt]:
    """One attempt for each way and dialect at a simulator that behaves so."""
    tls = Certificate.GOOD
    models = {"m": behaviour}
    listeners = [Listener(name="plain", models=models), Listener(name="tls", models=models, tls=tls)]
    async with Simulator(listeners) as sim, prober() as one:
        return await gathered(
            (
                f"{name} {dialect.value}",
                attempt(
                    one,
                    series(
                        sim.url(scheme),
                        dialect=dialect,
                        http_version=version,
                        ca_file=sim.ca_file,
                        probe={"deadline_seconds": 8.0, **probe},
                    ),
                ),
            )
            for (name, (scheme, version)), dialect in product(WAYS.items(), dialects)
        )


BAD_ENDINGS: dict[str, tuple[Behaviour, str, str]] = {
    "web page": (Behaviour(fault=Fault.HTML_PAGE), "not_a_stream", "generate"),
    "whole JSON": (Behaviour(**QUICK, fault=Fault.WHOLE_JSON), "not_a_stream", "generate"),
    "never answers": (Behaviour(fault=Fault.SILENCE), "first_token_deadline", "wait"),
    "truncated": (Behaviour(**QUICK, fault=Fault.TRUNCATED), "truncated", "generate"),
    "truncated at once": (Behaviour(**QUICK, fault=Fault.TRUNCATED, fault_after_tokens=0), "truncated", "generate"),
    "unmarked": (Behaviour(**QUICK, fault=Fault.UNMARKED), "truncated", "generate"),
    "closed early": (Behaviour(**QUICK, fault=Fault.DISCONNECTED), "disconnected", "generate"),
    "reset": (Behaviour(**QUICK, fault=Fault.RESET), "disconnected", "generate"),
    "error first": (
        Behaviour(**QUICK, fault=Fault.ERROR_EVENT, fault_after_tokens=0),
        "stream_error",
        "generate",
    ),
    "error in mid-stream": (Behaviour(**QUICK, fault=Fault.ERROR_EVENT), "stream_error", "generate"),
    "empty answer": (Behaviour(**QUICK | {"tokens": 0}), "empty_answer", "generate"),
    "only reasoning": (Behaviour(**QUICK | {"tokens": 0}, reasoning_tokens=4), "reasoning_only", "generate"),
    "filtered": (Behaviour(**QUICK, finish_reason="content_filter"), "filtered", "generate"),
    "refused": (Behaviour(**QUICK, content=Content.REFUSAL), "filtered", "generate"),
    "endless keep-alives": (
        Behaviour(fault=Fault.KEEP_ALIVES, keep_alive_seconds=0.05),
        "first_token_deadline",
        "generate",
    ),
    "rate limited": (Behaviour(**QUICK, status=429), "rate_limited", "wait"),
    "server error": (Behaviour(**QUICK, status=500), "server_error", "wait"),
    "overloaded": (Behaviour(**QUICK, status=503), "overloaded", "wait"),
    "redirect": (
        Behaviour(status=302, body="", headers={"location": "https://elsewhere.invalid/"}),
        "redirect",
        "wait",
    ),
}


@pytest.mark.parametrize("case", BAD_ENDINGS)
def test_a_bad_ending_is_told_apart_every_way(case: str) -> None:
    """The same kind and phase over plain and TLS, HTTP/1.1 and HTTP/2, in all dialects."""
    behaviour, kind, phase = BAD_ENDINGS[case]
    patience = 1.0 if kind.endswith("deadline") else 8.0
    for way, made in in_loop(lambda: every_way(behaviour, deadline_seconds=patience)).items():
        print(way, made.failure)
        failed(made, kind, phase)
        assert made.http.remote
        assert made.http.tls_version == ("TLSv1.3" if way.startswith("tls") else None)


def test_an_answer_that_stalls_is_stalled_not_late() -> None:
    """Silence between tokens ends the attempt after `stall_seconds`, long before its deadline."""
    behaviour = Behaviour(**QUICK, stall_after_tokens=2)
    for made in in_loop(lambda: every_way(behaviour, deadline_seconds=20.0, stall_seconds=0.4)).values():
        failed(made, "stalled", "generate")
        assert made.timeline.lasted_ns < 5e9
        assert made.timeline.ttft is not None
        assert made.timeline.total is None
        assert made.tcp.rtt is not None  # the line's state matters most to an attempt that died on it


def test_each_deadline_has_its_own_kind_and_phase() -> None:
    """Time to the first token, and the whole attempt, are different limits."""
    slow = Behaviour(ttft_seconds=0.02, tokens=5000, tokens_per_second=50.0)
    for made in in_loop(lambda: every_way(slow, deadline_seconds=0.8, max_output_tokens=10_000)).values():
        failed(made, "total_deadline", "generate")
    late = Behaviour(ttft_seconds=5.0, headers_seconds=0.02)
    for made in in_loop(
        lambda: every_way(late, deadline_seconds=10.0, first_token_deadline_seconds=0.5)
    ).values():
        failed(made, "first_token_deadline", "generate")
        assert made.timeline.lasted_ns < 3e9


def test_a_gzip_that_was_not_asked_for_is_decoded_right() -> None:
    """The answer is whole, the coding is told, and identity had been asked for."""
    made = in_loop(lambda: every_way(Behaviour(**QUICK, gzip=True)))
    for way, one in made.items():
        succeeded(one)
        assert (one.http.content_encoding, one.token_events) == ("gzip", 5), way


def test_a_response_left_open_after_its_end_marker_is_a_success() -> None:
    """The dialect's end marker ends the answer; the attempt does not wait for the body's end for long."""
    for made in in_loop(lambda: every_way(Behaviour(**QUICK, fault=Fault.LEFT_OPEN))).values():
        succeeded(made)
        assert made.timeline.total is not None
        assert made.timeline.total < 4.0


def test_one_line_without_end_is_too_large() -> None:
    """Bounded by size, every way."""
    behaviour = Behaviour(**QUICK, fault=Fault.ENDLESS_LINE)
    made = in_loop(lambda: every_way(behaviour, (DialectName.OPENAI_CHAT,), deadline_seconds=12.0, stall_seconds=12.0))
    for one in made.values():
        failed(one, "too_large", "generate")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_wrong_key_wrong_path_and_unknown_model(dialect: DialectName) -> None:
    """401, 404 for the URL and 404 for the model are three different mistakes."""

    async def ask_badly() -> dict[str, Attempt]:
        listener = Listener(models={"known": Behaviour(**QUICK)}, api_key="right")
        async with Simulator([listener]) as sim, prober() as one:
            key = {"headers": {"authorization": "Bearer right", "x-api-key": "right"}}
            wrong_path = sim.url().replace("/v1", "/wrong")
            return await gathered(
                [
                    ("unauthorized", attempt(one, series(sim.url(), dialect=dialect))),
                    ("unauthorized 2", attempt(one, series(sim.url(), dialect=dialect, http_version="2"))),
                    ("not_found", attempt(one, series(wrong_path, dialect=dialect, **key))),
                    ("model_gone", attempt(one, series(sim.url(), dialect=dialect, **key))),
                ]
            )

    for name, made in in_loop(ask_badly).items():
        failed(made, name.split()[0], "wait")
        assert made.http.status in (401, 404)


# Before there is a connection.


def test_an_unknown_host_dies_in_resolve() -> None:
    """No phase after the name lookup has a duration, nor has the lookup."""
    made = in_loop(lambda: ask("http://nowhere.invalid/v1"))
    failed(made, "dns", "resolve")
    assert made.timeline.phase(Phase.RESOLVE) is None
    assert made.http.remote is None
    assert made.clock_source is None


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "nul\u00adl..example", "-.invalid", "xn--.invalid"])
def test_a_host_that_cannot_be_a_name_is_a_failure_too(host: str) -> None:
    """Whatever is written as a host, the slot gets its record."""
    made = in_loop(lambda: ask(f"http://{host}/v1"))
    assert made.failure is not None
    assert made.failure.kind.value in ("dns", "bad_request"), made.failure
    assert made.failure.phase is Phase.RESOLVE


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_refused_connection_dies_in_connect(scheme: str, version: str) -> None:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    failed(in_loop(lambda: ask(f"{scheme}://127.0.0.1:{port}/v1", http_version=version)), "refused", "connect")


def test_an_address_of_another_family_is_unreachable() -> None:
    """`address_family: ipv6` with an IPv4 address in the URL: a sentence, no connection."""
    made = in_loop(lambda: ask("http://127.0.0.1:9/v1", address_family=AddressFamily.IPV6))
    assert made.failure is not None
    assert "ipv6" in made.failure.text


def test_a_server_that_takes_no_more_connections_times_out_in_connect() -> None:
    """Its queue of connections is full: the handshake is never answered."""

    async def ask_full() -> Attempt:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.socket() for _ in range(4)]
            for sock in waiting:
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            await asyncio.sleep(0.05)
            try:
                url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
                return await ask(url, probe={"connect_timeout_seconds": 0.5})
            finally:
                for sock in waiting:
                    sock.close()

    failed(in_loop(ask_full), "connect_timeout", "connect")


@pytest.mark.parametrize(
    ("certificate", "kind"),
    [
        (Certificate.EXPIRED, "tls_expired"),
        (Certificate.SELF_SIGNED, "tls_self_signed"),
        (Certificate.WRONG_NAME, "tls_wrong_name"),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_bad_certificate_dies_in_tls(certificate: Certificate, kind: str, version: str) -> None:
    """Expired, self-signed and wrong-name certificates are told apart; nothing is sent."""

    async def ask_it() -> Attempt:
        async with Simulator([Listener(tls=certificate)]) as sim:
            return await ask(sim.url(), http_version=version, ca_file=sim.ca_file)

    made = in_loop(ask_it)
    failed(made, kind, "tls")
    assert made.timeline.phase(Phase.CONNECT) is not None
    assert made.http.remote is not None


def test_an_issuer_nobody_trusts_dies_in_tls() -> None:
    """A good certificate of an unknown authority."""

    async def ask_it() -> Attempt:
        async with Simulator([Listener(tls=Certificate.GOOD)]) as sim:
            return await ask(sim.url())

    made = in_loop(ask_it)
    assert made.failure is not None
    assert made.failure.kind.value in ("tls", "tls_self_signed")
    assert made.failure.phase is Phase.TLS


def test_a_server_that_accepts_and_never_says_anything() -> None:
    """Before TLS it is a connection that does not come about; on a plain connection a request without an answer."""

    async def ask_both() -> list[Attempt]:
        async with Simulator([Listener(name="silent", silent=True)]) as sim, prober() as one:
            port = sim.port("silent")
            limits = {"connect_timeout_seconds": 0.5, "deadline_seconds": 1.0}
            asked = [(s, v) for s in ("https", "http") for v in ("1.1", "2")]
            return await asyncio.gather(
                *(
                    attempt(one, series(f"{s}://127.0.0.1:{port}/v1", http_version=v, probe=limits))
                    for s, v in asked
                )
            )

    secure1, secure2, plain1, plain2 = in_loop(ask_both)
    failed(secure1, "connect_timeout", "tls")
    failed(secure2, "connect_timeout", "tls")
    failed(plain1, "first_token_deadline", "wait")
    assert plain2.failure is not None
    assert plain2.failure.kind.value == "first_token_deadline"


def test_tls_on_a_plain_port_and_plain_on_a_tls_port() -> None:
    """The two ways to confuse http and https."""

    async def ask_both() -> list[Attempt]:
        listeners = [Listener(name="plain", http=("1.1",)), Listener(name="tls", tls=Certificate.GOOD)]
        async with Simulator(listeners) as sim:
            return [
                await ask(f"https://127.0.0.1:{sim.port('plain')}/v1"),
                await ask(f"http://127.0.0.1:{sim.port('tls')}/v1"),
            ]

    secure, plain = in_loop(ask_both)
    assert secure.failure is not None
    assert (secure.failure.kind.value, secure.failure.phase) == ("tls", Phase.TLS), secure.failure
    assert plain.failure is not None
    assert plain.failure.kind.value in ("protocol_error", "disconnected", "bad_request"), plain.failure
    assert plain.failure.phase is Phase.WAIT


# Servers that say exact bytes.

BYTES: dict[str, tuple[Talk, str, str]] = {
    "closes without a byte": (says(), "disconnected", "wait"),
    "resets without a byte": (says(then="reset"), "disconnected", "wait"),
    "closes in the headers": (says(STREAM_HEAD[:30]), "disconnected", "wait"),
    "resets in the headers": (says(STREAM_HEAD[:30], 0.05, then="reset"), "disconnected", "wait"),
    "stops in the headers": (says(STREAM_HEAD[:30], then="hold"), "first_token_deadline", "wait"),
    "less than its length": (
        says(STREAM_HEAD + b"content-length: 999\r\n\r\n" + CHUNK),
        "disconnected",
        "generate",
    ),
    "no last chunk": (
        says(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(CHUNK, last=False)),
        "disconnected",
        "generate",
    ),
    "until close, without an end": (says(STREAM_HEAD + b"\r\n" + CHUNK), "truncated", "generate"),
    "no body": (says(STREAM_HEAD + b"content-length: 0\r\n\r\n"), "truncated", "generate"),
    "204": (says(b"HTTP/1.1 204 No Content\r\n\r\n"), "truncated", "generate"),
    "no HTTP": (says(b"SSH-2.0-OpenSSH_9.2\r\n"), "disconnected", "wait"),
    "HTTP/2 to an HTTP/1.1 request": (says(b"\0\0\x12\4\0\0\0\0\0" + b"\0" * 18), "protocol_error", "wait"),
    "100,000 header lines": (
        says(STREAM_HEAD + b"".join(b"x-%d: y\r\n" % n for n in range(100_000)) + b"\r\n" + GOOD_BODY),
        "too_large",
        "wait",
    ),
    "one header of 10 MB": (says(STREAM_HEAD + b"x: " + b"y" * 10_000_000), "too_large", "wait"),
    "a chunk size of 100 digits": (
        says(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\n"),
        "protocol_error",
        "generate",
    ),
    "unknown encoding": (
        says(whole(b"\x0b\x02\x80", STREAM_HEAD + b"content-encoding: br\r\n")),
        "protocol_error",
        "generate",
    ),
    "gzip that is none": (
        says(whole(GOOD_BODY, STREAM_HEAD + b"content-encoding: gzip\r\n")),
        "protocol_error",
        "generate",
    ),
    "gzip cut short": (
        says(whole(gzip.compress(CHUNK + FINISH)[:-12], STREAM_HEAD + b"content-encoding: gzip\r\n")),
        "truncated",
        "generate",
    ),
    "binary": (says(whole(bytes(range(256)) * 20)), "protocol_error", "generate"),
    "plain text": (says(whole(b"Hello, this is no stream")), "not_a_stream", "generate"),
    "broken JSON": (says(whole(CHUNK + b"data: {broken\n\n" + FINISH + DONE)), "protocol_error", "generate"),
    "redirect to nonsense": (
        says(b"HTTP/1.1 302 Found\r\nlocation: http://x:port/\r\ncontent-length: 0\r\n\r\n"),
        "redirect",
        "wait",
    ),
    "redirect without a place": (says(b"HTTP/1.1 307 X\r\ncontent-length: 0\r\n\r\n"), "redirect", "wait"),
    "a status of its own": (says(b"HTTP/1.1 999 Denied\r\ncontent-length: 0\r\n\r\n"), "server_error", "wait"),
    "401 whose body never ends": (
        says(b'HTTP/1.1 401 No\r\ncontent-length: 999\r\n\r\n{"error":"no"', then="hold"),
        "unauthorized",
        "wait",
    ),
    "401 without its body": (says(b"HTTP/1.1 401 No\r\ncontent-length: 999\r\n\r\n"), "unauthorized", "wait"),
    "401 in an unknown encoding": (
        says(b"HTTP/1.1 401 No\r\ncontent-encoding: br\r\ncontent-length: 3\r\n\r\n\x0b\x02\x80"),
        "unauthorized",
        "wait",
    ),
    "401 in a gzip that is none": (
        says(b"HTTP/1.1 401 No\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x0b\x02\x80"),
        "unauthorized",
        "wait",
    ),
    "500 with 50 MB": (
        says(b"HTTP/1.1 500 No\r\ncontent-length: 50000000\r\n\r\n", *[b"x" * 65536] * 760),
        "server_error",
        "wait",
    ),
    "500 with a gzip bomb": (
        says(whole(zlib.compress(b"x" * 100_000_000, 1), b"HTTP/1.1 500 No\r\ncontent-encoding: deflate\r\n")),
        "server_error",
        "wait",
    ),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Certificates for servers of this file's own."""
    return Authority(tmp_path_factory.mktemp("certificates"), Clock().now())


@pytest.mark.parametrize("case", BYTES)
def test_what_a_server_can_say_wrong(case: str, authority: Authority) -> None:
    """Exact bytes over plain and TLS connections: the same kind and phase, in time."""
    talk, kind, phase = BYTES[case]

    async def ask_both() -> dict[str, Attempt]:
        context = authority.context(Certificate.GOOD, ("http/1.1",))
        limits = {"deadline_seconds": 1.0 if kind.endswith("deadline") else 8.0}
        async with served(talk) as plain, served(talk, context) as secure, prober() as one:
            ca = str(authority.ca_file)
            return await gathered(
                [
                    ("plain", attempt(one, series(f"http://127.0.0.1:{plain}/v1", probe=limits))),
                    ("TLS", attempt(one, series(f"https://127.0.0.1:{secure}/v1", probe=limits, ca_file=ca))),
                ]
            )

    for way, made in in_loop(ask_both).items():
        print(way, made.failure)
        failed(made, kind, phase)


GOOD: dict[str, Talk] = {
    "with its length": says(whole()),
    "in chunks": says(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(CHUNK, FINISH, DONE)),
    "until the connection closes": says(STREAM_HEAD + b"\r\n" + GOOD_BODY),
    "HTTP/1.0": says(b"HTTP/1.0 200 OK\r\n\r\n" + GOOD_BODY),
    "byte by byte": says(*[whole()[i : i + 1] for i in range(len(whole()))]),
    "trailing data": says(whole(GOOD_BODY + CHUNK * 50 + b"data: {broken")),
    "trailing data beyond bounds": says(whole(GOOD_BODY + b"x" * 3_000_000)),
    "cut off after its end marker": says(STREAM_HEAD + b"content-length: 999\r\n\r\n" + GOOD_BODY),
    "reset after its end marker": says(
        STREAM_HEAD + b"content-length: 999\r\n\r\n" + GOOD_BODY, 0.05, then="reset"
    ),
    "deflate": says(whole(zlib.compress(GOOD_BODY), STREAM_HEAD + b"content-encoding: deflate\r\n")),
    "raw deflate": says(whole(zlib.compress(GOOD_BODY)[2:-4], STREAM_HEAD + b"content-encoding: deflate\r\n")),
    "gzip in members": says(
        whole(b"".join(map(gzip.compress, (CHUNK, FINISH, DONE))), STREAM_HEAD + b"content-encoding: gzip\r\n")
    ),
    "a bomb after its end marker": says(
        whole(gzip.compress(GOOD_BODY + b"x" * 100_000_000, 1), STREAM_HEAD + b"content-encoding: gzip\r\n")
    ),
    "upper-case GZIP": says(whole(gzip.compress(GOOD_BODY), STREAM_HEAD + b"content-encoding: GZIP\r\n")),
    "gzip byte by byte": says(
        STREAM_HEAD + b"content-encoding: gzip\r\n\r\n",
        *[gzip.compress(GOOD_BODY)[i : i + 1] for i in range(len(gzip.compress(GOOD_BODY)))],
    ),
    "content-encoding identity": says(whole(GOOD_BODY, STREAM_HEAD + b"content-encoding: identity\r\n")),
    "no content type": says(whole(GOOD_BODY, b"HTTP/1.1 200 OK\r\n")),
    "another 2xx": says(whole(GOOD_BODY, b"HTTP/1.1 201 Created\r\n")),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_a_server_may_say_in_its_own_way(case: str, authority: Authority) -> None:
    """A good stream is a success however it is framed, cut and coded, and whatever follows its end marker."""

    async def ask_both() -> dict[str, Attempt]:
        context = authority.context(Certificate.GOOD, ("http/1.1",))
        async with served(GOOD[case]) as plain, served(GOOD[case], context) as secure, prober() as one:
            ca = str(authority.ca_file)
            return await gathered(
                [
                    ("plain", attempt(one, series(f"http://127.0.0.1:{plain}/v1"))),
                    ("TLS", attempt(one, series(f"https://127.0.0.1:{secure}/v1", ca_file=ca))),
                ]
            )

    for made in in_loop(ask_both).values():
        succeeded(made)
        assert (made.token_events, made.finish_reason) == (1, "stop")


def test_one_byte_a_while_ends_at_the_deadline() -> None:
    """Neither a trickle of headers nor a trickle of body keeps an attempt alive."""
    letters = [piece for byte in whole() for piece in (bytes([byte]), 0.15)]
    head = says(*letters)
    body = says(STREAM_HEAD + b"content-length: 99999\r\n\r\n", *letters[:200])

    async def ask_both() -> list[Attempt]:
        limits = {"deadline_seconds": 1.0}
        async with served(head) as one, served(body) as other, prober() as asking:
            urls = [f"http://127.0.0.1:{port}/v1" for port in (one, other)]
            return await asyncio.gather(*(attempt(asking, series(url, probe=limits)) for url in urls))

    in_head, in_body = in_loop(ask_both)
    failed(in_head, "first_token_deadline", "wait")
    failed(in_body, "first_token_deadline", "generate")


def test_a_trickle_of_keep_alives_after_the_first_token_is_a_stall() -> None:
    """Comments prove that the line lives, not that the model does."""
    talk = says(STREAM_HEAD + b"\r\n" + CHUNK, *[b": still here\n\n", 0.05] * 100)

    async def ask_it() -> Attempt:
        async with served(talk) as port:
            return await ask(f"http://127.0.0.1:{port}/v1", probe={"stall_seconds": 0.4})

    failed(in_loop(ask_it), "stalled", "generate")


@pytest.mark.parametrize("inside", [b"x", b"\n", b": \n\n", CHUNK], ids=["line", "blank", "comments", "tokens"])
def test_a_gzip_bomb_is_bounded(inside: bytes) -> None:
    """Whatever unpacks to more than the bound is too large, and others are measured meanwhile."""
    packed = gzip.compress(inside * (150_000_000 // len(inside)), 1)
    talk = says(whole(packed, STREAM_HEAD + b"content-encoding: gzip\r\n"))

    async def ask_it() -> tuple[Attempt, float]:
        lags = []

        async def pulse() -> None:
            while True:
                before = asyncio.get_running_loop().time()
                await asyncio.sleep(0.005)
                lags.append(asyncio.get_running_loop().time() - before)

        async with served(talk) as port, prober() as one:
            beating = asyncio.create_task(pulse())
            asked = series(f"http://127.0.0.1:{port}/v1", probe={"deadline_seconds": 1.5, "stall_seconds": 8.0})
            made = await attempt(one, asked)
            beating.cancel()
        return made, max(lags)

    made, worst = in_loop(ask_it)
    print(made.failure, worst)
    assert made.failure is not None
    assert made.failure.kind.value in ("too_large", "total_deadline", "first_token_deadline"), made.failure
    assert made.failure.phase is Phase.GENERATE
    assert worst < 2.0, "others had to wait for the whole of it"


def test_a_body_without_end_takes_bounded_memory() -> None:
    """200 MB are not kept: 64 MB are read, and a fraction of that is held."""
    blocks = [b": " + b"k" * 65_532 + b"\n\n"] * 3200

    async def ask_it() -> tuple[Attempt, int]:
        async with served(says(STREAM_HEAD + b"\r\n", *blocks)) as port, prober() as one:
            before = _resident_bytes()
            asked = series(f"http://127.0.0.1:{port}/v1", probe={"deadline_seconds": 15.0})
            made = await attempt(one, asked)
            return made, _resident_bytes() - before

    made, grown = in_loop(ask_it)
    failed(made, "too_large", "generate")
    assert grown < 40_000_000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# HTTP/2 by hand.


@asynccontextmanager
async def h2_served(talk: Any) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await talk(H2Peer(reader, writer))

    async with served(serve) as port:
        yield port


async def _streams(peer: H2Peer) -> AsyncIterator[int]:
    """The streams whose request is complete."""
    async for event in peer.events():
        if type(event).__name__ == "StreamEnded":
            yield event.stream_id  # type: ignore[attr-defined]


async def _goes_away(peer: H2Peer) -> None:
    async for _ in _streams(peer):
        peer.h2.close_connection(error_code=11, additional_data=b"enhance your calm")
        await peer.flush()
        return


async def _refuses_stream(peer: H2Peer) -> None:
    async for stream in _streams(peer):
        peer.h2.reset_stream(stream, 7)
        await peer.flush()


async def _headers_without_end(peer: H2Peer) -> None:
    async for stream in _streams(peer):
        lines = [(f"x-{n}", "y" * 50) for n in range(20_000)]
        peer.h2.send_headers(stream, [(":status", "200"), *lines])
        await peer.flush()


async def _speaks_http1(peer: H2Peer) -> None:
    await peer.reader.read(24)
    peer.writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    await asyncio.sleep(5)


async def _hangs_up_in_http1(peer: H2Peer) -> None:
    await peer.reader.read(24)
    peer.writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")


async def _pings_for_ever(peer: H2Peer) -> None:
    async for _ in _streams(peer):
        while True:
            peer.h2.ping(b"12345678")
            await peer.flush()
            await asyncio.sleep(0.05)


async def _closes(peer: H2Peer) -> None:
    async for _ in _streams(peer):
        return


async def _no_end(peer: H2Peer) -> None:
    async for stream in _streams(peer):
        await peer.answer(stream, CHUNK, end=False)
        return


async def _breaks_the_rules(peer: H2Peer) -> None:
    async for stream in _streams(peer):
        await peer.answer(stream, CHUNK, end=False)
        await asyncio.sleep(0.1)
        peer.writer.write((4).to_bytes(3) + b"\0\0" + (77).to_bytes(4) + b"DATA")  # on a stream that never was
        await peer.writer.drain()
        await asyncio.sleep(5)


async def _endless_frame(peer: H2Peer) -> None:
    async for stream in _streams(peer):
        await peer.answer(stream, CHUNK, end=False)
        peer.writer.write((2**24 - 1).to_bytes(3) + b"\0\0" + stream.to_bytes(4) + b"x" * 2**20)
        await peer.writer.drain()
        await asyncio.sleep(5)


async def _error_without_body(peer: H2Peer) -> None:
    async for stream in _streams(peer):
        peer.h2.send_headers(stream, [(":status", "401"), ("content-length", "100")])
        await peer.flush()


H2_ENDINGS: dict[str, tuple[Any, str, str]] = {
    "GOAWAY": (_goes_away, "disconnected", "wait"),
    "RST_STREAM": (_refuses_stream, "disconnected", "wait"),
    "a megabyte of headers": (_headers_without_end, "too_large", "wait"),
    "HTTP/1.1": (_speaks_http1, "protocol_error", "wait"),
    "HTTP/1.1 and a hang-up": (_hangs_up_in_http1, "protocol_error", "wait"),
    "nothing but pings": (_pings_for_ever, "first_token_deadline", "wait"),
    "closes": (_closes, "disconnected", "wait"),
    "closes in the body": (_no_end, "disconnected", "generate"),
    "breaks the rules in the body": (_breaks_the_rules, "protocol_error", "generate"),
    "a frame of 16 MB that does not end": (_endless_frame, "total_deadline", "generate"),
    "401 whose body never comes": (_error_without_body, "unauthorized", "wait"),
}


@pytest.mark.parametrize("case", H2_ENDINGS)
def test_how_http2_can_go_wrong(case: str) -> None:
    """Its own ways to end: GOAWAY, RST_STREAM, too many headers, the wrong protocol."""
    talk, kind, phase = H2_ENDINGS[case]

    async def ask_it() -> Attempt:
        async with h2_served(talk) as port:
            return await ask(
                f"http://127.0.0.1:{port}/v1",
                http_version="2",
                probe={"deadline_seconds": 1.0 if kind.endswith("deadline") else 8.0},
            )

    made = in_loop(ask_it)
    print(made.failure)
    failed(made, kind, phase)


def test_http2_asked_of_a_server_that_speaks_only_http1() -> None:
    """With TLS it is negotiated down and works; in plain text it cannot be, and says so."""

    async def ask_both() -> list[Attempt]:
        only1 = ("1.1",)
        models = {"m": Behaviour(**QUICK)}
        listeners = [
            Listener(name="plain", http=only1, models=models),
            Listener(name="tls", http=only1, tls=Certificate.GOOD, models=models),
        ]
        async with Simulator(listeners) as sim:
            return [
                await ask(sim.url("plain"), http_version="2"),
                await ask(sim.url("tls"), http_version="2", ca_file=sim.ca_file),
            ]

    plain, secure = in_loop(ask_both)
    assert plain.failure is not None
    assert plain.failure.kind.value == "protocol_error", plain.failure
    succeeded(secure)
    assert (secure.http.version, secure.http.alpn) == ("1.1", "http/1.1")


# What is wrong on our side.


@pytest.mark.parametrize(
    ("key", "kind"), [("sk-“quoted”", "bad_request"), ("line\nbreak", "bad_request"), ("nul\0", "bad_request")]
)
def test_a_key_that_no_header_can_carry(key: str, kind: str) -> None:
    """A key with typographic quotes or a line break is a bad request of ours, and is not shown."""
    from monitor.model import Secret

    async def ask_it() -> Attempt:
        async with served(says(whole())) as port:
            return await ask(f"http://127.0.0.1:{port}/v1", api_key=Secret(key))

    made = in_loop(ask_it)
    assert made.failure is not None
    assert made.failure.kind.value == kind, made.failure
    assert key not in made.failure.text


def test_a_proxy_or_certificate_file_that_cannot_be_used_is_a_record(tmp_path: Path) -> None:
    """Our own mistakes are attempts too, of the kind `internal` or `proxy`, with a sentence."""
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate")

    async def ask_badly() -> list[Attempt]:
        async with prober() as one:
            asked = [
                series("https://127.0.0.1:9/v1", ca_file=str(empty)),
                series("https://127.0.0.1:9/v1", ca_file="/nowhere/ca.pem"),
                series("http://127.0.0.1:9/v1", proxy="http://[bad"),
                series("http://127.0.0.1:9/v1", proxy="nonsense"),
                series("http://127.0.0.1:99999/v1"),
                series("http://[bad/v1"),
            ]
            return [await attempt(one, s) for s in asked]

    for made in in_loop(ask_badly):
        assert made.failure is not None
        assert len(made.failure.text) > 10
        assert made.timeline.phase(Phase.CONNECT) is None


def test_an_error_after_the_connection_was_reused_keeps_its_facts() -> None:
    """A failed attempt on a kept connection says which connection that was."""
    state = {"asked": 0}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await request(reader):
            state["asked"] += 1
            if state["asked"] > 1:
                reset(writer)
                return
            writer.write(whole())

    async def ask_twice() -> list[Attempt]:
        async with served(talk) as port, prober() as one:
            asked = series(f"http://127.0.0.1:{port}/v1", probe={"connection": ConnectionPolicy.REUSED})
            return [await attempt(one, asked) for _ in range(2)]

    first, second = in_loop(ask_twice)
    succeeded(first)
    failed(second, "disconnected", "wait")
    assert second.http.reused
    assert second.http.remote == first.http.remote
    assert Mark.CONNECT_START not in second.timeline.marks


def test_a_slow_tls_handshake_is_bounded(authority: Authority) -> None:
    """A handshake fed byte by byte ends with the connect timeout."""

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = authority.context(Certificate.GOOD, ("http/1.1",)).wrap_bio(incoming, outgoing, server_side=True)
        incoming.write(await reader.read(65536))
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        for byte in outgoing.read():
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)

    async def ask_it() -> Attempt:
        async with served(trickle) as port:
            limits = {"connect_timeout_seconds": 0.6}
            return await ask(f"https://127.0.0.1:{port}/v1", ca_file=str(authority.ca_file), probe=limits)

    failed(in_loop(ask_it), "connect_timeout", "tls")


def test_an_overloaded_vendor_in_its_own_words() -> None:
    """A machine that turns away is overloaded or rate limited in every dialect."""
    for kind, expected in ((ErrorKind.OVERLOADED, "overloaded"), (ErrorKind.RATE_LIMITED, "rate_limited")):
        behaviour = Behaviour(capacity=1, queue_limit=0, ttft_seconds=0.5, refusal=kind)
        made = in_loop(lambda behaviour=behaviour: every_way(behaviour, deadline_seconds=3.0, max_output_tokens=1))
        kinds = sorted({one.failure.kind.value for one in made.values() if one.failure})
        assert kinds == [expected]
