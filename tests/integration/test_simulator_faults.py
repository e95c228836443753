"""Everything the simulated vendors do wrong on purpose, seen by clients that share no code with them."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import struct
from typing import Any

import httpx
import pytest

from monitor.clock import Clock
from monitor.simulator import Behaviour, Certificate, ErrorKind, Fault, Listener, SendKind, Simulator

pytestmark = pytest.mark.anyio

_SO_TIMESTAMPNS = 35  # Linux; Python does not name it

ASK: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/responses": {"input": "hi"},
    "/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50},
}
CHAT = "/chat/completions"
MARKERS = {CHAT: b"[DONE]", "/responses": b"response.completed", "/messages": b"message_stop"}
TOKENS = {CHAT: b'"content":"', "/responses": b"output_text.delta\n", "/messages": b"text_delta"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def quick(**more: Any) -> Behaviour:
    return Behaviour(**{"ttft_seconds": 0.01, "tokens": 5, "tokens_per_second": 200.0, **more})


def one(behaviour: Behaviour) -> Simulator:
    """A simulator whose plain and TLS listeners know one model, `m`."""
    models = {"m": behaviour}
    return Simulator([Listener(models=models), Listener(name="tls", tls=Certificate.GOOD, models=models)])


async def stream(
    sim: Simulator, path: str = CHAT, *, http2: bool = False, listener: str = "main", seconds: float = 5
) -> tuple[httpx.Response, list[bytes], Exception | None]:
    """The response, the pieces its body came in, and the error that ended it."""
    pieces: list[bytes] = []
    verify = ssl.create_default_context(cafile=sim.ca_file)
    async with httpx.AsyncClient(http1=not http2, http2=http2, verify=verify, timeout=seconds) as http:
        asked = {"model": "m", "stream": True, **ASK[path]}
        async with http.stream("POST", sim.url(listener) + path, json=asked) as reply:
            try:
                async for piece in reply.aiter_raw():
                    pieces.append(piece)  # noqa: PERF401 - what came before an error counts
            except httpx.HTTPError as error:
                return reply, pieces, error
    return reply, pieces, None


@pytest.mark.parametrize("path", ASK)
async def test_a_truncated_stream_ends_cleanly_without_its_end(path: str) -> None:
    """The body is complete for HTTP, has its three tokens, and neither finish reason nor marker."""
    async with one(quick(fault=Fault.TRUNCATED)) as sim:
        _, pieces, error = await stream(sim, path)
        text = b"".join(pieces)
        assert error is None
        assert text.count(TOKENS[path]) >= 3
        assert MARKERS[path] not in text
        assert b'"finish_reason":"stop"' not in text


@pytest.mark.parametrize("path", ASK)
async def test_an_unmarked_stream_misses_only_its_marker(path: str) -> None:
    """Everything is there but the dialect's terminal marker."""
    async with one(quick(fault=Fault.UNMARKED)) as sim:
        _, pieces, error = await stream(sim, path)
        assert error is None
        assert MARKERS[path] not in b"".join(pieces)


@pytest.mark.parametrize("listener", ["main", "tls"])
@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("fault", [Fault.DISCONNECTED, Fault.RESET])
async def test_a_broken_stream_is_an_error_after_its_tokens(listener: str, http2: bool, fault: Fault) -> None:
    """The tokens before the break arrive, then the connection (HTTP/2: the stream) breaks."""
    async with one(quick(fault=fault)) as sim:
        _, pieces, error = await stream(sim, http2=http2, listener=listener)
        assert isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
        assert b"".join(pieces).count(b'"content":') == 4 or fault is Fault.RESET  # a reset may overtake


async def test_a_reset_is_a_tcp_rst() -> None:
    """A raw socket sees ECONNRESET, not an end of stream."""
    async with one(quick(fault=Fault.RESET)) as sim:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port())
        asked = json.dumps({"model": "m", "stream": True, **ASK[CHAT]}).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(asked) + asked
        )
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)
        writer.close()


