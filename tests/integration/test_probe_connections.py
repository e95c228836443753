"""Fresh and reused connections, what is asked over them, and that nothing of an attempt stays behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from monitor.clock import Clock
from monitor.model import Attempt, ConnectionPolicy, DialectName, Doubt, Outcome
from monitor.simulator import Behaviour, Certificate, DistanceProxy, Fault, Listener, Simulator
from monitor.simulator.certificates import Authority
from monitor.timeline import Mark, Phase
from tests.integration.probing import (
    CHUNK,
    DONE,
    FINISH,
    STREAM_HEAD,
    H2Peer,
    adds_up,
    attempt,
    failed,
    in_loop,
    prober,
    request,
    says,
    series,
    served,
    succeeded,
    whole,
)

QUICK = Behaviour(ttft_seconds=0.02, tokens=5, tokens_per_second=500.0)
REUSED = {"connection": ConnectionPolicy.REUSED}
WAYS = list(product((False, True), ("1.1", "2")))
DIALING = (Mark.RESOLVE_START, Mark.CONNECT_START, Mark.CONNECT_END, Mark.TLS_START, Mark.TLS_END)


def quick(tls: bool, **options: Any) -> Listener:
    return Listener(models={"m": QUICK}, tls=Certificate.GOOD if tls else None, **options)


@pytest.mark.parametrize(("tls", "version"), WAYS)
def test_a_reused_connection_has_no_phases_of_dialing(tls: bool, version: str) -> None:
    """The first attempt dials and says `reconnected`; those after it go over the same connection."""

    async def ask_thrice() -> list[Attempt]:
        async with Simulator([quick(tls)]) as sim, prober() as one:
            asked = series(sim.url(), http_version=version, ca_file=sim.ca_file, probe=REUSED)
            return [await attempt(one, asked) for _ in range(3)]

    first, *others = in_loop(ask_thrice)
    succeeded(first)
    assert Doubt.RECONNECTED in first.validity
    assert not first.http.reused
    assert (first.timeline.phase(Phase.TLS) is not None) is tls
    for other in others:
        succeeded(other)
        assert not any(mark in other.timeline.marks for mark in DIALING)
        assert Doubt.RECONNECTED not in other.validity
        assert other.http.reused
        assert (other.http.remote, other.http.tls_version, other.http.version) == (
            first.http.remote,
            first.http.tls_version,
            version,
        )
        assert other.tcp.rtt is not None


@pytest.mark.parametrize(("tls", "version"), WAYS)
def test_a_fresh_probe_dials_every_time(tls: bool, version: str) -> None:
    """No connection is kept, and none is called reused."""

    async def ask_twice() -> list[Attempt]:
        async with Simulator([quick(tls)]) as sim, prober() as one:
            asked = series(sim.url(), http_version=version, ca_file=sim.ca_file)
            return [await attempt(one, asked) for _ in range(2)]

    for made in in_loop(ask_twice):
        succeeded(made)
        assert not made.http.reused
        assert Doubt.RECONNECTED not in made.validity
        assert made.timeline.phase(Phase.CONNECT) is not None


async def _one_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers, promises to stay, and hangs up a little later."""
    await request(reader)
    writer.write(whole())
    await asyncio.sleep(0.05)


async def _one_request_h2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    peer = H2Peer(reader, writer)
    async for event in peer.events():
        if type(event).__name__ == "StreamEnded":
            await peer.answer(event.stream_id)  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
            return


