"""What Postgres and libpq say when something is wrong: which errors a person must mend; no URL is repeated."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text

from monitor.model import MonitorError, StoreRefuses, StoreUnavailable
from monitor.store import embedded, engine, errors, migrate
from tests.conftest import FAST

SECRET = "hunter2-Geheim"


@contextmanager
def over_tcp(folder: str) -> Iterator[int]:
    """A port of this machine that leads to the server's socket in `folder`."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(f"{folder}/.s.PGSQL.5432")
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def guarded(run_folder: Path) -> Iterator[str]:
    """host:port of a server on which `guarded` needs a password and may do nothing."""
    with embedded.start(run_folder / f"guarded-{uuid4().hex[:8]}", settings=FAST) as server:
        admin = create_engine(engine.parse_url(server.url), isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            rules = Path(str(connection.execute(text("SHOW hba_file")).scalar()))
            rules.write_text("local all shut reject\nlocal all guarded scram-sha-256\n" + rules.read_text())
            connection.execute(text("CREATE ROLE shut LOGIN"))
            connection.execute(text("CREATE ROLE loginless"))
            connection.execute(text(f"CREATE ROLE guarded LOGIN PASSWORD '{SECRET}'"))
            connection.execute(text("SELECT pg_reload_conf()"))
        admin.dispose()
        with over_tcp(str(make_url(server.url).query["host"])) as port:
            yield f"127.0.0.1:{port}"


def refusal(url: str) -> MonitorError:
    """What an ordinary use of the database raises."""
    opened = engine.open_engine(url)
    try:
        with engine.transaction(opened) as connection:
            connection.execute(text("CREATE TABLE public.x (a int)"))
    except MonitorError as error:
        return error
    finally:
        opened.dispose()
    raise AssertionError("it works")


MISTAKES = {
    "wrong password": ("guarded:wrong-Geheim@{at}/postgres", "does not accept the password of user guarded"),
    "no password": ("guarded@{at}/postgres", "does not accept the password of user guarded"),
    "no such user": (f"nobody:{SECRET}@{{at}}/postgres", "create it (CREATE ROLE"),
    "user by parameter": (f"{{at}}/postgres?user=nobody&password={SECRET}", "has no user nobody that may log in"),
    "a role without login": (f"loginless:{SECRET}@{{at}}/postgres", "create it (CREATE ROLE"),
    "shut out": (f"shut:{SECRET}@{{at}}/postgres", "pg_hba.conf"),
    "no such database": (f"guarded:{SECRET}@{{at}}/nowhere", "create it (CREATE DATABASE"),
    "nothing permitted": (f"guarded:{SECRET}@{{at}}/postgres", "make it the owner of database postgres"),
    "no TLS": (f"guarded:{SECRET}@{{at}}/postgres?sslmode=verify-ca&sslrootcert=/{SECRET}", "change sslmode"),
    "a wrong value": (f"guarded:{SECRET}@{{at}}/postgres?sslmode={SECRET}", "correct it in DATABASE_URL"),
    "another wrong value": (f"guarded@{{at}}/postgres?target_session_attrs={SECRET}", "correct it in DATABASE_URL"),
    "a wrong option": (f"guarded:x@{{at}}/postgres?{SECRET}=1", "correct it in DATABASE_URL"),
    "a wrong server option": (f"guarded:{SECRET}@{{at}}/postgres?options=-c%20Geheim%3Dhunter2", "correct it"),
    "no such port": (f"guarded:{SECRET}@127.0.0.1:99999/postgres", "correct it in DATABASE_URL"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_a_person_must_mend_is_said_with_the_remedy(case: str, guarded: str) -> None:
    """Passwords, names, TLS, rights, options: StoreRefuses with what to do and where, and nothing else of the URL."""
    url, remedy = MISTAKES[case]
    url = "postgresql://" + url.format(at=guarded)
    for error in (refusal(url), _migrating(url)):
        assert isinstance(error, StoreRefuses | migrate.MigrationFailed)
        assert remedy in str(error)
        assert "Geheim" not in str(error)
        assert "hunter2" not in str(error)
    assert isinstance(refusal(url), StoreRefuses)
    place = engine.describe(engine.open_engine(url))
    assert "Geheim" not in place
    assert "hunter2" not in place


def _migrating(url: str) -> MonitorError:
    with pytest.raises(MonitorError) as caught:
        migrate.upgrade(url)
    return caught.value


AWAY = {
    "nobody listens": f"u:{SECRET}@127.0.0.1:1/db?application_name={SECRET}",
    "no such host": f"u:{SECRET}@no.invalid/db?sslmode=prefer",
    "an unknown service": f"u:x@127.0.0.1:1/db?service={SECRET}",
    "an odd certificate": f"u:{SECRET}@127.0.0.1:1/db?sslcert=/{SECRET}/x&sslkey=/{SECRET}/y&sslpassword={SECRET}",
}


@pytest.mark.parametrize("case", AWAY)
def test_what_may_pass_is_away(case: str) -> None:
    """A server that is down or a name that does not resolve: StoreUnavailable, nobody is told to change anything."""
    error = refusal("postgresql://" + AWAY[case])
    assert isinstance(error, StoreUnavailable)
    assert not isinstance(error, StoreRefuses)
    assert "Geheim" not in str(error)


def test_a_database_that_takes_nobody_now_is_away(postgres_server: str, empty_database_url: str) -> None:
    """ALLOW_CONNECTIONS false is what a restore or an upgrade does: it passes."""
    name = make_url(empty_database_url).database
    admin = create_engine(postgres_server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
    admin.dispose()
    error = refusal(empty_database_url)
    assert isinstance(error, StoreUnavailable)
    assert not isinstance(error, StoreRefuses)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:p@h:5/d?sslmode=require&sslpassword=geheim", "postgresql://u@h:5/d"),
        ("postgres://h/d?password=geheim&user=u&port=6", "postgresql://u@h:6/d"),
        ("postgresql+psycopg://u@/d?host=/run/pg", "postgresql://u@/run/pg/d"),
        ("postgresql://u@[::1]:5/d", "postgresql://u@[::1]:5/d"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_a_database_is_named_by_host_port_name_and_user(url: str, place: str) -> None:
    """What is logged at the start says where the rows go, and nothing that could be a secret."""
    assert engine.describe(engine.open_engine(url)) == place


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('root certificate file "/keys/geheim.pem" is not there', 'root certificate file "***" is not there'),
        ("no certificate geheim", "no certificate ***"),
        ("private key: bad passphrase s3/cret+", "private key: bad passphrase ***"),
        ('server "db" (user "u", option "odd_name") required', 'server "db" (user "u", option "***") required'),
    ],
)
def test_words_of_a_url_are_taken_out_whoever_says_them(said: str, shown: str) -> None:
    """Values and unknown names of options, whole or by their words; host, port, database and user stay."""
    url = make_url("postgresql://u@db/d?sslrootcert=/keys/geheim.pem&sslpassword=s3/cret%2B&odd_name=1&sslmode=require")
    assert errors.cleaned(said, url) == shown
