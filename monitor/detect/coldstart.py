"""Was the model asleep? One attempt's verdict: cold, warm or unclear.

Hides the rule. What is judged is the server's part of the first token: the road (resolve, connect, TLS and one more
round trip) is taken out, so that a far vantage point is judged like a near one. Where the server itself reports how
long it queued and read the prompt, that is taken out too: what is left can hardly be anything but loading.

The signature of a cold start is that of docs/cold-starts.md: the server's part is far above the series' warm median,
the line was as usual, tokens flowed as usual once they came, and a second attempt sent straight after is warm. When
the second one is slow too, it is overload or a regression. A server that says it loaded, or answers "loading", is
believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from statistics import median

from monitor.model import Attempt, ColdStartRule, Doubt, FailureKind
from monitor.model import VerdictKind as Kind
from monitor.timeline import NS, Mark, Phase

VERSION = 1
"""Of the rule. A verdict of an older version is computed anew."""

USUAL_RULE = ColdStartRule()
ENOUGH = 5
"""Warm samples that make a history to call something slow by; with fewer, the confirming attempt is the control. To
call an attempt warm one is enough: it is as fast as one that is known to have been."""
HISTORY = 20
"""The newest warm samples that are looked at: enough for a median, few enough that a new normal is soon the usual."""
SIGMAS = 5.0
MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
REPORTED_SHARE = 0.5
"""Of the rule's minimum, where the server reports its own times: they leave little noise, and small models load fast.
Measured on llama.cpp with SmolLM2: what it does not account for is 3 to 8 ms warm and 310 to 880 ms cold."""
TRIGGER_SHARE = 0.5
"""Of the same minimum, for the agent's suspicion: it must never be narrower than the verdict."""
LEAST_IDLE_SECONDS = 1.0
"""No service unloads a model within a second (the shortest default known is 5 s): it was asked too lately to sleep."""
SLOW_TOKENS_SECONDS = 0.05
RETRANSMISSION_SECONDS = 0.25
"""What the first lost segment may cost: Linux waits 200 ms at least, then doubles."""

DEADLINES = frozenset({FailureKind.FIRST_TOKEN_DEADLINE, FailureKind.TOTAL_DEADLINE})
OWN_DELAYS = frozenset(
    {Doubt.LOOP_LAG, Doubt.CPU_THROTTLED, Doubt.CPU_STEAL, Doubt.WARM_UP, Doubt.FIRST_TOKEN_COALESCED}
)
"""Doubts that mean "we may have been slow ourselves": they can only lengthen what was measured."""


