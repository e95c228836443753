"""The schema: made once by any number of processes, equal to what the code expects, and told truthfully."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pytest
from alembic import command as alembic_command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from monitor import wire
from monitor.model import Attempt, ConfigError, Outcome, StoreUnavailable
from monitor.store import attempts, engine, migrate, partitions
from monitor.store.rows import to_row
from monitor.store.tables import metadata


def command(*arguments: str, url: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = "from monitor.cli.main import main; main()"
    environ = {**os.environ, "DATABASE_URL": url}
    run = [sys.executable, "-c", code, "migrate", *arguments]
    return subprocess.run(run, env=environ, capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


def test_upgrade_and_check(empty_database_url: str) -> None:
    """A database goes from nothing to the newest version once; `check` changes nothing."""
    assert migrate.check(empty_database_url).current is None
    before = migrate.upgrade(empty_database_url)
    assert before.pending[0].startswith("0001: ")
    assert migrate.check(empty_database_url).up_to_date
    assert migrate.upgrade(empty_database_url).pending == ()


def test_two_processes_at_once(empty_database_url: str) -> None:
    """When several start together, one migrates and the others find it done."""
    states: list[migrate.State] = []
    workers = [Thread(target=lambda: states.append(migrate.upgrade(empty_database_url))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(len(state.pending) > 0 for state in states) == [False, False, False, True]


REVISIONS = [step.revision for step in ScriptDirectory.from_config(migrate._config()).walk_revisions()][1:]
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
OLD = Attempt(
    vantage="lagos", target="t", probe="p", probe_version="v", scheduled_at=AT, started_at=AT, outcome=Outcome.SUCCESS,
)  # fmt: skip


def to_revision(url: str, revision: str) -> None:
    """A database as the release with that version left it."""
    opened = engine.open_engine(url)
    with opened.connect() as connection:
        config = migrate._config()
        config.attributes["connection"] = connection
        alembic_command.upgrade(config, revision)
        connection.commit()
    opened.dispose()


@pytest.mark.parametrize("revision", REVISIONS)
def test_from_every_earlier_version_with_its_rows(empty_database_url: str, revision: str) -> None:
    """Rows that an earlier release wrote are there after the upgrade, unchanged, and new ones go in beside them."""
    to_revision(empty_database_url, revision)
    opened = engine.open_engine(empty_database_url)
    with opened.begin() as connection:
        partitions.create(connection, {AT.date()})
        columns = text("SELECT column_name FROM information_schema.columns WHERE table_name = 'attempts'")
        known = set(connection.execute(columns).scalars())
        row = {key: value for key, value in to_row(OLD, AT, simulated=False).items() if key in known}
        names = ", ".join(row)
        filled = f"SELECT {names} FROM json_populate_record(NULL::attempts, CAST(:row AS json))"
        connection.execute(text(f"INSERT INTO attempts ({names}) {filled}"), {"row": wire.dumps(row).decode()})
        before = connection.execute(text("SELECT to_jsonb(a) FROM attempts a")).scalar_one()
    assert migrate.upgrade(empty_database_url).pending
    with opened.begin() as connection:
        after = connection.execute(text("SELECT to_jsonb(a) FROM attempts a")).scalar_one()
    assert {key: after[key] for key in before} == before
    again = attempts.insert(opened, [], [OLD, replace(OLD, target="new")], AT)
    assert (len(again.new), again.duplicates, len(again.conflicts)) == (1, 1, 0)
    opened.dispose()


def test_the_tables_are_what_the_code_expects(store: Engine) -> None:
    """Alembic's own comparison of the migrated database with `tables.py` finds no difference."""
    with store.connect() as connection:
        options = {"compare_type": True, "include_name": lambda name, _kind, _parents: "attempts_p" not in (name or "")}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_a_newer_schema_is_refused(database_url: str) -> None:
    """An old program says that the database is newer, instead of failing later."""
    opened = engine.open_engine(database_url)
    with opened.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    opened.dispose()
    with pytest.raises(migrate.MigrationFailed, match="newer release"):
        migrate.upgrade(database_url)