@pytest.mark.parametrize("path", ASK)
@pytest.mark.parametrize("after", [0, 3])
async def test_an_error_inside_a_200(path: str, after: int) -> None:
    """The status is 200, the error is the vendor's; after 0 tokens it is the first thing that says anything."""
    async with one(quick(fault=Fault.ERROR_EVENT, fault_after_tokens=after, error=ErrorKind.OVERLOADED)) as sim:
        reply, pieces, error = await stream(sim, path)
        text = b"".join(pieces)
        assert (reply.status_code, error) == (200, None)
        assert b'"error":{' in text
        kinds = [s.kind for s in sim.log.of(reply.headers["x-request-id"])]
        assert kinds.count(SendKind.TOKEN) == after
        assert kinds.index(SendKind.ERROR) == 2 or after or path == "/responses"
        numbers = [
            json.loads(line[6:]).get("sequence_number") for line in text.split(b"\n") if line.startswith(b"data: {")
        ]
        assert numbers == (list(range(len(numbers))) if path == "/responses" else [None] * len(numbers))


async def test_a_silent_model_reads_the_request_and_never_answers() -> None:
    """Nothing comes, and the server notices when the client leaves."""
    async with one(quick(fault=Fault.SILENCE)) as sim:
        with pytest.raises(httpx.ReadTimeout):
            await stream(sim, seconds=0.3)


async def test_comments_for_ever_feed_a_read_timeout() -> None:
    """200 and comments, longer than the client's read timeout, and never a token."""
    async with one(quick(fault=Fault.KEEP_ALIVES, keep_alive_seconds=0.05)) as sim:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream(sim, seconds=0.4), 1)
        kinds = {s.kind for s in sim.log}
        assert kinds == {SendKind.REQUEST, SendKind.HEADERS, SendKind.COMMENT}


async def test_comments_while_waiting_stop_at_the_first_token() -> None:
    """Headers at once, a comment now and then, then a whole good stream."""
    async with one(quick(ttft_seconds=0.3, comments_seconds=0.08)) as sim:
        reply, pieces, error = await stream(sim)
        kinds = [s.kind for s in sim.log.of(reply.headers["x-request-id"])]
        assert error is None
        assert b"[DONE]" in b"".join(pieces)
        assert 2 <= kinds.count(SendKind.COMMENT) <= 5
        assert SendKind.COMMENT not in kinds[kinds.index(SendKind.TOKEN) :]


async def test_a_refusal_after_the_headers_comes_inside_the_stream() -> None:
    """Who has sent headers while a request waits can only refuse inside the 200."""
    asleep = quick(comments_seconds=1, starts_asleep=True, refuses_while_loading=True)
    async with one(asleep) as sim:
        reply, pieces, _ = await stream(sim)
        assert reply.status_code == 200
        assert b"Loading model" in b"".join(pieces)


async def test_pages_objects_redirects_and_any_status() -> None:
    """HTML with 200, one JSON object with 200, a redirect, a bare status: each as it was asked for."""
    async with one(quick()) as sim:
        for behaviour, status, kind, text in (
            (quick(fault=Fault.HTML_PAGE), 200, "text/html; charset=utf-8", b"<!doctype html>"),
            (quick(fault=Fault.WHOLE_JSON), 200, "application/json", b'"chat.completion"'),
            (quick(status=307, headers={"location": "http://x/"}, body=""), 307, "text/plain; charset=utf-8", b""),
            (quick(status=418, body="short and stout"), 418, "text/plain; charset=utf-8", b"short and stout"),
            (quick(status=502), 502, "application/json", b'"server_error"'),
        ):
            sim.become("m", behaviour)
            reply, pieces, error = await stream(sim)
            assert (reply.status_code, reply.headers["content-type"], error) == (status, kind, None)
            assert text in b"".join(pieces)


async def test_a_share_of_requests_fails_and_the_same_seed_fails_the_same() -> None:
    """`fault_share` is drawn from the seed: about that share, and repeatable."""

    async def statuses() -> list[int]:
        async with one(quick(tokens=0, status=500, fault_share=0.5)) as sim:
            return [(await stream(sim))[0].status_code for _ in range(12)]

    first = await statuses()
    assert first == await statuses()
    assert set(first) == {200, 500}


