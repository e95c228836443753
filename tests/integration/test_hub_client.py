"""What an agent makes of whatever answers at its hub's address: bounded, verified, never followed, in words."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from monitor.agent.hub_client import MAX_CONFIG_BYTES, HubClient, NotForUs, TooLarge
from monitor.clock import Clock
from monitor.model import Attempt, MissReason, Outcome, Secret, StoreRefuses, StoreUnavailable
from monitor.simulator import Certificate
from monitor.simulator.certificates import Authority
from monitor.wire.fleet import Heartbeat
from tests.integration.any_hub import AnyHub, Asked, answer, any_hub, beaten, receipt

pytestmark = pytest.mark.anyio
TOKEN = "ftv_planted-token-0123456789"
AGENT = "0123456789abcdef" * 2
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def asking(hub: AnyHub, **settings: Any) -> AsyncIterator[HubClient]:
    client = HubClient(settings.pop("url", hub.url), Secret(TOKEN), lambda: AGENT, Clock(), **settings)
    try:
        yield client
    finally:
        await client.close()


def attempt(n: int = 0) -> Attempt:
    at = AT + timedelta(seconds=n)
    return Attempt(
        vantage="lagos",
        target="t",
        probe="p",
        probe_version="v",
        scheduled_at=at,
        started_at=at,
        outcome=Outcome.MISSED,
        missed=MissReason.LATE,
    )


BEAT = Heartbeat(
    agent=AGENT,
    version="0",
    config_digest=None,
    config_error=None,
    booted_at=AT,
    started_at=AT,
    sent_at=AT,
    spool_attempts=0,
    spool_bytes=0,
    spool_limit_bytes=1,
    spool_oldest_at=None,
    spool_lost=0,
    clock_offset_seconds=None,
)


async def refusal(said: bytes | tuple[bytes, float], **settings: Any) -> Exception:
    """What comes of one answer to an upload."""
    async with any_hub({"attempts": lambda _: said}) as hub, asking(hub, **settings) as client:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is what the test is about
            await client.deliver([attempt()])
    assert TOKEN not in str(caught.value) + repr(caught.value.__cause__)
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (400, ValueError, "what the hub says"),
        (401, StoreRefuses, "vantage rotate"),
        (403, StoreRefuses, "vantage rotate"),
        (404, StoreUnavailable, "is the URL right"),
        (408, StoreUnavailable, "answers 408"),
        (413, TooLarge, ""),
        (415, StoreUnavailable, "as no hub would"),
        (422, StoreRefuses, "speaks another version"),
        (429, StoreUnavailable, "answers 429: what the hub says"),
        (500, StoreUnavailable, "answers 500"),
        (503, StoreUnavailable, "answers 503"),
    ],
)
async def test_what_each_status_means(status: int, kind: type[Exception], words: str) -> None:
    """Never again, smaller, later, or once somebody has acted: told apart, with the hub's own sentence."""
    error = await refusal(answer(status, {"error": "what the hub says"}))
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT", "date": "Sun, 01 Mar 2026 12:00:00 GMT"}, 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, 0.0),
        ({"retry-after": "999999"}, 300.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "soon"}, 0.0),
        ({"retry-after": "9" * 400}, 0.0),
        ({}, 0.0),
    ],
)
async def test_how_long_the_hub_wants_to_be_left_alone(headers: dict[str, str], seconds: float) -> None:
    """In seconds or until a date of its own clock, within bounds."""
    said = {name.replace("-", "_"): value for name, value in headers.items()}
    error = await refusal(answer(503, {"error": "busy"}, **said))
    assert isinstance(error, StoreUnavailable)
    assert error.retry_after_seconds == seconds


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        answer(200, b"{}x"),
        answer(200, [1]),
        answer(200, {"stored": -1}),
        receipt(rejected=[{"index": "x", "reason": "y"}]),
        answer(200, b"[" * 100_000),
        answer(200, b"<html>Welcome to the hotel</html>"),
        answer(200, gzip.compress(b" " * 10_000_000), content_encoding="gzip"),
        answer(200, b" " * 2_000_000),
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{",
    ],
)
async def test_what_no_hub_would_say(said: bytes) -> None:
    """A captive portal, an SSH server, a bomb: nothing was delivered, and it is asked again later."""
    async with asyncio.timeout(20):
        error = await refusal(said if b"99" not in said else (said, 0.001), exchange_seconds=2.0)
    assert type(error) is StoreUnavailable


