"""Servers that say exact bytes, right and wrong, over HTTP/1.1 and HTTP/2: each attempt ends as it should, in time."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from monitor.clock import Clock
from monitor.model import Attempt, ConnectionPolicy
from monitor.simulator import Behaviour, Certificate, Listener, Simulator
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
    "no HTTP": (says(b"SSH-2.0-OpenSSH_9.2\r\n"), "protocol_error", "wait"),
    "no HTTP, by the byte": (
        says(*(part for byte in b"220 mail ESMTP\r\n" for part in (bytes([byte]), 0.001)), then="hold"),
        "protocol_error",
        "wait",
    ),
    "half of a head": (says(b"HTTP/1.1 200 OK\r\nContent-"), "disconnected", "wait"),
    "half of a version": (says(b"HTT"), "disconnected", "wait"),
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
    "NULs": (says(b"\0" * 100), "protocol_error", "wait"),
    "a NUL in the status line": (says(b"HTTP/1.1 2\x0000 OK\r\n\r\n"), "protocol_error", "wait"),
    "a NUL in a header": (says(STREAM_HEAD + b"x: a\0c\r\n\r\n" + GOOD_BODY), "protocol_error", "wait"),
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
    "reset after its end marker": says(STREAM_HEAD + b"content-length: 999\r\n\r\n" + GOOD_BODY, 0.05, then="reset"),
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


def _with_head(head: list[tuple[str, str]]) -> Any:
    """A whole good answer but for its head."""

    async def talk(peer: H2Peer) -> None:
        async for stream in _streams(peer):
            peer.h2.send_headers(stream, head)
            peer.h2.send_data(stream, GOOD_BODY, end_stream=True)
            await peer.flush()

    return talk


STATUSLESS: dict[str, list[tuple[str, str]]] = {
    "only known names": [("content-type", "text/event-stream")],
    "names of its own": [("x-own", "y"), ("content-type", "text/event-stream")],
    "a request's": [(":method", "GET"), (":path", "/"), ("content-type", "text/event-stream")],
    "no word": [(":status", "good"), ("content-type", "text/event-stream")],
    "nothing": [(":status", ""), ("content-type", "text/event-stream")],
    "far too large": [(":status", "20000"), ("content-type", "text/event-stream")],
}

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
    **{f"no status: {name}": (_with_head(head), "protocol_error", "wait") for name, head in STATUSLESS.items()},
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
    failed(made, kind, phase)


def test_heads_that_begin_with_a_status_are_none_of_them() -> None:
    """An uncommon status, also by dynamic index, behind a table size, after early hints, before trailers: all good."""

    async def talk(peer: H2Peer) -> None:
        sizes = iter((0, 4096, 4096, 4096))
        async for stream in _streams(peer):
            peer.h2.encoder.header_table_size = next(sizes)
            peer.h2.send_headers(stream, [(":status", "103"), ("link", "</x>")])
            peer.h2.send_headers(stream, [(":status", "299"), ("content-type", "text/event-stream"), ("x-own", "1")])
            peer.h2.send_data(stream, GOOD_BODY)
            peer.h2.send_headers(stream, [("x-sum", "1")], end_stream=True)
            await peer.flush()

    async def ask_often() -> list[Attempt]:
        async with h2_served(talk) as port, prober() as one:
            probe = {"connection": ConnectionPolicy.REUSED, "deadline_seconds": 8.0}
            asked = series(f"http://127.0.0.1:{port}/v1", http_version="2", probe=probe)
            return [await attempt(one, asked, number) for number in range(4)]

    for made in in_loop(ask_often):
        succeeded(made)
        assert made.http.status == 299


def test_http2_asked_of_a_server_that_speaks_only_http1() -> None:
    """With TLS it is negotiated down and works; in plain text it cannot be, and says so."""

    async def ask_both() -> list[Attempt]:
        only1 = ("1.1",)
        models = {"m": Behaviour(ttft_seconds=0.02, tokens=5)}
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