async def test_a_stream_left_open_has_everything_but_an_end() -> None:
    """[DONE] comes, the end of the body does not."""
    async with one(quick(fault=Fault.LEFT_OPEN)) as sim:
        _, pieces, error = await stream(sim, seconds=0.3)
        assert b"[DONE]" in b"".join(pieces)
        assert isinstance(error, httpx.ReadTimeout)


async def test_a_stall_delays_what_comes_after_it_or_lasts_for_ever() -> None:
    """A pause after token 2 shifts the rest of the grid; an endless one leaves the client waiting."""
    async with one(quick(stall_after_tokens=2, stall_seconds=0.3)) as sim:
        reply, _, error = await stream(sim)
        at = [s.before_ns for s in sim.log.of(reply.headers["x-request-id"]) if s.kind == SendKind.TOKEN]
        assert error is None
        assert at[2] - at[1] > 0.29e9 > at[1] - at[0]
        sim.become("m", quick(stall_after_tokens=2))
        _, pieces, error = await stream(sim, seconds=0.3)
        assert isinstance(error, httpx.ReadTimeout)
        assert b"".join(pieces).count(b'"content":') == 3  # the role and two tokens


@pytest.mark.parametrize("http2", [False, True])
async def test_a_buffering_proxy_sends_all_in_one_write(http2: bool) -> None:
    """Headers, tokens and end share one send, at the time the last token was due."""
    async with one(quick(buffered=True)) as sim:
        reply, pieces, error = await stream(sim, http2=http2)
        sends = sim.log.of(reply.headers["x-request-id"])[1:]
        assert error is None
        assert len({(s.before_ns, s.after_ns) for s in sends}) == 1
        assert b"[DONE]" in b"".join(pieces)


async def test_bursts_carry_several_tokens_in_a_write() -> None:
    """Two tokens a write, or so many bytes a write: fewer sends, nothing lost, nothing early."""
    async with one(quick(burst_tokens=2)) as sim:
        reply, _, _ = await stream(sim)
        at = [s.before_ns for s in sim.log.of(reply.headers["x-request-id"]) if s.kind == SendKind.TOKEN]
        assert (at[0] == at[1], at[2] == at[3], at[1] < at[2], at[3] < at[4]) == (True, True, True, True)
        sim.become("m", quick(burst_bytes=900))
        reply, pieces, _ = await stream(sim)
        sends = sim.log.of(reply.headers["x-request-id"])[1:]
        assert 2 <= len({s.before_ns for s in sends}) < 6
        assert b"[DONE]" in b"".join(pieces)


@pytest.mark.parametrize("buffered", [False, True])
async def test_gzip_that_nobody_asked_for(buffered: bool) -> None:
    """The coding is declared, every event is flushed through it, and the whole decodes."""
    async with one(quick(gzip=True, buffered=buffered)) as sim:
        reply, pieces, _ = await stream(sim)
        assert reply.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(pieces)).endswith(b"data: [DONE]\n\n")
        assert len(pieces) > 5 or buffered


@pytest.mark.parametrize("http2", [False, True])
async def test_pieces_cut_anywhere_put_together_make_the_same_stream(http2: bool) -> None:
    """Cuts fall inside characters, the whole is valid, and an event's stamp is that of its last piece."""
    async with one(quick(tokens=2, split_bytes=2, split_pause_seconds=0, text="東京 🚀")) as sim:
        reply, pieces, error = await stream(sim, http2=http2)
        assert error is None
        text = b"".join(pieces).decode()
        assert "東京" in text
        assert " 🚀" in text
        assert any(piece.decode(errors="replace").endswith("\ufffd") for piece in pieces)
        token = sim.log.token(reply.headers["x-request-id"])
        assert token is not None
        assert token.size > 2


