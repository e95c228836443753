"""What an agent says about slots that became no rows: its plan, and what it passed over, slept through or lost.

Notes travel beside the attempts (`wire.encode_note`), each with an id of its own agent, so that saying one twice
changes nothing. Coverage is derived from them: what the plan owed, minus rows, minus notes (`detect/coverage.py`).
Instants are those of the agent's own clock, as the slots' are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from monitor.grid import Grid


class NoteKind(StrEnum):
    PLAN = "plan"
    GAP = "gap"
    OUTAGE = "outage"
    LOST = "lost"


class OutageReason(StrEnum):
    """Why an agent did not run."""

    AGENT_OFF = "agent_off"  # stopped, or killed: the machine ran on
    POWER = "power"  # the machine itself was off


class LossReason(StrEnum):
    """Why attempts that were made will never arrive."""

    SPOOL_FULL = "spool_full"
    SPOOL_AGE = "spool_age"
    SPOOL_CORRUPT = "spool_corrupt"
    DISK_FULL = "disk_full"
    REJECTED = "rejected"  # by the hub or the store, for good


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSeries:
    """One series of a plan."""

    grid: Grid
    probe_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNote:
    """Behind `at`, exactly these grids are walked: the slots strictly after it, until the agent's next plan."""

    id: int
    at: datetime
    series: tuple[PlannedSeries, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapNote:
    """Slots of one series that were passed over on purpose: the first, the last, and how many."""

    id: int
    target: str
    probe: str
    first_at: datetime
    last_at: datetime
    slots: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageNote:
    """The agent did not run: from its last mark of being alive to its start."""

    id: int
    begin: datetime
    until: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNote:
    """Attempts that were made and are gone, between the first and the last slot; no names: of any series."""

    id: int
    target: str | None
    probe: str | None
    first_at: datetime
    last_at: datetime
    slots: int
    reason: str


Note = PlanNote | GapNote | OutageNote | LostNote
