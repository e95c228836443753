"""Attempts for slots that were not measured: missed ones, and those that a defect of ours spoilt."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from monitor.model import Attempt, Failure, FailureKind, MissReason, Outcome, Series, Slot
from monitor.timeline import Phase


def missed(slot: Slot, series: Series, reason: MissReason, now: datetime, try_number: int = 0) -> Attempt:
    """The record of a slot that was passed over at `now`."""
    return replace(_record(slot, series, now, Outcome.MISSED, reason=reason), try_number=try_number)


def broken(slot: Slot, series: Series, error: Exception, now: datetime) -> Attempt:
    """The record of a slot whose attempt raised; the error's text stays in the log, as it may hold anything."""
    text = f"First Token itself failed ({type(error).__name__}); the log has the details"
    failure = Failure(kind=FailureKind.INTERNAL, phase=Phase.RESOLVE, text=text)
    return _record(slot, series, now, Outcome.FAILED, failure=failure)


def _record(
    slot: Slot,
    series: Series,
    now: datetime,
    outcome: Outcome,
    *,
    reason: MissReason | None = None,
    failure: Failure | None = None,
) -> Attempt:
    return Attempt(
        vantage=slot.vantage,
        target=slot.target,
        probe=slot.probe,
        probe_version=series.probe.version,
        scheduled_at=slot.scheduled_at,
        started_at=now,
        outcome=outcome,
        missed=reason,
        failure=failure,
    )
