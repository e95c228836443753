"""What a database's errors mean: the product's own error for each, in words that repeat of the URL only its place.

Hides psycopg's and libpq's texts. libpq gives no SQLSTATE when it cannot connect, so what it says is read; a server
that speaks another language than English is then taken to be away, which loses nothing but the remedy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from monitor.model import MonitorError, StoreRefuses, StoreUnavailable

CONTENT_CLASSES = ("22", "23", "54")
"""SQLSTATE classes that blame the content: data exceptions, integrity, program limits. All else may pass later."""
NO_PARTITION = "23514"  # check_violation: the tables have no checks on content, so a day's partition is missing
TEXT_LIMIT = 300
_PLACE = frozenset({"host", "hostaddr", "port", "dbname", "user"})
"""Parameters of a URL that say where and who, and so may be repeated; the others may hold keys and passwords."""
_WHERE = "in DATABASE_URL or storage.database_url"


@dataclass(frozen=True, slots=True)
class _Mistake:
    """What only a person can mend: known by its SQLSTATE, or, where connecting failed, by what libpq says."""

    states: str
    said: re.Pattern[str]
    sentence: str

    def fits(self, state: str, said: str) -> bool:
        return state == self.states if state else self.said.search(said) is not None


_MISTAKES = (
    _Mistake(
        "28P01",
        re.compile(r"authentication failed|no password supplied|wrong password"),
        "Postgres does not accept the password of user {user}: correct user and password {url}",
    ),
    _Mistake(
        "",
        re.compile(r"no pg_hba\.conf entry|pg_hba\.conf rejects"),
        "Postgres does not let user {user} in from this machine: allow it in the server's pg_hba.conf ({said})",
    ),
    _Mistake(
        "28000",
        re.compile(r'role ".*" (does not exist|is not permitted to log in)'),
        "Postgres has no user {user} that may log in: create it (CREATE ROLE ... LOGIN), or name another {url}",
    ),
    _Mistake(
        "3D000",
        re.compile(r'database ".*" does not exist'),
        "Postgres has no database {database}: create it (CREATE DATABASE ...), or name another {url}",
    ),
    _Mistake(
        "42501",
        re.compile(r"permission denied for database"),
        "Postgres does not permit user {user} what is needed: make it the owner of database {database} ({said})",
    ),
    _Mistake(
        "",
        re.compile(
            r"does not support SSL|certificate verify failed|root certificate|server certificate for"
            r"|could not (load|read).* (certificate|private key)"
        ),
        "Postgres gives no TLS as the URL asks for it: change sslmode or sslrootcert {url}, or the server ({said})",
    ),
    _Mistake(
        "",
        re.compile(r"invalid (connection option|integer|port|\S+ value)|unrecognized configuration parameter"),
        "the database URL holds an option, a value or a port that cannot be used: correct it {url}",
    ),
)


class RowRefused(MonitorError):
    """Postgres will never take this content; the message is its reason."""


def own_error(error: DBAPIError, url: URL) -> MonitorError:
    """The product's own error for a driver's.

    RowRefused when it is the content, StoreRefuses when somebody has to do what the sentence says, StoreUnavailable
    when it may pass by itself.
    """
    state = getattr(error.orig, "sqlstate", None) or ""
    said = cleaned(_first_line(error), url)
    if (state[:2] in CONTENT_CLASSES and state != NO_PARTITION) or (
        not state and type(error.orig).__name__ == "DataError"
    ):
        return RowRefused(said)
    if state in ("42P01", "42703"):
        return StoreUnavailable(f"the database's tables are missing or old: run `firsttoken migrate` ({said})")
    mistake = next((one for one in _MISTAKES if one.fits(state, _first_line(error))), None)
    if mistake is None:
        return StoreUnavailable(f"Postgres cannot be used now: {said}")
    sentence = mistake.sentence.format(user=_user(url), database=_database(url), url=_WHERE, said=said)
    return StoreRefuses(f"{sentence} [{_server(url)}]")


def place(url: URL) -> str:
    """Where a URL leads and as whom: nothing else of it."""
    user = _user(url)
    return f"postgresql://{f'{user}@' if user else ''}{_server(url)}"


def _server(url: URL) -> str:
    host, port = _named(url, "host") or url.host or "", _named(url, "port") or url.port
    host = f"[{host}]" if ":" in host else host
    return f"{host}{f':{port}' if port else ''}/{_database(url)}"


def _user(url: URL) -> str:
    return _named(url, "user") or url.username or ""


def _database(url: URL) -> str:
    return _named(url, "dbname") or url.database or ""


def cleaned(text: str, url: URL) -> str:
    """A text without any word of the URL that does not say where or who."""
    values = [url.password or "", *(name for name in url.query if name not in _PLACE)]
    values += [value for name in url.query if name not in _PLACE for value in _values(url, name)]
    words = {word for value in values for word in (value, *re.findall(r"\w{3,}", value)) if len(word) >= 3}
    for word in sorted(words, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "***", text)
    return text[:TEXT_LIMIT]


def _named(url: URL, name: str) -> str:
    return ",".join(_values(url, name))


def _values(url: URL, name: str) -> tuple[str, ...]:
    value = url.query.get(name, ())
    return (value,) if isinstance(value, str) else tuple(value)


def _first_line(error: DBAPIError) -> str:
    diagnosis = getattr(error.orig, "diag", None)
    text = getattr(diagnosis, "message_primary", None) or str(error.orig)
    return text.strip().splitlines()[0] if text.strip() else type(error.orig).__name__
