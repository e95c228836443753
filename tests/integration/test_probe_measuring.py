"""What each mark and phase means, held against servers that do one thing at a known time."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import product
from typing import Any

import pytest

from monitor.agent.arrivals import Segments
from monitor.agent.transport import Backend
from monitor.agent.turnstile import Turnstile
from monitor.clock import Clock, wall_ns
from monitor.model import AddressFamily, Attempt, ClockSource, DialectName
from monitor.simulator import Behaviour, Certificate, Content, DistanceProxy, Listener, SendKind, Simulator
from monitor.simulator.certificates import Authority
from monitor.timeline import Mark, Phase
from tests.integration.probing import (
    CHUNK,
    DONE,
    FINISH,
    GOOD_BODY,
    STREAM_HEAD,
    H2Peer,
    ask,
    attempt,
    failed,
    in_loop,
    prober,
    quickest,
    request,
    says,
    series,
    served,
    succeeded,
    whole,
)
from tests.ports import free_port

DIALECTS = (DialectName.OPENAI_CHAT, DialectName.OPENAI_RESPONSES, DialectName.ANTHROPIC)
WAYS = list(product((False, True), ("1.1", "2")))
PATIENT = {"deadline_seconds": 10.0}
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n"


def seconds(value: float | None) -> float:
    assert value is not None
    return value


# One moment: the attempt's instant on the wall is its start.


class PutAside(Clock):
    """A clock whose user is put aside for 50 ms each time it has asked for the date."""

    def now(self) -> datetime:
        told = super().now()
        time.sleep(0.05)
        return told


def test_an_attempt_stands_at_the_moment_from_which_it_is_timed() -> None:
    """Its UTC instant plus its TTFT is when the server sent the first token, whatever happened to us in between."""

    async def ask_it() -> tuple[Attempt, int, int]:
        async with Simulator([Listener(models={"m": Behaviour(tokens=3)})]) as sim:
            async with prober(clock=PutAside()) as one:
                made = await attempt(one, series(sim.url(), probe=PATIENT))
            first = next(s for s in sim.log.of(made.http.request_id or "") if s.kind == SendKind.TOKEN)
            offset_ns = Clock().offset_ns()
            return made, first.before_ns + offset_ns, first.after_ns + offset_ns

    made, before_ns, after_ns = in_loop(ask_it)
    succeeded(made)
    arrived_ns = wall_ns(made.started_at) + round(seconds(made.timeline.ttft) * 1e9)
    assert before_ns - 25_000_000 <= arrived_ns <= after_ns + 25_000_000


# Wait: from the write that ended the request to the first byte of this response.


@pytest.mark.parametrize(("tls", "version"), WAYS)
def test_wait_ends_with_the_headers_and_the_token_comes_later(tls: bool, version: str) -> None:
    """Headers after 0.2 s, the first token after 0.5 s; TLS tickets and HTTP/2 SETTINGS, long before, are neither."""
    behaviour = Behaviour(headers_seconds=0.2, ttft_seconds=0.5, tokens=3)

    async def ask_it() -> Attempt:
        listener = Listener(tls=Certificate.GOOD if tls else None, models={"m": behaviour})
        async with Simulator([listener]) as sim:
            return await ask(sim.url(), http_version=version, ca_file=sim.ca_file, probe=PATIENT)

    made = quickest(lambda: in_loop(ask_it), lambda one: one.timeline.phase(Phase.WAIT))
    succeeded(made)
    line = made.timeline
    assert 0.19 <= seconds(line.phase(Phase.WAIT)) < 0.45
    assert seconds(line.ttft) >= 0.5
    assert line.ttft == line.ttfo
    assert made.http.tls_version == ("TLSv1.3" if tls else None)


async def _h2(peer: H2Peer, *steps: Any) -> None:
    """Answer the first request by these steps: pauses in seconds, or what to do with the stream."""
    async for event in peer.events():
        if type(event).__name__ != "StreamEnded":
            continue
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                step(peer, event.stream_id)  # type: ignore[attr-defined]
                await peer.flush()


def _ping(peer: H2Peer, stream: int) -> None:
    peer.h2.ping(b"12345678")
    peer.h2.increment_flow_control_window(100)
    peer.h2.update_settings({4: 70_000})


def _hints(peer: H2Peer, stream: int) -> None:
    peer.h2.send_headers(stream, [(":status", "103"), ("link", "</style.css>")])


def _good(peer: H2Peer, stream: int) -> None:
    peer.h2.send_headers(stream, [(":status", "200")])
    peer.h2.send_data(stream, GOOD_BODY)
    peer.h2.send_headers(stream, [("x-trailer", "after all")], end_stream=True)


@pytest.mark.parametrize(
    ("steps", "least"),
    [
        ((0.1, _ping, 0.2, _good), 0.29),
        ((0.1, _hints, 0.2, _good), 0.29),
        ((0.1, _hints, 0.1, _ping, _hints, 0.1, _good), 0.29),
        ((0.2, _hints, _good), 0.19),
        ((_good,), 0.0),
    ],
    ids=["control frames", "hints", "both", "hints and headers at once", "at once"],
)
def test_on_http2_only_the_final_headers_frame_ends_wait(steps: tuple[Any, ...], least: float) -> None:
    """Neither PING, SETTINGS and WINDOW_UPDATE nor a 103 on the same stream, nor the trailers, are the response."""

    async def ask_it() -> Attempt:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _h2(H2Peer(reader, writer), *steps)

        async with served(talk) as port:
            return await ask(f"http://127.0.0.1:{port}/v1", http_version="2")

    made = in_loop(ask_it)
    succeeded(made)
    assert seconds(made.timeline.phase(Phase.WAIT)) >= least
    assert made.timeline.marks[Mark.HEADERS] <= made.timeline.marks[Mark.FIRST_TOKEN]


@pytest.mark.parametrize(
    ("pieces", "least"),
    [
        ((0.1, INTERIM, 0.2, whole()), 0.29),
        ((0.1, HINTS[:7], 0.1, HINTS[7:30], 0.1, HINTS[30:], 0.1, whole()), 0.39),
        ((0.1, INTERIM + HINTS + whole()[:5], 0.2, whole()[5:]), 0.09),
        ((0.1, INTERIM + HINTS + whole()), 0.09),
    ],
    ids=["100", "103 in pieces", "with the first bytes of the response", "all at once"],
)
def test_interim_responses_are_not_the_response(pieces: tuple[Any, ...], least: float) -> None:
    """100 and 103 do not end wait, whether they come before the response, in pieces or in one read with it."""

    async def ask_it() -> Attempt:
        async with served(says(*pieces)) as port:
            return await ask(f"http://127.0.0.1:{port}/v1")

    made = quickest(lambda: in_loop(ask_it), lambda one: one.timeline.phase(Phase.WAIT))
    succeeded(made)
    assert least <= seconds(made.timeline.phase(Phase.WAIT)) < least + 0.19


def test_a_response_that_came_before_the_request_was_over_has_no_negative_wait() -> None:
    """A server that answers without reading: send ends no later than the answer came."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(whole())
        await request(reader)

    async def ask_it() -> Attempt:
        async with served(talk) as port:
            return await ask(f"http://127.0.0.1:{port}/v1", probe={"prompt": "x" * 100_000})

    made = in_loop(ask_it)
    if made.failure is None:  # h11 may refuse an answer to a request that is not yet asked
        succeeded(made)
        assert seconds(made.timeline.phase(Phase.WAIT)) >= 0


