"""`firsttoken probe`: one-off attempts, printed as a waterfall or as JSON, never stored and never in the statistics."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from monitor import wire
from monitor.agent.arrivals import WatchedLoop
from monitor.agent.failures import ADVICE
from monitor.agent.probe import Prober
from monitor.cli import dry_run as dry
from monitor.cli import env_proxy, terminal
from monitor.cli.leaving import leave
from monitor.cli.screen import Screen
from monitor.cli.waterfall import waterfall
from monitor.clock import Clock
from monitor.config import Config, InvalidConfig, kinds, load
from monitor.config.files import is_pem
from monitor.config.mistake import listed
from monitor.config.shape import MAX_PROMPT
from monitor.model import (
    AddressFamily,
    Attempt,
    ConnectionPolicy,
    DialectName,
    MonitorError,
    Outcome,
    Probe,
    Purpose,
    Secret,
    Series,
    Slot,
    Target,
    Vantage,
)

DEFAULT_PROMPT = "Count from one to twenty in words, separated by commas."

_Show = Callable[[Attempt, Series], None]
UNPLANNED_SECONDS = 60.0
"""No slot follows a one-off attempt: that much room for what comes after it (`control`)."""


class UsageError(MonitorError):
    """The command line asks for something that cannot be done."""


class HttpVersion(StrEnum):
    ONE = "1.1"
    TWO = "2"


_URL, _FILE = "With --url", "With a configuration file"
"""Headings of the help. An option under one of them is refused with the other."""

_SECONDS = "SECONDS"
_DIALECTS = ", ".join(DialectName)


def probe(
    context: typer.Context,
    config: Annotated[Path | None, typer.Argument(help="Configuration file; not needed with --url.")] = None,
    url: Annotated[str | None, typer.Option(help="Base URL as the vendor's SDK takes it: https://host/v1")] = None,
    vantage: Annotated[
        str | None, typer.Option(envvar="FIRSTTOKEN_VANTAGE", help="The vantage point that this machine is.")
    ] = None,
    target: Annotated[str | None, typer.Option(rich_help_panel=_FILE, help="Only this target of the file.")] = None,
    name: Annotated[
        str | None, typer.Option("--probe", rich_help_panel=_FILE, help="Only this probe of the file.")
    ] = None,
    dialect: Annotated[
        DialectName | None,
        typer.Option(metavar="NAME", rich_help_panel=_URL, help=f"Wire protocol of the URL; required: {_DIALECTS}."),
    ] = None,
    model: Annotated[str | None, typer.Option(rich_help_panel=_URL, help="Model to ask for; required.")] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel=_URL, help="Environment variable that holds the API key."),
    ] = None,
    prompt: Annotated[str, typer.Option(rich_help_panel=_URL, help="What to ask.")] = DEFAULT_PROMPT,
    max_output_tokens: Annotated[
        int, typer.Option(min=1, max=16_384, metavar="N", rich_help_panel=_URL, help="Cap on generated tokens.")
    ] = 64,
    deadline: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar=_SECONDS, rich_help_panel=_URL, help="For the whole attempt.")
    ] = 60.0,
    first_token_deadline: Annotated[
        float | None,
        typer.Option(min=0.1, max=3600, metavar=_SECONDS, rich_help_panel=_URL, help="Until the first token."),
    ] = None,
    connect_timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar=_SECONDS, rich_help_panel=_URL, help="From name lookup to TLS.")
    ] = 10.0,
    stall: Annotated[
        float,
        typer.Option(min=0.1, max=3600, metavar=_SECONDS, rich_help_panel=_URL, help="Of silence between tokens."),
    ] = 15.0,
    connection: Annotated[
        ConnectionPolicy, typer.Option(rich_help_panel=_URL, help="A new connection each time, or a kept one.")
    ] = ConnectionPolicy.FRESH,
    control: Annotated[
        bool,
        typer.Option("--control", rich_help_panel=_URL, help="Also measure the road without a model, afterwards."),
    ] = False,
    bare: Annotated[
        bool,
        typer.Option("--no-nonce", rich_help_panel=_URL, help="No unique word before the prompt, against its caches."),
    ] = False,
    http: Annotated[HttpVersion, typer.Option(rich_help_panel=_URL, help="HTTP version to offer.")] = HttpVersion.ONE,
    family: Annotated[
        AddressFamily, typer.Option(rich_help_panel=_URL, help="Which addresses may be used.")
    ] = AddressFamily.AUTO,
    ca_file: Annotated[
        Path | None, typer.Option(rich_help_panel=_URL, help="Certificates to trust besides the system's.")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(rich_help_panel=_URL, help="http://host:port of an HTTP CONNECT proxy.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many attempts, one after the other.")] = 1,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the request with secrets masked, and its price if known; send nothing."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    user_clock: Annotated[bool, typer.Option("--user-clock", help="Do without the kernel's arrival stamps.")] = False,
) -> None:
    """Ask once, now, and show where the time went: by a configuration file, or by --url with --dialect and --model.

    With --dry-run: show what would be asked, and ask nothing.

    Exit code 0: every attempt succeeded; 1: one failed; 2: bad usage or configuration.
    """
    if url is not None:
        if config is not None:
            raise UsageError("give either a configuration file or --url, not both")
        _refuse_given(context, _FILE, "only with a configuration file, not with --url")
        asked_model, asked_dialect = _required(model, dialect)
        _check_as_of_a_file(context, deadline)
        ad_hoc = Probe(
            name="one-off",
            prompt=prompt,
            max_output_tokens=max_output_tokens,
            interval_seconds=deadline + UNPLANNED_SECONDS,
            deadline_seconds=deadline,
            first_token_deadline_seconds=first_token_deadline,
            connect_timeout_seconds=connect_timeout,
            stall_seconds=stall,
            connection=connection,
            control=control,
            nonce=not bare,
        )
        asked = Target(
            name=urlsplit(_checked_url(url)).hostname or "target",
            provider="unknown",
            model=asked_model,
            dialect=asked_dialect,
            url=url,
            api_key=_api_key(api_key_env),
            http_version=http.value,
            address_family=family,
            ca_file=_readable(ca_file),
        )
        here = Vantage(name=vantage or "here", proxy=_checked_proxy(proxy))
        chosen = [Series(vantage=here, target=asked, probe=ad_hoc)]
    else:
        if config is not None:
            _refuse_given(context, _URL, "only with --url; here the configuration file says it")
        chosen = _from_file(config, target, name, vantage)
    notice = env_proxy.ignored(chosen)
    if notice is not None:
        terminal.say(f"note: {notice}", err=True)
    if dry_run:
        dry.show(chosen, as_json=as_json)
        return
    show = _print_json if as_json else _print_waterfall
    try:
        with asyncio.Runner(loop_factory=WatchedLoop) as runner:
            good = runner.run(_run_all(chosen, count, user_clock, show))
    except KeyboardInterrupt:
        leave(130)
    leave(0 if good else 1)


def _refuse_given(context: typer.Context, panel: str, why: str) -> None:
    """Options of the other way to probe would have no effect: each that was typed is named."""
    typed = [
        parameter.opts[0]
        for parameter in context.command.params
        if getattr(parameter, "rich_help_panel", None) == panel
        and (source := context.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
    ]
    if typed:
        raise UsageError(f"{listed(typed)}: {why}")


def _from_file(config: Path | None, target: str | None, name: str | None, vantage: str | None) -> list[Series]:
    if config is None:
        raise UsageError("nothing to probe: give a configuration file, or --url with --dialect and --model")
    loaded = load(config, allow_missing_secrets=True)
    series = [one for here in loaded.select_vantages(vantage) for one in loaded.series(here.name)]
    chosen = [s for s in series if target in (None, s.target.name) and name in (None, s.probe.name)]
    if not chosen:
        asked = " ".join(f"{option} {value}" for option, value in (("--target", target), ("--probe", name)) if value)
        offered = ", ".join(sorted({f"{s.target.name}/{s.probe.name}" for s in series})) or "none"
        raise UsageError(f"no series of {config} fits {asked or 'this vantage point'}; there are: {offered}")
    _refuse_without_secrets(loaded, chosen)
    return chosen


def _refuse_without_secrets(loaded: Config, chosen: list[Series]) -> None:
    """Only what is asked needs its secrets here."""
    needed = tuple(
        {f"targets.{one.target.name}." for one in chosen} | {f"vantages.{one.vantage.name}." for one in chosen}
    )
    missing = [mistake for mistake in loaded.missing_secrets if mistake.key.startswith(needed)]
    if missing:
        raise InvalidConfig(missing)


def _required(model: str | None, dialect: DialectName | None) -> tuple[str, DialectName]:
    if model is None or dialect is None:
        missing = [option for option, value in (("--dialect", dialect), ("--model", model)) if value is None]
        raise UsageError(f"--url needs {' and '.join(missing)}")
    return model, dialect


def _check_as_of_a_file(context: typer.Context, deadline: float) -> None:
    """What a configuration file may not say, nobody means on the command line either."""
    for name, kind in (("model", kinds.text(200)), ("prompt", kinds.prompt(MAX_PROMPT))):
        try:
            kind.parse(context.params[name])
        except ValueError:
            raise UsageError(f"--{name}: allowed is {kind.allowed}") from None
    for name in ("first_token_deadline", "connect_timeout", "stall"):
        value, source = context.params[name], context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and value > deadline:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option}: {value:g} s is longer than the deadline of {deadline:g} s")


_URL_WANTED = "--url: allowed is a base URL such as https://host/v1 or http://127.0.0.1:8080/v1"


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not _is_plain(url):
        raise UsageError(_URL_WANTED)
    if parts.username or parts.password:
        raise UsageError("--url must not contain a user or password; give the key by --api-key-env")
    try:
        kinds.URL.parse(url)
    except kinds.Refused as error:
        raise UsageError(f"--url: allowed is {error}; here: --api-key-env") from None
    except ValueError:
        raise UsageError(_URL_WANTED) from None
    return url


def _is_plain(url: str) -> bool:
    """No blanks and nothing that cannot be seen: urlsplit would pass over some of it."""
    return url.isprintable() and not any(letter.isspace() for letter in url)


def _checked_proxy(proxy: str | None) -> str | None:
    if proxy is None:
        return None
    try:
        parts = urlsplit(proxy)
        good = parts.scheme == "http" and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        good = False
    if not good or parts.username is not None or parts.path not in ("", "/") or not _is_plain(proxy):
        raise UsageError("--proxy: allowed is http://host:port of an HTTP proxy that takes CONNECT, without a password")
    return proxy


def _api_key(variable: str | None) -> Secret | None:
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise UsageError(f"--api-key-env {variable}: this environment variable is not set")
    return Secret(value)


def _readable(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise UsageError(f"--ca-file {path}: no such file")
    if not is_pem(path):
        raise UsageError(f"--ca-file {path}: it cannot be read, or holds no certificate: a PEM file is needed")
    return str(path)


async def _run_all(chosen: list[Series], count: int, user_clock: bool, show: _Show) -> bool:
    clock = Clock()
    prober = Prober(clock, max_concurrent=4, kernel_stamps=not user_clock)
    await prober.start()
    good = True
    try:
        for number in range(count):
            for series in chosen:
                slot = _slot(series, number, clock)
                attempt = await prober.run(slot, series, purpose=Purpose.ONE_OFF)
                show(attempt, series)
                good = good and attempt.outcome is Outcome.SUCCESS
    finally:
        await prober.close()
    return good


def _slot(series: Series, number: int, clock: Clock) -> Slot:
    return Slot(
        vantage=series.vantage.name,
        target=series.target.name,
        probe=series.probe.name,
        scheduled_at=clock.now(),
        number=number,
    )


def _print_json(attempt: Attempt, series: Series) -> None:
    report = wire.report(attempt, series)
    if attempt.failure is not None:
        report["advice"] = ADVICE[attempt.failure.kind]
    terminal.say_json(report)


def _print_waterfall(attempt: Attempt, series: Series) -> None:
    Screen(highlight=False, soft_wrap=False).print(waterfall(attempt, series))