async def test_an_endless_line_stops_when_the_client_does() -> None:
    """Megabytes without a line end; the server sends only as fast as it is read, and stops with the client."""
    async with one(quick(fault=Fault.ENDLESS_LINE)) as sim, httpx.AsyncClient() as http:
        asked = {"model": "m", "stream": True, **ASK[CHAT]}
        size = 0
        async with http.stream("POST", sim.url() + CHAT, json=asked) as reply:
            async for piece in reply.aiter_raw():
                size += len(piece)
                if size > 2_000_000:
                    assert piece.count(b"\n") == 0
                    break


@pytest.mark.parametrize("path", ASK)
async def test_empty_answers_and_reasoning_without_an_answer(path: str) -> None:
    """A finished stream without a token, and one whose budget went into reasoning."""
    async with one(quick(tokens=0)) as sim:
        reply, pieces, _ = await stream(sim, path)
        assert TOKENS[path] + b" " not in b"".join(pieces)
        assert MARKERS[path] in b"".join(pieces)
        assert not any(s.kind == SendKind.TOKEN for s in sim.log.of(reply.headers["x-request-id"]))
        sim.become("m", quick(tokens=0, reasoning_tokens=4))
        reply, pieces, _ = await stream(sim, path)
        assert b"think" in b"".join(pieces)
        assert [s.token for s in sim.log.of(reply.headers["x-request-id"]) if s.kind == SendKind.TOKEN] == [0, 1, 2, 3]


async def test_headers_may_come_before_the_first_token() -> None:
    """With `headers_seconds` the head and the preamble are early, the token is not."""
    async with one(quick(ttft_seconds=0.3, headers_seconds=0.02)) as sim:
        reply, _, _ = await stream(sim)
        by_kind = {s.kind: s.before_ns for s in reversed(sim.log.of(reply.headers["x-request-id"]))}
        assert by_kind["token"] - by_kind["headers"] > 0.25e9
        assert by_kind["token"] - by_kind["preamble"] > 0.25e9


@pytest.mark.parametrize("http2", [False, True])
async def test_a_client_that_does_not_read_cannot_fill_the_memory(http2: bool) -> None:
    """The server waits for room instead of piling up: its sends stop short of the whole when nobody reads."""
    big = quick(tokens=4000, tokens_per_second=1e6, text="x" * 2000)
    async with one(big) as sim, httpx.AsyncClient(http1=not http2, http2=http2) as http:
        asked = {"model": "m", "stream": True, **ASK[CHAT], "max_tokens": 4000}
        async with http.stream("POST", sim.url() + CHAT, json=asked) as reply:
            seen, sent = -1, 0
            while sent > seen:  # until it sends no more; it ends on 4,000 at the latest
                await asyncio.sleep(0.5)
                seen, sent = sent, len(sim.log.of(reply.headers["x-request-id"]))
            assert 0 < sent < 4000


async def test_the_kernel_stamp_of_a_token_lies_at_its_logged_send() -> None:
    """The truth is true: what the kernel stamps on loopback is not before `before` nor long after `after`."""
    async with one(quick(tokens=3, tokens_per_second=20, headers_seconds=0)) as sim:
        with socket.create_connection(("127.0.0.1", sim.port())) as sock:
            try:
                sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            except OSError:
                pytest.skip("no kernel arrival stamps here")
            asked = json.dumps({"model": "m", "stream": True, **ASK[CHAT]}).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            sock.sendall(head % len(asked) + asked)
            arrivals = await asyncio.to_thread(_stamped, sock)
        offset = Clock().offset_ns()
        stream_id = sim.log.streams[0]
        for sent in (s for s in sim.log.of(stream_id) if s.kind == SendKind.TOKEN and s.token):
            nearest = min(arrivals, key=lambda at: abs(at - offset - sent.before_ns))
            assert sent.before_ns - 100_000 < nearest - offset < sent.after_ns + 5_000_000


def _stamped(sock: socket.socket) -> list[int]:
    """Wall-clock nanoseconds of every read until the end."""
    arrivals: list[int] = []
    while True:
        data, ancillary, _, _ = sock.recvmsg(65536, 64)
        if not data:
            return arrivals
        for level, kind, payload in ancillary:
            if level == 1 and kind == _SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("qq", payload)
                arrivals.append(seconds * 1_000_000_000 + nanoseconds)
