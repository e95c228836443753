"""Looking at neutral endpoints over real sockets: phases, failures, politeness, and nothing that waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from monitor.agent.witness import Looker, Watch, moments
from monitor.clock import Clock
from monitor.config import Config, FrozenDict, Witness
from monitor.grid import microseconds
from monitor.model import FailureKind, Vantage
from monitor.simulator.process import SimulatorProcess
from monitor.timeline import Phase
from monitor.witness import Endpoint, Reach, Sighting
from tests.integration.probing import in_loop, served
from tests.ports import free_port

HERE = Vantage(name="here")
NOBODY = Config(vantages=FrozenDict(), targets=FrozenDict(), probes=FrozenDict())


def tcp(port: int, name: str = "near") -> Endpoint:
    return Endpoint(name=name, reach=Reach.TCP, host="127.0.0.1", port=port)


@asynccontextmanager
async def looking() -> AsyncIterator[Looker]:
    looker = Looker(Clock())
    try:
        yield looker
    finally:
        looker.close()


async def seen(endpoint: Endpoint, vantage: Vantage = HERE, timeout: float = 5.0) -> Sighting:
    async with looking() as looker:
        return await looker.look(vantage, endpoint, timeout)


def test_a_connection_and_nothing_more() -> None:
    """A TCP endpoint is connected to and left with a goodbye: it gets not one byte, and no reset."""
    got: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read())  # raises ConnectionResetError after a reset

    async def body() -> Sighting:
        async with served(listen) as port:
            return await seen(tcp(port))

    sighting = in_loop(body)
    assert sighting.up
    assert set(sighting.seconds) == {Phase.CONNECT}
    assert 0 < sighting.seconds[Phase.CONNECT] < 5
    assert (sighting.vantage, sighting.endpoint) == ("here", "near")
    assert sighting.address.startswith("tcp://127.0.0.1:")
    assert got == [b""]


def test_tls_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TLS endpoint by name: lookup, connect and handshake, each timed."""
    with SimulatorProcess({"listeners": [{"name": "main", "tls": "good", "models": {"m": {}}}]}) as simulator:
        assert simulator.ca_file is not None
        monkeypatch.setenv("SSL_CERT_FILE", simulator.ca_file)
        port = int(simulator.url().split(":")[2].split("/")[0])
        endpoint = Endpoint(name="near", reach=Reach.TLS, host="localhost", port=port)
        sighting = in_loop(lambda: seen(endpoint))
    assert sighting.up, sighting.failure
    assert set(sighting.seconds) == {Phase.RESOLVE, Phase.CONNECT, Phase.TLS}
    assert sighting.lasted == pytest.approx(sum(sighting.seconds.values()))


def test_a_name_alone() -> None:
    """A DNS endpoint is only asked for."""
    sighting = in_loop(lambda: seen(Endpoint(name="resolver", reach=Reach.DNS, host="localhost")))
    assert sighting.up
    assert set(sighting.seconds) == {Phase.RESOLVE}


@pytest.mark.parametrize(
    ("endpoint", "kind", "phase"),
    [
        (tcp(free_port()), FailureKind.REFUSED, Phase.CONNECT),
        (Endpoint(name="e", reach=Reach.DNS, host="nobody.invalid"), FailureKind.DNS, Phase.RESOLVE),
        (Endpoint(name="e", reach=Reach.TLS, host="nobody.invalid", port=443), FailureKind.DNS, Phase.RESOLVE),
    ],
)
def test_failures_have_kind_and_phase(endpoint: Endpoint, kind: FailureKind, phase: Phase) -> None:
    """What fails does so by the closed list, and the phases that were not passed are absent."""
    sighting = in_loop(lambda: seen(endpoint))
    assert sighting.failure is not None
    assert (sighting.failure.kind, sighting.failure.phase) == (kind, phase)
    assert not sighting.seconds
    assert not sighting.up


def test_silence_ends_with_the_timeout() -> None:
    """A server that takes the connection and never greets is given up in time; what was passed is kept."""

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def body() -> tuple[Sighting, float]:
        async with served(mute) as port:
            began = time.monotonic()
            endpoint = Endpoint(name="e", reach=Reach.TLS, host="127.0.0.1", port=port)
            sighting = await seen(endpoint, timeout=0.3)
            return sighting, time.monotonic() - began

    sighting, took = in_loop(body)
    assert sighting.failure is not None
    assert (sighting.failure.kind, sighting.failure.phase) == (FailureKind.CONNECT_TIMEOUT, Phase.TLS)
    assert set(sighting.seconds) == {Phase.CONNECT}
    assert took < 5


