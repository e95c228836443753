"""`firsttoken dashboards push`: what goes over the wire, and what a refusal says.

No Grafana is at hand here: the listener only records, and answers with Grafana's status codes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(sys.executable).with_name("firsttoken")
TOKEN = "glsa_planted_0123456789"


class Listener(ThreadingHTTPServer):
    """Keeps what was posted; `refusal` (status, body) answers everything when set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posted: list[tuple[str, str | None, dict[str, Any]]] = []
        self.refusal: tuple[int, bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/grafana"


class Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posted.append((self.path, self.headers["Authorization"], body))
        exists = self.path.endswith("/api/folders")
        status, answer = self.server.refusal or ((412 if exists else 200), b'{"version": 3, "url": "/d/x"}')
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Quietly."""


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def push(url: str, folder: Path, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    file = folder / "token"
    file.write_text(token + "\n")
    command = [COMMAND, "dashboards", "push", "--url", url, "--token-file", file]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_push_uploads_all_six_into_one_folder(listener: Listener, tmp_path: Path) -> None:
    """The folder may exist; each dashboard replaces its earlier self by uid; below a sub-path too."""
    done = push(listener.url, tmp_path)
    assert done.returncode == 0, done.stderr
    folder, *boards = listener.posted
    assert folder[0] == "/grafana/api/folders"
    assert [path for path, _, _ in boards] == ["/grafana/api/dashboards/db"] * 6
    assert {auth for _, auth, _ in listener.posted} == {f"Bearer {TOKEN}"}
    for _, _, body in boards:
        assert body["overwrite"] is True
        assert body["folderUid"] == "firsttoken"
        assert body["dashboard"]["id"] is None
    assert len({body["dashboard"]["uid"] for _, _, body in boards}) == 6
    assert done.stdout.count("version 3") == 6


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((401, b'{"message": "invalid API key"}'), "service account"),
        ((403, b"{}"), "role Editor"),
        ((302, b""), "302"),
        ((500, b'{"message": "database is locked"}'), "database is locked"),
        ((200, b"<html>hello</html>"), "no Grafana"),
    ],
)
def test_a_refusal_is_a_sentence_without_the_token(
    listener: Listener, tmp_path: Path, refusal: tuple[int, bytes], said: str
) -> None:
    """What was refused, why, what to do; a redirect is not followed with the token."""
    listener.refusal = refusal
    done = push(listener.url, tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert TOKEN not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_bad_input_is_a_sentence(tmp_path: Path) -> None:
    """No address, no token, a password in the address, nobody there."""
    for url, token, said in (
        ("grafana.example.com", TOKEN, "must look like"),
        ("http://admin:secret@127.0.0.1:3000", TOKEN, "no password"),
        ("http://127.0.0.1:9", TOKEN, "cannot be reached: Connection refused"),
        ("http://127.0.0.1:9", "two words", "one token"),
        ("http://127.0.0.1:9", "", "one token"),
    ):
        done = push(url, tmp_path, token)
        assert done.returncode == 2
        assert said in done.stderr
        assert "secret" not in done.stderr
        assert TOKEN not in done.stderr
