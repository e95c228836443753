"""Simulated distance: a tunnel that is long, not narrow, and carries ends and breaks like a real line."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from monitor.simulator import Behaviour, Certificate, Distance, DistanceProxy, Listener, Simulator
from monitor.simulator.distance import MAX_IN_FLIGHT_BYTES

pytestmark = pytest.mark.anyio

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def served(talk: Talk) -> AsyncIterator[int]:
    """A TCP server on loopback that does `talk` with everyone; its port."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def tunnel(far: DistanceProxy, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, float]:
    """A tunnel to a port, and the seconds that its CONNECT took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", far.port)
    begun = time.monotonic()
    writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 Connection established")
    return reader, writer, time.monotonic() - begun


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def test_connecting_and_a_round_trip_take_the_round_trip() -> None:
    """CONNECT is answered one round trip late, and an echo comes back one round trip later."""
    async with served(echo) as port, DistanceProxy(100) as far:
        reader, writer, took = await tunnel(far, port)
        assert took >= 0.1
        begun = time.monotonic()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert time.monotonic() - begun >= 0.1
        writer.close()


async def test_it_delays_and_does_not_narrow() -> None:
    """A hundred messages in a row arrive one way later, all of them, in order: not one round trip each."""
    async with served(echo) as port, DistanceProxy(200, jitter_ms=30) as far:
        reader, writer, _ = await tunnel(far, port)
        begun = time.monotonic()
        for number in range(100):
            writer.write(b"%03d" % number)
            await asyncio.sleep(0.001)
        back = await reader.readexactly(300)
        assert back == b"".join(b"%03d" % number for number in range(100))
        assert 0.14 <= time.monotonic() - begun < 5  # far from the twenty seconds of one at a time
        writer.close()


async def test_the_spacing_of_what_passes_is_kept() -> None:
    """Two messages 100 ms apart leave the tunnel about 100 ms apart: they are not gathered."""
    async with served(echo) as port, DistanceProxy(60) as far:
        reader, writer, _ = await tunnel(far, port)
        arrivals = []
        writer.write(b"a")
        waiting = asyncio.get_running_loop().call_later(0.1, writer.write, b"b")
        for _ in range(2):
            await reader.readexactly(1)
            arrivals.append(time.monotonic())
        assert arrivals[1] - arrivals[0] > 0.05
        waiting.cancel()
        writer.close()


async def test_a_half_close_is_carried_and_the_other_half_lives_on() -> None:
    """The server sees the end of what the client sends, and its late answer still arrives."""

    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read()
        writer.write(b"you said " + said)
        writer.close()

    async with served(answer_late) as port, DistanceProxy(20) as far:
        reader, writer, _ = await tunnel(far, port)
        writer.write(b"goodbye")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b"you said goodbye"
        writer.close()


async def test_a_reset_is_carried_in_both_directions() -> None:
    """A server that resets resets the client; a client that resets resets the server."""
    seen: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.read(1) == b"r":
                _reset(writer)
                return
            await reader.read()
            seen.put_nowait(None)
        except ConnectionResetError as reset:
            seen.put_nowait(reset)

    async with served(resetting) as port, DistanceProxy(20) as far:
        reader, writer, _ = await tunnel(far, port)
        writer.write(b"r")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)
        writer.close()
        _, writer, _ = await tunnel(far, port)
        writer.write(b"x")
        await asyncio.sleep(0.1)
        _reset(writer)
        assert isinstance(await asyncio.wait_for(seen.get(), 5), ConnectionResetError)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_what_is_under_way_is_bounded() -> None:
    """A sender into a line that nobody empties is stopped by the bound, and everything arrives once it is."""
    reading = asyncio.Event()
    got = 0
    done = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await reading.wait()
        while data := await reader.read(65536):
            got += len(data)
        done.set()
        writer.close()

    async with served(slow) as port, DistanceProxy(10) as far:
        _, writer, _ = await tunnel(far, port)
        whole = 40 * MAX_IN_FLIGHT_BYTES
        writer.write(b"x" * whole)
        await asyncio.sleep(0.3)
        assert writer.transport.get_write_buffer_size() > whole / 4  # it could not push everything in
        reading.set()
        await writer.drain()
        writer.write_eof()
        await asyncio.wait_for(done.wait(), 20)
        assert got == whole
        writer.close()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET http://127.0.0.1/ HTTP/1.1", b"405"),
        (b"CONNECT example.com:443 HTTP/1.1", b"403"),
        (b"CONNECT 192.0.2.1:443 HTTP/1.1", b"403"),
        (b"CONNECT 127.0.0.1 HTTP/1.1", b"400"),
        (b"CONNECT 127.0.0.1:99999 HTTP/1.1", b"400"),
        (b"nonsense", b"400"),
        (b"CONNECT 127.0.0.1:1 HTTP/1.1", b"502"),
    ],
)
async def test_only_tunnels_to_this_machine(request_line: bytes, status: bytes) -> None:
    """Other methods are 405, other machines 403, nonsense 400, a closed port 502: never an open proxy."""
    async with DistanceProxy(1) as far:
        reader, writer = await asyncio.open_connection("127.0.0.1", far.port)
        writer.write(request_line + b"\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 5)).split(b" ")[1] == status
        writer.close()


async def test_losses_cost_round_trips() -> None:
    """With half of the segments lost, draws are either one way or one way and a round trip; never otherwise."""
    far = DistanceProxy(100, loss=0.5, seed=1)
    draws = [far.one_way_ns(100) for _ in range(200)]
    assert set(draws) == {50_000_000, 150_000_000}
    assert 60 < draws.count(150_000_000) < 140


async def test_a_stream_through_a_simulators_own_distance() -> None:
    """A scenario's distance works for a stock HTTP client over TLS: tunnel, TLS and answer each pay a round trip."""
    models = {"m": Behaviour(ttft_seconds=0.01, tokens=2)}
    near = [Listener(tls=Certificate.GOOD, models=models)]
    async with Simulator(near, distances={"far": Distance(rtt_ms=80)}) as sim:
        verify = ssl.create_default_context(cafile=sim.ca_file)
        async with httpx.AsyncClient(proxy=sim.proxies["far"].url, verify=verify) as http:
            asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
            begun = time.monotonic()
            reply = await http.post(sim.url() + "/chat/completions", json=asked)
            assert time.monotonic() - begun > 3 * 0.08
        assert "[DONE]" in reply.text
