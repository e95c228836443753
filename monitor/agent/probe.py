"""One attempt, from the first mark to the record: the measuring core.

`Prober.run` asks a target once and returns what happened as an `Attempt`; a target's fault is data, never an
exception. It keeps one lane per series that reuses its connection, and opens a fresh one for every other attempt.
"""

from __future__ import annotations

import asyncio
import zlib
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from monitor.agent import facts, failures, validity
from monitor.agent.arrivals import Arrival, edge_of, stamping
from monitor.agent.checks import Answer, judged
from monitor.agent.connection import COALESCED_ABOVE_NS, Connection, Tape
from monitor.agent.dialects import DIALECTS, Decoder, Dialect, header_timings
from monitor.agent.events import VISIBLE, EventKind, StreamEvent, TokenKind
from monitor.agent.pricing import priced
from monitor.agent.question import Question, Rehearsal, UnsendableHeader, rehearse, secrets_of
from monitor.agent.transport import Lane, Response, Roads
from monitor.agent.unpacking import PIECE_BYTES, UnknownEncoding, unpacker
from monitor.clock import NS, Clock
from monitor.model import (
    Attempt,
    ConnectionPolicy,
    DialectName,
    Failure,
    FailureKind,
    HttpFacts,
    Outcome,
    Probe,
    Purpose,
    Series,
    ServiceFacts,
    Slot,
    Target,
    TcpFacts,
    Vantage,
)
from monitor.timeline import Mark, Phase, Timeline, gaps

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_DRAINED_BYTES = 1024 * 1024
MAX_TOKEN_ARRIVALS = 100_000
DRAIN_SECONDS = 1.0
"""How long the end of the body may follow the dialect's end marker before we hang up."""
ERROR_BODY_SECONDS = 2.0
"""How long the body of a refusal may take; its status is known by then."""
CONTROL_SECONDS = 10.0
BATCH_SECONDS = 0.1
"""After the first token, arrivals are stamped at once and decoded this often: a wake-up costs more than a token."""

_CONTROL_MARKS = {
    Mark.SEND_START: Mark.CONTROL_START,
    Mark.SEND_END: Mark.CONTROL_SENT,
    Mark.HEADERS: Mark.CONTROL_HEADERS,
}


class BodyTooLarge(Exception):
    """The body passed its bound."""


class Prober:
    """Sends attempts and records them. Make it in the loop that it is used in; `start` before, `close` after."""

    def __init__(self, clock: Clock, *, max_concurrent: int = 64, kernel_stamps: bool = True) -> None:
        self._clock = clock
        self._roads = Roads(clock, max_concurrent=max_concurrent, kernel_stamps=kernel_stamps)
        self._kept: dict[tuple[object, ...], Lane] = {}
        self._machine = validity.Machine.here()
        self._open = ExitStack()
        self._warm = False

    async def start(self) -> None:
        """Switch kernel stamps on and run the whole path once against ourselves: no real attempt shall pay for it."""
        self._open.enter_context(stamping())
        self._roads.trust()
        with suppress(Exception):  # without it the first attempt is marked as the warm-up, which is the truth then
            await _warm_up(self)

    def now(self) -> datetime:
        """The prober's wall clock, UTC."""
        return self._clock.now()

    async def run(
        self, slot: Slot, series: Series, *, try_number: int = 0, purpose: Purpose = Purpose.SCHEDULED
    ) -> Attempt:
        """Make one attempt at a slot. Raises nothing for a target's fault; cancellation passes through."""
        await self._roads.turn()
        try:  # before the clock starts: certificates are read, the request is written and signed
            lane = await self._lane(series)
            question = Question.to(series, self._clock)
        except Exception as error:  # noqa: BLE001  # whatever it is, the slot gets its record
            run = _Run(self._clock, series, self._machine, None)
            run.fail(*_unaskable(error))
            return run.record(slot, try_number, purpose, warm=self._warm)
        run = _Run(self._clock, series, self._machine, question)
        try:
            await run.exchange(self._roads, lane)
        finally:
            if series.probe.connection is ConnectionPolicy.FRESH or not run.reusable:
                await self._drop(series, lane)
        attempt = run.record(slot, try_number, purpose, warm=self._warm)
        self._warm = True
        return priced(await judged(attempt, series.probe.checks, run.words, secrets_of(series)), series)

    def rehearse(self, series: Series) -> Rehearsal:
        """The request that an attempt would send, with every secret masked. Sends nothing."""
        return rehearse(series, self._clock, self._roads.headers)

    async def _lane(self, series: Series) -> Lane:
        if series.probe.connection is ConnectionPolicy.FRESH:
            return self._open_lane(series)
        key = _key(series)
        if key in self._kept and self._kept[key].is_over:
            await self.release(series)
        if key not in self._kept:
            self._kept[key] = self._open_lane(series)
        return self._kept[key]

    def _open_lane(self, series: Series) -> Lane:
        target = series.target
        return self._roads.lane(
            target.url,
            http_version=target.http_version,
            family=target.address_family,
            proxy=series.vantage.proxy,
            ca_file=target.ca_file,
        )

    async def _drop(self, series: Series, lane: Lane) -> None:
        if self._kept.get(_key(series)) is lane:
            del self._kept[_key(series)]
        await lane.aclose()

    async def release(self, series: Series) -> None:
        """Close the connection that a reusing series keeps, if any: it is no longer probed."""
        lane = self._kept.pop(_key(series), None)
        if lane is not None:
            await lane.aclose()

    async def close(self) -> None:
        """Close every kept connection and end the resolver's threads."""
        for lane in self._kept.values():
            await lane.aclose()
        self._kept.clear()
        await self._roads.aclose()
        self._open.close()


