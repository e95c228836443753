"""One agent and whatever its hub says: what it measures by, what it tells, and what its owner reads in the log."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from monitor.cli.agent import Agent
from monitor.clock import CorrectedClock
from monitor.config.agentfile import load_agent_file
from tests.integration.any_hub import Answer, AnyHub, Asked, answer, any_hub, beaten, receipt, until

pytestmark = pytest.mark.anyio
TOKEN, NEW_TOKEN, KEY = "ftv_planted-token-0123456789", "ftv_other-token-0123456789", "sk-planted-0123456789"
BEAT_SECONDS = 0.2


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def configuration(prompt: str = "hi", **target: Any) -> dict[str, Any]:
    """One target at which nobody listens: what becomes of attempts is not what these tests are about."""
    one = {"provider": "x", "model": "m", "dialect": "openai_chat", "url": "http://127.0.0.1:1/v1", **target}
    return {
        "vantages": {"lagos": {}},
        "targets": {"t": one},
        "probes": {"p": {"prompt": prompt, "interval": "500ms", "deadline": "200ms"}},
        "witness": {"vantages": ["lagos"], "endpoints": {"near": "tcp://127.0.0.1:1"}},
    }


def handing_out(told: dict[str, Any], digest: str) -> Answer:
    def config(asked: Asked) -> bytes:
        if asked.headers.get("if-none-match") == f'"{digest}"':
            return b"HTTP/1.1 304 X\r\n\r\n"
        return answer(200, {"config": told, "vantage": "lagos", "digest": digest})

    return config


def good(told: dict[str, Any] | None = None, digest: str = "one") -> dict[str, Answer]:
    return {
        "config": handing_out(told or configuration(), digest),
        "heartbeat": lambda _: beaten(config_digest=digest),
        "attempts": lambda _: receipt(),
    }


def own_file(folder: Path, url: str, **more: Any) -> Path:
    (folder / "token").write_text(TOKEN)
    (folder / "key").write_text(KEY)
    file = folder / "agent.yaml"
    file.write_text(json.dumps({"hub": url, "token_file": "token", "state": "state", **more}))
    return file


@asynccontextmanager
async def living(file: Path, clock: CorrectedClock | None = None) -> AsyncIterator[Agent]:
    agent = Agent(load_agent_file(file), clock, heartbeat_seconds=BEAT_SECONDS)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop(1.0)


def probing(agent: Agent) -> list[str]:
    return [one.probe.prompt for one in agent._probing.series]


def beats(hub: AnyHub) -> list[dict[str, Any]]:
    return [json.loads(one.body) for one in hub.asked if one.path == "heartbeat"]


async def test_a_token_that_nobody_knows(tmp_path: Path) -> None:
    """Said once, with what to do, also by an agent that has nothing to deliver yet; a new token mends it."""

    def known(answers: Answer) -> Answer:
        return lambda asked: answers(asked) if NEW_TOKEN in asked.headers["authorization"] else answer(401, {})

    async with any_hub({path: known(one) for path, one in good().items()}) as hub:
        file = own_file(tmp_path, hub.url)
        with capture_logs() as said:
            async with living(file) as agent:
                await until(lambda: hub.count("heartbeat") >= 5, "heartbeats")
                (error,) = (one for one in said if one["log_level"] == "error")
                assert "vantage rotate" in error["cause"]
                assert "vantage rotate" in str(agent.health()["hub"])
                (tmp_path / "token").write_text(NEW_TOKEN)
                await agent.take_over(load_agent_file(file))
                await until(lambda: probing(agent) == ["hi"], "the configuration")
                await until(lambda: agent.health()["hub"] is None, "a hub that answers")
        assert TOKEN not in str(said)


async def test_a_hub_that_is_not_there(tmp_path: Path) -> None:
    """Whoever mistypes its address reads so in the log, once; it is asked on."""
    async with any_hub() as hub:
        url = hub.url
    with capture_logs() as said:
        async with living(own_file(tmp_path, url)) as agent:
            await until(lambda: agent.health()["hub"] is not None, "a sentence")
            await asyncio.sleep(BEAT_SECONDS * 5)
    (warning,) = (one for one in said if one["log_level"] == "warning")
    assert "cannot be reached" in warning["cause"]


async def test_a_fleet_that_does_not_have_this_vantage_point(tmp_path: Path) -> None:
    """Nothing is probed, and the log says once why, /readyz too; it begins by itself when the fleet has it."""
    answers = good() | {"config": lambda _: answer(404, {"error": "no vantage point 'lagos'"})}
    async with any_hub(answers) as hub:
        with capture_logs() as said:
            async with living(own_file(tmp_path, hub.url)) as agent:
                await until(lambda: hub.count("config") >= 3, "questions")
                assert "no vantage point 'lagos'" in str(agent.health()["configuration"])
                hub.answers |= good()
                await until(lambda: probing(agent) == ["hi"], "the configuration")
        assert sum(one["event"] == "nothing is probed" for one in said) == 1


async def test_a_configuration_that_cannot_be_used(tmp_path: Path) -> None:
    """The old one stays in force and the hub is told why; once the key is there, the new one is taken over."""
    newer = configuration("new", api_key="${NEEDED}")
    async with any_hub(good()) as hub:
        file = own_file(tmp_path, hub.url)
        with capture_logs() as said:
            async with living(file) as agent:
                await until(lambda: probing(agent) == ["hi"], "the configuration")
                hub.answers |= good(newer, "two")
                await until(lambda: beats(hub)[-1]["config_error"], "the hub is told")
                assert "NEEDED" in beats(hub)[-1]["config_error"]
                assert (beats(hub)[-1]["config_digest"], probing(agent)) == ("one", ["hi"])
                secret = {"NEEDED": {"origin": "http://127.0.0.1:1", "file": "key"}}
                await agent.take_over(load_agent_file(own_file(tmp_path, hub.url, secrets=secret)))
                await until(lambda: probing(agent) == ["new"], "the newer configuration")
                await until(lambda: beats(hub)[-1]["config_error"] is None, "the hub is told")
                assert beats(hub)[-1]["config_digest"] == "two"
        assert sum(one["log_level"] == "error" for one in said) == 1


async def test_it_starts_from_its_last_configuration(tmp_path: Path) -> None:
    """With the hub gone, and with every character of it; what it measures waits, and says so in its health."""
    prompt = "\U0001f600 a\u2028b ${not a name} caf\xe9"
    told = configuration(prompt.replace("${", "$${"))
    async with any_hub(good(told)) as hub:
        file = own_file(tmp_path, hub.url)
        async with living(file) as agent:
            await until(lambda: probing(agent) == [prompt], "the configuration")
            await until((tmp_path / "state" / "configuration.json").exists, "the file")
    async with living(file) as agent:
        assert probing(agent) == [prompt]
        await until(lambda: agent._probing.spool.depth >= 2, "attempts that wait")
        await until(lambda: agent.health()["hub"] is not None, "a sentence")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"vantage":"lagos","digest":"one"}', b"\xff" * 100, b"[" * 99_999]
)
async def test_a_memory_that_is_broken(tmp_path: Path, content: bytes) -> None:
    """Whatever stands there, the agent starts and asks its hub."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "configuration.json").write_bytes(content)
    async with any_hub(good()) as hub, living(own_file(tmp_path, hub.url)) as agent:
        await until(lambda: probing(agent) == ["hi"], "the configuration")