async def test_an_answer_that_trickles_is_given_up() -> None:
    """A byte now and then satisfies every read; the whole exchange has an end."""
    error = await refusal((receipt(), 0.2), exchange_seconds=0.5)
    assert "no whole answer" in str(error)


async def test_a_redirect_is_not_followed() -> None:
    """The token goes to the hub's own address and to no other."""
    async with any_hub({"attempts": lambda _: receipt()}) as other:
        error = await refusal(answer(307, {}, location=f"{other.url}/api/v1/agent/attempts"))
        assert "answers 307, as no hub would" in str(error)
        assert other.asked == []


@pytest.mark.parametrize("status", [400, 413])
async def test_only_an_upload_can_be_at_fault(status: int) -> None:
    """Whoever refuses a question or a heartbeat as bad or too large is no hub that works: it is asked again later."""
    said = answer(status, {"error": "what stands in between says"})
    async with any_hub({"config": lambda _: said, "heartbeat": lambda _: said}) as hub, asking(hub) as client:
        with pytest.raises(StoreUnavailable, match=f"answers {status}"):
            await client.config(None)
        with pytest.raises(StoreUnavailable, match=f"answers {status}"):
            await client.beat(BEAT)


async def test_cookies_are_not_kept() -> None:
    """They would pile up for as long as the agent runs, and come with every request."""
    said = answer(503, {"error": "busy"}, set_cookie="a=1; Path=/")
    async with any_hub({"config": lambda _: said}) as hub, asking(hub) as client:
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await client.config(None)
        assert [one.headers.get("cookie") for one in hub.asked] == [None, None]


async def test_nobody_there() -> None:
    """A refused connection is said as such."""
    async with any_hub() as hub:
        pass
    async with asking(hub) as client:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await client.deliver([attempt()])


async def test_the_machines_proxy_settings_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token goes through no proxy that the agent's own file does not name."""
    async with any_hub() as proxy, any_hub({"attempts": lambda _: receipt()}) as hub:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        async with asking(hub) as client:
            await client.deliver([attempt()])
        assert (len(hub.asked), len(proxy.asked)) == (1, 0)


@pytest.mark.parametrize("kind", [Certificate.GOOD, Certificate.EXPIRED, Certificate.WRONG_NAME])
async def test_a_certificate_that_cannot_be_trusted(tmp_path: Path, kind: Certificate) -> None:
    """Before the token is sent. By default the system's authorities count; here nobody knows this one."""
    authority = Authority(tmp_path, Clock().now())
    trusted = str(authority.ca_file) if kind is not Certificate.GOOD else None
    async with any_hub({"attempts": lambda _: receipt()}, authority.context(kind, ("http/1.1",))) as hub:
        async with asking(hub, ca_file=trusted) as client:
            with pytest.raises(StoreUnavailable, match="certificate"):
                await client.deliver([attempt()])
        assert hub.asked == []


async def test_a_certificate_of_ones_own_authority(tmp_path: Path) -> None:
    """With `ca_file` a hub of one's own making is trusted."""
    authority = Authority(tmp_path, Clock().now())
    context = authority.context(Certificate.GOOD, ("http/1.1",))
    async with (
        any_hub({"attempts": lambda _: receipt(stored=1)}, context) as hub,
        asking(hub, ca_file=str(authority.ca_file)) as client,
    ):
        refused, got = await client.deliver([attempt()])
    assert (refused, got.stored) == ([], 1)


