"""The live table of the terminal: the latest attempts as a matrix of targets and vantage points, and as lines.

Hides rich. Fed with attempts as they are stored, it keeps the last few of each pair and nothing else, so its memory
is bounded by the configuration. One thread may feed it while another renders: rendering works on copies. Says of each
number what it is: seconds to the first token, as measured; `slow` compares an attempt with the median of its own
pair, and claims no cause.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from monitor.model import Attempt, Outcome, Series, Target, Vantage
from monitor.timeline import Phase

KEPT = 24
"""Attempts kept of each pair: the width of a sparkline, and what the median is taken over."""
RECENT = 6
SLOW_FACTOR = 2.0
BARS = "▁▂▃▄▅▆▇█"
FAILED_BAR = "x"
SLOW = "slow"
LEGEND = "slow: over 2 x the median, a cold start or a queue. Trend: x failed or missed."
STATE_STYLES = {"ok": "green", "slow": "yellow", "missed": "dim", "waiting": "dim"}


@dataclass(slots=True)
class Pair:
    """The last attempts of one vantage point at one target, oldest first."""

    attempts: deque[Attempt] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def median(self) -> float | None:
        """Median seconds to first token of the successes before the last attempt, None without any."""
        times = [a.timeline.ttft for a in list(self.attempts)[:-1] if a.timeline.ttft is not None and not a.failure]
        return statistics.median(times) if times else None

    @property
    def state(self) -> str:
        """`ok`, `slow`, `missed`, `waiting`, or the kind of the last attempt's failure."""
        if self.last is None:
            return "waiting"
        if self.last.outcome is Outcome.MISSED:
            return "missed"
        if self.last.failure:
            return str(self.last.failure.kind)
        ttft, median = self.last.timeline.ttft, self.median
        return SLOW if ttft and median and ttft > SLOW_FACTOR * median else "ok"

    def spark(self, width: int) -> str:
        """The last `width` times to first token as bars, on a scale from zero to the largest; failures as crosses."""
        shown = list(self.attempts)[-width:]
        top = max((a.timeline.ttft or 0.0 for a in shown), default=0.0) or 1.0
        return "".join(_bar(attempt, top) for attempt in shown)


def _bar(attempt: Attempt, top: float) -> str:
    ttft = attempt.timeline.ttft
    if attempt.outcome is not Outcome.SUCCESS or ttft is None:
        return FAILED_BAR
    return BARS[min(len(BARS) - 1, int(ttft / top * len(BARS)))]


