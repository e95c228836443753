"""The simulated vendors over real sockets: HTTP/1.1, HTTP/2 and TLS, refusals, queues, cold starts, bounds."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from typing import Any

import httpx
import pytest

from monitor.simulator import Behaviour, Certificate, Change, ErrorKind, Listener, SendKind, Simulator
from monitor.simulator.server import PortTakenError

pytestmark = pytest.mark.anyio

QUICK = Behaviour(ttft_seconds=0.01, tokens=3, tokens_per_second=500)
ASK: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/responses": {"input": "hi"},
    "/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50},
}
CHAT = "/chat/completions"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def body(path: str = CHAT, model: str = "m", **more: Any) -> dict[str, Any]:
    return {"model": model, "stream": True, **ASK[path], **more}


def client(sim: Simulator, **options: Any) -> httpx.AsyncClient:
    verify = ssl.create_default_context(cafile=sim.ca_file)
    return httpx.AsyncClient(verify=verify, timeout=10, **options)


@pytest.mark.parametrize("listener", ["main", "tls"])
@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("path", ASK)
async def test_every_dialect_is_spoken_over_every_transport(listener: str, version: str, path: str) -> None:
    """A stream comes whole over both HTTP versions, plain and TLS, under the request id that the log knows it by."""
    listeners = [Listener(models={"m": QUICK}), Listener(name="tls", tls=Certificate.GOOD, models={"m": QUICK})]
    options = {"http1": version == "HTTP/1.1", "http2": version == "HTTP/2"}
    async with Simulator(listeners) as sim, client(sim, **options) as http:
        for _ in range(2):  # the second one on the same connection
            reply = await http.post(sim.url(listener) + path, json=body(path))
            assert (reply.status_code, reply.http_version) == (200, version)
            assert reply.headers["content-type"].startswith("text/event-stream")
            log = sim.log.of(reply.headers["x-request-id"])
            assert [s.token for s in log if s.kind == SendKind.TOKEN] == [0, 1, 2]
            assert sum(s.size for s in log if s.kind not in ("request", "headers")) == len(reply.content)
            assert [log[0].kind, log[1].kind, log[-1].kind] == ["request", "headers", "end"]


async def test_stamps_enclose_each_send_and_ascend() -> None:
    """`before` is never after `after`, and no event was sent before the one in front of it."""
    async with Simulator([Listener(models={"m": QUICK})]) as sim, client(sim) as http:
        reply = await http.post(sim.url() + CHAT, json=body())
        stamps = [t for s in sim.log.of(reply.headers["x-request-id"])[1:] for t in (s.before_ns, s.after_ns)]
        assert stamps == sorted(stamps)


async def test_tokens_are_due_on_an_absolute_grid() -> None:
    """No token is early, and a pause of the process delays only what was due in it: lateness is not carried on."""
    slow = Behaviour(ttft_seconds=0.05, tokens=30, tokens_per_second=100)
    async with Simulator([Listener(models={"m": slow})]) as sim, client(sim) as http:
        reading = asyncio.create_task(http.post(sim.url() + CHAT, json=body()))
        await asyncio.sleep(0.08)
        time.sleep(0.15)  # noqa: ASYNC251 - the pause
        log = sim.log.of((await reading).headers["x-request-id"])
        first_due = log[0].before_ns + 50_000_000
        late = [s.before_ns - first_due - (s.token or 0) * 10_000_000 for s in log if s.kind == SendKind.TOKEN]
        assert min(late) > -1_000_000  # the log's request entry is a moment before the server's own beginning
        assert late[-1] < max(late)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Certificate.EXPIRED, "certificate has expired"),
        (Certificate.SELF_SIGNED, "self-signed certificate"),
        (Certificate.WRONG_NAME, "IP address mismatch"),
    ],
)
async def test_bad_certificates_fail_for_their_reason(kind: Certificate, reason: str) -> None:
    """A client that trusts the CA refuses each bad leaf, with the reason it is there for."""
    async with Simulator([Listener(tls=kind)]) as sim, client(sim) as http:
        with pytest.raises(httpx.ConnectError, match=reason):
            await http.get(sim.url() + "/models")


async def test_alpn_offers_only_what_the_listener_speaks() -> None:
    """A listener for HTTP/1.1 alone is what a client gets that could speak both."""
    async with Simulator([Listener(tls=Certificate.GOOD, http=("1.1",))]) as sim, client(sim, http2=True) as http:
        assert (await http.get(sim.url() + "/models")).http_version == "HTTP/1.1"


async def test_a_wrong_key_and_a_model_that_is_gone_are_told_in_the_vendors_words() -> None:
    """401 and 404 with OpenAI's and Anthropic's JSON; the key comes back only where carelessness was asked for."""
    listeners = [
        Listener(models={"m": QUICK}, api_key="sk-right"),
        Listener(name="careless", api_key="sk-right", echo_key=True),
    ]
    async with Simulator(listeners) as sim, client(sim) as http:
        wrong = {"authorization": "Bearer sk-planted-key"}
        reply = await http.post(sim.url() + CHAT, json=body(), headers=wrong)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "sk-planted-key" not in reply.text
        assert "sk-planted-key" in (await http.post(sim.url("careless") + CHAT, json=body(), headers=wrong)).text
        reply = await http.post(sim.url() + "/messages", json=body("/messages"), headers={"x-api-key": "no"})
        assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")
        right = {"authorization": "Bearer sk-right"}
        reply = await http.post(sim.url() + CHAT, json=body(model="gone"), headers=right)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
        reply = await http.post(
            sim.url() + "/messages", json=body("/messages", "gone"), headers={"x-api-key": "sk-right"}
        )
        assert reply.json()["error"] == {"type": "not_found_error", "message": "model: gone"}


async def test_a_wrong_path_method_or_body_is_a_4xx_that_says_why() -> None:
    """404 that does not name a model, 405, 400: what a wrong URL or request gets."""
    async with Simulator([Listener(models={"m": QUICK})]) as sim, client(sim) as http:
        reply = await http.post(sim.url() + "/chat/completion", json=body())
        assert (reply.status_code, reply.json()["error"]["message"]) == (404, "Invalid URL (POST /v1/chat/completion)")
        assert (await http.get(sim.url() + CHAT)).status_code == 405
        assert (await http.post(sim.url() + CHAT, content=b"{")).status_code == 400


async def test_the_model_list_needs_no_model() -> None:
    """A control request gets the vendor's list, quickly, and the shape follows the client's headers."""
    async with Simulator([Listener(models={"m": QUICK, "n": QUICK})]) as sim, client(sim) as http:
        listed = (await http.get(sim.url() + "/models")).json()
        assert [entry["id"] for entry in listed["data"]] == ["m", "n"]
        listed = (await http.get(sim.url() + "/models", headers={"anthropic-version": "2023-06-01"})).json()
        assert (listed["first_id"], listed["has_more"], listed["data"][0]["type"]) == ("m", False, "model")
        assert (await http.get(sim.url() + "/models/n")).json()["id"] == "n"
        assert (await http.get(sim.url() + "/models/x")).status_code == 404


async def test_without_stream_the_whole_answer_is_json() -> None:
    """`stream: false` gets one JSON object, in each dialect."""
    async with Simulator([Listener(models={"m": QUICK})]) as sim, client(sim) as http:
        for path in ASK:
            reply = await http.post(sim.url() + path, json=body(path, stream=False))
            assert reply.headers["content-type"] == "application/json"
            assert "The light in" in reply.text


@pytest.mark.parametrize(
    ("path", "refusal", "status"),
    [
        (CHAT, ErrorKind.RATE_LIMITED, 429),
        (CHAT, ErrorKind.OVERLOADED, 503),
        ("/messages", ErrorKind.RATE_LIMITED, 429),
        ("/messages", ErrorKind.OVERLOADED, 529),
    ],
)
async def test_a_full_queue_refuses_and_the_others_are_served_in_turn(
    path: str, refusal: ErrorKind, status: int
) -> None:
    """Capacity 1, queue 1: of three, one is served, one waits, one gets the vendor's refusal with retry-after."""
    crowded = Behaviour(ttft_seconds=0.1, tokens=1, capacity=1, queue_limit=1, refusal=refusal, retry_after_seconds=2.5)
    async with Simulator([Listener(models={"m": crowded})]) as sim, client(sim) as http:
        posts = [asyncio.create_task(http.post(sim.url() + path, json=body(path))) for _ in range(3)]
        replies = await asyncio.gather(*posts)
        assert sorted(reply.status_code for reply in replies) == [200, 200, status]
        refused = next(reply for reply in replies if reply.status_code != 200)
        assert refused.headers["retry-after"] == "3"
        served = [sim.log.of(r.headers["x-request-id"]) for r in replies if r.status_code == 200]
        first, second = sorted(served, key=lambda log: log[1].before_ns)
        assert second[1].before_ns > first[-1].after_ns  # the second began when the first was over


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    """Who hangs up in the queue or in the answer does not hold the machine."""
    crowded = Behaviour(ttft_seconds=30, capacity=1, queue_limit=5)
    async with Simulator([Listener(models={"m": crowded, "quick": QUICK})]) as sim, client(sim) as http:
        leaving = [asyncio.create_task(http.post(sim.url() + CHAT, json=body())) for _ in range(2)]
        await asyncio.sleep(0.2)
        sim.become("m", Behaviour(ttft_seconds=0.01, tokens=1, capacity=1))
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert (await asyncio.wait_for(http.post(sim.url() + CHAT, json=body()), 5)).status_code == 200


