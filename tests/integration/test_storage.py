"""The database of one process while it cannot be used."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sqlalchemy import Engine

from monitor.cli.storage import Storage
from monitor.model import StoreUnavailable

CALLERS = 5


def never(engine: Engine) -> None:
    raise AssertionError("there is no database to ask")


def test_callers_behind_a_server_that_does_not_answer_are_told_together(tmp_path: Path) -> None:
    """All wait for one try to connect, not one after the other each for a try of its own."""
    together = threading.Barrier(CALLERS)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        storage = Storage(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d?sslmode=disable", tmp_path)

        def ask() -> str:
            together.wait(60)
            try:
                storage.ask(never)
            except StoreUnavailable as error:
                return str(error)
            return "an answer"

        with ThreadPoolExecutor(CALLERS) as threads:
            told = [one.result(120) for one in [threads.submit(ask) for _ in range(CALLERS)]]
        tries = 0
        while True:
            try:
                silent.accept()[0].close()
            except BlockingIOError:
                break
            tries += 1
    storage.close()
    assert len(set(told)) == 1
    assert "timeout" in told[0]
    assert tries == 1
