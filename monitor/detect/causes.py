"""The causes of missed slots in words: what happened, and what an operator does about it; docs/coverage.md as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monitor.detect.coverage import LOST, OTHER, UNSENT
from monitor.model import MissReason
from monitor.notes import LossReason, OutageReason


@dataclass(frozen=True, slots=True)
class Words:
    """One cause."""

    short: str  # a few words, to stand behind a number of slots
    advice: str  # one or two sentences


CAUSE_WORDS: Mapping[str, Words] = {
    MissReason.OVERLAP: Words(
        "the attempt before still ran",
        "Answers take longer than the interval allows: lengthen the probe's interval or shorten its deadline.",
    ),
    MissReason.LATE: Words(
        "too late to start",
        "The machine slept, was too busy, or its clock stepped: look at loop lag and at the machine's time service.",
    ),
    MissReason.CAPACITY: Words(
        "no free place under limits",
        "Raise limits.max_concurrent or the provider's limit, or give probes longer intervals.",
    ),
    MissReason.BUDGET: Words(
        "a daily cap was reached",
        "Raise the budget, or ask for less: fewer probes, longer intervals, shorter answers.",
    ),
    MissReason.RETRY_AFTER: Words(
        "the provider asked for a pause",
        "It answered 429 with Retry-After: lower limits.per_minute for it, or ask it for a higher rate.",
    ),
    MissReason.PAUSED: Words("probing was paused", "Somebody paused it; resume it when the reason is over."),
    MissReason.SHUTDOWN: Words(
        "the agent was being stopped",
        "Slots that fell into a stop or restart; a few at each upgrade are usual.",
    ),
    OutageReason.AGENT_OFF: Words(
        "the agent did not run",
        "The machine ran on without it: look at the service's state and log, and at what stopped it.",
    ),
    OutageReason.POWER: Words(
        "the machine was off",
        "It was booted again afterwards: look at its power, or at reboots of its host.",
    ),
    LossReason.SPOOL_FULL: Words(
        "the spool was full",
        "The hub was away for longer than the spool holds: raise spool.max_bytes, and look at the line.",
    ),
    LossReason.SPOOL_AGE: Words(
        "too old in the spool",
        "The hub was away for longer than spool.max_age: raise it, and look at the line.",
    ),
    LossReason.SPOOL_CORRUPT: Words(
        "the spool file was broken",
        "It was set aside beside the new one: look at the disk, and at power cuts.",
    ),
    LossReason.DISK_FULL: Words("the disk was full", "Make room on the agent's disk."),
    LossReason.REJECTED: Words(
        "refused by the hub",
        "The agent's log says why; the rows themselves are set aside in its spool.",
    ),
    UNSENT: Words(
        "not delivered yet",
        "The agent may still have them: look at when it was last seen, at its line, and at its spool.",
    ),
    LOST: Words(
        "lost without a trace",
        "The agent has nothing more to send, or has been silent for a week: its disk or state folder is gone, "
        "or there is a defect of ours.",
    ),
    OTHER: Words("another reason", "The agent named a cause that this version does not know: upgrade the older one."),
}
