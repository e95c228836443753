"""What strangers and broken agents may send a hub: the right status, a reason, bounded memory, no token anywhere."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from monitor.wire import encode
from monitor.wire.fleet import MAX_PACKED_BYTES, encode_upload
from tests.integration.running_fleet import Fleet, running
from tests.integration.running_up import until
from tests.integration.test_fleet_storage import AGENT, attempt

pytestmark = pytest.mark.timeout(300)
GZIP = {"content-encoding": "gzip"}
MOST_MB = 400
"""What all of this together may add to a hub: two uploads in hand (80 MB each), sixteen that wait packed, and slack."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, shared_database_url: str) -> Iterator[Fleet]:
    """A hub at whose end the most that it ever had in memory is compared with what it had at its beginning."""
    with running(tmp_path_factory.mktemp("hostile"), shared_database_url) as one:
        at_rest = memory_mb(one)
        yield one
        assert memory_mb(one) - at_rest < MOST_MB


@pytest.fixture(scope="module")
def token(fleet: Fleet) -> str:
    """One that is good; an ordinary upload has been made with it."""
    made = fleet.enrol("lagos")
    assert fleet.post("attempts", made, upload(encode(attempt(now() - timedelta(minutes=40)))))[0] == 200
    return made


def now() -> datetime:
    return datetime.now(UTC)


def upload(*attempts: bytes) -> bytes:
    return encode_upload(AGENT, list(attempts))


