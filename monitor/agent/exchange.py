"""The exchange of one attempt, in the order in which it happens, and the record that it becomes."""

from __future__ import annotations

import asyncio
import zlib
from contextlib import suppress
from dataclasses import dataclass, field, replace

from monitor.agent import facts, failures, validity
from monitor.agent.arrivals import Arrival, edge_of
from monitor.agent.checks import Answer
from monitor.agent.connection import COALESCED_ABOVE_NS, Connection, Tape
from monitor.agent.deadlines import BATCH_SECONDS, Deadlines
from monitor.agent.dialects import DIALECTS, Decoder, Dialect, header_timings
from monitor.agent.events import VISIBLE, EventKind, StreamEvent, TokenKind
from monitor.agent.question import Question, UnsendableHeader, secrets_of
from monitor.agent.transport import Lane, Response, Roads
from monitor.agent.unpacking import PIECE_BYTES, UnknownEncoding, unpacker
from monitor.clock import NS, Clock, instant
from monitor.model import (
    Attempt,
    ConnectionPolicy,
    Failure,
    FailureKind,
    HttpFacts,
    Outcome,
    Purpose,
    Series,
    ServiceFacts,
    Slot,
    TcpFacts,
)
from monitor.timeline import Mark, Phase, Timeline, gaps

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_DRAINED_BYTES = 1024 * 1024
MAX_TOKEN_ARRIVALS = 100_000
DRAIN_SECONDS = 1.0
"""How long the end of the body may follow the dialect's end marker before we hang up, inside the deadline."""
ERROR_BODY_SECONDS = 2.0
"""How long the body of a refusal may take, inside the deadline; its status is known by then."""
CONTROL_SECONDS = 10.0

_CONTROL_MARKS = {
    Mark.SEND_START: Mark.CONTROL_START,
    Mark.SEND_END: Mark.CONTROL_SENT,
    Mark.HEADERS: Mark.CONTROL_HEADERS,
}


class BodyTooLarge(Exception):
    """The body passed its bound."""


