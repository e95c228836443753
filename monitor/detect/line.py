"""Whether a vantage point's own line works, from what it saw of neutral endpoints: for attribution, and for people.

A pure function. An endpoint votes with its newest looks: *failing* when the last two failed, *slow* when the median of
the last few is well above its own median of the day before. Votes expire, so that silence is no vote; one endpoint is
one stranger's machine, so nothing is said of the line by fewer than two.

- `down`: two thirds of the voters fail, and two at least;
- `degraded`: half of the voters fail or are slow, and two at least;
- `up`: neither; `unknown`: fewer than two voters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from math import ceil
from statistics import median

from monitor.timeline import Phase
from monitor.witness import Sighting

MIN_VOTERS = 2
DOWN_SHARE = 2 / 3
DEGRADED_SHARE = 1 / 2
LOOKS_TO_FAIL = 2
LOOKS_NOW = 5
LOOKS_OF_NORMAL = 20
VOTE_INTERVALS = 3
"""A vote holds for so many intervals: one look may be lost, and another be late."""
NORMAL = timedelta(hours=24)
SLOW_FACTOR = 1.5
SLOW_SECONDS = 0.03
"""Both: half as much again is nothing on a line of 2 ms, and 30 ms are nothing on one of a second."""


class LineState(StrEnum):
    UP = "up"
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line of one vantage point at one instant."""

    state: LineState
    voters: int = 0  # endpoints that have something to say
    failing: tuple[str, ...] = ()  # their names
    slow: tuple[str, ...] = ()
    since: datetime | None = None  # of `down`: when as many failed as it takes; as far as the looks go back


@dataclass(frozen=True, slots=True)
class _Vote:
    endpoint: str
    failing_since: datetime | None = None
    slow: bool = False


def line(sightings: Iterable[Sighting], at: datetime, interval: timedelta = timedelta(minutes=1)) -> Line:
    """The line at an instant, from the looks of one vantage point during the day before it, in any order.

    `interval` is the time between two looks at an endpoint. Looks that are not valid tell of the machine and count for
    nothing; so do looks at what an endpoint's name meant before its address was changed.
    """
    votes = [vote for looks in _by_endpoint(sightings, at) if (vote := _vote(looks, at, interval)) is not None]
    failing = [vote for vote in votes if vote.failing_since is not None]
    slow = [vote for vote in votes if vote.slow]
    down_needs = max(MIN_VOTERS, DOWN_SHARE * len(votes))
    if len(votes) < MIN_VOTERS:
        state = LineState.UNKNOWN
    elif len(failing) >= down_needs:
        state = LineState.DOWN
    elif len(failing) + len(slow) >= max(MIN_VOTERS, DEGRADED_SHARE * len(votes)):
        state = LineState.DEGRADED
    else:
        state = LineState.UP
    began = sorted(vote.failing_since for vote in failing if vote.failing_since is not None)
    return Line(
        state=state,
        voters=len(votes),
        failing=tuple(vote.endpoint for vote in failing),
        slow=tuple(vote.endpoint for vote in slow),
        since=began[ceil(down_needs) - 1] if state is LineState.DOWN else None,
    )


def _by_endpoint(sightings: Iterable[Sighting], at: datetime) -> list[list[Sighting]]:
    """The looks that count, newest first, of each endpoint."""
    of: dict[str, list[Sighting]] = {}
    for one in sightings:
        if one.valid and at - NORMAL <= one.started_at <= at:
            of.setdefault(one.endpoint, []).append(one)
    for looks in of.values():
        looks.sort(key=lambda one: one.started_at, reverse=True)
    return [[one for one in looks if one.address == looks[0].address] for _, looks in sorted(of.items())]


def _vote(looks: Sequence[Sighting], at: datetime, interval: timedelta) -> _Vote | None:
    """What an endpoint says; None when its newest look is too old."""
    if looks[0].started_at < at - VOTE_INTERVALS * interval:
        return None
    failed = list(takewhile(lambda one: not one.up, looks))
    if len(failed) >= LOOKS_TO_FAIL:
        return _Vote(looks[0].endpoint, failing_since=failed[-1].started_at)
    return _Vote(looks[0].endpoint, slow=_is_slow(looks, at, interval))


def _is_slow(looks: Sequence[Sighting], at: datetime, interval: timedelta) -> bool:
    """Whether the newest looks took far longer than those of the day before them."""
    reached = [one for one in looks if one.up]
    now, before = reached[:LOOKS_NOW], reached[LOOKS_NOW:]
    recent = [one for one in now if one.started_at >= at - (LOOKS_NOW + VOTE_INTERVALS) * interval]
    if len(recent) < LOOKS_TO_FAIL or len(before) < LOOKS_OF_NORMAL:
        return False
    takes, took = median(map(_road, recent)), median(map(_road, before))
    return takes > SLOW_FACTOR * took and takes - took > SLOW_SECONDS


def _road(one: Sighting) -> float:
    """Seconds on the line: without the name lookup, whose answer may come from a memory, unless that is all."""
    road = sum(seconds for phase, seconds in one.seconds.items() if phase is not Phase.RESOLVE)
    return road or one.lasted