async def test_a_sleeping_model_is_loaded_by_the_request_that_wakes_it() -> None:
    """The first waits for the load, the second does not; one that refuses instead says 503 and when."""
    sleepy = Behaviour(ttft_seconds=0.01, tokens=1, starts_asleep=True, load_seconds=0.4)
    loading = Behaviour(tokens=1, starts_asleep=True, load_seconds=1.5, refuses_while_loading=True)
    async with Simulator([Listener(models={"m": sleepy, "n": loading})]) as sim, client(sim) as http:
        logs = []
        for _ in range(2):
            reply = await http.post(sim.url() + CHAT, json=body())
            logs.append(sim.log.of(reply.headers["x-request-id"]))
        cold, warm = ((log[1].before_ns - log[0].before_ns) / 1e9 for log in logs)
        assert cold > 0.4 > warm
        reply = await http.post(sim.url() + CHAT, json=body(model="n"))
        assert (reply.status_code, reply.json()["error"]["message"]) == (503, "Loading model")
        assert reply.headers["retry-after"] == "2"


async def test_a_timeline_changes_behaviour_while_running() -> None:
    """A change added at run time holds for the next request, and is over when it is forgotten."""
    async with Simulator([Listener(models={"m": QUICK})]) as sim, client(sim) as http:
        sim.add(Change(model="m", set={"status": 500}), Change(model="m", after_seconds=3600, set={"status": 400}))
        assert (await http.post(sim.url() + CHAT, json=body())).status_code == 500
        sim.forget_changes()
        assert (await http.post(sim.url() + CHAT, json=body())).status_code == 200
        sim.become("m", None)
        assert (await http.post(sim.url() + CHAT, json=body())).status_code == 404


