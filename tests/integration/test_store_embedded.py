"""The embedded server: started, shared, adopted after a kill, stopped by whoever leaves last."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from monitor.model import Attempt, Outcome, StoreUnavailable
from monitor.store import attempts, embedded, engine, migrate
from monitor.store.embedded import EmbeddedPostgresFailed

FAST = {"fsync": "off"}
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def folder(server_folder: Path) -> Iterator[Path]:
    """A data directory that is stopped and removed whatever the test did."""
    data = server_folder / "pg"
    yield data
    pid = postmaster(data)
    if pid is not None:
        os.kill(pid, signal.SIGQUIT)


def postmaster(data: Path) -> int | None:
    """The server's process that runs on a data directory."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n")[0])
        os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pid


def answer(server: embedded.EmbeddedPostgres) -> int:
    opened = engine.open_engine(server.url)
    with engine.transaction(opened) as connection:
        number = connection.exec_driver_sql("SELECT 42").scalar_one()
    opened.dispose()
    return number


def test_start_use_stop_and_start_again(folder: Path) -> None:
    """A server starts with our database, keeps its data over a restart, and nothing runs after stop."""
    with embedded.start(folder, settings=FAST) as server:
        assert answer(server) == 42
        opened = engine.open_engine(server.url)
        with engine.transaction(opened) as connection:
            connection.exec_driver_sql("CREATE TABLE kept AS SELECT 7 AS n")
        opened.dispose()
    assert postmaster(folder) is None
    with embedded.start(folder, settings=FAST) as server:
        opened = engine.open_engine(server.url)
        with engine.transaction(opened) as connection:
            assert connection.exec_driver_sql("SELECT n FROM kept").scalar_one() == 7
        opened.dispose()


def test_it_listens_on_no_network_and_lets_nobody_in(folder: Path) -> None:
    """Only a unix socket, in a folder of mode 0700."""
    with embedded.start(folder, settings=FAST) as server:
        opened = engine.open_engine(server.url)
        with engine.transaction(opened) as connection:
            assert connection.exec_driver_sql("SHOW listen_addresses").scalar_one() == ""
        opened.dispose()
        assert folder.stat().st_mode & 0o777 == 0o700


def test_the_last_holder_stops_it(folder: Path) -> None:
    """Two holders share one server; it runs until both have let go; letting go twice does no harm."""
    first = embedded.start(folder, settings=FAST)
    second = embedded.start(folder)
    assert (first.adopted, second.adopted) == (False, True)
    first.stop()
    first.stop()
    assert answer(second) == 42
    second.stop()
    assert postmaster(folder) is None


def test_a_server_left_by_a_killed_process_is_adopted(folder: Path) -> None:
    """kill -9 of our process leaves the server; the next start uses it, and its stop ends it."""
    code = "import sys, time; from pathlib import Path; from monitor.store import embedded; "
    code += "embedded.start(Path(sys.argv[1]), settings={'fsync': 'off'}); print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    child.kill()
    child.wait()
    child.stdout.close()
    left = postmaster(folder)
    assert left is not None
    with embedded.start(folder) as server:
        assert (server.adopted, postmaster(folder)) == (True, left)
        assert answer(server) == 42
    assert postmaster(folder) is None


def test_a_killed_server_starts_again(folder: Path) -> None:
    """After a power cut the pid file and the socket are stale; the next start recovers by itself."""
    server = embedded.start(folder, settings=FAST)
    pid = postmaster(folder)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    again = embedded.start(folder, settings=FAST)
    assert answer(again) == 42
    server.stop()
    assert answer(again) == 42
    again.stop()


def test_a_path_too_long_for_a_socket(folder: Path) -> None:
    """A deep data directory works: its socket lives in a short private folder."""
    deep = folder.with_name("d" * 100) / "data"
    with embedded.start(deep, settings=FAST) as server:
        assert answer(server) == 42
        socket = Path(make_url(server.url).query["host"])
        assert socket != deep
    assert postmaster(deep) is None
    assert not socket.exists()