# What a token is.

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
NULLS = b'data: {"choices":[{"delta":{"content":null,"reasoning_content":null},"finish_reason":null}]}\n\n'
EMPTY = b'data: {"choices":[]}\n\n'


@pytest.mark.parametrize("before", [ROLE, NULLS, EMPTY, b": ping\n\n", b"\n\n", b"data:\n\n", b"event: ping\n\n"])
def test_frames_without_generated_text_are_no_token(before: bytes) -> None:
    """A role, an empty delta, null, a comment or an empty event 0.2 s before the token do not count."""

    async def ask_it() -> Attempt:
        talk = says(STREAM_HEAD + b"\r\n" + before, 0.2, CHUNK + FINISH + DONE)
        async with served(talk) as port:
            return await ask(f"http://127.0.0.1:{port}/v1")

    made = in_loop(ask_it)
    succeeded(made)
    assert seconds(made.timeline.ttft) >= 0.19
    assert made.timeline.marks[Mark.FIRST_BYTE] < made.timeline.marks[Mark.FIRST_TOKEN]
    assert made.token_events == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_reasoning_is_a_first_token_but_not_a_visible_one(dialect: DialectName) -> None:
    """ttft is the first thought, ttfo the first word after ten of them; both as the send log says."""
    behaviour = Behaviour(ttft_seconds=0.1, reasoning_tokens=10, tokens=3, tokens_per_second=50.0)

    async def ask_it() -> tuple[Attempt, list[int]]:
        async with Simulator([Listener(models={"m": behaviour})]) as sim:
            made = await ask(sim.url(), dialect=dialect)
            sent = [s for s in sim.log.of(made.http.request_id or "") if s.kind == SendKind.TOKEN]
            return made, [s.after_ns for s in sent]

    made, sent_ns = in_loop(ask_it)
    succeeded(made)
    line = made.timeline
    thought = (sent_ns[10] - sent_ns[0]) / 1e9
    assert seconds(line.ttfo) - seconds(line.ttft) == pytest.approx(thought, abs=0.05)
    assert line.marks[Mark.FIRST_REASONING] == line.marks[Mark.FIRST_TOKEN]
    assert made.token_events == 13


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_tool_call_is_a_token_and_nothing_visible(dialect: DialectName) -> None:
    """Its first delta is ttft; ttfo did not happen."""
    behaviour = Behaviour(ttft_seconds=0.05, tokens=4, tokens_per_second=100.0, content=Content.TOOL_CALL)

    async def ask_it() -> Attempt:
        async with Simulator([Listener(models={"m": behaviour})]) as sim:
            return await ask(sim.url(), dialect=dialect)

    made = in_loop(ask_it)
    succeeded(made)
    assert made.timeline.ttft is not None
    assert made.timeline.ttfo is None
    assert Mark.FIRST_TOOL in made.timeline.marks