@dataclass(slots=True)
class _Answer:
    """What has been read of the response."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    error_body: bytes = b""
    http_version: str | None = None
    arrivals: list[int] = field(default_factory=list)  # one a token event, absolute monotonic ns
    last_token_arrival: Arrival | None = None
    first_arrivals: list[Arrival] = field(default_factory=list)  # of the first token and of the first visible one
    uncertain: set[int] = field(default_factory=set)  # `at_ns` of reads that hold a token with something behind it


def unaskable(error: Exception) -> tuple[FailureKind, str]:
    """Why a request could not even be written: a mistake of our own."""
    if isinstance(error, UnsendableHeader):
        return FailureKind.BAD_REQUEST, str(error)
    if isinstance(error, OSError):
        return FailureKind.INTERNAL, f"ca_file cannot be used: {error}"
    kind, text = failures.classify_exception(error, Phase.RESOLVE)
    if isinstance(error, ValueError) and kind is FailureKind.INTERNAL:
        return FailureKind.BAD_REQUEST, f"the request cannot be written: {error}"
    return kind, text


class Exchange:
    """The state of one attempt while it is under way."""

    def __init__(self, clock: Clock, series: Series, machine: validity.Machine, question: Question | None) -> None:
        self._clock = clock
        self._series = series
        self._machine = machine
        self._dialect: Dialect = DIALECTS[series.target.dialect]
        self._decoder: Decoder = self._dialect.decoder()
        self._answer = _Answer()
        self._deadlines = Deadlines(series)
        self._tcp = TcpFacts()
        self.failure: Failure | None = None
        self.words = Answer() if series.probe.checks.need_text else None
        self.reusable = False  # the connection was left as it must be for another request
        self._asked = question
        self._conditions = validity.Conditions.now(clock, machine)
        self._start_ns = clock.monotonic_ns()
        began_ns = self._start_ns + self._conditions.offset_ns + clock.correction_ns
        self._started_at = instant(began_ns)  # the same moment, not a later reading
        self._tape = Tape(clock, on_mark=self._deadlines.passed)

    # The exchange, in the order in which it happens.

    async def exchange(self, roads: Roads, lane: Lane) -> None:
        """Ask, read to the end, and keep what went wrong as `failure`."""
        try:
            async with self._deadlines.timer:
                self._deadlines.begin()
                await self._ask(roads, lane)
        except Exception as error:  # noqa: BLE001  # whatever it is, the slot gets its record
            self.fail(*self._reason(error))
        finally:
            self._deadlines.stop()
        if self.failure is not None:
            self._tape.mark(Mark.GAVE_UP)
            self._tcp = self._tape.connection.tcp_facts() if self._tape.connection else self._tcp

    def _reason(self, error: Exception) -> tuple[FailureKind, str]:
        if isinstance(error, TimeoutError) and self._deadlines.timer.expired():  # else it is the kernel's ETIMEDOUT
            return self._deadlines.kind, self._deadlines.text()
        if isinstance(error, BodyTooLarge):
            return FailureKind.TOO_LARGE, str(error)
        if isinstance(error, UnknownEncoding | zlib.error):
            return FailureKind.PROTOCOL_ERROR, f"the body cannot be decompressed: {error}"
        return failures.classify_exception(error, self._timeline().reached())

    async def _ask(self, roads: Roads, lane: Lane) -> None:
        series, question = self._series, self._question
        response = await roads.send(
            self._tape,
            lane,
            "POST",
            question.url,
            question.headers,
            question.body,
            min(series.probe.connect_timeout_seconds, series.probe.deadline_seconds),
        )
        try:
            self._head(response)
            if 200 <= response.status < 300:
                await self._read_stream(response)
            else:
                await self._read_error(response)
            self._tcp = self._connection.tcp_facts()
            if self.failure is None:
                self.reusable = await self._drain(response, min(DRAIN_SECONDS, self._deadlines.left()))
        finally:
            self._connection.batch(0.0)
            await response.aclose()
        if self.failure is None and series.probe.control:
            await self._control(roads, lane)

    @property
    def _question(self) -> Question:
        assert self._asked is not None
        return self._asked

    @property
    def _connection(self) -> Connection:
        assert self._tape.connection is not None
        return self._tape.connection

    def _head(self, response: Response) -> None:
        self._answer.status = response.status
        self._answer.headers = response.headers
        self._answer.http_version = response.version

    async def _read_stream(self, response: Response) -> None:
        unpack = unpacker(self._answer.headers.get("content-encoding", "identity"))
        async for piece in response.pieces():
            arrival = self._arrival()
            self._tape.mark(Mark.FIRST_BYTE, arrival.at_ns)
            for plain in unpack(piece):
                self._take(plain, arrival)
                if self._is_told:
                    break
                if len(plain) >= PIECE_BYTES:
                    await asyncio.sleep(0)  # a flood shall keep neither other attempts nor the deadline waiting
            if self._is_told:
                break
        else:
            for event in self._decoder.finish():
                self._note(event, self._arrival())
            self._tape.mark(Mark.END)
        if Mark.DONE in self._tape.marks:
            self._tape.marks[Mark.END] = self._tape.marks[Mark.DONE]
        self._deadlines.finished()
        if self._tape.marks.get(Mark.END, 0) - self._start_ns > self._series.probe.deadline_seconds * NS:
            self.fail(FailureKind.TOTAL_DEADLINE, self._deadlines.text())  # it came while its batch waited
        self._judge()

    @property
    def _is_told(self) -> bool:
        """Whether the answer is over: its end marker or an error came; what follows is not its."""
        return self._decoder.done or self._decoder.seen.failure is not None

    def _arrival(self) -> Arrival:
        assert self._connection.last_arrival is not None
        return self._connection.last_arrival

    def _take(self, plain: bytes, arrival: Arrival) -> None:
        if self._decoder.body_bytes + len(plain) > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body grew beyond {MAX_BODY_BYTES // 2**20} MiB")
        for event in self._decoder.feed(plain):
            self._note(event, arrival)

    def _note(self, event: StreamEvent, arrival: Arrival) -> None:
        """Set the marks that this event passes, at the arrival of the read that completed it."""
        if arrival is self._answer.last_token_arrival and arrival.spread_ns > COALESCED_ABOVE_NS:
            self._answer.uncertain.add(arrival.at_ns)  # only the last event of a read is sure to be of its last segment
        if event.kind is EventKind.KEEPALIVE:
            return
        mark, at = self._tape.mark, arrival.at_ns
        mark(Mark.FIRST_EVENT, at)
        if event.kind is EventKind.TOKEN and event.token is not None:
            self._note_token(event.token, arrival)
            if self.words is not None and event.token in VISIBLE:
                self.words.add(event.text)
        if event.finish_reason is not None:
            mark(Mark.FINISH, at)
        if event.kind is EventKind.DONE:
            mark(Mark.DONE, at)
        if Mark.FIRST_TOKEN in self._tape.marks:
            self._deadlines.alive()

    def _note_token(self, kind: TokenKind, arrival: Arrival) -> None:
        answer, marks = self._answer, self._tape.marks
        if Mark.FIRST_TOKEN not in marks or (kind in VISIBLE and Mark.FIRST_VISIBLE not in marks):
            answer.first_arrivals.append(arrival)
        if Mark.FIRST_TOKEN not in marks:
            self._connection.batch(BATCH_SECONDS)
        self._tape.mark(Mark.FIRST_TOKEN, arrival.at_ns)
        if kind in VISIBLE:
            self._tape.mark(Mark.FIRST_VISIBLE, arrival.at_ns)
        elif kind is TokenKind.REASONING:
            self._tape.mark(Mark.FIRST_REASONING, arrival.at_ns)
        elif kind is TokenKind.TOOL_CALL:
            self._tape.mark(Mark.FIRST_TOOL, arrival.at_ns)
        marks[Mark.LAST_TOKEN] = arrival.at_ns
        answer.last_token_arrival = arrival
        if len(answer.arrivals) < MAX_TOKEN_ARRIVALS:
            answer.arrivals.append(arrival.at_ns)

    async def _read_error(self, response: Response) -> None:
        """A refusal: its status says what, and the body, if it comes and can be read, says why."""
        self._deadlines.finished()
        body = bytearray()
        with suppress(Exception):
            async with asyncio.timeout(min(ERROR_BODY_SECONDS, self._deadlines.left())):
                await self._collect(response, body)
        self._answer.error_body = bytes(body)
        kind, text = failures.classify_status(response.status, self._answer.headers, bytes(body), self._dialect.name)
        self.fail(kind, text, Phase.WAIT)  # the answer was a refusal: generating never began

    async def _collect(self, response: Response, body: bytearray) -> None:
        unpack = unpacker(self._answer.headers.get("content-encoding", "identity"))
        async for piece in response.pieces():
            self._tape.mark(Mark.FIRST_BYTE, self._arrival().at_ns)
            for plain in unpack(piece):
                body += plain
                if len(body) >= MAX_ERROR_BODY_BYTES:
                    return

    async def _drain(self, response: Response, seconds: float) -> bool:
        """Read what follows the end marker, for a moment: only then can the connection be used again."""
        left = MAX_DRAINED_BYTES
        with suppress(Exception):
            async with asyncio.timeout(seconds):
                async for piece in response.pieces():
                    left -= len(piece)
                    if left < 0:
                        return False
                return True
        return False

    async def _control(self, roads: Roads, lane: Lane) -> None:
        """A cheap request after the prompt: the road without a GPU at its end. Never a failure.

        On the same connection, unless the server has closed it; its wait leaves the dialling out either way. It is
        outside the attempt's deadline, but over before the series' next slot.
        """
        limit = min(CONTROL_SECONDS, self._deadlines.left_for_control())
        tape = Tape(self._clock)
        self.reusable = False
        with suppress(Exception):
            async with asyncio.timeout(limit):
                if lane.is_over:
                    await lane.aclose()
                url = self._dialect.control_url(self._series.target)
                headers = self._question.headers_for("GET", url, b"", self._clock)
                response = await roads.send(tape, lane, "GET", url, headers, None, limit)
                self.reusable = await self._drain(response, DRAIN_SECONDS)
                await response.aclose()
        for seen, kept in _CONTROL_MARKS.items():
            if seen in tape.marks:
                self._tape.mark(kept, tape.marks[seen])

    # The record.

    def fail(self, kind: FailureKind, text: str, phase: Phase | None = None) -> None:
        """Keep what went wrong, scrubbed; the first failure is the cause, later ones its echo."""
        if self.failure is None:
            phase = phase or self._timeline().reached()
            self.failure = Failure(kind=kind, phase=phase, text=failures.scrub(text, secrets_of(self._series)))

    def _clean(self, told: str | None, limit: int) -> str | None:
        """A name that the server told, as it may be kept: careless servers echo keys."""
        return failures.without_secrets(told, secrets_of(self._series))[:limit] if told else None

    def _judge(self) -> None:
        ending = failures.Ending.of(self._decoder, self._answer.headers.get("content-type", ""))
        verdict = failures.judge(ending)
        if verdict is not None:
            self.fail(*verdict)

    def _timeline(self) -> Timeline:
        return Timeline({mark: at - self._start_ns for mark, at in self._tape.marks.items()})

    def record(self, slot: Slot, try_number: int, purpose: Purpose, *, warm: bool) -> Attempt:
        """The attempt, as it will be stored."""
        tape, answer, series = self._tape, self._answer, self._series
        connection, seen = tape.connection, self._decoder.seen
        reconnected = series.probe.connection is ConnectionPolicy.REUSED and Mark.CONNECT_START in tape.marks
        verdict = validity.judge(
            self._conditions,
            self._clock,
            self._machine,
            tape,
            coalesced=bool(answer.uncertain),
            first_token_coalesced=any(first.at_ns in answer.uncertain for first in answer.first_arrivals),
            warm=warm,
            reconnected=reconnected,
        )
        return Attempt(
            vantage=slot.vantage,
            target=slot.target,
            probe=slot.probe,
            probe_version=series.probe.version,
            scheduled_at=slot.scheduled_at,
            try_number=try_number,
            purpose=purpose,
            started_at=self._started_at,
            outcome=Outcome.SUCCESS if self.failure is None else Outcome.FAILED,
            failure=self.failure,
            timeline=self._timeline(),
            gaps=None if answer.uncertain else gaps([at - self._start_ns for at in answer.arrivals]),
            tokens=seen.tokens,
            token_events=seen.token_events,
            finish_reason=self._clean(seen.finish_reason, 100),
            http=self._http_facts(connection),
            server={**header_timings(answer.headers), **seen.server},
            service=self._service_facts(),
            tcp=self._tcp,
            clock_source=verdict.clock_source,
            validity=verdict.doubts,
            loop_lag_seconds=verdict.loop_lag_ns / NS,
            coalesced_reads=len(answer.uncertain),
            reads=tape.reads,
        )

    def _service_facts(self) -> ServiceFacts:
        answer = self._answer
        told = facts.service_facts(answer.headers, self._decoder.seen.facts, self._clock.now(), answer.error_body)
        return replace(
            told,
            limits=tuple(replace(limit, name=self._clean(limit.name, 60) or "") for limit in told.limits),
            version=self._clean(told.version, 200),
            region=self._clean(told.region, 200),
            upstream=self._clean(told.upstream, 200),
            tier=self._clean(told.tier, 200),
        )

    def _http_facts(self, connection: Connection | None) -> HttpFacts:
        answer, seen = self._answer, self._decoder.seen
        told = HttpFacts(
            status=answer.status,
            version=answer.http_version,
            edge=self._clean(edge_of(answer.headers), 16),
            request_id=self._clean(facts.request_id(answer.headers, seen.facts), 128),
            served_model=self._clean(seen.model, 200),
            content_encoding=self._clean(answer.headers.get("content-encoding"), 40),
            proxied=self._series.vantage.proxy is not None,
        )
        if connection is None:
            return told
        return replace(
            told,
            remote=None if connection.proxied else connection.remote,
            family=None if connection.proxied else connection.family,
            tls_version=connection.tls_version,
            alpn=connection.alpn,
            reused=Mark.CONNECT_START not in self._tape.marks,
            certificate_expires_at=connection.certificate_expires_at,
        )
