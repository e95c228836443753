"""Wall and monotonic time, handed in: the only module that asks the operating system for the time.

Durations come from the monotonic clock in integer nanoseconds; each attempt has one UTC anchor. Kernel
arrival stamps are wall time, so `Clock.offset_ns` says how far the wall stands from the monotonic clock now.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

NS = 1_000_000_000


class Clock:
    """The machine's clocks. `ManualClock` is the stand-in that tests hand in instead."""

    def monotonic_ns(self) -> int:
        """Nanoseconds of the monotonic clock; only differences mean anything."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, UTC; may step."""
        return time.time_ns()

    @property
    def correction_ns(self) -> int:
        """What `wall_ns` adds to the machine's own wall clock, in which the kernel stamps."""
        return 0

    def offset_ns(self) -> int:
        """The machine's own wall minus monotonic, as exact as two adjacent readings allow (best of three)."""
        best_width, best = None, 0
        for _ in range(3):
            before = self.monotonic_ns()
            wall = self.wall_ns()
            after = self.monotonic_ns()
            if best_width is None or after - before < best_width:
                best_width, best = after - before, wall - (before + after) // 2
        return best - self.correction_ns

    def now(self) -> datetime:
        """The wall clock as an aware UTC datetime (microseconds)."""
        return instant(self.wall_ns())


class CorrectedClock(Clock):
    """The machine's clocks, the wall clock put right by somebody who knows better."""

    def __init__(self) -> None:
        self._correction_ns = 0

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, UTC, corrected."""
        return time.time_ns() + self._correction_ns

    @property
    def correction_ns(self) -> int:
        """See `Clock`."""
        return self._correction_ns

    @property
    def correction_seconds(self) -> float:
        """What is added to the machine's wall clock."""
        return self._correction_ns / NS

    def correct(self, seconds: float) -> None:
        """Add this to the machine's wall clock from now on."""
        self._correction_ns = round(seconds * NS)


class ManualClock(Clock):
    """A clock that moves only when told: for tests of everything that depends on time."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._wall_ns = wall_ns(start)
        self._monotonic_ns = 1_000 * NS

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        step = round(seconds * NS)
        self._monotonic_ns += step
        self._wall_ns += step

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock alone, as an administrator or a bad NTP server does."""
        self._wall_ns += round(seconds * NS)


def boot_id() -> str:
    """Which boot of this machine we are in; empty where the system does not say (only Linux does)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123  # nothing else is read
            return file.read().strip()
    except OSError:
        return ""


def instant(wall_nanoseconds: int) -> datetime:
    """Nanoseconds since the epoch -> aware UTC datetime, rounded down to a microsecond, without float error."""
    seconds, rest = divmod(wall_nanoseconds, NS)
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=rest // 1000)


def wall_ns(moment: datetime) -> int:
    """Aware datetime -> nanoseconds since the epoch, exactly."""
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * NS + delta.microseconds * 1000
