"""docker-compose.yml runs: each service is started as the file says; together they do what docs/compose.md promises."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.compose_machine import Machine, Service, missing, until

WHY_NOT = missing()
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""), pytest.mark.timeout(420)]
AGENTS = ("lagos", "london", "virginia")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The profile `demo`, but for Grafana, whose program is not at hand."""
    with Machine(tmp_path_factory.mktemp("compose")) as machine:
        for name, service in machine.compose["services"].items():
            if "demo" in service.get("profiles", ["demo"]) and name != "grafana":
                machine.up(name)
        yield machine


def ask(service: Service, sql: str, role: str = "firsttoken", password: str | None = None) -> str:
    """What Postgres answers over the network, from where a service is."""
    at = f"host=postgres dbname=firsttoken user={role} connect_timeout=5"
    done = service.inside("env", f"PGPASSWORD={password}", "psql", at, "-XAt", "-c", sql)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def secret(machine: Machine, name: str) -> str:
    return (machine.volume("secrets") / name).read_text().strip()


def curl(service: Service, *arguments: str) -> tuple[int, str]:
    """Status and body of a request to the proxy, whose certificate is verified."""
    trust = ("--cacert", "/run/firsttoken/ca.pem")
    done = service.inside(
        "curl", "--silent", "--show-error", "--max-time", "20", *trust, "-w", "\n%{http_code}", *arguments
    )
    assert done.returncode == 0, done.stderr
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


def test_every_service_is_healthy(demo: Machine) -> None:
    """All that run on are up by their own health checks; all that run once have ended well."""
    running = {name for name, one in demo.compose["services"].items() if "healthcheck" in one}
    assert set(demo.services) == running - {"grafana", "one"}
    for name in demo.services:
        assert demo.healthy(name), name


def test_attempts_of_all_agents_arrive(demo: Machine) -> None:
    """From the agent through TLS into Postgres, each under its own vantage point, with the simulated distance in it."""
    sql = (
        "SELECT s.vantage, count(*), (min(a.connect_end_ns - a.connect_start_ns) / 1e6)::int FROM attempts a"
        " JOIN series s USING (vantage_id, series_id) WHERE a.outcome = 'success' GROUP BY 1 ORDER BY 1"
    )

    def rows() -> list[list[str]]:
        answer = ask(demo.services["hub"], sql, password=secret(demo, "postgres/firsttoken"))
        return [line.split("|") for line in answer.splitlines()]

    until(lambda: [row[0] for row in rows()] == list(AGENTS), "successes from three agents", 150)
    connect_ms = {vantage: int(ms) for vantage, _, ms in rows()}
    assert connect_ms["lagos"] >= 90 > connect_ms["london"] >= 70 > connect_ms["virginia"]
    seen = "SELECT DISTINCT vantage FROM sightings WHERE up ORDER BY 1"
    until(
        lambda: ask(demo.services["hub"], seen, password=secret(demo, "postgres/firsttoken")).split() == list(AGENTS),
        "the line of each agent, seen up",
        90,
    )


def test_the_proxy_lets_in_whom_it_should(demo: Machine) -> None:
    """People with the password, agents with a token, nobody to /metrics; plain HTTP is no way in."""
    agent = demo.services["lagos"]
    base = "https://proxy:8443"
    assert curl(agent, f"{base}/healthz") == (200, "ok\n")
    assert curl(agent, f"{base}/")[0] == 401
    assert curl(agent, "--user", "reader:wrong", f"{base}/")[0] == 401
    user = f"reader:{secret(demo, 'readers/password')}"
    status, page = curl(agent, "--user", user, f"{base}/api/live")
    assert status == 200
    assert {one["name"] for one in json.loads(page)["vantages"]} == set(AGENTS)
    assert curl(agent, "--user", user, f"{base}/metrics")[0] == 404
    status, refusal = curl(agent, f"{base}/api/v1/agent/config")
    assert status == 401
    assert "token" in json.loads(refusal)["error"]
    token = (demo.volume("secrets") / "agents/lagos/token").read_text().strip()
    assert curl(agent, "-H", f"Authorization: Bearer {token}", f"{base}/api/v1/agent/config")[0] == 200
    assert curl(agent, "http://proxy:8443/")[0] == 400


def test_networks_keep_apart_what_shall_not_meet(demo: Machine) -> None:
    """An agent reaches the proxy, but neither hub nor database nor Prometheus; the hub reaches no agent."""
    for name, host, port in (
        ("lagos", demo._address("postgres", "back"), 5432),
        ("lagos", demo._address("hub", "middle"), 8765),
        ("lagos", demo._address("prometheus", "middle"), 9090),
        ("proxy", demo._address("postgres", "back"), 5432),
        ("hub", demo._address("lagos", "front"), 9464),
    ):
        connect = f"import socket; socket.create_connection(({host!r}, {port}), 2)"
        assert demo.services[name].inside("python", "-c", connect).returncode != 0, (name, host, port)