async def _goes_away_but_stays(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Announces the end of the connection after an answer, and waits for the client to close it."""
    peer = H2Peer(reader, writer)
    async for event in peer.events():
        if type(event).__name__ == "StreamEnded":
            await peer.answer(event.stream_id)  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
            peer.h2.close_connection()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("talk", "version"),
    [(_one_request, "1.1"), (_one_request_h2, "2"), (_goes_away_but_stays, "2")],
    ids=["1.1", "2", "2 with GOAWAY"],
)
def test_a_connection_that_the_server_closed_is_made_anew(talk: Any, version: str, tls: bool, tmp_path: Any) -> None:
    """An idle connection that the server ended is no failure: the attempt dials, and says `reconnected`."""
    authority = Authority(tmp_path, Clock().now())
    context = authority.context(Certificate.GOOD, ("h2",) if version == "2" else ("http/1.1",)) if tls else None

    async def ask_twice() -> list[Attempt]:
        async with served(talk, context) as port, prober() as one:
            url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"
            asked = series(url, http_version=version, ca_file=str(authority.ca_file), probe=REUSED)
            made = []
            for _ in range(2):
                made.append(await attempt(one, asked))
                await asyncio.sleep(0.15)
            return made

    for made in in_loop(ask_twice):
        succeeded(made)
        assert Doubt.RECONNECTED in made.validity
        assert Mark.CONNECT_END in made.timeline.marks


def test_an_idle_http2_connection_may_speak_and_is_still_reused() -> None:
    """PINGs and SETTINGS between two attempts end nothing and count as nothing of the next answer."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = H2Peer(reader, writer)
        async for event in peer.events():
            if type(event).__name__ == "StreamEnded":
                await asyncio.sleep(0.1)
                await peer.answer(event.stream_id)  # type: ignore[attr-defined]
                await asyncio.sleep(0.02)
                peer.h2.ping(b"areyouup")
                peer.h2.update_settings({4: 70_000})
                await peer.flush()

    async def ask_twice() -> list[Attempt]:
        async with served(talk) as port, prober() as one:
            asked = series(f"http://127.0.0.1:{port}/v1", http_version="2", probe=REUSED)
            made = []
            for _ in range(3):
                made.append(await attempt(one, asked))
                await asyncio.sleep(0.1)
            return made

    for made in in_loop(ask_twice)[1:]:
        succeeded(made)
        assert made.http.reused
        assert made.timeline.phase(Phase.WAIT) is not None
        assert made.timeline.phase(Phase.WAIT) >= 0.095  # type: ignore[operator]


@pytest.mark.parametrize("cut", [None, 1, 9, 16])
@pytest.mark.parametrize("control", [False, True])
def test_a_polite_goaway_in_the_middle_of_an_answer_spoils_nothing(cut: int | None, control: bool) -> None:
    """Servers that drain connections finish what they began: the answer is whole, the next attempt dials anew."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = H2Peer(reader, writer)
        async for event in peer.events():
            if type(event).__name__ != "StreamEnded":
                continue
            stream: int = event.stream_id  # type: ignore[attr-defined]
            await peer.answer(stream, CHUNK, end=False)
            goaway = (8).to_bytes(3) + b"\x07\0" + bytes(4) + stream.to_bytes(4) + bytes(4)
            writer.write(goaway[:cut])
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(b"" if cut is None else goaway[cut:])
            peer.h2.send_data(stream, FINISH + DONE, end_stream=True)
            await peer.flush()

    async def ask_thrice() -> list[Attempt]:
        async with served(talk) as port, prober() as one:
            probe = {**REUSED, "control": control}
            asked = series(f"http://127.0.0.1:{port}/v1", http_version="2", probe=probe)
            return [await attempt(one, asked) for _ in range(3)]

    for made in in_loop(ask_thrice):
        succeeded(made)
        assert made.finish_reason == "stop"
        assert Doubt.RECONNECTED in made.validity


def test_a_request_that_the_server_did_not_take_up_is_not_measured_twice() -> None:
    """GOAWAY crosses a request: it goes over a new connection, and no time counts for two phases."""
    state = {"connections": 0}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state["connections"] += 1
        peer = H2Peer(reader, writer)
        async for event in peer.events():
            if type(event).__name__ != "StreamEnded":
                continue
            stream: int = event.stream_id  # type: ignore[attr-defined]
            if stream == 1:
                await peer.answer(stream)
            else:
                await asyncio.sleep(0.1)
                writer.write((8).to_bytes(3) + b"\x07\0" + bytes(4) + (1).to_bytes(4) + bytes(4))
                await writer.drain()
                return

    async def ask_twice() -> list[Attempt]:
        async with served(talk) as port, prober() as one:
            asked = series(f"http://127.0.0.1:{port}/v1", http_version="2", probe=REUSED)
            return [await attempt(one, asked) for _ in range(2)]

    first, second = in_loop(ask_twice)
    succeeded(first)
    if second.failure is None:
        succeeded(second)
        assert Doubt.RECONNECTED in second.validity
        marks = second.timeline.marks
        assert marks[Mark.CONNECT_END] <= marks[Mark.SEND_START]
        assert state["connections"] == 2
    else:
        failed(second, "disconnected", "wait")


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_body_that_never_ends_is_not_built_upon(version: str) -> None:
    """After an answer whose body stays open the next attempt takes a new connection."""
    open_ended = Behaviour(ttft_seconds=0.01, tokens=3, tokens_per_second=500.0, fault=Fault.LEFT_OPEN)

    async def ask_twice() -> list[Attempt]:
        async with Simulator([Listener(models={"m": open_ended})]) as sim, prober() as one:
            asked = series(sim.url(), http_version=version, probe=REUSED)
            return [await attempt(one, asked) for _ in range(2)]

    for made in in_loop(ask_twice):
        succeeded(made)
        assert Doubt.RECONNECTED in made.validity


def test_a_changed_target_is_not_asked_over_the_old_connection() -> None:
    """A series of the same names with another URL gets a connection to that."""

    async def ask_both() -> list[Attempt]:
        async with Simulator([quick(False), Listener(name="b", models={"m": QUICK})]) as sim, prober() as one:
            return [await attempt(one, series(sim.url(name), probe=REUSED)) for name in ("main", "b", "b")]

    first, second, third = in_loop(ask_both)
    assert first.http.remote != second.http.remote == third.http.remote
    assert third.http.reused


# What is asked.


@asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that keeps what it was asked."""
    heard: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while asked := await request(reader):
            heard.append(asked)
            writer.write(answer)

    async with served(talk) as port:
        yield port, heard


def test_every_prompt_is_unique_unless_told_otherwise() -> None:
    """The nonce stands before the prompt, differs every time, and can be switched off."""

    async def ask_it(nonce: bool) -> list[str]:
        async with listening(whole()) as (port, heard), prober() as one:
            for _ in range(3):
                await attempt(one, series(f"http://127.0.0.1:{port}/v1", probe={"nonce": nonce}))
        return [json.loads(asked.partition(b"\r\n\r\n")[2])["messages"][0]["content"] for asked in heard]

    prompts = in_loop(lambda: ask_it(True))
    assert len(set(prompts)) == 3
    assert all(prompt.endswith("hello") and len(prompt) > 15 for prompt in prompts)
    assert in_loop(lambda: ask_it(False)) == ["hello"] * 3


def test_requests_ask_for_identity_and_never_send_cookies_back() -> None:
    """Two requests on one connection: each header once, no cookie although the server set one, nothing of httpx."""
    answer = whole(head=STREAM_HEAD + b"set-cookie: session=1; path=/\r\nset-cookie: other=2\r\n")

    async def ask_twice() -> list[bytes]:
        async with listening(answer) as (port, heard), prober() as one:
            for _ in range(2):
                succeeded(await attempt(one, series(f"http://127.0.0.1:{port}/v1", probe=REUSED)))
            return heard

    for asked in in_loop(ask_twice):
        head = asked.partition(b"\r\n\r\n")[0].decode()
        lines = head.split("\r\n")
        assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
        names = [line.partition(":")[0].lower() for line in lines[1:]]
        assert sorted(names) == sorted(set(names))
        assert "cookie" not in names
        assert "accept-encoding: identity" in head.lower()
        assert "httpx" not in head


# The control request.


@pytest.mark.parametrize(("tls", "version"), WAYS)
@pytest.mark.parametrize("policy", ConnectionPolicy)
def test_the_control_request_comes_afterwards_on_the_same_connection(
    tls: bool, version: str, policy: ConnectionPolicy
) -> None:
    """Its wait is that of the model list, outside the timeline, and without dialling."""

    async def ask_it() -> Attempt:
        async with Simulator([quick(tls, control_seconds=0.2)]) as sim, prober() as one:
            probe = {"control": True, "connection": policy}
            return await attempt(one, series(sim.url(), http_version=version, ca_file=sim.ca_file, probe=probe))

    made = in_loop(ask_it)
    succeeded(made)
    marks = made.timeline.marks
    assert made.timeline.control is not None
    assert 0.19 <= made.timeline.control < 2
    assert made.timeline.total is not None
    assert made.timeline.total < 0.19
    assert marks[Mark.END] <= marks[Mark.CONTROL_START] <= marks[Mark.CONTROL_SENT] < marks[Mark.CONTROL_HEADERS]


def test_without_being_asked_there_is_no_control_request() -> None:
    """Null, and no second request reaches the server."""

    async def ask_it() -> tuple[Attempt, list[bytes]]:
        async with listening(whole()) as (port, heard), prober() as one:
            return await attempt(one, series(f"http://127.0.0.1:{port}/v1")), heard

    made, heard = in_loop(ask_it)
    assert made.timeline.control is None
    assert len(heard) == 1


@pytest.mark.parametrize("then", ["close", "reset", "401", "garbage"])
def test_a_control_request_that_fails_spoils_nothing(then: str) -> None:
    """The prompt's success stays a success with all its times; a refusal measures the road as well."""
    state = {"asked": 0}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while asked := await request(reader):
            state["asked"] += 1
            if asked.startswith(b"POST"):
                writer.write(whole())
            elif then == "401":
                writer.write(b"HTTP/1.1 401 No\r\ncontent-length: 2\r\n\r\nno")
            elif then == "garbage":
                writer.write(b"\0\1\2\3\r\n\r\n" * 100)
            elif then == "reset":
                writer.transport.abort()
            else:
                return

    async def ask_it() -> Attempt:
        async with served(talk) as port, prober() as one:
            return await attempt(one, series(f"http://127.0.0.1:{port}/v1", probe={"control": True}))

    made = in_loop(ask_it)
    succeeded(made)
    assert state["asked"] == 2
    assert (made.timeline.control is not None) is (then == "401")


def test_a_failed_prompt_is_not_followed_by_a_control_request() -> None:
    """The road is not measured to explain a refusal."""

    async def ask_it() -> tuple[Attempt, list[bytes]]:
        async with listening(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n") as (port, heard), prober() as one:
            return await attempt(one, series(f"http://127.0.0.1:{port}/v1", probe={"control": True})), heard

    made, heard = in_loop(ask_it)
    failed(made, "server_error", "wait")
    assert made.timeline.control is None
    assert len(heard) == 1


@pytest.mark.parametrize("dialect", [DialectName.OPENAI_CHAT, DialectName.OPENAI_RESPONSES, DialectName.ANTHROPIC])
def test_the_control_request_carries_the_key(dialect: DialectName) -> None:
    """In every dialect it is answered by the model list, not by a 401."""
    from monitor.model import Secret

    async def ask_it() -> Attempt:
        listener = Listener(models={"m": QUICK}, api_key="right", control_seconds=0.05)
        async with Simulator([listener]) as sim, prober() as one:
            asked = series(sim.url(), dialect=dialect, api_key=Secret("right"), probe={"control": True})
            return await attempt(one, asked)

    made = in_loop(ask_it)
    succeeded(made)
    assert made.timeline.control is not None
    assert made.timeline.control >= 0.045  # a refusal would come at once


# What stays behind.


def held(*ports: int) -> int:
    """Connections to these ports that a process still holds at the client's end."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    entries = (line.split() for line in lines)
    return sum(int(e[2].rpartition(":")[2], 16) in ports and e[9] != "0" for e in entries)


async def settled(condition: Callable[[], bool]) -> bool:
    """Whether it comes true, however busy the machine is."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        gc.collect()
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


HANGING = {
    "connecting through a silent proxy": ("http", "1.1", {"proxy": True}),
    "in the TLS handshake": ("https", "1.1", {}),
    "waiting": ("http", "1.1", {}),
    "waiting on HTTP/2": ("http", "2", {}),
}


@pytest.mark.parametrize("where", HANGING)
@pytest.mark.parametrize("policy", ConnectionPolicy)
def test_a_cancelled_attempt_leaves_no_socket_and_no_task(where: str, policy: ConnectionPolicy) -> None:
    """Wherever it hangs when it is cancelled: nothing stays open, and the next attempt works."""
    scheme, version, options = HANGING[where]

    async def cancel_it() -> None:
        async with Simulator([Listener(name="silent", silent=True), quick(False)]) as sim, prober() as one:
            silent = sim.port("silent")
            proxy = f"http://127.0.0.1:{silent}" if options else None
            asked = series(
                f"{scheme}://127.0.0.1:{silent}/v1",
                http_version=version,
                proxy=proxy,
                probe={"connection": policy, "deadline_seconds": 20.0, "connect_timeout_seconds": 20.0},
            )
            tasks = len(asyncio.all_tasks())
            running = asyncio.create_task(attempt(one, asked))
            assert await settled(lambda: held(silent) == 1)
            await asyncio.sleep(0.1)  # connected, it goes on to where it hangs
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await settled(lambda: not held(silent)), "a socket stayed open"
            assert await settled(lambda: len(asyncio.all_tasks()) <= tasks), "a task stayed behind"
            succeeded(await attempt(one, series(sim.url(), probe={"connection": policy})))

    in_loop(cancel_it)


def test_a_cancelled_stream_leaves_no_socket() -> None:
    """In the middle of an answer, on a fresh and on a reused connection."""
    stalls = says(STREAM_HEAD + b"\r\n" + CHUNK, then="hold")

    async def cancel_it() -> None:
        async with served(stalls) as port, prober() as one:
            for policy in ConnectionPolicy:
                asked = series(f"http://127.0.0.1:{port}/v1", probe={"connection": policy, "deadline_seconds": 20.0})
                running = asyncio.create_task(attempt(one, asked))
                assert await settled(lambda: held(port) == 1)
                await asyncio.sleep(0.1)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                assert await settled(lambda: not held(port)), "a socket stayed open"

    in_loop(cancel_it)


def test_two_hundred_attempts_leak_no_descriptor() -> None:
    """Good ones and every kind of bad one, plain, TLS and HTTP/2, fresh and reused."""
    models = {
        "good": QUICK,
        "cut": Behaviour(ttft_seconds=0.0, tokens=3, tokens_per_second=900.0, fault=Fault.DISCONNECTED),
        "reset": Behaviour(ttft_seconds=0.0, tokens=3, tokens_per_second=900.0, fault=Fault.RESET),
        "silent": Behaviour(fault=Fault.SILENCE),
        "refusing": Behaviour(status=500),
    }

    async def ask_all() -> list[Attempt]:
        listeners = [
            Listener(name="plain", models=models),
            Listener(name="tls", models=models, tls=Certificate.GOOD),
            Listener(name="expired", models=models, tls=Certificate.EXPIRED),
            Listener(name="mute", silent=True),
        ]
        async with Simulator(listeners) as sim, DistanceProxy(1) as far, prober() as one:
            roads = [*product(("plain", "tls"), ("1.1", "2")), ("expired", "1.1"), ("mute", "1.1")]
            ports = [sim.port(listener.name) for listener in listeners] + [far.port]
            asked = [
                series(
                    sim.url(name),
                    model=model,
                    http_version=version,
                    ca_file=sim.ca_file,
                    proxy=far.url if number % 4 == 0 else None,
                    probe={
                        "deadline_seconds": 0.3,
                        "name": f"q{number}",
                        "connection": list(ConnectionPolicy)[number % 2],
                    },
                )
                for number, ((name, version), model) in enumerate(product(roads, models))
            ]
            made: list[Attempt] = []
            for _ in range(7):
                made += await asyncio.gather(*(attempt(one, each) for each in asked))
            for each in asked:
                await one.release(each)
            held_by_proxy = far.port  # its own connections to the listeners are not ours
            assert await settled(lambda: not held(held_by_proxy)), "a connection through the proxy stayed open"
            descriptors = len(os.listdir("/proc/self/fd"))
            await asyncio.gather(*(attempt(one, each) for each in asked))
            for each in asked:
                await one.release(each)
            assert await settled(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
            assert await settled(lambda: not held(*ports)), "a connection stayed open"
            return made

    made = in_loop(ask_all)
    assert len(made) == 210
    for each in made:
        adds_up(each)
    assert {each.outcome for each in made} == {Outcome.SUCCESS, Outcome.FAILED}
