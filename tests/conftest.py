"""Fixtures that many tests share: a real Postgres, with a fresh migrated database for each test.

One server serves the whole run, with pytest-xdist too: the workers share it as any processes share an embedded server,
and whoever ends last stops it. By default it is the embedded one; `TEST_POSTGRES_BIN=/usr/lib/postgresql/15/bin` runs
another installation's binaries instead, and `TEST_DATABASE_URL=postgresql://...` (a user who may create databases)
uses a server that runs already.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine, create_engine, make_url, text

from monitor.store import embedded, engine, migrate

RUN_FOLDER = "FIRSTTOKEN_TEST_RUN_FOLDER"
# No promise of ours hangs on how quick a machine draws examples.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "100"}


def pytest_configure(config: pytest.Config) -> None:
    """Make the run's folder before pytest-xdist starts its workers, which inherit the variable.

    Not below pytest's own folder: each run of pytest closes that to other users, and Postgres, which as root runs as
    another user, loses its way in the middle of a test.
    """
    if not hasattr(config, "workerinput"):
        os.environ[RUN_FOLDER] = tempfile.mkdtemp(prefix="firsttoken-test-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's folder when all workers have ended."""
    if not hasattr(config, "workerinput") and RUN_FOLDER in os.environ:
        shutil.rmtree(os.environ.pop(RUN_FOLDER), ignore_errors=True)


@pytest.fixture(scope="session")
def run_folder() -> Path:
    """A folder that all workers of this run share, removed at its end."""
    return Path(os.environ[RUN_FOLDER])


@pytest.fixture
def server_folder(run_folder: Path) -> Path:
    """A folder of a test's own in which an embedded Postgres can run (in `tmp_path` it cannot be relied on)."""
    folder = run_folder / uuid4().hex[:8]
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def postgres_server(run_folder: Path) -> Iterator[str]:
    """The URL of a database on a real server, whose user may create databases."""
    if given := os.environ.get("TEST_DATABASE_URL"):
        yield engine.parse_url(given).render_as_string(hide_password=False)
        return
    binaries = os.environ.get("TEST_POSTGRES_BIN")
    with embedded.start(
        run_folder / "postgres", settings=FAST, binaries=Path(binaries) if binaries else None
    ) as server:
        yield server.url


@pytest.fixture(scope="session")
def template_database(postgres_server: str, run_folder: Path) -> str:
    """A migrated database, made once a run, that others are copied from."""
    name = f"template_{os.environ.get('PYTEST_XDIST_TESTRUNUID', uuid4().hex)}"
    url = make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
    with (run_folder / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = "SELECT 1 FROM pg_database WHERE datname = :name"
        admin = _admin(postgres_server)
        with admin.connect() as connection:
            if connection.execute(text(known), {"name": name}).scalar() is None:
                connection.execute(text(f"CREATE DATABASE {name}"))
                migrate.upgrade(url)
        admin.dispose()
    return name


@pytest.fixture
def empty_database_url(postgres_server: str) -> Iterator[str]:
    """A fresh database without our tables."""
    yield from _database(postgres_server, "template0")


@pytest.fixture
def database_url(postgres_server: str, template_database: str) -> Iterator[str]:
    """A fresh database with the newest schema."""
    yield from _database(postgres_server, template_database)


@pytest.fixture(scope="module")
def shared_database_url(postgres_server: str, template_database: str) -> Iterator[str]:
    """A database with the newest schema that the tests of one module share."""
    yield from _database(postgres_server, template_database)


@pytest.fixture
def store(database_url: str) -> Iterator[Engine]:
    """An engine on a fresh database with the newest schema."""
    opened = engine.open_engine(database_url)
    yield opened
    opened.dispose()


def _database(server: str, template: str) -> Iterator[str]:
    name = f"test_{uuid4().hex}"
    admin = _admin(server)
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    try:
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        admin.dispose()


def _admin(server: str) -> Engine:
    return create_engine(server, isolation_level="AUTOCOMMIT")