class Reason(StrEnum):
    """Why a verdict is what it is (closed list)."""

    # cold
    LOADING_ANSWER = "loading_answer"  # it answered "the model is being loaded"
    SERVER_LOAD = "server_load"  # it reported a load time
    SLOW_FIRST_TOKEN = "slow_first_token"  # far above the warm median
    SLOWER_THAN_CONFIRM = "slower_than_confirm"  # far above the second attempt; there is no history yet
    CONFIRM_WARM = "confirm_warm"  # and the second attempt was warm
    CUT_BY_DEADLINE = "cut_by_deadline"  # no first token came: the wait was at least the deadline
    # warm
    IN_BAND = "in_band"  # as usual
    SERVER_ACCOUNTS = "server_accounts"  # slow, but by the time that the server itself says it queued and read
    SERVER_WAS_LOADED = "server_was_loaded"  # slow, but it reports that it had nothing to load
    CONFIRM_SLOW = "confirm_slow"  # slow, and the second attempt too: overload or a regression
    AS_CONTROL = "as_control"  # no history yet; no slower than the second attempt
    FOLLOWS = "follows"  # a confirming attempt: it was sent straight after another
    # unclear
    UNCONFIRMED = "unconfirmed"  # slow, and no second attempt was made (or it is still on its way here)
    CONFIRM_FAILED = "confirm_failed"  # slow, and the second attempt brought no first token
    NO_HISTORY = "no_history"  # nothing to compare it with: no warm attempt before it, and no second attempt
    NOT_IDLE = "not_idle"  # the signature of a cold start, but the target had been asked a moment before
    SLOW_CONNECTION = "slow_connection"  # connect or TLS were slow too
    SLOW_TOKENS = "slow_tokens"  # tokens came slowly too
    RETRANSMITTED = "retransmitted"  # lost segments may be the whole delay
    DOUBTFUL = "doubtful"  # our own slowness may be the whole delay
    FAILED = "failed"  # it failed before a first token


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What of an attempt is compared, seconds."""

    server_part: float  # first token minus the road; what was waited for at least, when a deadline cut it
    accounted: float | None = None  # queue and prefill as the server reports them; None: it does not
    load: float | None = None  # loading as the server reports it
    connect: float | None = None
    tls: float | None = None
    token_time: float | None = None  # from token to token

    @property
    def unaccounted(self) -> float | None:
        """The server's part that its own report does not explain; None without a report."""
        return None if self.accounted is None else max(0.0, self.server_part - self.accounted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found about one attempt. Recomputable: the same evidence and version give the same verdict."""

    kind: Kind
    reasons: tuple[Reason, ...]
    penalty_seconds: float | None = None  # what the load cost over a warm first token; cold ones only, if known
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict with the attempt that it is about."""

    key: tuple[str, datetime, str, str, int]  # `Attempt.key`
    verdict: Verdict
    idle_before: float | None  # seconds for which nobody had asked the target; None: no earlier attempt is known


# ------------------------------------------------------------------------------------------------ evidence


def sample(attempt: Attempt) -> Sample | None:
    """What can be compared of an attempt; None when it got no first token and no deadline says how long it waited.

    server part = ttft - (resolve + connect + tls + one round trip), never negative: what far vantage
    points pay for the distance is taken out. Dialling counts only where it happened, so a kept connection that had to
    be opened anew is judged like any other.
    """
    line = attempt.timeline
    waited_ns = line.marks.get(Mark.FIRST_TOKEN)
    if waited_ns is None and is_cut(attempt):
        waited_ns = line.lasted_ns
    if waited_ns is None:
        return None
    road_ns = sum(line.phase_ns(phase) or 0 for phase in (Phase.RESOLVE, Phase.CONNECT, Phase.TLS))
    return Sample(
        server_part=max(0.0, (waited_ns - road_ns) / NS - _round_trip(attempt)),
        accounted=_accounted(attempt),
        load=attempt.server.get("load"),
        connect=line.phase(Phase.CONNECT),
        tls=line.phase(Phase.TLS),
        token_time=_token_time(attempt),
    )


def is_cut(attempt: Attempt) -> bool:
    """Whether a deadline ended the wait for the first token after the request had been sent."""
    failure, marks = attempt.failure, attempt.timeline.marks
    return (
        failure is not None and failure.kind in DEADLINES and Mark.FIRST_TOKEN not in marks and Mark.SEND_END in marks
    )


def is_loading(attempt: Attempt) -> bool:
    """Whether the server answered that the model is being loaded."""
    return attempt.failure is not None and attempt.failure.kind is FailureKind.LOADING


def _round_trip(attempt: Attempt) -> float:
    """Seconds. Behind a proxy the socket's own round trip ends there; dialling through it shows the whole one."""
    if attempt.http.proxied:
        return attempt.timeline.phase(Phase.CONNECT) or 0.0
    return attempt.tcp.min_rtt or 0.0


def _accounted(attempt: Attempt) -> float | None:
    prefill = attempt.server.get("prefill")
    return None if prefill is None else prefill + attempt.server.get("queue", 0.0)


def _token_time(attempt: Attempt) -> float | None:
    took = attempt.timeline.between_ns(Mark.FIRST_TOKEN, Mark.LAST_TOKEN)
    return None if took is None or attempt.token_events < 2 else took / NS / (attempt.token_events - 1)


# ------------------------------------------------------------------------------------------------ the agent's part


def looks_cold(attempt: Attempt, recent: Sequence[Sample], rule: ColdStartRule = USUAL_RULE) -> bool:
    """Whether an attempt deserves a confirming one: by the first term of the rule on the agent's own recent samples.

    A loading answer and a reported load always do. The absolute minimum is half of the verdict's, so that the verdict
    never lacks a confirming attempt for want of suspicion; without it, milliseconds of noise would be confirmed.
    """
    if is_loading(attempt):
        return True
    one = sample(attempt)
    if one is None:
        return False
    if one.load is not None and one.load >= REPORTED_SHARE * rule.minimum_seconds:
        return True
    if not recent:
        return False
    mine, usual, least = _measure(one, recent, rule)
    middle = median(usual)
    return mine > max(rule.factor * middle, middle + TRIGGER_SHARE * least)


# ------------------------------------------------------------------------------------------------ the verdict


def judge(
    attempt: Attempt,
    confirming: Attempt | None,
    history: Sequence[Sample],
    idle_before: float | None,
    rule: ColdStartRule = USUAL_RULE,
) -> Verdict:
    """The verdict about an attempt that was made (not a missed slot).

    `confirming` is the second try at its slot, if there is one. `history` holds samples of earlier attempts of the
    same series and probe version that were warm, oldest first. `idle_before` is how long (seconds) nobody had asked the
    target from any vantage point; None when no earlier attempt is known.
    """
    if is_loading(attempt):
        return _cold(Reason.LOADING_ANSWER)
    one = sample(attempt)
    if one is None:
        return _unclear(Reason.FAILED)
    usual = history[-HISTORY:]
    if one.load is not None and _is_load(one.load, usual, rule):
        return _cold(Reason.SERVER_LOAD, penalty=_penalty(one, usual) if usual else one.load)
    if Doubt.CLOCK_STEP in attempt.validity:
        return _unclear(Reason.DOUBTFUL)
    if attempt.try_number:
        return _warm(Reason.FOLLOWS)
    if usual and not _exceeds(one, usual, rule):
        bare = replace(one, accounted=None)
        return _warm(Reason.SERVER_ACCOUNTS if _exceeds(bare, usual, rule) else Reason.IN_BAND)
    if confirming is None and one.load is None:
        return _unclear(Reason.UNCONFIRMED if usual else Reason.NO_HISTORY)
    control = None if confirming is None else sample(confirming)
    if len(usual) >= ENOUGH:
        return _against_history(_Case(attempt, one, control, usual, idle_before, rule))
    if confirming is None or control is None or is_cut(confirming):
        return _unclear(Reason.CONFIRM_FAILED)
    return _against_control(_Case(attempt, one, control, (control,), idle_before, rule))


@dataclass(frozen=True, slots=True)
class _Case:
    attempt: Attempt
    one: Sample
    control: Sample | None
    usual: Sequence[Sample]  # what it is compared with: the warm history, or the control alone
    idle_before: float | None
    rule: ColdStartRule


def _against_history(case: _Case) -> Verdict:
    """Slow by its history: the whole signature of a cold start."""
    if case.one.load is not None:
        return _warm(Reason.SERVER_WAS_LOADED)
    if case.control is None:
        return _unclear(Reason.CONFIRM_FAILED)
    if _exceeds(case.control, case.usual, case.rule):
        return _warm(Reason.CONFIRM_SLOW)
    return _unless_excused(case, Reason.SLOW_FIRST_TOKEN)


def _against_control(case: _Case) -> Verdict:
    """Without enough history the second attempt is the control."""
    if not _exceeds(case.one, case.usual, case.rule):
        return _warm(Reason.AS_CONTROL)
    if case.one.load is not None:
        return _warm(Reason.SERVER_WAS_LOADED)
    return _unless_excused(case, Reason.SLOWER_THAN_CONFIRM)


def _unless_excused(case: _Case, found: Reason) -> Verdict:
    """Cold, unless something else may be the whole delay."""
    excuse = next(_excuses(case), None)
    if excuse is not None:
        return _unclear(found, excuse)
    if is_cut(case.attempt):
        return _cold(found, Reason.CONFIRM_WARM, Reason.CUT_BY_DEADLINE)
    return _cold(found, Reason.CONFIRM_WARM, penalty=_penalty(case.one, case.usual))


def _excuses(case: _Case) -> Iterator[Reason]:
    """What else may explain a slow first token that a second attempt did not show.

    Idleness: a cold start is the first request after it. Our own delays and lost
    segments count with what they may have cost at most: a load of seconds is not excused by 60 ms of lag. Slow tokens
    speak of a busy machine, unless the server's own report has taken that out already.
    """
    if case.idle_before is not None and case.idle_before < LEAST_IDLE_SECONDS:
        yield Reason.NOT_IDLE
    if not _exceeds(_shorter(case.one, _own_delay(case.attempt)), case.usual, case.rule):
        yield Reason.DOUBTFUL
    if not _exceeds(_shorter(case.one, _lost_time(case.attempt)), case.usual, case.rule):
        yield Reason.RETRANSMITTED
    for name in ("connect", "tls"):
        if _is_out_of_band(case, name, case.rule.minimum_seconds):
            yield Reason.SLOW_CONNECTION
    if case.one.accounted is None and _is_out_of_band(case, "token_time", SLOW_TOKENS_SECONDS):
        yield Reason.SLOW_TOKENS


def _exceeds(one: Sample, usual: Sequence[Sample], rule: ColdStartRule) -> bool:
    """Above max(factor x warm median, warm median + 5 robust sigma, warm median + minimum) (the signature's terms)."""
    mine, values, least = _measure(one, usual, rule)
    middle = median(values)
    sigma = MAD_TO_SIGMA * median(abs(value - middle) for value in values)
    return mine > max(rule.factor * middle, middle + SIGMAS * sigma, middle + least)


def _measure(one: Sample, usual: Sequence[Sample], rule: ColdStartRule) -> tuple[float, list[float], float]:
    """(its value, the usual values, the least difference that counts): unaccounted time where all of them report."""
    mine, values = one.unaccounted, [other.unaccounted for other in usual]
    known = [value for value in values if value is not None]
    if mine is None or len(known) < len(values):
        return one.server_part, [other.server_part for other in usual], rule.minimum_seconds
    return mine, known, REPORTED_SHARE * rule.minimum_seconds


def _is_load(load: float, usual: Sequence[Sample], rule: ColdStartRule) -> bool:
    """A reported load that is one: some servers (Ollama) report some milliseconds of it for every request."""
    known = [other.load for other in usual if other.load is not None]
    floor = rule.factor * median(known) if known else 0.0
    return load >= max(REPORTED_SHARE * rule.minimum_seconds, floor)


def _is_out_of_band(case: _Case, name: str, least: float) -> bool:
    """Whether a phase (or the time from token to token) was far above its own warm median; absent ones are not."""
    mine: float | None = getattr(case.one, name)
    known = [value for value in (getattr(other, name) for other in case.usual) if value is not None]
    if mine is None or not known:
        return False
    middle = median(known)
    return bool(mine > max(case.rule.factor * middle, middle + least))


def _shorter(one: Sample, seconds: float) -> Sample:
    return replace(one, server_part=max(0.0, one.server_part - seconds))


def _own_delay(attempt: Attempt) -> float:
    return attempt.loop_lag_seconds if OWN_DELAYS.intersection(attempt.validity) else 0.0


def _lost_time(attempt: Attempt) -> float:
    """What the segments that we sent again may have cost; on a kept connection they may be of earlier attempts."""
    lost = 0 if attempt.http.reused else attempt.tcp.retransmits or 0
    return RETRANSMISSION_SECONDS * ((1 << min(lost, 16)) - 1)


def _penalty(one: Sample, usual: Sequence[Sample]) -> float:
    """Cold first token minus the warm median, the server's parts."""
    middle: float = median(other.server_part for other in usual)
    return max(0.0, one.server_part - middle)


def _cold(*reasons: Reason, penalty: float | None = None) -> Verdict:
    return Verdict(kind=Kind.COLD, reasons=reasons, penalty_seconds=penalty)


def _warm(*reasons: Reason) -> Verdict:
    return Verdict(kind=Kind.WARM, reasons=reasons)


def _unclear(*reasons: Reason) -> Verdict:
    return Verdict(kind=Kind.UNCLEAR, reasons=reasons)