def test_a_certificate_that_nobody_vouches_for() -> None:
    """A captive portal answers too, but is not who was asked for."""
    with SimulatorProcess({"listeners": [{"name": "main", "tls": "good", "models": {"m": {}}}]}) as simulator:
        port = int(simulator.url().split(":")[2].split("/")[0])
        sighting = in_loop(lambda: seen(Endpoint(name="e", reach=Reach.TLS, host="127.0.0.1", port=port)))
    assert sighting.failure is not None
    assert sighting.failure.phase is Phase.TLS
    assert sighting.failure.kind.startswith("tls")


def test_distance_shows() -> None:
    """Through a simulated Lagos, connecting takes its round trip."""
    scenario = {"listeners": [{"name": "main", "models": {"m": {}}}], "distances": {"lagos": {"rtt_ms": 80}}}
    with SimulatorProcess(scenario) as simulator:
        port = int(simulator.url().split(":")[2].split("/")[0])
        lagos = Vantage(name="lagos", proxy=simulator.proxy("lagos"), simulated=True)
        sighting = in_loop(lambda: seen(tcp(port), lagos))
    assert sighting.up, sighting.failure
    assert sighting.seconds[Phase.CONNECT] >= 0.08


def test_stopping_in_the_middle_leaves_nothing() -> None:
    """A stop cuts off looks under way at once; nothing is recorded of them."""

    async def body() -> list[Sighting]:
        kept: list[Sighting] = []

        async def keep(sighting: Sighting) -> None:
            kept.append(sighting)

        asked = asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            await reader.read()

        async with served(mute) as port:
            endpoint = Endpoint(name="e", reach=Reach.TLS, host="127.0.0.1", port=port)
            watch = Watch(Clock(), keep)
            witness = Witness(interval_seconds=1.0, timeout_seconds=0.9, endpoints=(endpoint,))
            watch.take(replace(NOBODY, witness=witness), [HERE])
            await asyncio.wait_for(asked.wait(), 20)
            async with asyncio.timeout(10):
                await watch.stop()
                await watch.stop()
        return kept

    kept = in_loop(body)
    assert len(kept) <= 1  # an earlier look, on a machine that is slow


def test_it_looks_at_its_moments() -> None:
    """One look at each moment of the endpoint's grid, by any number of endpoints, each at another time."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def body() -> list[Sighting]:
        kept: list[Sighting] = []
        enough = asyncio.Event()

        async def keep(sighting: Sighting) -> None:
            kept.append(sighting)
            if min(sum(one.endpoint == name for one in kept) for name in ("a", "b")) >= 3:
                enough.set()

        async with served(greet) as port:
            watch = Watch(Clock(), keep)
            endpoints = (tcp(port, "a"), tcp(port, "b"))
            witness = Witness(interval_seconds=1.0, timeout_seconds=0.5, endpoints=endpoints)
            watch.take(replace(NOBODY, witness=witness), [HERE])
            await asyncio.wait_for(enough.wait(), 60)
            await watch.stop()
        return kept

    kept = in_loop(body)
    assert all(one.up for one in kept)
    offsets = {}
    for name in ("a", "b"):
        grid = moments("here", tcp(1, name), 1.0)
        numbers = [grid.window_of(microseconds(one.started_at) + 50_000) for one in kept if one.endpoint == name]
        assert len(set(numbers)) == len(numbers), "no moment twice"
        assert numbers == sorted(numbers)
        offsets[name] = grid.offset_us
    assert offsets["a"] != offsets["b"]


def test_a_new_configuration_disturbs_only_what_it_changes() -> None:
    """An endpoint that stays goes on at its moments; one that is gone is looked at no more."""

    async def body() -> None:
        async def keep(sighting: Sighting) -> None:
            pass

        watch = Watch(Clock(), keep)
        one, other = tcp(1, "one"), tcp(2, "other")
        watch.take(replace(NOBODY, witness=Witness(endpoints=(one, other))), [HERE])
        before = dict(watch._watching)
        watch.take(replace(NOBODY, witness=Witness(endpoints=(one,))), [HERE])
        after = dict(watch._watching)
        (key,) = after
        assert after[key] is before[key]
        watch.take(NOBODY, [HERE])
        assert not watch._watching
        await watch.stop()

    in_loop(body)


def test_behind_a_proxy_no_name_is_asked_for() -> None:
    """A vantage point behind a proxy has no name server of its own to be looked at."""

    async def body() -> int:
        async def keep(sighting: Sighting) -> None:
            pass

        watch = Watch(Clock(), keep)
        endpoints = (tcp(1), Endpoint(name="resolver", reach=Reach.DNS, host="example.com"))
        watch.take(replace(NOBODY, witness=Witness(endpoints=endpoints)), [replace(HERE, proxy="http://127.0.0.1:9")])
        watching = len(watch._watching)
        await watch.stop()
        return watching

    assert in_loop(body) == 1