def test_grafana_would_find_what_it_needs(demo: Machine) -> None:
    """From its networks: its password reads views and nothing else, Prometheus answers; its files are its own."""
    hub = demo.services["hub"]
    password = secret(demo, "grafana/grafana_postgres_password")
    assert int(ask(hub, "SELECT count(*) FROM series_facts", "grafana", password)) >= 7
    done = hub.inside(
        "env", f"PGPASSWORD={password}", "psql", "host=postgres dbname=firsttoken user=grafana", "-c",
        "SELECT token_hash FROM agent_tokens",
    )  # fmt: skip
    assert "permission denied" in done.stderr
    ready = hub.inside(
        "python", "-c", "import urllib.request as u; print(u.urlopen('http://prometheus:9090/-/ready').status)"
    )
    assert ready.stdout.strip() == "200"
    folder = demo.volume("secrets") / "grafana"
    assert {path.name for path in folder.iterdir()} == {"admin_password", "grafana_postgres_password"}
    assert {(path.stat().st_uid, path.stat().st_mode & 0o777) for path in folder.iterdir()} == {(472, 0o600)}


def test_prometheus_has_its_targets_and_rules(demo: Machine) -> None:
    """It scrapes the hub, knows Alertmanager, and has loaded every rule."""
    prometheus = demo.services["prometheus"]

    def get(path: str) -> dict[str, object]:
        done = prometheus.inside("curl", "--silent", f"http://127.0.0.1:9090/api/v1/{path}")
        return dict(json.loads(done.stdout)["data"])

    def health() -> dict[str, str]:
        targets = get("targets")["activeTargets"]
        assert isinstance(targets, list)
        return {one["labels"]["job"]: one["health"] for one in targets}

    until(lambda: health() == {"firsttoken": "up", "prometheus": "up", "alertmanager": "up"}, "all targets up", 60)
    groups = get("rules")["groups"]
    assert isinstance(groups, list)
    assert sum(len(group["rules"]) for group in groups) > 20
    managers = get("alertmanagers")["activeAlertmanagers"]
    assert managers == [{"url": "http://alertmanager:9093/api/v2/alerts"}]


def test_secrets_are_seen_by_their_services_alone(demo: Machine) -> None:
    """Each service reads its own folder; no agent finds a database password, no service another's file."""
    find = "import json, os; print(json.dumps([f'{at}/{name}' for at, _, names in os.walk('/run') for name in names]))"

    def files(name: str) -> set[str]:
        done = demo.services[name].inside("python", "-c", find)
        return {path for path in json.loads(done.stdout) if not path.startswith("/run/keys/")}

    assert files("hub") == {"/run/secrets/database_url"}
    assert files("lagos") == {"/run/firsttoken/token", "/run/firsttoken/ca.pem"}
    assert files("proxy") == {f"/run/secrets/{name}" for name in ("fullchain.pem", "privkey.pem", "readers")}
    assert files("prometheus") == set()


def test_the_root_cannot_be_written(demo: Machine) -> None:
    """No service can change its own programs or configuration."""
    for name, service in demo.services.items():
        done = service.inside("sh", "-c", "echo x >/opt/x || echo x >/etc/firsttoken/x || echo x >/x")
        assert done.returncode != 0, name


def test_starting_again_changes_no_secret_and_no_token(demo: Machine) -> None:
    """What runs once runs at every `up`, and makes only what is missing; an agent goes on where it was."""
    every = {path: path.read_bytes() for path in demo.volume("secrets").rglob("*") if path.is_file()}
    for name in ("first-start", "enrol", "alerting"):
        demo.again(name)
    assert {path: path.read_bytes() for path in demo.volume("secrets").rglob("*") if path.is_file()} == every
    assert demo.stop("lagos") == 0
    demo.again("lagos")


def test_a_backup_can_be_taken(demo: Machine) -> None:
    """pg_dump as docs/compose.md has it: without a password, where the database is."""
    done = demo.services["postgres"].inside("pg_dump", "--username=postgres", "--schema-only", "firsttoken")
    assert done.returncode == 0, done.stderr
    assert "CREATE TABLE public.attempts" in done.stdout


def test_one_agent_alone(demo: Machine) -> None:
    """The profile `one` starts the same command as the agent that FIRSTTOKEN_VANTAGE names, with that one's token."""
    services = demo.compose["services"]
    assert {json.dumps(services[name]["command"]) for name in (*AGENTS, "one")} == {
        json.dumps(services["lagos"]["command"])
    }
    demo.stop("lagos")
    demo.up("one")
    (token,) = [m for m in services["one"]["volumes"] if isinstance(m, dict)]
    assert token["volume"]["subpath"] == "agents/lagos"
    assert demo.stop("one") == 0
