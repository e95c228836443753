"""docker-compose.yml without Docker: each service in a root, a network and as a user of its own, as the file says.

A service gets what its image would give it (see `IMAGES`) and what the file adds: mounts with their subpaths, read-only
root, tmpfs, dropped capabilities, networks that reach each other only where they are shared, names, environment, health
check. Instead of images stand Debian's programs and this checkout's environment. Needs root and Linux namespaces.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

ROOT = Path(__file__).parents[2]
PATH = "/opt/firsttoken/bin:/usr/local/bin:/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POSTGRES_ENTRYPOINT = r"""
export POSTGRES_USER=postgres PGDATA=/var/lib/postgresql/data
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  eval "initdb --username=postgres --pwfile=$POSTGRES_PASSWORD_FILE $POSTGRES_INITDB_ARGS" >/dev/null
  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
  pg_ctl -w -s -o "-c listen_addresses='' -c unix_socket_directories=/var/run/postgresql" start
  for script in /docker-entrypoint-initdb.d/*.sh; do sh "$script"; done
  pg_ctl -w -s -m fast stop
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
"""
"""What the image of Postgres does at its start, as far as it matters here."""
NGINX_CONF = """
daemon off; pid /tmp/nginx.pid; error_log stderr notice;
events {}
http {
  client_body_temp_path /tmp/client; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
  uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi; access_log off; include /etc/nginx/conf.d/*.conf;
}
"""
"""What the unprivileged image of nginx has as its main file, but for types and logs."""
NGINX_ENTRYPOINT = r"""
names=$(env | cut -d= -f1 | grep -E "$NGINX_ENVSUBST_FILTER" | sed 's/.*/${&}/' | tr '\n' ' ')
for template in /etc/nginx/templates/*.template; do
  envsubst "$names" <"$template" >"/etc/nginx/conf.d/$(basename "$template" .template)"
done
exec nginx -e stderr -c /main.conf
"""


PREPARE = """
set -eu
read -r go
R=ROOT
mount -t tmpfs -o mode=755 tmpfs $R
cd /
for one in bin sbin lib lib64; do
  if [ -L /$one ]; then cp -P /$one $R/; elif [ -d /$one ]; then mkdir $R/$one; mount --bind /$one $R/$one; fi
done
cp -a /etc $R/etc
mkdir -p $R/proc $R/dev $R/sys $R/run $R/tmp $R/var/lib $R/opt
ln -s ../run $R/var/run
mount --rbind /proc $R/proc
mount --rbind /dev $R/dev
"""
"""A root with this machine's programs, and nothing that could be written but by root."""


@dataclass(frozen=True)
class Image:
    """What an image brings: its user, its folders with their owners, its entrypoint, its environment."""

    user: str
    folders: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def own_image() -> Image:
    """What the Dockerfile says of itself."""
    text = (ROOT / "Dockerfile").read_text()
    (uid,) = re.findall(r"--uid (\d+)", text)
    (home,) = re.findall(r"--home-dir (\S+) --create-home", text)
    made = re.findall(r"install --directory --owner=firsttoken --group=firsttoken (.+)", text)
    owned = dict.fromkeys((home, *(word for line in made for word in line.split())), f"{uid}:{uid}")
    (state,) = re.findall(r"STATE_DIRECTORY=(\S+)", text)
    return Image(f"{uid}:{uid}", owned, ("firsttoken",), {"STATE_DIRECTORY": state})


IMAGES = {
    "firsttoken": own_image(),
    "postgres": Image(
        "999:999", {"/var/lib/postgresql": "999:999"}, ("sh", "-euc", POSTGRES_ENTRYPOINT), {"LANG": "C.UTF-8"}
    ),
    "nginxinc/nginx-unprivileged": Image("101:101", {}, ("sh", "-euc", NGINX_ENTRYPOINT)),
    "prom/prometheus": Image("65534:65534", {"/prometheus": "65534:65534"}, ("prometheus",)),
    "prom/alertmanager": Image("65534:65534", {"/alertmanager": "65534:65534"}, ("prometheus-alertmanager",)),
}
PROGRAMS = (
    "prometheus",
    "prometheus-alertmanager",
    "nginx",
    "envsubst",
    "openssl",
    "ip",
    "unshare",
    "nsenter",
    "setpriv",
)


def missing() -> str | None:
    """Why services cannot be started here."""
    if os.geteuid() != 0:
        return "starting compose's services needs root"
    for program in PROGRAMS:
        if shutil.which(program, path=f"{PATH}:{os.environ['PATH']}") is None:
            return f"{program} is not installed"
    if not Path("/usr/lib/postgresql/15/bin/initdb").exists():
        return "postgresql-15 is not installed"
    probe = ["unshare", "--net", "--mount", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "starting compose's services needs root: this machine allows no namespaces or no veth"
    return None


def interpolated(value: Any, environment: Mapping[str, str]) -> Any:
    """As compose fills in `${NAME:-default}`, with `$$` for a dollar."""
    if isinstance(value, Mapping):
        return {key: interpolated(item, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, environment) for item in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1]) or match[2] or ""

    return re.sub(r"\$\$|\$\{(\w+)(?::-([^}]*))?\}", fill, value)


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    read_only: bool


@dataclass
class Service:
    """One service that was started."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    user: str

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def inside(self, *command: str, seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command where the service runs, as its user."""
        uid, gid = self.user.split(":")
        enter = ["nsenter", "--target", str(self.process.pid), "--net", "--mount", "--root", "--wd"]
        drop = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--", "env", f"PATH={PATH}"]
        asked = [*enter, *drop, *command]
        return subprocess.run(asked, capture_output=True, text=True, check=False, timeout=seconds)


class Machine:
    """The project of one compose file, on one profile. Use as a context manager."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.compose = interpolated(yaml.safe_load((ROOT / "docker-compose.yml").read_text()), environment)
        self.environment = environment
        self.services: dict[str, Service] = {}
        self._ended: dict[str, int] = {}
        self._links = 0

    def __enter__(self) -> Self:
        (self.folder / "volumes").mkdir()
        self._holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        until(lambda: Path(f"/proc/{self._holder.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink(), "it")
        for name in self.compose["networks"]:
            self._ip(self._holder.pid, f"link add {name} type bridge")
            self._ip(self._holder.pid, f"link set {name} up")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for service in reversed(self.services.values()):
            if kind is not None:
                sys.stderr.write(f"--- {service.name}\n{service.said()[-3000:]}\n")
            service.process.terminate()
        for service in self.services.values():
            try:
                service.process.wait(30)
            except subprocess.TimeoutExpired:
                service.process.kill()
                service.process.wait()
        self._holder.kill()
        self._holder.wait()

    # ------------------------------------------------------------------------------------------------ starting

    def up(self, name: str) -> None:
        """Start a service when what it depends on is as the file wants it, and wait until it is as others want it."""
        if name in self.services or name in self._ended:
            return
        service = self.compose["services"][name]
        for needed in service.get("depends_on", {}):
            self.up(needed)
        started = self._start(name, service)
        if service["restart"] == "no":
            self._ended[name] = started.process.wait(120)
            assert self._ended[name] == 0, f"{name} ended with {self._ended[name]}:\n{started.said()[-3000:]}"
            del self.services[name]
        else:
            until(lambda: self.healthy(name), f"{name} to be healthy", 120)

    def healthy(self, name: str) -> bool:
        """What the health check of the file says."""
        service = self.services[name]
        assert service.process.poll() is None, f"{name} has ended:\n{service.said()[-3000:]}"
        kind, *command = self.compose["services"][name]["healthcheck"]["test"]
        assert kind == "CMD"
        return service.inside(*command).returncode == 0

    def stop(self, name: str) -> int:
        """End a service as `docker compose stop` does; its exit code."""
        service = self.services.pop(name)
        service.process.terminate()
        code = service.process.wait(40)
        self._ended[name] = code
        return code

    def again(self, name: str) -> None:
        """Start one that has ended, on the same volumes."""
        self._ended.pop(name, None)
        self.up(name)

    def volume(self, name: str) -> Path:
        """Where a named volume lies."""
        return self.folder / "volumes" / name

    def _start(self, name: str, service: Mapping[str, Any]) -> Service:
        image = IMAGES[service["image"].split(":")[0]]
        user = service.get("user", image.user)
        script = self.folder / f"{name}.sh"
        script.write_text(self._script(name, service, image, user))
        log = self.folder / f"{name}.log"
        with log.open("a") as out:
            process = subprocess.Popen(
                ["unshare", "--net", "--mount", "--propagation=private", "sh", str(script)],
                stdin=subprocess.PIPE, stdout=out, stderr=out, text=True, start_new_session=True,
            )  # fmt: skip
        started = self.services[name] = Service(name, process, log, user)
        own = Path("/proc/self/ns/net").readlink()
        until(lambda: Path(f"/proc/{process.pid}/ns/net").readlink() != own, "a network of its own")
        self._ip(process.pid, "link set lo up")
        for network in service.get("networks", []):
            self._join(process.pid, name, network)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.close()
        return started

    # ------------------------------------------------------------------------------------------------ its root

    def _script(self, name: str, service: Mapping[str, Any], image: Image, user: str) -> str:
        root = self.folder / f"{name}.root"
        root.mkdir(exist_ok=True)
        lines = [
            *PREPARE.replace("ROOT", shlex.quote(str(root))).splitlines(),
            *self._users(),
            *self._hosts(name, service),
        ]
        for place in service.get("tmpfs", []):
            target, _, options = place.partition(":")
            given = f"mode=1777,{options}" if options else "mode=1777"
            lines.append(f"mkdir -p $R{target}; mount -t tmpfs -o {given} tmpfs $R{target}")
        # Behind tmpfs: the checkout may lie below /tmp.
        trees = dict.fromkeys(("/usr", str(ROOT), sys.prefix, sys.base_prefix))
        lines += [f"[ -e $R{tree}/. ] || {{ mkdir -p $R{tree}; mount --bind {tree} $R{tree}; }}" for tree in trees]
        lines.append(f"ln -sfn {sys.prefix} $R/opt/firsttoken")
        if service["image"].startswith("nginx"):
            lines.append(f"cat >$R/main.conf <<'END'\n{NGINX_CONF}END")
        for mount in self._mounts(service, image):
            make = "mkdir -p" if mount.source.is_dir() else "mkdir -p $(dirname $R{0}); touch"
            lines.append(f"{make.format(mount.target)} $R{mount.target}; mount --bind {mount.source} $R{mount.target}")
            if mount.read_only:
                lines.append(f"mount -o remount,bind,ro $R{mount.target}")
        if service.get("read_only"):
            lines.append("mount -o remount,ro $R")
        return "\n".join([*lines, self._exec(service, image, user)]) + "\n"

    @staticmethod
    def _exec(service: Mapping[str, Any], image: Image, user: str) -> str:
        uid, gid = user.split(":")
        caps = "".join(f",+{one.lower()}" for one in service.get("cap_add", []))
        given = service.get("environment", {})
        environment = {
            "PATH": PATH,
            "HOME": "/",
            **image.environment,
            **{k: v for k, v in given.items() if v is not None},
        }
        command = [*service.get("entrypoint", image.entrypoint), *service.get("command", [])]
        drop = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs"]
        drop += [f"--bounding-set=-all{caps}", "--inh-caps=-all", "--"]
        words = ["env", "-i", *(f"{key}={value}" for key, value in environment.items()), *drop, *command]
        return f"exec chroot $R {shlex.join(words)} </dev/null"

    @staticmethod
    def _users() -> Iterator[str]:
        for image, name in (("postgres", "database"), ("nginxinc/nginx-unprivileged", "nginx"), ("firsttoken", "ft")):
            uid, gid = IMAGES[image].user.split(":")
            yield f"sed -i '1i {name}:x:{uid}:{gid}::/:/bin/sh' $R/etc/passwd"

    def _hosts(self, name: str, service: Mapping[str, Any]) -> Iterator[str]:
        yield "echo 127.0.0.1 localhost >$R/etc/hosts"
        for network in service.get("networks", []):
            for other, one in self.compose["services"].items():
                if network in one.get("networks", []):
                    yield f"echo {self._address(other, network)} {other} >>$R/etc/hosts"

    def _mounts(self, service: Mapping[str, Any], image: Image) -> Iterator[Mount]:
        for volume in service.get("volumes", []):
            if isinstance(volume, str):
                source, target, *rest = volume.split(":")
                read_only, subpath = rest == ["ro"], ""
            else:
                source, target, read_only = volume["source"], volume["target"], volume.get("read_only", False)
                subpath = volume["volume"]["subpath"]
            if source.startswith((".", "/")):
                yield Mount((ROOT / source).resolve(), target, read_only)
                continue
            place = self.volume(source)
            if not place.exists():  # a new volume looks like the image's folder at its place
                place.mkdir(mode=0o755)
                os.chown(place, *map(int, image.folders.get(target, "0:0").split(":")))
            inside = place / subpath
            assert inside.is_dir(), f"{volume}: there is no such folder yet"
            yield Mount(inside, target, read_only)

    # ------------------------------------------------------------------------------------------------ its network

    def _address(self, name: str, network: str) -> str:
        net, host = list(self.compose["networks"]).index(network), list(self.compose["services"]).index(name)
        return f"10.77.{net}.{host + 10}"

    def _join(self, pid: int, name: str, network: str) -> None:
        self._links += 1
        outer, inner = f"v{self._links}", f"e{self._links}"
        self._ip(self._holder.pid, f"link add {outer} type veth peer name {inner} netns {pid}")
        self._ip(self._holder.pid, f"link set {outer} master {network} up")
        self._ip(pid, f"addr add {self._address(name, network)}/24 dev {inner}")
        self._ip(pid, f"link set {inner} up")

    @staticmethod
    def _ip(pid: int, arguments: str) -> None:
        subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *arguments.split()], check=True)


def until(condition: Any, what: str, seconds: float = 30.0) -> Any:
    """Ask until the answer is true, and give it."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")