async def test_a_hub_that_wants_to_be_left_alone(tmp_path: Path) -> None:
    """Retry-After holds for heartbeats, configuration and attempts alike."""
    async with any_hub(good()) as hub, living(own_file(tmp_path, hub.url)) as agent:
        await until(lambda: probing(agent) == ["hi"] and hub.count("attempts") >= 1, "an agent at work")
        for path in ("heartbeat", "attempts"):
            hub.answers[path] = lambda _: answer(503, {"error": "busy"}, retry_after="60")
        await until(lambda: agent.health()["hub"] is not None, "a hub that is busy")
        await until(lambda: agent._probing.away is not None, "an uplink that waits")
        asked = len(hub.asked)
        await asyncio.sleep(2.0)  # ten heartbeats long
        assert len(hub.asked) <= asked + 1  # a heartbeat may have been on its way


async def test_an_agent_says_nothing_of_a_database(tmp_path: Path) -> None:
    """It has none: whoever scrapes agents is not told that theirs is away."""
    async with any_hub(good(configuration())) as hub, living(own_file(tmp_path, hub.url)) as agent:
        await until(lambda: hub.count("attempts") >= 1, "attempts")
        shown = agent.metrics.negotiate("")[1].decode()
    assert "firsttoken_spool_attempts" in shown
    assert "firsttoken_store_up" not in shown


async def test_secrets_are_nowhere(tmp_path: Path) -> None:
    """Neither the token nor a key is on disk in the state folder, in a request's body, in the log or in the metrics."""
    told = configuration(api_key="${K}", headers={"x-more": "Bearer ${K}"})
    async with any_hub(good(told)) as hub:
        secret = {"K": {"origin": "http://127.0.0.1:1", "file": "key"}}
        with capture_logs() as said:
            async with living(own_file(tmp_path, hub.url, secrets=secret)) as agent:
                await until(lambda: hub.count("attempts") >= 3, "attempts")
                shown = agent.metrics.negotiate("")[1]
    files = [path.read_bytes() for path in (tmp_path / "state").iterdir()]
    bodies = [gzip.decompress(one.body) if "content-encoding" in one.headers else one.body for one in hub.asked]
    everything = b"".join([*files, shown, str(said).encode(), *bodies])
    assert b'"wire"' in everything
    for planted in (TOKEN, KEY):
        assert planted.encode() not in everything


async def test_a_clock_that_is_wrong_follows_the_hubs(tmp_path: Path) -> None:
    """Slots follow the hub's clock while this machine's is an hour off; a slow answer changes nothing."""

    def an_hour_on(_: Asked) -> bytes:
        there = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        return beaten(config_digest="one", now=there, received_at=there)

    clock = CorrectedClock()
    async with (
        any_hub(good() | {"heartbeat": an_hour_on}) as hub,
        living(own_file(tmp_path, hub.url), clock) as agent,
    ):
        await until(lambda: abs(clock.correction_seconds - 3600) < 5, "a clock that is put right")
        await until(lambda: agent._offset is not None and abs(agent._offset + 3600) < 5, "what the hub is told")
        hub.answers |= good()
        await until(lambda: clock.correction_seconds == 0.0, "a clock that is left alone again")
