"""Which limit an attempt has now: connecting, the first token, silence between tokens, the whole."""

from __future__ import annotations

import asyncio

from monitor.model import (
    FailureKind,
    Series,
)
from monitor.timeline import Mark

BATCH_SECONDS = 0.25
"""After the first token, arrivals are stamped at once and decoded this often: a wake-up costs more than a token."""


class Deadlines:
    """Which limit holds now, and what it means when it passes.

    Moving a timer for every token would cost more than the token: the timer of the silence is set again only when it
    fires, by the time of the last sign of life.
    """

    def __init__(self, series: Series) -> None:
        self._probe = series.probe
        self._loop = asyncio.get_running_loop()
        self._began = self._alive_at = self._loop.time()
        self._silence: asyncio.TimerHandle | None = None
        self.timer = asyncio.timeout_at(None)
        self.kind = FailureKind.CONNECT_TIMEOUT
        self.seconds = 0.0

    def begin(self) -> None:
        """Start counting: no connection yet."""
        self._until(FailureKind.CONNECT_TIMEOUT, self._probe.connect_timeout_seconds)

    def passed(self, mark: Mark) -> None:
        """The attempt got further: another limit holds."""
        if mark is Mark.SEND_START:
            first = self._probe.first_token_deadline_seconds
            limit = self._probe.deadline_seconds if first is None else first
            self._until(FailureKind.FIRST_TOKEN_DEADLINE, limit)
        elif mark is Mark.FIRST_TOKEN:
            self._until(FailureKind.TOTAL_DEADLINE, self._probe.deadline_seconds, grace=BATCH_SECONDS)
            self.alive()
            self._watch_silence()

    def alive(self) -> None:
        """Something came after the first token: silence is counted from now."""
        self._alive_at = self._loop.time()

    def finished(self) -> None:
        """The answer is over; what remains is bounded elsewhere."""
        self.timer.reschedule(None)
        self.stop()

    def left(self) -> float:
        """Seconds of the whole attempt's deadline that are left; negative when it has passed."""
        return self._began + self._probe.deadline_seconds - self._loop.time()

    def left_for_control(self) -> float:
        """Seconds that what comes after the attempt may take.

        Slots of a series are never closer than half-way between deadline and interval (see `grid`): there it ends.
        """
        return self.left() + (self._probe.interval_seconds - self._probe.deadline_seconds) / 2

    def stop(self) -> None:
        """Watch no more."""
        if self._silence is not None:
            self._silence.cancel()

    def _watch_silence(self) -> None:
        silent_at = self._alive_at + self._probe.stall_seconds
        if self._loop.time() < silent_at:
            self._silence = self._loop.call_at(silent_at, self._watch_silence)
        elif not self.timer.expired():
            self.kind, self.seconds = FailureKind.STALLED, self._probe.stall_seconds
            self.timer.reschedule(self._loop.time())

    def _until(self, kind: FailureKind, limit: float, grace: float = 0.0) -> None:
        total = self._probe.deadline_seconds
        if limit > total or (limit == total and kind is FailureKind.CONNECT_TIMEOUT):
            kind, limit = FailureKind.TOTAL_DEADLINE, total
        self.kind, self.seconds = kind, limit
        self.timer.reschedule(self._began + limit + grace)

    def text(self) -> str:
        """What has just passed, as a sentence."""
        waited = f"{self.seconds:g} s"
        return {
            FailureKind.CONNECT_TIMEOUT: f"no connection within {waited}",
            FailureKind.FIRST_TOKEN_DEADLINE: f"no token within {waited}",
            FailureKind.STALLED: f"the stream fell silent for {waited} between tokens",
        }.get(self.kind, f"the attempt was not over after {waited}")
