"""Fixtures that many tests share: a real Postgres, with a fresh migrated database for each test.

One server serves the whole run, with pytest-xdist too: the workers share it as any processes share an embedded server,
and whoever ends last stops it. By default it is the embedded one; `TEST_POSTGRES_BIN=/usr/lib/postgresql/15/bin` runs
another installation's binaries instead, and `TEST_DATABASE_URL=postgresql://...` (a user who may create databases)
uses a server that runs already.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from monitor.store import embedded, engine, migrate

FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "100"}


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


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
