"""`firsttoken up` as people run it: a child process, simulated providers, a real Postgres, signals and broken files."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from monitor.model import Attempt, Outcome
from monitor.simulator import SimulatorProcess
from monitor.store.attempts import recent
from tests.integration.running_up import Up, configuration, target, until

LISTENER = {"name": "main", "models": {"*": {"ttft_seconds": 0.05, "tokens": 5, "tokens_per_second": 200}}}
STALLING = {"name": "stalling", "models": {"*": {"ttft_seconds": 3.0, "tokens": 5}}}
PLANTED = "sk-planted-9f8e7d6c5b4a39281706"
KEYED = {"name": "keyed", "api_key": "sk-another", "echo_key": True}


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess({"listeners": [LISTENER, STALLING, KEYED]}) as running:
        yield running


def stored(store: Engine) -> list[Attempt]:
    return recent(store, 5000, since=datetime.now(UTC) - timedelta(hours=1))


def good(store: Engine, name: str = "alpha") -> list[Attempt]:
    return [a for a in stored(store) if a.outcome is Outcome.SUCCESS and a.target == name]


def slots_once(attempts: list[Attempt]) -> bool:
    keys = [a.key for a in attempts]
    return len(keys) == len(set(keys))


def test_from_a_file_to_rows_metrics_and_a_page(tmp_path, simulator, store, database_url):
    """One command: attempts are rows, series and on the page; a signal ends it with 0 and an empty spool."""
    with Up(tmp_path, configuration(simulator.url()), DATABASE_URL=database_url) as up:
        until(lambda: len(good(store)) >= 3, "three rows")
        until(lambda: (up.metric("firsttoken_ttft_seconds_count", target="alpha") or 0) >= 3, "a histogram of TTFT")
        assert up.metric("firsttoken_store_up") == 1
        assert up.metric("firsttoken_scheduler_lag_seconds_count") >= 3
        assert json.loads(up.get("readyz"))["ready"]
        assert "alpha" in up.get("api/live")
        assert up.stop() == 0
    assert up.said("stopped")[0]["waiting"] == 0
    assert slots_once(stored(store))
    assert up.raw == [json.dumps(line) + "\n" for line in up.lines]


def test_it_runs_on_its_own_embedded_database(tmp_path, simulator):
    """Without any database named, the embedded one is started under the state folder and stopped with us."""
    with Up(tmp_path, configuration(simulator.url())) as up:
        until(lambda: (up.metric("firsttoken_delivered_attempts_total") or 0) >= 2, "attempts delivered")
        assert up.stop() == 0
    assert not (up.state / "postgres" / "postmaster.pid").exists()


def test_a_planted_key_is_nowhere(tmp_path, simulator, store, database_url):
    """A key that the provider repeats in its error is in no log line, row, metric, page or file of the state folder."""
    content = configuration(
        simulator.url(), targets={"alpha": target(simulator.url("keyed"), api_key="${PLANTED_KEY}")}
    )
    content["log"]["level"] = "debug"
    with Up(tmp_path, content, DATABASE_URL=database_url, PLANTED_KEY=PLANTED) as up:
        until(lambda: len(stored(store)) >= 2, "two rows")
        pages = [up.get(path) for path in ("", "metrics", "api/live", "readyz")]
        up.stop()
    assert all(a.failure.kind == "unauthorized" for a in stored(store) if a.failure)
    with store.connect() as connection:
        rows = str(connection.execute(text("SELECT * FROM attempts")).all())
    files = [path.read_bytes().decode("latin-1") for path in up.state.iterdir() if path.is_file()]
    for output in (*pages, *up.raw, rows, *files):
        assert PLANTED not in output
        assert PLANTED[5:20] not in output


# ---------------------------------------------------------------------------------------- the database is away


def test_probes_go_on_without_a_database(tmp_path, simulator, postgres_server, empty_database_url):
    """No database at the start: attempts wait on disk, the remedy is said once; all arrive once it is there."""
    name = make_url(empty_database_url).database
    admin = create_engine(postgres_server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name}"))
    with Up(tmp_path, configuration(simulator.url()), DATABASE_URL=empty_database_url) as up:
        until(lambda: (up.metric("firsttoken_spool_attempts") or 0) >= 3, "attempts in the spool")
        assert up.metric("firsttoken_store_up") == 0
        ready = json.loads(up.get("readyz"))
        assert not ready["ready"]
        assert f"has no database {name}: create it" in json.dumps(ready)
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        up.until_said("the store is back")
        until(up.caught_up, "nothing old in the spool")
        until(lambda: up.metric("firsttoken_store_up") == 1, "the store seen up")
        up.stop()
    assert up.left_behind() == 0
    (error,) = [line for line in up.lines if line["level"] in ("error", "critical", "warning")]
    assert error["level"] == "error"
    assert "create it (CREATE DATABASE" in error["cause"]
    engine = create_engine(empty_database_url)
    attempts = stored(engine)
    engine.dispose()
    assert len(attempts) >= 4
    assert slots_once(attempts)


def test_a_newer_schema_is_an_error_at_the_start(tmp_path, simulator, store, database_url):
    """Said once at error level, and by /readyz, before anything was due; nothing is written over it."""
    with store.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    rare = configuration(simulator.url(), probes={"rare": {"prompt": "hi", "interval": "1h", "deadline": "800ms"}})
    with Up(tmp_path, rare, DATABASE_URL=database_url) as up:
        said = up.until_said("the store takes nothing until this is mended; attempts wait in the spool")
        assert "upgrade the program" in said["cause"]
        until(lambda: "upgrade the program" in up.get("readyz"), "the reason in /readyz")
        time.sleep(2.0)  # several further tries
        up.stop()
    assert [line["level"] for line in up.lines if line["level"] not in ("info", "debug")] == ["error"]


def test_a_database_that_goes_and_comes_back(tmp_path, simulator, postgres_server, store, database_url):
    """Connections cut and refused for a while: probes go on, one line each way, no slot is lost or doubled."""
    name = make_url(database_url).database
    admin = create_engine(postgres_server, isolation_level="AUTOCOMMIT")

    def allow(allowed: str) -> None:
        with admin.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}"))
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}
            )

    with Up(tmp_path, configuration(simulator.url()), DATABASE_URL=database_url) as up:
        until(lambda: len(good(store)) >= 2, "two rows")
        allow("false")
        until(lambda: up.metric("firsttoken_store_up") == 0, "the store seen away")
        until(lambda: (up.metric("firsttoken_spool_attempts") or 0) >= 2, "attempts in the spool")
        allow("true")
        up.until_said("the store is back")
        until(up.caught_up, "nothing old in the spool")
        up.stop()
    assert up.left_behind() == 0
    assert len(up.said("the store is away; attempts wait in the spool")) == 1
    assert len(up.said("the store is back")) == 1
    numbers = sorted({a.scheduled_at for a in stored(store)})
    assert {round((b - a).total_seconds()) for a, b in pairwise(numbers)} == {1}
    assert slots_once(stored(store))


# ---------------------------------------------------------------------------------------- another configuration


def test_a_changed_file_is_taken_over(tmp_path, simulator, store, database_url):
    """A new target appears by itself, a removed one leaves the metrics, and what stays loses no slot."""
    content = configuration(simulator.url())
    content["targets"]["beta"] = target(simulator.url())
    with Up(tmp_path, content, DATABASE_URL=database_url) as up:
        until(lambda: good(store, "beta"), "a row of beta")
        content["targets"]["gamma"] = target(simulator.url())
        del content["targets"]["beta"]
        up.write(content)
        taken = up.until_said("configuration taken over")
        assert (taken["added"], taken["removed"], taken["kept"]) == (1, 1, 1)
        until(lambda: good(store, "gamma"), "a row of gamma")
        assert up.metric("firsttoken_attempts_total", target="beta") is None
        assert up.metric("firsttoken_config_last_reload_successful") == 1
        up.stop()
    kept = sorted(a.scheduled_at for a in stored(store) if a.target == "alpha" and not a.try_number)
    assert {b - a for a, b in pairwise(kept)} == {timedelta(seconds=1)}


def test_a_bad_file_is_refused_and_the_old_one_stays(tmp_path, simulator, store, database_url):
    """All mistakes in one line of the log, a metric says so, probes go on; the mended file clears it."""
    content = configuration(simulator.url())
    with Up(tmp_path, content, DATABASE_URL=database_url) as up:
        until(lambda: good(store), "a row")
        up.write({**content, "probes": {"short": {"prompt": "hi", "interval": "1s", "deadline": "5s", "what": 1}}})
        refused = up.until_said("the new configuration is refused; the old one stays")
        assert len(refused["mistakes"]) == 2
        assert up.metric("firsttoken_config_last_reload_successful") == 0
        said = json.loads(up.get("api/live"))["notices"]
        assert len(said) == 1
        assert said[0][0].startswith("The new configuration is refused; the old one stays in force. ")
        before = len(good(store))
        until(lambda: len(good(store)) >= before + 2, "further rows")
        up.process.send_signal(signal.SIGHUP)
        up.until_said("the new configuration is refused; the old one stays", 2)
        up.write(content)
        up.until_said("configuration taken over")
        assert up.metric("firsttoken_config_last_reload_successful") == 1
        until(lambda: json.loads(up.get("api/live"))["notices"] == [], "the notice goes")
        up.file.unlink()
        up.until_said("the new configuration is refused; the old one stays", 3)
        until(lambda: json.loads(up.get("api/live"))["notices"], "a notice about the file that is gone")
        up.stop()


def test_a_hangup_takes_the_file_over_at_once(tmp_path, simulator, store, database_url):
    """SIGHUP reads the file again even where it did not change, and says what that changed."""
    with Up(tmp_path, configuration(simulator.url()), DATABASE_URL=database_url) as up:
        until(lambda: good(store), "a row")
        up.process.send_signal(signal.SIGHUP)
        taken = up.until_said("configuration taken over")
        assert (taken["cause"], taken["kept"], taken["changed"]) == ("SIGHUP", 1, 0)
        up.stop()


def test_a_swapped_symlink_is_a_changed_file(tmp_path, simulator, store, database_url):
    """As Kubernetes mounts do it: the file is a link into a folder that is itself swapped by a link."""
    content = configuration(simulator.url())
    up = Up(tmp_path, content, DATABASE_URL=database_url)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "firsttoken.yaml").write_text(json.dumps(content))
        content["targets"]["beta"] = target(simulator.url())
    (tmp_path / "data").symlink_to(folders[0])
    up.file.unlink()
    up.file.symlink_to("data/firsttoken.yaml")
    with up:
        until(lambda: good(store), "a row")
        (tmp_path / "fresh").symlink_to(folders[1])
        (tmp_path / "fresh").replace(tmp_path / "data")
        assert up.until_said("configuration taken over")["added"] == 1
        up.stop()


# ---------------------------------------------------------------------------------------- the end


def test_what_runs_is_finished_before_the_end(tmp_path, simulator, store, database_url):
    """SIGTERM in the middle of an attempt: it is finished, stored, and the exit code is 0."""
    content = configuration(
        simulator.url("stalling"), probes={"short": {"prompt": "hi", "interval": "5s", "deadline": "4500ms"}}
    )
    with Up(tmp_path, content, DATABASE_URL=database_url) as up:
        until(lambda: (up.metric("firsttoken_scheduler_lag_seconds_count") or 0) >= 1, "an attempt under way")
        assert stored(store) == []
        assert up.stop() == 0
    assert len(good(store)) == 1


def test_a_second_signal_ends_it_at_once(tmp_path, simulator, store, database_url):
    """Two signals: no waiting for the attempt under way."""
    content = configuration(
        simulator.url("stalling"), probes={"short": {"prompt": "hi", "interval": "30s", "deadline": "29s"}}
    )
    content["targets"] = {f"t{n}": target(simulator.url("stalling")) for n in range(20)}
    content["log"]["level"] = "info"
    with Up(tmp_path, content, DATABASE_URL=database_url) as up:
        until(lambda: (up.metric("firsttoken_scheduler_lag_seconds_count") or 0) >= 1, "an attempt under way")
        up.process.send_signal(signal.SIGINT)
        up.until_said("stopping: finishing what runs")
        began = time.monotonic()
        assert up.stop(signal.SIGINT) == 130
        assert time.monotonic() - began < 8


def test_killed_and_started_again_nothing_is_lost_or_doubled(tmp_path, simulator, store, database_url):
    """kill -9 while the database is away: what was spooled arrives after the next start, each slot once."""
    lost = make_url(database_url).set(database="does_not_exist").render_as_string(hide_password=False)
    up = Up(tmp_path, configuration(simulator.url()), DATABASE_URL=lost)
    with up:
        until(lambda: (up.metric("firsttoken_spool_attempts") or 0) >= 3, "attempts in the spool")
        up.process.kill()
        up.wait()
    up.lines.clear()
    up.environment["DATABASE_URL"] = database_url
    with up:
        until(lambda: len(good(store)) >= 5, "old and new rows")
        until(up.caught_up, "nothing old in the spool")
        assert up.stop() == 0
    assert up.left_behind() == 0
    assert slots_once(stored(store))


# ---------------------------------------------------------------------------------------- a start that cannot be


def refuses(up: Up, *fragments: str) -> None:
    with up:
        assert up.wait() == 2
    output = "".join(up.raw)
    assert "Traceback" not in output
    for fragment in fragments:
        assert fragment in output


def test_a_bad_file_ends_the_start_with_all_mistakes(tmp_path):
    """Exit code 2 and a line for each mistake, as `validate` prints them."""
    content = configuration(
        "http://127.0.0.1:9/v1", probes={"short": {"prompt": "hi", "interval": "x", "color": "red"}}
    )
    refuses(Up(tmp_path, content), "probes.short.interval", "probes.short.color")


def test_an_unknown_vantage_is_named(tmp_path):
    """Exit code 2, and what the configuration has instead."""
    refuses(Up(tmp_path, configuration("http://127.0.0.1:9/v1"), "--vantage", "lagoss"), "lagoss", "lagos")


def test_two_vantages_need_a_choice(tmp_path, database_url):
    """One process is one real place: which, has to be said, by option or environment."""
    content = configuration("http://127.0.0.1:9/v1", vantages={"lagos": {}, "london": {}})
    refuses(Up(tmp_path, content, DATABASE_URL=database_url), "--vantage lagos")
    with Up(tmp_path, content, DATABASE_URL=database_url, FIRSTTOKEN_VANTAGE="london") as up:
        assert up.until_said("probing")["vantages"] == ["london"]
        up.stop()


def test_a_taken_port_is_named(tmp_path, database_url):
    """Exit code 2 and a sentence with the address; nobody was asked anything before that."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as asked:
        address, at = (f"127.0.0.1:{one.getsockname()[1]}" for one in (taken, asked))
        often = {"short": {"prompt": "hi", "interval": "100ms", "deadline": "80ms", "connect_timeout": "50ms"}}
        looked = {"interval": "1s", "timeout": "500ms", "endpoints": {"near": f"tcp://{at}"}}
        content = configuration(f"http://{at}/v1", probes=often, witness=looked, web={"listen": address})
        refuses(Up(tmp_path, content, DATABASE_URL=database_url), address, "another program listens there")
        asked.setblocking(False)
        with pytest.raises(BlockingIOError):
            asked.accept()


def test_a_spool_in_use_is_named(tmp_path, simulator, database_url):
    """A second process on the same state folder gets exit code 2 and the first one's pid."""
    content = configuration(simulator.url())
    with Up(tmp_path, content, DATABASE_URL=database_url) as first:
        first.until_said("probing")
        refuses(
            Up(tmp_path, content, DATABASE_URL=database_url), f"in use by another process (pid {first.process.pid})"
        )
        first.stop()


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path, database_url):
    """Exit code 2 and the folder's name."""
    (tmp_path / "file").write_text("")
    up = Up(tmp_path, configuration("http://127.0.0.1:9/v1"), DATABASE_URL=database_url)
    up.state = tmp_path / "file" / "state"
    refuses(up, "the state directory", "cannot be written")


def test_a_bad_database_url_is_said_without_its_password(tmp_path):
    """Exit code 2, a sentence, and no password."""
    up = Up(tmp_path, configuration("http://127.0.0.1:9/v1"), DATABASE_URL="mysql://u:hunter2hunter2@h/d")
    refuses(up, "postgresql://")
    assert "hunter2" not in "".join(up.raw)