async def test_vendors_headers_are_there() -> None:
    """Rate limits, request id, edge and the time to headers, as each vendor names them."""
    edged = Behaviour(ttft_seconds=0.05, tokens=1, edge="LOS", headers={"X-Own": "yes"})
    async with Simulator([Listener(models={"m": edged})]) as sim, client(sim) as http:
        reply = await http.post(sim.url() + CHAT, json=body())
        assert reply.headers["x-ratelimit-limit-requests"] == "10000"
        assert reply.headers["cf-ray"].endswith("-LOS")
        assert int(reply.headers["openai-processing-ms"]) >= 49
        assert reply.headers["x-own"] == "yes"
        reply = await http.post(sim.url() + "/messages", json=body("/messages"))
        assert reply.headers["request-id"] == reply.headers["x-request-id"]
        assert reply.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        assert reply.headers["server-timing"].startswith("proxy;dur=")


@pytest.mark.parametrize("http2", [False, True])
async def test_a_body_over_one_megabyte_is_refused(http2: bool) -> None:
    """Bounded: 413 at best; the connection may break while the rest is still on its way."""
    async with Simulator() as sim, client(sim, http1=not http2, http2=http2) as http:
        try:
            reply = await http.post(sim.url() + CHAT, content=b"x" * 1_200_000)
            assert reply.status_code == 413
        except httpx.HTTPError:
            pass
        assert (await http.get(sim.url() + "/models")).status_code == 200


async def test_headers_over_64_kb_and_nonsense_are_refused() -> None:
    """Neither an endless header nor something that is no HTTP keeps a connection."""
    async with Simulator() as sim:
        for sent, status in (
            (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, b"431"),
            (b"\x16\x03 nonsense\r\n\r\n", b"400"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", sim.port())
            writer.write(sent)
            assert status in (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n")[0]
            writer.close()


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on() -> None:
    """The interim answer comes before the body is sent."""
    async with Simulator([Listener(models={"m": QUICK})]) as sim:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port())
        content = json.dumps(body()).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(content))
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 100")
        writer.write(content)
        assert (await asyncio.wait_for(reader.readuntil(b"[DONE]"), 5)).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_http2_headers_over_64_kb_end_the_connection() -> None:
    """Bounded over HTTP/2 too, where compression would make a small frame a large list."""
    async with Simulator() as sim, client(sim, http1=False, http2=True) as http:
        with pytest.raises(httpx.HTTPError):
            await http.get(sim.url() + "/models", headers={f"x-{n}": "y" * 1000 for n in range(80)})
        assert (await http.get(sim.url() + "/models")).status_code == 200


async def test_a_silent_listener_accepts_and_says_nothing() -> None:
    """The connection stands, and not a byte comes, whatever is sent."""
    async with Simulator([Listener(silent=True, tls=Certificate.GOOD)]) as sim:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port())
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        writer.close()


async def test_requests_that_follow_at_once_on_one_connection_are_all_answered() -> None:
    """Pipelined requests lose no byte: the second arrives while the first is answered."""
    async with Simulator([Listener(models={"m": QUICK})]) as sim:
        reader, writer = await asyncio.open_connection("127.0.0.1", sim.port())
        content = json.dumps(body()).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(content)
        writer.write((head + b"\r\n" + content) * 2 + head + b"connection: close\r\n\r\n" + content)
        assert (await asyncio.wait_for(reader.read(), 10)).count(b"data: [DONE]") == 3
        writer.close()


async def test_a_taken_port_is_a_sentence_and_leaves_nothing_behind() -> None:
    """The listener and the port are named, and what had been opened before is closed again."""
    async with Simulator() as sim:
        wanted = [Listener(name="other"), Listener(port=sim.port())]
        second = Simulator(wanted)
        with pytest.raises(PortTakenError, match=f"listener main cannot listen on 127.0.0.1:{sim.port()}"):
            await second.__aenter__()
        assert len(asyncio.all_tasks()) <= 4