def heavy(value: bytes) -> bytes:
    """Few bytes on the line, and as many values as an unpacked upload can hold."""
    head = b'{"wire":"1.1","agent":"%s","notes":[],"attempts":[' % AGENT.encode()
    return gzip.compress(head + b",".join([value] * (7_900_000 // (len(value) + 1))) + b"]}", 9)


def memory_mb(fleet: Fleet) -> float:
    """The most that the hub's process ever had in memory."""
    assert fleet.hub.process is not None
    status = Path(f"/proc/{fleet.hub.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1000


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        pytest.param(b"nonsense", {}, 400, "must be JSON", id="not-json"),
        pytest.param(b"", {}, 400, "must be JSON", id="empty"),
        pytest.param(b"{}", {}, 400, "wire", id="no-version"),
        pytest.param(b"[" * 200_000, {}, 400, "must be JSON", id="deep"),
        pytest.param(b'{"wire":"1.1","agent":"x"}', {}, 400, "agent", id="agent"),
        pytest.param(b'{"wire":"9.0"}', {}, 422, "upgrade the older", id="foreign-version"),
        pytest.param(gzip.compress(b"nonsense"), GZIP, 400, "must be JSON", id="gzip-of-nonsense"),
        pytest.param(b"no gzip at all", GZIP, 400, "no gzip", id="no-gzip"),
        pytest.param(gzip.compress(b"x" * 1000)[:-20], GZIP, 400, "in the middle", id="cut-gzip"),
        pytest.param(gzip.compress(bytes(200_000_000), 1), GZIP, 400, "unpacks to more", id="bomb"),
        pytest.param(b"{}", {"content-encoding": "br"}, 415, "gzip or plain", id="brotli"),
        pytest.param(bytes(MAX_PACKED_BYTES + 1), {}, 413, "larger than", id="too-large"),
        pytest.param(upload(*[b"1"] * 501), {}, 400, "at most 500", id="501-rows"),
        pytest.param(gzip.compress(upload()) * 2, GZIP, 400, "goes on behind", id="two-gzips"),
        pytest.param(heavy(b"1"), GZIP, 400, "500000 values", id="numbers"),
        pytest.param(heavy(b"{}"), GZIP, 400, "500000 values", id="objects"),
        pytest.param(heavy(b'{"a":{}}'), GZIP, 400, "500000 values", id="nested-objects"),
    ],
)
def test_what_is_no_upload(
    fleet: Fleet, token: str, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    """Refused as a whole, with a status that an agent understands and a sentence that a person does."""
    got, answer = fleet.post("attempts", token, body, **headers)
    assert (got, list(answer)) == (status, ["error"])
    assert words in answer["error"]


def test_many_heavy_uploads_at_once(fleet: Fleet, token: str) -> None:
    """A stolen token costs no more than two uploads in hand: the memory of a hub does not grow with those who wait."""
    before = memory_mb(fleet)
    text_of_wide_letters = gzip.compress(upload(b'"%s"' % (b"x" * 7_500_000 + "\U0001f600".encode())), 9)
    just_allowed = gzip.compress(upload(b"[%s]" % b",".join([b'{"a":{}}'] * 160_000)), 9)
    bodies = [text_of_wide_letters, just_allowed, heavy(b"{}"), bytes(MAX_PACKED_BYTES)] * 6
    with ThreadPoolExecutor(24) as threads:
        answers = list(threads.map(lambda body: fleet.post("attempts", token, body, **kind(body)), bodies))
    assert {status for status, _ in answers} <= {200, 400, 408, 503}
    assert memory_mb(fleet) - before < MOST_MB
    assert fleet.post("attempts", token, upload(encode(attempt(now() - timedelta(minutes=41)))))[0] == 200


def kind(body: bytes) -> dict[str, str]:
    return GZIP if body.startswith(b"\x1f\x8b") else {}


@pytest.mark.parametrize("bad", ["", "ftv_wrong", "ftv_" + "x" * 43, "\x7f", "a b c"])
def test_strangers_stay_outside(fleet: Fleet, bad: str) -> None:
    """401 before anything is read, the same answer for every reason."""
    for path in ("attempts", "heartbeat"):
        status, answer = fleet.post(path, bad, b"{}")
        assert (status, list(answer)) == (401, ["error"])


def test_rows_are_judged_one_by_one(fleet: Fleet, token: str) -> None:
    """Future-dated, too old, of another vantage point, of nobody's target, no attempt at all; the good ones land."""
    start = now() - timedelta(minutes=30)
    good = [encode(attempt(start + timedelta(seconds=n))) for n in range(3)]
    rows = {
        "future": encode(attempt(now() + timedelta(days=2))),
        "old": encode(attempt(now() - timedelta(days=90))),
        "foreign": encode(attempt(start, vantage="london")),
        "unknown": encode(attempt(start, target="nobody")),
        "one-off": encode(attempt(start)).replace(b'"purpose":"scheduled"', b'"purpose":"one_off"'),
        "nothing": b"{}",
        "number": b"5",
        "huge": encode(attempt(start)).replace(b'"try":0', b'"try":99999999999999999999'),
    }
    status, answer = fleet.post("attempts", token, upload(*good, *rows.values()))
    assert status == 200
    assert answer["stored"] == 3
    reasons = {list(rows)[one["index"] - 3]: one["reason"] for one in answer["rejected"]}
    assert set(reasons) == set(rows)
    for name, words in (
        ("future", "future"),
        ("old", "30 days"),
        ("foreign", "'london'"),
        ("unknown", "no target and probe"),
        ("one-off", "one-off"),
    ):
        assert words in reasons[name]
    with fleet.engine.connect() as connection:
        names = set(connection.execute(text("SELECT name FROM targets")).scalars())
    assert "nobody" not in names


def test_what_is_newer_than_this_copys_configuration_is_put_off(fleet: Fleet, token: str) -> None:
    """Another copy may have handed out a target that this one has not read of yet: it is to come again."""
    status, answer = fleet.post("attempts", token, upload(encode(attempt(now(), target="brand-new"))))
    assert (status, answer["stored"], answer["rejected"]) == (200, 0, [])
    assert "no target and probe" in answer["deferred"][0]["reason"]


def test_a_replay_changes_nothing(fleet: Fleet, token: str) -> None:
    """The same bytes again are duplicates; equal keys with other content are conflicts, and the first row stays."""
    at = now() - timedelta(minutes=20)
    body = upload(encode(attempt(at)))
    assert fleet.post("attempts", token, body)[1]["stored"] == 1
    assert fleet.post("attempts", token, body)[1]["duplicates"] == 1
    other = upload(encode(replace(attempt(at), finish_reason="length")))
    assert fleet.post("attempts", token, other)[1]["conflicts"] == [0]


def test_connections_of_a_large_fleet_shut_nobody_out(fleet: Fleet) -> None:
    """Agents keep theirs between two uploads: the hundred-and-first is answered like the first."""
    with ExitStack() as open_ones:
        for _ in range(101):
            one = open_ones.enter_context(socket.create_connection(("127.0.0.1", fleet.port), timeout=60))
            one.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_a_slow_loris_holds_nothing_up(fleet: Fleet, token: str) -> None:
    """Half a request is closed after a while, and meanwhile everybody else is served."""
    head = (
        f"POST /api/v1/agent/attempts HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        "content-length: 1000\r\n\r\n{"
    ).encode()
    slow = [socket.create_connection(("127.0.0.1", fleet.port), timeout=60) for _ in range(20)]
    try:
        for one in slow[:10]:
            one.sendall(head)
        for one in slow[10:]:
            one.sendall(b"POST /api/v1/agent/attempts HTTP/1.1\r\nhost:")
        began = time.monotonic()
        status, _ = fleet.post("attempts", token, upload(encode(attempt(now() - timedelta(minutes=15)))))
        assert status == 200
        assert time.monotonic() - began < 25
        for one in slow:
            answer = one.recv(4096)
            assert answer == b"" or b" 408 " in answer.splitlines()[0] or b" 400 " in answer.splitlines()[0]
    finally:
        for one in slow:
            one.close()


def test_a_body_without_end_is_cut_off(fleet: Fleet, token: str) -> None:
    """Chunks that go on for ever are refused at the bound, without being kept."""
    line = socket.create_connection(("127.0.0.1", fleet.port), timeout=60)
    head = f"POST /api/v1/agent/attempts HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
    line.sendall((head + "transfer-encoding: chunked\r\n\r\n").encode())
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    sent = 0
    try:
        while sent < 64_000_000:
            line.sendall(chunk)
            sent += len(chunk)
    except OSError:
        pass
    line.close()
    assert sent < 64_000_000


def test_pages_read_no_bodies(fleet: Fleet) -> None:
    """Only agents' doors take a body; everywhere else one is refused unread."""
    line = socket.create_connection(("127.0.0.1", fleet.port), timeout=20)
    line.sendall(b"POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello")
    assert b" 413 " in line.recv(4096).splitlines()[0]
    line.close()


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b" " * 20_000, b'{"agent":"%s"}' % AGENT.encode()],
    ids=["nothing", "no-fields", "a-list", "large", "some-fields"],
)
def test_what_is_no_heartbeat(fleet: Fleet, token: str, body: bytes) -> None:
    """Refused with a sentence; nothing of it is kept."""
    status, answer = fleet.post("heartbeat", token, body)
    assert status in (400, 413)
    assert answer["error"]


def test_a_planted_token_is_nowhere(fleet: Fleet, token: str) -> None:
    """No log, row, metric, page or error holds a token that was used, or one that was tried."""
    tried = "ftv_tried-by-a-stranger-0123456789"
    fleet.post("attempts", tried, b"{}")
    fleet.post("attempts", token, b"broken")
    outputs = [fleet.hub.log.read_text(), fleet.get("/metrics"), fleet.get("/api/live"), fleet.get("/api/openapi.json")]
    with fleet.engine.connect() as connection:
        tables = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
        rows = (connection.execute(text(f'SELECT t::text FROM "{name}" t LIMIT 5000')).all() for name in tables)
        outputs += map(str, rows)
    for secret in (token, tried):
        assert all(secret not in output for output in outputs)


def test_many_refusals_are_counted(fleet: Fleet, token: str) -> None:
    """Each refused upload is a number that an alert can see, whatever it was refused for."""
    before = fleet.metric("firsttoken_ingest_batches_total", result="refused")
    fleet.post("attempts", token, b"broken")
    fleet.post("attempts", token, b"{}", **{"content-encoding": "br"})
    fleet.post("attempts", token, bytes(MAX_PACKED_BYTES + 1))
    until(lambda: fleet.metric("firsttoken_ingest_batches_total", result="refused") == before + 3, "they are counted")
    assert json.loads(fleet.get("/readyz"))["ready"]