def test_total_ends_with_the_end_marker_not_with_the_connection() -> None:
    """What a server does after its end marker is not the answer's time."""

    async def ask_it() -> Attempt:
        talk = says(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n", _chunk(GOOD_BODY), 0.3, b"0\r\n\r\n")
        async with served(talk) as port:
            return await ask(f"http://127.0.0.1:{port}/v1")

    made = quickest(lambda: in_loop(ask_it), lambda one: one.timeline.total)
    succeeded(made)
    assert seconds(made.timeline.total) < 0.29


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


# Names and addresses.


def test_an_address_is_not_looked_up_and_a_name_is() -> None:
    """No lookup happened for an address: null, not 0."""

    async def ask_both() -> list[Attempt]:
        async with served(says(whole())) as port:
            return [await ask(f"http://{host}:{port}/v1") for host in ("127.0.0.1", "localhost")]

    literal, name = in_loop(ask_both)
    succeeded(literal)
    succeeded(name)
    assert literal.timeline.phase(Phase.RESOLVE) is None
    assert seconds(name.timeline.phase(Phase.RESOLVE)) > 0
    assert name.timeline.marks[Mark.RESOLVE_END] <= name.timeline.marks[Mark.CONNECT_START]


def test_an_ipv6_address_in_the_url() -> None:
    """[::1] connects over IPv6 and says so."""
    if not _has_ipv6():
        pytest.skip("no IPv6 on this machine")

    async def ask_it() -> Attempt:
        async with served(says(whole()), host="::1") as port:
            return await ask(f"http://[::1]:{port}/v1", address_family=AddressFamily.IPV6)

    made = in_loop(ask_it)
    succeeded(made)
    assert (made.http.family, made.timeline.phase(Phase.RESOLVE)) == ("ipv6", None)
    assert (made.http.remote or "").startswith("[::1]:")


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("family", [AddressFamily.IPV4, AddressFamily.IPV6])
def test_only_the_wanted_family_is_used(family: AddressFamily) -> None:
    """A name of both families is reached over the wanted one, or not at all."""

    async def ask_it() -> Attempt:
        async with served(says(whole())) as port:
            return await ask(f"http://localhost:{port}/v1", address_family=family)

    made = in_loop(ask_it)
    if family is AddressFamily.IPV4:
        succeeded(made)
        assert made.http.family == "ipv4"
    else:
        assert made.failure is not None
        assert made.failure.kind.value in ("dns", "refused", "unreachable"), made.failure
        assert made.http.family in (None, "ipv6")


@asynccontextmanager
async def backend() -> AsyncIterator[Backend]:
    with ThreadPoolExecutor(1) as resolver:
        yield Backend(Clock(), resolver, Turnstile(asyncio.get_running_loop()))


def _address(family: socket.AddressFamily, host: str, port: int) -> tuple[Any, ...]:
    where = (host, port, 0, 0) if family == socket.AF_INET6 else (host, port)
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)