def test_a_failed_version_leaves_nothing(empty_database_url: str) -> None:
    """A version that fails half way is rolled back as a whole."""
    opened = engine.open_engine(empty_database_url)
    with opened.begin() as connection:
        connection.execute(text("CREATE TABLE series (mine int)"))
    with pytest.raises(migrate.MigrationFailed, match="already exists"):
        migrate.upgrade(empty_database_url)
    with opened.connect() as connection:
        assert connection.execute(text("SELECT to_regclass('attempts')")).scalar() is None
    opened.dispose()


def test_no_database_is_a_sentence() -> None:
    """An unreachable server and an unreadable URL say so, without the password."""
    with pytest.raises(StoreUnavailable, match="refused"):
        migrate.check("postgresql://u:sk-planted@127.0.0.1:1/x")
    for bad in ("mysql://u:sk-planted@h/x", "sk-planted", "postgresql://u:sk-planted@h:port/x"):
        with pytest.raises(ConfigError, match="database URL") as caught:
            migrate.check(bad)
        assert "sk-planted" not in str(caught.value)


def test_the_command(empty_database_url: str, tmp_path: Path) -> None:
    """`firsttoken migrate` applies, `--check` tells with its exit code, `--sql` prints a script that works."""
    told = command("--check", url=empty_database_url)
    assert (told.returncode, "pending  0001" in told.stdout) == (1, True)
    printed = command("--sql", url="")
    opened = engine.open_engine(empty_database_url)
    with opened.begin() as connection:
        connection.exec_driver_sql(printed.stdout.replace("BEGIN;", "").replace("COMMIT;", ""))
    opened.dispose()
    assert command("--check", url=empty_database_url).returncode == 0
    assert command(url=empty_database_url).returncode == 0
    nothing = command(url="", cwd=tmp_path)
    assert (nothing.returncode, "set DATABASE_URL" in nothing.stderr) == (2, True)


# ---------------------------------------------------------------------------------------------- rules of Citus


def keys_of(connection: Connection, table: str) -> list[set[str]]:
    query = text("""
        SELECT array_agg(a.attname::text) FROM pg_index i
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
        WHERE i.indrelid = CAST(:name AS regclass) AND i.indisunique GROUP BY i.indexrelid""")
    return [set(names) for names in connection.execute(query, {"name": table}).scalars()]


def test_every_table_has_a_place_on_citus(store: Engine) -> None:
    """Each table of the catalogue is classified: distributed, reference or local."""
    with store.connect() as connection:
        query = text(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace "
            "AND relkind IN ('r', 'p') AND NOT relispartition"
        )
        names = set(connection.execute(query).scalars())
    assert names - {"alembic_version"} == {name for name, table in metadata.tables.items() if table.info["citus"]}


def test_keys_of_distributed_tables_contain_the_vantage(store: Engine) -> None:
    """Every primary and unique key of a distributed table contains vantage_id, so that Citus can shard by it."""
    with store.connect() as connection:
        for name, table in metadata.tables.items():
            if table.info["citus"] == "distributed":
                keys = keys_of(connection, name)
                assert keys, f"{name} has no key"
                assert all("vantage_id" in key for key in keys), name


def test_there_are_no_foreign_keys_triggers_or_exclusions(store: Engine) -> None:
    """What Citus cannot distribute, or only with conditions, is not used at all."""
    with store.connect() as connection:
        odd = "SELECT count(*) FROM pg_constraint WHERE contype IN ('f', 'x', 't')"
        assert connection.execute(text(f"{odd} AND connamespace = 'public'::regnamespace")).scalar() == 0
        triggers = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal"
        assert connection.execute(text(triggers)).scalar() == 0
        sequences = "SELECT count(*) FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"
        assert connection.execute(text(sequences)).scalar() == 0


def test_attempts_are_partitioned_by_their_planned_instant(store: Engine) -> None:
    """`attempts` is range-partitioned by scheduled_at, keyed by vantage, instant, series and try."""
    with store.connect() as connection:
        partitioning = connection.execute(text("SELECT pg_get_partkeydef('attempts'::regclass)")).scalar()
        assert partitioning == "RANGE (scheduled_at)"
        assert keys_of(connection, "attempts") == [{"vantage_id", "scheduled_at", "series_id", "try"}]