def _key(series: Series) -> tuple[object, ...]:
    """What a kept connection belongs to: after a change of the configuration another one is needed."""
    vantage, target = series.vantage, series.target
    road = (target.url, target.http_version, target.address_family, target.ca_file, vantage.proxy)
    return (vantage.name, target.name, series.probe.name, *road)


class _Deadlines:
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


def _unaskable(error: Exception) -> tuple[FailureKind, str]:
    """Why a request could not even be written: a mistake of our own."""
    if isinstance(error, UnsendableHeader):
        return FailureKind.BAD_REQUEST, str(error)
    if isinstance(error, OSError):
        return FailureKind.INTERNAL, f"ca_file cannot be used: {error}"
    kind, text = failures.classify_exception(error, Phase.RESOLVE)
    if isinstance(error, ValueError) and kind is FailureKind.INTERNAL:
        return FailureKind.BAD_REQUEST, f"the request cannot be written: {error}"
    return kind, text


class _Run:
    """The state of one attempt while it is under way."""

    def __init__(self, clock: Clock, series: Series, machine: validity.Machine, question: Question | None) -> None:
        self._clock = clock
        self._series = series
        self._machine = machine
        self._dialect: Dialect = DIALECTS[series.target.dialect]
        self._decoder: Decoder = self._dialect.decoder()
        self._answer = _Answer()
        self._deadlines = _Deadlines(series)
        self._tcp = TcpFacts()
        self.failure: Failure | None = None
        self.words = Answer() if series.probe.checks.need_text else None
        self.reusable = False  # the connection was left as it must be for another request
        self._asked = question
        self._conditions = validity.Conditions.now(clock, machine)
        self._started_at = clock.now()
        self._start_ns = clock.monotonic_ns()
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
                self.reusable = await self._drain(response)
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
            async with asyncio.timeout(ERROR_BODY_SECONDS):
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

    async def _drain(self, response: Response) -> bool:
        """Read what follows the end marker, for a moment: only then can the connection be used again."""
        left = MAX_DRAINED_BYTES
        with suppress(Exception):
            async with asyncio.timeout(DRAIN_SECONDS):
                async for piece in response.pieces():
                    left -= len(piece)
                    if left < 0:
                        return False
                return True
        return False

    async def _control(self, roads: Roads, lane: Lane) -> None:
        """A cheap request after the prompt: the road without a GPU at its end. Never a failure.

        On the same connection, unless the server has closed it; its wait leaves the dialling out either way.
        """
        tape = Tape(self._clock)
        self.reusable = False
        with suppress(Exception):
            async with asyncio.timeout(CONTROL_SECONDS):
                if lane.is_over:
                    await lane.aclose()
                url = self._dialect.control_url(self._series.target)
                headers = self._question.headers_for("GET", url, b"", self._clock)
                response = await roads.send(tape, lane, "GET", url, headers, None, CONTROL_SECONDS)
                self.reusable = await self._drain(response)
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
            proxied=connection.proxied,
            certificate_expires_at=connection.certificate_expires_at,
        )


async def _warm_up(prober: Prober) -> None:
    """Ask a server of our own, on loopback, so that imports, caches and code paths are warm."""
    chunk = b'data: {"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + chunk)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        series = Series(
            vantage=Vantage(name="warm-up"),
            target=Target(
                name="warm-up",
                provider="self",
                model="none",
                dialect=DialectName.OPENAI_CHAT,
                url=f"http://{host}:{port}/v1",
            ),
            probe=Probe(name="warm-up", prompt="ok", deadline_seconds=2.0),
        )
        slot = Slot(vantage="warm-up", target="warm-up", probe="warm-up", scheduled_at=prober.now(), number=0)
        await prober.run(slot, series, purpose=Purpose.ONE_OFF)