def test_a_refused_address_makes_room_for_the_next() -> None:
    """The policy: in the resolver's order; ::1 refused, 127.0.0.1 answers."""
    if not _has_ipv6():
        pytest.skip("no IPv6 on this machine")

    async def dial() -> str:
        async with served(says()) as port, backend() as dialing:
            asked = [_address(socket.AF_INET6, "::1", port), _address(socket.AF_INET, "127.0.0.1", port)]
            sock, connected_ns = await dialing._connect_first(asked, asyncio.get_running_loop().time() + 5)
            with sock:
                assert connected_ns > 0
                return str(sock.getpeername()[0])

    assert in_loop(dial) == "127.0.0.1"


def test_an_address_that_does_not_answer_gets_half_of_the_time() -> None:
    """A black hole before the good address costs half the connect timeout, not all of it."""

    async def dial() -> float:
        loop = asyncio.get_running_loop()
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.socket() for _ in range(4)]
            for sock in waiting:
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            await asyncio.sleep(0.05)
            async with served(says()) as port, backend() as dialing:
                asked = [
                    _address(socket.AF_INET, *full.getsockname()),
                    _address(socket.AF_INET, "127.0.0.1", port),
                ]
                began = loop.time()
                sock, _ = await dialing._connect_first(asked, began + 0.8)
                sock.close()
                took = loop.time() - began
            for sock in waiting:
                sock.close()
            return took

    assert 0.35 <= in_loop(dial) < 0.8


# Proxies and the state of the line.