def test_a_link_in_the_socket_s_place_is_refused(folder: Path) -> None:
    """Another user's trap in the shared temporary folder changes no permissions and stops the start with a sentence."""
    deep = folder.with_name("d" * 100) / "data"
    with embedded.start(deep, settings=FAST) as server:
        trap = Path(make_url(server.url).query["host"])
    victim = folder.with_name("victim")
    victim.mkdir(mode=0o755)
    trap.symlink_to(victim)
    try:
        with pytest.raises(EmbeddedPostgresFailed, match="socket cannot live"):
            embedded.start(deep)
    finally:
        trap.unlink()
    assert victim.stat().st_mode & 0o777 == 0o755


def test_a_folder_with_other_things_in_it_is_refused(folder: Path) -> None:
    """Somebody's files are never touched: a folder that is not empty and no database is refused."""
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(EmbeddedPostgresFailed, match="not empty"):
        embedded.start(folder)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_an_interrupted_first_start_is_repeated(folder: Path) -> None:
    """What a killed initdb left beside the folder is thrown away."""
    (folder.parent / ".pg.fresh").mkdir()
    (folder.parent / ".pg.fresh" / "half").write_text("")
    with embedded.start(folder, settings=FAST) as server:
        assert answer(server) == 42


def test_another_version_s_data_is_refused(folder: Path) -> None:
    """Data of another major version says which, instead of failing in the server."""
    with embedded.start(folder, settings=FAST):
        pass
    (folder / "PG_VERSION").write_text("11\n")
    with pytest.raises(EmbeddedPostgresFailed, match="made by PostgreSQL 11"):
        embedded.start(folder)


def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    """The reason in the server's log becomes part of one sentence; nothing is left running."""
    with pytest.raises(EmbeddedPostgresFailed, match="shared_buffers"):
        embedded.start(folder, settings={"shared_buffers": "nonsense"})
    assert postmaster(folder) is None


def test_a_full_disk_is_a_sentence(server_folder: Path) -> None:
    """No space for the first start: one sentence, and no half-made database."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system needs root and mount")
    small = server_folder / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("mount is not permitted here")
    try:
        with pytest.raises(EmbeddedPostgresFailed, match="No space left"):
            embedded.start(small / "pg")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_disk_that_fills_up_later_keeps_rows_waiting(server_folder: Path) -> None:
    """When Postgres runs out of space an insert is StoreUnavailable, never a refused row; with space it goes in."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system needs root and mount")
    small = server_folder / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120m", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("mount is not permitted here")
    try:
        with embedded.start(small / "pg", settings={**FAST, "min_wal_size": "32MB"}) as server:
            migrate.upgrade(server.url)
            opened = engine.open_engine(server.url)
            attempts.insert(opened, [], batch(0), NOW)
            fill = small / "fill"
            with contextlib.suppress(OSError), fill.open("wb") as file:
                while True:
                    file.write(bytes(65536))
            with pytest.raises(StoreUnavailable):
                insert_until_it_fails(opened)
            fill.unlink()
            opened.dispose()
            again = embedded.start(small / "pg", settings=FAST)  # a full disk under the WAL stops the server
            assert attempts.insert(opened, [], batch(200), NOW).rejected == []
            opened.dispose()
            again.stop()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def insert_until_it_fails(opened: engine.Engine) -> None:
    for number in range(1, 100):
        assert attempts.insert(opened, [], batch(number), NOW).rejected == []


def batch(number: int) -> list[Attempt]:
    """500 attempts of one series, each with a text that takes room."""
    moments = [NOW + timedelta(milliseconds=number * 500 + n) for n in range(500)]
    return [
        Attempt(
            vantage="lagos",
            target="acme",
            probe="short",
            probe_version="v",
            scheduled_at=moment,
            started_at=moment,
            outcome=Outcome.SUCCESS,
            finish_reason=os.urandom(200).hex(),
        )
        for moment in moments
    ]