async def test_what_is_sent_and_what_comes_back() -> None:
    """Gzipped JSON with the token in its header; each answer belongs to its row; one connection for all of it."""
    told = receipt(
        stored=1,
        rejected=[{"index": 1, "reason": "never"}, {"index": 400, "reason": "no such row"}],
        deferred=[{"index": 2, "reason": "later"}],
        conflicts=[3],
    )
    rows = [attempt(n) for n in range(4)]
    async with any_hub({"attempts": lambda _: told}) as hub, asking(hub) as client:
        for _ in range(3):
            refused, got = await client.deliver(rows)
        assert hub.connections == 1
        asked = hub.asked[0]
    assert [(rows.index(one), type(reason).__name__, reason) for one, reason in refused] == [
        (1, "str", "never"),
        (2, "PutOff", "later"),
    ]
    assert got.conflicts == (3,)
    assert (asked.headers["authorization"], asked.headers["content-encoding"]) == (f"Bearer {TOKEN}", "gzip")
    sent = json.loads(gzip.decompress(asked.body))
    assert (sent["agent"], len(sent["attempts"]), sent["wire"].split(".")[0]) == (AGENT, 4, "1")


Ask = Callable[[HubClient], Awaitable[object]]


@pytest.mark.parametrize(
    "told",
    [
        {},
        [],
        {"config": {}, "vantage": "lagos"},
        {"config": {}, "vantage": "lagos", "digest": 'x"\r\nevil: 1'},
        {"config": {}, "vantage": "lagos", "digest": ""},
        {"config": {"x": "y" * MAX_CONFIG_BYTES}, "vantage": "lagos", "digest": "d"},
    ],
)
async def test_a_configuration_that_is_none(told: object) -> None:
    """Nothing that could not be asked for again by its digest is taken for a configuration."""
    async with any_hub({"config": lambda _: answer(200, told)}) as hub, asking(hub) as client:
        with pytest.raises(StoreUnavailable):
            await client.config(None)


async def test_a_configuration_is_asked_for_by_its_digest() -> None:
    """What is known already is not told again; a vantage point that the fleet does not have is told so."""
    known = {"config": {"a": "\U0001f600"}, "vantage": "lagos", "digest": "abc"}

    def config(asked: Asked) -> bytes:
        if asked.headers.get("if-none-match") == '"abc"':
            return b"HTTP/1.1 304 X\r\n\r\n"
        return answer(200, known)

    async with any_hub({"config": config}) as hub, asking(hub) as client:
        handout = await client.config(None)
        assert handout is not None
        assert (handout.vantage, handout.digest, json.loads(handout.content)) == ("lagos", "abc", {"a": "\U0001f600"})
        assert await client.config("abc") is None
        hub.answers["config"] = lambda _: answer(404, {"error": "no vantage point 'lagos'"})
        with pytest.raises(NotForUs, match="lagos"):
            await client.config("abc")


async def test_the_hubs_time() -> None:
    """How far this machine's clock is off, and how exactly that is known: half of what the question took."""
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()

    async with any_hub({"heartbeat": lambda _: beaten(now=ahead, received_at=ahead)}) as hub, asking(hub) as client:
        beat = await client.beat(BEAT)
    assert beat.offset_seconds == pytest.approx(-3600, abs=30)
    assert 0 < beat.error_seconds < 15


@pytest.mark.parametrize("changes", [{"now": "later"}, {"now": None}, {"now": "2026-03-01"}, {"received_at": 5}])
async def test_a_time_that_is_none(changes: dict[str, object]) -> None:
    """Nothing is concluded from an answer without a time."""
    async with any_hub({"heartbeat": lambda _: beaten(**changes)}) as hub, asking(hub) as client:
        with pytest.raises(StoreUnavailable, match="no time"):
            await client.beat(BEAT)


def test_a_ca_file_that_cannot_be_used(tmp_path: Path) -> None:
    """Said when the client is made, not at each question."""
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(StoreRefuses, match="cannot be used"):
        HubClient("https://h.example", Secret(TOKEN), lambda: AGENT, Clock(), ca_file=str(tmp_path / "ca.pem"))