class Board:
    """What the terminal shows of a running station."""

    def __init__(self, series: Sequence[Series], page: str) -> None:
        """`page`: the URL of the live page."""
        self._vantages: dict[str, Vantage] = {one.vantage.name: one.vantage for one in series}
        self._targets: dict[str, Target] = {one.target.name: one.target for one in series}
        self._pairs = {(one.vantage.name, one.target.name): Pair() for one in series}
        self._recent: deque[tuple[Attempt, str]] = deque(maxlen=RECENT)
        self._page = page
        self.taken = 0
        self.troubles: tuple[str, ...] = ()  # sentences about our own parts, shown until they are taken away

    def take(self, attempt: Attempt) -> str:
        """Show one more attempt; those of series that the board does not know are left out.

        Returns the word for it (see `LEGEND`), for `line`; empty for one like those before it.
        """
        pair = self._pairs.get((attempt.vantage, attempt.target))
        if pair is None:
            return ""
        pair.attempts.append(attempt)
        word = _word(pair)
        self._recent.append((attempt, word))
        self.taken += 1
        return word

    def render(self, width: int) -> RenderableType:
        """The whole board for a terminal of `width` columns."""
        troubles = [Text(trouble, style="yellow") for trouble in self.troubles]
        recent = sorted(self._recent.copy(), key=lambda one: ended_at(one[0]))
        lines = [self.line(attempt, word) for attempt, word in recent]
        return Group(self._heading(), *troubles, self._matrix(width), Text(LEGEND, style="dim"), *lines)

    def _heading(self) -> Text:
        return Text.assemble(
            ("First Token", "bold"), "  page ", (self._page, "cyan underline"), "  metrics ",
            (self._page + "metrics", "cyan"), f"  {self.taken} attempts  Ctrl-C ends it all",
        )  # fmt: skip

    def _matrix(self, width: int) -> Table:
        table = Table(title="Seconds to the first token: last, median, trend", title_justify="left", expand=True)
        table.add_column("target", no_wrap=True)
        for vantage in self._vantages.values():
            table.add_column(_titled(vantage.name, simulated=vantage.simulated))
        bars = max(4, min(KEPT, (width - 24) // max(1, len(self._vantages)) - 12))
        for name, target in self._targets.items():
            cells = [self._cell((vantage, name), bars) for vantage in self._vantages]
            table.add_row(_titled(name, simulated=target.simulated), *cells)
        return table

    def _cell(self, key: tuple[str, str], bars: int) -> Text:
        pair = self._pairs.get(key)
        if pair is None:
            return Text("")
        state, last = pair.state, pair.last
        style = STATE_STYLES.get(state, "red")
        ttft = last.timeline.ttft if last else None
        word = "" if state == "ok" else state
        return Text.assemble(
            (f"{_shown(ttft):<6}", style), (word, style), "\n",
            (f"{_shown(pair.median):<6}", "dim"), (pair.spark(bars), style),
        )  # fmt: skip

    def line(self, attempt: Attempt, word: str = "") -> Text:
        """One attempt as one line, with when it ended, its way there and what `take` called it."""
        vantage, target = self._vantages.get(attempt.vantage), self._targets.get(attempt.target)
        simulated = (vantage and vantage.simulated) or (target and target.simulated)
        return Text(
            f"{ended_at(attempt):%H:%M:%S}Z {attempt.vantage} -> {attempt.target}"
            f"{' (simulated)' if simulated else ''}: {f'{word}: ' if word else ''}{describe(attempt)}",
            style="red" if attempt.outcome is not Outcome.SUCCESS else "yellow" if word.startswith(SLOW) else "",
        )


def ended_at(attempt: Attempt) -> datetime:
    """When it was over: lines in this order are in the order in which they came."""
    return attempt.started_at + timedelta(microseconds=attempt.timeline.lasted_ns // 1000)


def _word(pair: Pair) -> str:
    last = pair.last
    if last is not None and last.try_number:
        return "second try"
    if pair.state != SLOW or last is None or last.timeline.ttft is None or not pair.median:
        return ""
    return f"{SLOW}, {last.timeline.ttft / pair.median:.1f} x the usual, cold start or queue"


def describe(attempt: Attempt) -> str:
    """What came of an attempt, in one line without its place."""
    if attempt.outcome is Outcome.MISSED:
        return f"missed ({attempt.missed})"
    if attempt.failure:
        return f"failed in {attempt.failure.phase}: {attempt.failure.kind}: {attempt.failure.text}"
    steps = (Phase.RESOLVE, Phase.CONNECT, Phase.TLS, Phase.SEND, Phase.WAIT)
    road = [(step, attempt.timeline.phase(step)) for step in steps]
    parts = ", ".join(f"{step} {_shown(taken)}" for step, taken in road if taken is not None and taken >= 0.0005)
    return f"first token {_shown(attempt.timeline.ttft)} s ({parts}), all {_shown(attempt.timeline.total)} s"


def _titled(name: str, *, simulated: bool) -> Text:
    return Text.assemble(name, ("\nsimulated", "dim") if simulated else ("\nreal", "bold"))


def _shown(seconds: float | None) -> str:
    """Three digits that matter: 0.071, 0.612, 12.3."""
    if seconds is None:
        return "-"
    return f"{seconds:.3f}" if seconds < 10 else f"{seconds:.1f}"
