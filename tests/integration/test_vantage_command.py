"""`firsttoken vantage`: tokens are shown once, hashed at rest, rotated and revoked; places come from a gazetteer."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from monitor.cli.vantage import look_up
from monitor.model import ConfigError, Place, Vantage
from monitor.store import fleet

ROOT = Path(__file__).resolve().parents[2]
COMMAND = str(Path(sys.executable).with_name("firsttoken"))
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def run(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DATABASE_URL": url}
    return subprocess.run(
        [COMMAND, "vantage", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_life_of_a_token(database_url: str, tmp_path: Path) -> None:
    """Added, listed, rotated, revoked; each token is printed once, and only its hash is in the database."""
    added = run(database_url, "add", "lagos", "--city", "Lagos", "--country", "ng")
    assert added.returncode == 0, added.stderr
    where, token = added.stdout.splitlines()
    assert where.startswith("lagos: Lagos, NG (6.45")
    assert token.startswith("ftv_")
    unit = (ROOT / "deploy/agent/firsttoken-agent.service").read_text(encoding="utf-8")
    assert "LoadCredential=token:/etc/firsttoken/token\n" in unit
    assert "into /etc/firsttoken/token (root's, mode 0600" in added.stderr
    assert "systemctl restart firsttoken-agent" in added.stderr
    again = run(database_url, "add", "lagos")
    assert (again.returncode, "has a token already" in again.stderr) == (2, True)
    (told,) = map(json.loads, run(database_url, "list", "--json").stdout.splitlines())
    assert (told["vantage"], told["city"], told["country"], told["tokens"]) == ("lagos", "Lagos", "NG", 1)
    file = tmp_path / "token"
    rotated = run(database_url, "rotate", "lagos", "--token-file", str(file))
    assert rotated.returncode == 0, rotated.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() not in rotated.stdout + rotated.stderr
    assert file.read_text() != token
    revoked = run(database_url, "revoke", "lagos")
    assert "revoked" in revoked.stdout
    assert "revoked" in run(database_url, "list").stdout


def test_a_vantage_point_that_the_file_does_not_have_is_noticed(database_url: str, tmp_path: Path) -> None:
    """It gets its token, and a note that its agent has nothing to do yet; one that the file has gets none."""
    file = tmp_path / "fleet.yaml"
    targets = "targets: {t: {provider: p, model: m, dialect: openai_chat, url: http://127.0.0.1:1/v1}}\n"
    file.write_text(f"vantages: {{lagos: {{}}}}\nprobes: {{p: {{prompt: Hi}}}}\n{targets}")
    known, unknown = (run(database_url, "add", name, "--config", str(file)) for name in ("lagos", "london"))
    assert (known.returncode, "note:" in known.stderr) == (0, False)
    assert unknown.returncode == 0
    assert f"note: {file} has no vantage point 'london'" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "Lagos City"), "is no name"),
        (("add", "x", "--city", "Lagoss"), 'did you mean "Lagos"'),
        (("add", "x", "--city", "Lagos", "--country", "XX"), "is no country"),
        (("add", "x", "--latitude", "6"), "--latitude and --longitude"),
        (("rotate", "nobody"), "has no token"),
        (("revoke", "nobody"), "has no token"),
        (("rotate", "nobody", "--grace", "soon"), "is no time"),
        (("add", "x", "--token-file", "/nowhere/token"), "cannot be made"),
    ],
)
def test_mistakes_are_sentences(database_url: str, arguments: tuple[str, ...], words: str) -> None:
    """Exit code 2, one sentence, no traceback, and no token was made."""
    done = run(database_url, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert run(database_url, "list", "--json").stdout == ""


def test_the_gazetteer() -> None:
    """The largest city of a name, in a country if one is given; other spellings count; near names are offered."""
    assert look_up("london", None)["countrycode"] == "GB"
    assert look_up("London", "CA")["countrycode"] == "CA"
    assert look_up("München", "DE")["name"] == "Munich"
    with pytest.raises(ConfigError, match="did you mean"):
        look_up("Ashbrn", "US")


def test_only_the_hash_is_kept(store: Engine) -> None:
    """A copy of the database lets nobody in: no row holds a token, or anything that leads back to it."""
    token = fleet.enrol(store, Vantage(name="lagos", place=Place(city="Lagos")), NOW)
    with store.connect() as connection:
        everything = str(connection.execute(text("SELECT t::text FROM agent_tokens t")).all())
        kept = connection.execute(text("SELECT token_hash FROM agent_tokens")).scalar_one()
    assert token not in everything
    assert bytes(kept) == hashlib.sha256(token.encode()).digest()


def test_who_a_token_speaks_for(store: Engine) -> None:
    """One vantage point, until it is revoked or its grace is over; garbage speaks for nobody."""
    first = fleet.enrol(store, Vantage(name="lagos"), NOW)
    other = fleet.enrol(store, Vantage(name="london"), NOW)
    assert (fleet.whose(store, first, NOW), fleet.whose(store, other, NOW)) == ("lagos", "london")
    second = fleet.rotate(store, "lagos", NOW, timedelta(hours=1))
    assert fleet.whose(store, first, NOW + timedelta(minutes=59)) == "lagos"
    assert fleet.whose(store, first, NOW + timedelta(minutes=61)) is None
    assert fleet.whose(store, second, NOW + timedelta(days=400)) == "lagos"
    assert fleet.revoke(store, "lagos", NOW) == 2
    assert fleet.whose(store, second, NOW) is None
    for garbage in ("", "ftv_", "ftv_" + "x" * 500, "nonsense", first[:-1], f"{first} ", "ftv_\x00", "ftv_ü"):
        assert fleet.whose(store, garbage, NOW) is None


def test_a_lease_has_one_holder(store: Engine) -> None:
    """Taken, kept, refused to others, let go; and an old one can be taken over."""
    assert fleet.hold(store, "sweep", "a", 60)
    assert fleet.hold(store, "sweep", "a", 60)
    assert not fleet.hold(store, "sweep", "b", 60)
    fleet.release(store, "sweep", "b")
    assert not fleet.hold(store, "sweep", "b", 60)
    fleet.release(store, "sweep", "a")
    assert fleet.hold(store, "sweep", "b", 0)
    assert fleet.hold(store, "sweep", "a", 60)
