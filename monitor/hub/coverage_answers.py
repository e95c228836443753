"""Questions about coverage as people spell them, and answers as JSON and CSV: for the read API and the terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from monitor import wire
from monitor.config.kinds import parse_duration
from monitor.detect.causes import CAUSE_WORDS
from monitor.detect.coverage import CAUSES, Tally
from monitor.model import MonitorError
from monitor.store.coverage import LONGEST, Covered, grouped, simulated

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
BY = ("vantage", "target", "probe", "hour")


class BadQuestion(MonitorError):
    """The question cannot be understood; the message says how to ask."""


@dataclass(frozen=True, slots=True)
class Question:
    """A range, a selection and a grouping."""

    since: datetime
    until: datetime
    vantage: str | None
    target: str | None
    by: tuple[str, ...]

    @classmethod
    def read(
        cls, now: datetime, since: str, until: str | None, vantage: str | None, target: str | None, by: str
    ) -> Question:
        """Raises BadQuestion."""
        names = tuple(name.strip() for name in by.split(",") if name.strip())
        if not set(names) <= set(BY) or len(set(names)) != len(names):
            raise BadQuestion(f"by: a list of {', '.join(BY)}, each once")
        end = now if until is None else read_moment("until", until, now)
        begin = read_moment("since", since, end)
        if not begin < end:
            raise BadQuestion("since: must be before until")
        if end - begin > LONGEST:
            raise BadQuestion(f"since: at most {LONGEST.days} days before until")
        return cls(begin, end, vantage, target, names)


def read_moment(name: str, given: str, end: datetime) -> datetime:
    """An RFC 3339 instant, or a duration such as 24h before `end`. Raises BadQuestion."""
    try:
        moment = _moment(given, end)
    except OverflowError:
        moment = datetime.min.replace(tzinfo=UTC)
    if moment is None:
        raise BadQuestion(f"{name}: {given[:40]!r} is neither a duration such as 24h nor an instant with its time zone")
    if not EARLIEST <= moment <= LATEST:
        raise BadQuestion(f"{name}: must lie between {EARLIEST.year} and {LATEST.year}")
    return moment


def _moment(given: str, end: datetime) -> datetime | None:
    """None for what is neither; raises OverflowError for what no calendar has."""
    try:
        return end - timedelta(seconds=parse_duration(given))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(given.replace(" ", "+"))  # a "+" that was not percent-encoded
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo is not None else None


def as_json(asked: Question, found: Sequence[Covered]) -> bytes:
    """The body of a `CoverageAnswer`."""
    total = grouped(found).get((), Tally())
    pretended = simulated(found, *asked.by)
    rows = [
        _row({**dict(zip(asked.by, key, strict=True)), "simulated": key in pretended}, tally)
        for key, tally in grouped(found, *asked.by).items()
    ]
    body = {
        "since": wire.rfc3339(asked.since),
        "until": wire.rfc3339(asked.until),
        "total": _row({"simulated": bool(simulated(found))}, total),
        "rows": rows if asked.by else [],
        "causes": {cause: {"short": words.short, "advice": words.advice} for cause, words in CAUSE_WORDS.items()},
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _row(names: Mapping[str, object], tally: Tally) -> dict[str, Any]:
    named = {key: wire.rfc3339(value) if isinstance(value, datetime) else value for key, value in names.items()}
    return {
        **named,
        "owed": tally.owed,
        "measured": tally.measured,
        "share": tally.share,
        "missed": {cause: tally.missed[cause] for cause in CAUSES if tally.missed[cause]},
        "pending": tally.pending,
        "repeated": tally.repeated,
        "unplanned": tally.unplanned,
    }


def as_csv(asked: Question, found: Sequence[Covered]) -> bytes:
    """One line for each group, one column for each cause."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\r\n")
    lines.writerow([*asked.by, "simulated", "owed", "measured", "share", *CAUSES, "pending", "repeated", "unplanned"])
    pretended = simulated(found, *asked.by)
    for key, tally in grouped(found, *asked.by).items():
        names = [wire.rfc3339(value) if isinstance(value, datetime) else plain(str(value)) for value in key]
        names.append("true" if key in pretended else "false")
        share = "" if tally.share is None else f"{tally.share:.6f}"
        counts = [tally.missed[cause] for cause in CAUSES]
        lines.writerow(
            [*names, tally.owed, tally.measured, share, *counts, tally.pending, tally.repeated, tally.unplanned]
        )
    return out.getvalue().encode()


def plain(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name