@pytest.mark.parametrize(("tls", "version"), WAYS)
def test_a_proxy_is_part_of_connect_and_hides_the_line(tls: bool, version: str) -> None:
    """CONNECT takes its round trip in `connect`; the far address and the line behind the proxy are not known."""

    async def ask_it() -> Attempt:
        listener = Listener(
            tls=Certificate.GOOD if tls else None,
            models={"m": Behaviour(ttft_seconds=0.01, tokens=3, tokens_per_second=200.0)},
        )
        async with Simulator([listener]) as sim, DistanceProxy(80) as far:
            return await ask(
                sim.url(), http_version=version, ca_file=sim.ca_file, proxy=far.url, probe={**PATIENT, "control": True}
            )

    made = in_loop(ask_it)
    succeeded(made)
    line = made.timeline
    assert seconds(line.phase(Phase.CONNECT)) >= 0.08
    assert seconds(line.phase(Phase.WAIT)) >= 0.08
    assert seconds(line.control) >= 0.08
    if tls:
        assert seconds(line.phase(Phase.TLS)) >= 0.08
    assert made.http.proxied
    assert (made.http.remote, made.http.family) == (None, None)
    assert (made.tcp.min_rtt, made.tcp.rtt, made.tcp.retransmits) == (None, None, None)
    assert made.http.version == version


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "403"),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>", "502"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "302"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "2000"),
        (b"", "closed"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "SSH"),
        (b"x" * 100_000, "no HTTP"),
    ],
    ids=["403", "407", "502", "302", "2000", "closes", "no HTTP", "too much"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_is_the_proxys_failure(answer: bytes, word: str, scheme: str) -> None:
    """Kind `proxy`, in connect, with its own status line."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        await asyncio.sleep(0.05)

    async def ask_it() -> Attempt:
        async with served(talk) as port:
            return await ask(f"{scheme}://example.invalid/v1", proxy=f"http://127.0.0.1:{port}")

    made = in_loop(ask_it)
    failed(made, "proxy", "connect")
    assert made.failure is not None
    assert word in made.failure.text
    assert made.http.proxied


@pytest.mark.parametrize("line", ["200 Connection established", "201 Created", "299", "200"])
def test_any_2xx_opens_the_tunnel(line: str) -> None:
    """RFC 9110, 9.3.6: what follows a successful answer to CONNECT is the tunnel's."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {line}\r\nvia: x\r\n\r\n".encode())
        await says(whole())(reader, writer)

    async def ask_it() -> Attempt:
        async with served(talk) as port:
            return await ask("http://example.invalid/v1", proxy=f"http://127.0.0.1:{port}")

    succeeded(in_loop(ask_it))


def test_a_proxy_nobody_listens_at_and_one_that_says_nothing() -> None:
    """Both in connect: kind `proxy` with the proxy's address, for the target is not to blame; time that ran out."""

    async def ask_both() -> list[Attempt]:
        async with Simulator([Listener(silent=True)]) as sim:
            limits = {"connect_timeout_seconds": 0.5}
            proxies = [f"http://127.0.0.1:{port}" for port in (free_port(), sim.port())]
            return [await ask("https://example.invalid/v1", proxy=proxy, probe=limits) for proxy in proxies]

    refused, silent = in_loop(ask_both)
    failed(refused, "proxy", "connect")
    assert refused.failure is not None
    assert refused.http.proxied
    assert re.search(r"the proxy cannot be reached: .*refused \(127\.0\.0\.1 port \d+\)", refused.failure.text)
    failed(silent, "connect_timeout", "connect")


def test_a_proxy_without_an_address_is_the_proxys_failure() -> None:
    """The name that does not resolve is the proxy's, not the target's."""
    made = in_loop(lambda: ask("http://127.0.0.1:9/v1", proxy="http://nobody.invalid:3128"))
    failed(made, "proxy", "resolve")
    assert made.failure is not None
    assert "the proxy cannot be reached" in made.failure.text


def test_a_proxy_that_breaks_the_connection_off_is_the_proxys_failure() -> None:
    """A reset before any answer to CONNECT."""

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        line = writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def ask_it() -> Attempt:
        async with served(cut) as port:
            return await ask("http://127.0.0.1:9/v1", proxy=f"http://127.0.0.1:{port}")

    failed(in_loop(ask_it), "proxy", "connect")


def test_the_kernel_tells_the_lines_round_trip() -> None:
    """TCP_INFO of this very connection: a round trip of loopback, no retransmits."""
    with socket.socket() as probe:
        if Segments.of(probe) is None:
            pytest.skip("no TCP_INFO on this system")

    async def ask_it() -> Attempt:
        async with served(says(whole())) as port:
            return await ask(f"http://127.0.0.1:{port}/v1")

    made = in_loop(ask_it)
    assert 0 < seconds(made.tcp.min_rtt) <= seconds(made.tcp.rtt) * 2
    assert made.tcp.rtt is not None
    assert made.tcp.rtt < 1
    assert (made.tcp.retransmits, made.tcp.out_of_order) == (0, 0)


@pytest.mark.parametrize(("tls", "version"), WAYS)
def test_without_kernel_stamps_everything_else_is_the_same(tls: bool, version: str) -> None:
    """Stamps switched off, as on macOS: the user clock serves and the attempt says so."""
    behaviour = Behaviour(headers_seconds=0.1, ttft_seconds=0.2, tokens=5, tokens_per_second=50.0)

    async def ask_it(kernel_stamps: bool) -> Attempt:
        listener = Listener(tls=Certificate.GOOD if tls else None, models={"m": behaviour})
        async with Simulator([listener]) as sim, prober(kernel_stamps=kernel_stamps) as one:
            return await attempt(one, series(sim.url(), http_version=version, ca_file=sim.ca_file))

    for kernel_stamps, source in ((True, ClockSource.KERNEL), (False, ClockSource.USER)):
        made = in_loop(lambda on=kernel_stamps: ask_it(on))
        succeeded(made)
        assert made.clock_source is source
        assert seconds(made.timeline.ttft) >= 0.2
        assert seconds(made.timeline.phase(Phase.WAIT)) >= 0.1


def test_facts_of_the_connection_are_kept(tmp_path: Any) -> None:
    """Address, family, versions, the edge and when the certificate ends."""
    authority = Authority(tmp_path, Clock().now())
    head = STREAM_HEAD + b"cf-ray: 8c1f0a-LHR\r\nx-request-id: req_1\r\nopenai-processing-ms: 120\r\n"

    async def ask_it() -> Attempt:
        context = authority.context(Certificate.EXPIRING, ("http/1.1",))
        async with served(says(whole(head=head)), context) as port:
            return await ask(f"https://localhost:{port}/v1", ca_file=str(authority.ca_file))

    made = in_loop(ask_it)
    succeeded(made)
    http = made.http
    assert (http.family, http.tls_version, http.alpn, http.edge) == ("ipv4", "TLSv1.3", "http/1.1", "LHR")
    assert (http.request_id, http.status, http.version) == ("req_1", 200, "1.1")
    assert made.server == {"processing": 0.12}
    assert http.certificate_expires_at is not None
    assert 2 <= (http.certificate_expires_at - Clock().now()).days <= 3
