"""An agent's own page: three answers, and bounds that no client moves."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from monitor.agent.own_page import AT_ONCE, REQUEST_SECONDS, OwnPage, OwnPageError
from tests.integration.running_up import until

TROUBLE: dict[str, str | None] = {}


@pytest.fixture
def page() -> Iterator[OwnPage]:
    TROUBLE.clear()
    TROUBLE["hub"] = None
    page = OwnPage("127.0.0.1", 0, lambda accept: ("text/plain; version=0.0.4", b"up 1\n"), lambda: dict(TROUBLE))
    page.start()
    yield page
    page.stop()


def get(page: OwnPage, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}{path}", timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_its_answers(page: OwnPage) -> None:
    """Metrics, that it lives, and whether all is well with a sentence for each part."""
    assert get(page, "/metrics?x=1") == (200, b"up 1\n")
    assert get(page, "/healthz") == (200, b"ok\n")
    assert json.loads(get(page, "/readyz")[1]) == {"ready": True, "checks": {"hub": "ok"}}
    TROUBLE["hub"] = "the hub cannot be reached"
    status, body = get(page, "/readyz")
    assert (status, json.loads(body)["checks"]["hub"]) == (503, "the hub cannot be reached")
    assert get(page, "/etc/passwd")[0] == 404


@pytest.mark.parametrize("said", [b"POST / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", b""])
def test_what_is_no_question(page: OwnPage, said: bytes) -> None:
    """Refused, with the page as it was."""
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as client:
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        client.recv(1_000)
    assert get(page, "/healthz") == (200, b"ok\n")


def test_clients_that_trickle_hold_no_place_for_long(page: OwnPage) -> None:
    """All places taken by such: the next one is hung up on; soon afterwards there is room again."""
    clients = [socket.create_connection(("127.0.0.1", page.port), timeout=20) for _ in range(AT_ONCE)]
    stop = threading.Event()

    def trickle(client: socket.socket) -> None:
        try:
            client.sendall(b"GET /metrics HTTP/1.1\r\nx: ")
            while not stop.wait(0.3):
                client.sendall(b"y")
        except OSError:
            return

    threads = [threading.Thread(target=trickle, args=(one,)) for one in clients]
    for thread in threads:
        thread.start()

    def is_full() -> bool:
        try:
            return get(page, "/healthz")[0] != 200
        except OSError:
            return True

    began = time.monotonic()
    until(is_full, "no place is free", 20)
    until(lambda: not is_full(), "a place is free", REQUEST_SECONDS + 60)
    stop.set()
    for thread in threads:
        thread.join(20)
    for client in clients:
        client.close()
    assert time.monotonic() - began >= REQUEST_SECONDS / 2  # they were served until then, not turned away at the door


def test_an_address_that_is_taken(page: OwnPage) -> None:
    """One sentence that names it."""
    with pytest.raises(OwnPageError, match=f"metrics cannot be served on 127.0.0.1:{page.port}"):
        OwnPage("127.0.0.1", page.port, lambda accept: ("", b""), dict)
