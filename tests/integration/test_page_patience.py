"""Clients that never finish their request: their connections end, everybody else is served."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from fastapi import FastAPI

from monitor.hub import patience
from monitor.hub.server import CONNECTIONS, WebServer

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound, cut to a second: the test shall not wait for ten."""
    monkeypatch.setattr(patience, "HEAD_SECONDS", 1.0)


def app() -> FastAPI:
    page = FastAPI()

    @page.get("/")
    def root() -> str:
        return "here"

    return page


def test_half_requests_do_not_shut_others_out() -> None:
    """More half requests than there are places: each is hung up on, and then the page answers again."""
    with WebServer(app(), port=0) as server:
        half = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(CONNECTIONS + 8)]
        for client in half:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        for client in half:
            client.settimeout(10)
            while client.recv(4096):
                pass  # what is said before the hanging up, if anything
            client.close()
        with urllib.request.urlopen(f"{server.url}", timeout=5) as answer:
            assert answer.read() == b'"here"'


def test_a_second_request_must_be_said_in_time_too() -> None:
    """A kept connection that begins another request and does not end it is closed; the first was answered."""
    with WebServer(app(), port=0) as server, socket.create_connection(("127.0.0.1", server.port), 5) as client:
        client.settimeout(10)
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        said = b""
        while b'"here"' not in said:
            said += client.recv(4096)
        client.sendall(b"GET / HT")
        assert client.recv(4096) == b""
