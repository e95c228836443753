"""Arrival stamps: exact where one segment came, bounded and said so where several merged."""

from __future__ import annotations

import asyncio
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from monitor.agent.arrivals import (
    Arrival,
    ArrivalReader,
    Polls,
    Segments,
    WatchedLoop,
    edge_of,
    enable_kernel_stamps,
    stamping,
)
from monitor.agent.connection import COALESCED_ABOVE_NS
from monitor.agent.framing import HEADERS, FrameWalker, HeadWalker
from monitor.clock import Clock, CorrectedClock

MS = 1_000_000


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection on loopback: ours, non-blocking, and the peer's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours.setblocking(False)
        with ours, peer:
            yield ours, peer


def wait_for_stamps() -> None:
    """The kernel's stamping starts a little after it was asked for: on a busy machine, not within milliseconds."""
    with connected() as (ours, peer):
        enable_kernel_stamps(ours)
        for _ in range(500):
            peer.send(b"?")
            time.sleep(0.002)
            if ours.recvmsg(16, 128)[1]:
                return


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection on loopback, with the kernel's stamping under way."""
    with stamping():
        wait_for_stamps()
        with connected() as ends:
            yield ends


def in_loop(body) -> object:
    """Run a coroutine function in a watched loop."""
    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(body())


def test_a_late_read_of_one_segment_keeps_its_arrival_time(pair):
    """However late we come, one segment's stamp is the moment at which it arrived."""
    ours, peer = pair

    async def late_read() -> tuple[int, int, Arrival]:
        reader = ArrivalReader(ours, Clock())
        before = time.monotonic_ns()
        peer.send(b"x" * 100)
        after = time.monotonic_ns()
        time.sleep(0.02)  # noqa: ASYNC251  # a blocked loop is the point
        return before, after, reader.read()

    before, after, arrival = in_loop(late_read)
    assert arrival.stamped
    assert before <= arrival.at_ns + 50_000
    assert arrival.at_ns <= after + 50_000
    assert arrival.spread_ns == 0
    assert arrival.lag_ns >= 19 * MS


def test_merged_segments_are_bounded_by_when_the_socket_was_last_seen_empty(pair):
    """Two segments read as one: the spread covers the true distance between them."""
    ours, peer = pair

    async def merged_read() -> tuple[int, Arrival]:
        reader = ArrivalReader(ours, Clock())
        peer.send(b"first")
        first = time.monotonic_ns()
        time.sleep(0.005)  # noqa: ASYNC251
        peer.send(b"second")
        time.sleep(0.002)  # noqa: ASYNC251
        return first, reader.read()

    first, arrival = in_loop(merged_read)
    assert arrival.data == b"firstsecond"
    assert arrival.at_ns - arrival.spread_ns <= first
    assert arrival.spread_ns > COALESCED_ABOVE_NS


def test_segments_that_arrive_together_in_a_calm_loop_are_not_in_doubt(pair):
    """Two writes in a row wake a sleeping loop at once: the bound stays under the threshold of `coalesced`."""
    ours, peer = pair

    async def calm_read() -> Arrival:
        reader = ArrivalReader(ours, Clock())
        ready: asyncio.Future[Arrival] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), lambda: ready.done() or ready.set_result(reader.read()))
        await asyncio.sleep(0.01)
        await loop.run_in_executor(None, lambda: (peer.send(b"a"), peer.send(b"b")))
        arrival = await ready
        loop.remove_reader(ours.fileno())
        return arrival

    spreads = [in_loop(calm_read).spread_ns for _ in range(5)]
    assert min(spreads) <= COALESCED_ABOVE_NS


class Slow(Clock):
    """A clock of a thread that is put aside for a millisecond before each reading."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def monotonic_ns(self) -> int:
        self.told.append((len(self.told) + 1) * MS)
        return self.told[-1]


def test_a_poll_vouches_for_an_empty_socket_from_before_it_looked(pair):
    """What comes between the kernel's answer and our next reading of the clock has not been seen to be absent."""
    ours, peer = pair
    peer.send(b"x")
    clock = Slow()
    with Polls(clock) as polls:
        polls.register(ours, selectors.EVENT_READ)
        asked = len(clock.told)
        assert polls.select(5.0)
        before_looking = clock.told[asked]
        assert polls.select(5.0)
        assert polls.empty_since_ns <= before_looking


def test_reads_that_are_thought_about_later_say_what_they_said_at_once(pair):
    """Of three reads caught now, one of them merged, the arrivals are the same however late they are asked for."""
    ours, peer = pair

    async def caught() -> tuple[list[Arrival], list[Arrival]]:
        at_once, later = (ArrivalReader(ours, Clock()) for _ in range(2))
        first, kept = [], []
        for pieces in ([b"a"], [b"b", b"c"], [b"d"]):
            for piece in pieces:
                peer.send(piece)
                time.sleep(0.003)  # noqa: ASYNC251
            kept.append(at_once.catch())
            first.append(at_once.arrival(kept[-1]))
            await asyncio.sleep(0.002)
        return first, [later.arrival(one) for one in kept]

    first, later = in_loop(caught)
    assert [one.data for one in first] == [b"a", b"bc", b"d"]
    assert [one.spread_ns > COALESCED_ABOVE_NS for one in first] == [False, True, False]
    assert later[0].at_ns == first[0].at_ns
    assert later[1:] == first[1:]


def test_without_kernel_stamps_the_user_clock_serves_and_says_so(pair):
    """Stamps switched off, as on macOS: the arrival is the read's own time."""
    ours, peer = pair

    async def read() -> Arrival:
        reader = ArrivalReader(ours, Clock(), kernel_stamps=False)
        peer.send(b"x")
        time.sleep(0.005)  # noqa: ASYNC251
        return reader.read()

    arrival = in_loop(read)
    assert not arrival.stamped
    assert arrival.lag_ns == 0
    assert arrival.spread_ns >= 4 * MS


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_corrected_clock_moves_no_arrival(pair, seconds):
    """The kernel stamps by the machine's wall clock, right or wrong: the correction is none of its business."""
    ours, peer = pair
    clock = CorrectedClock()
    clock.correct(seconds)

    async def read() -> tuple[int, int, Arrival]:
        reader = ArrivalReader(ours, clock)
        before = time.monotonic_ns()
        peer.send(b"x")
        time.sleep(0.005)  # noqa: ASYNC251
        arrival = reader.read()
        return before, time.monotonic_ns(), arrival

    before, after, arrival = in_loop(read)
    assert arrival.stamped
    assert before - MS <= arrival.at_ns <= after
    assert abs(arrival.offset_ns - clock.offset_ns()) < MS


def test_the_end_of_the_stream_is_an_empty_arrival(pair):
    """b"" at the end, BlockingIOError when there is nothing yet."""
    ours, peer = pair

    async def read() -> Arrival:
        reader = ArrivalReader(ours, Clock())
        with pytest.raises(BlockingIOError):
            reader.read()
        peer.close()
        time.sleep(0.005)  # noqa: ASYNC251
        return reader.read()

    assert in_loop(read).data == b""


def test_tcp_info_gives_round_trip_and_counts(pair):
    """The kernel's own view of the connection, in seconds."""
    ours, peer = pair
    peer.send(b"x")
    ours.send(b"y")
    time.sleep(0.005)
    segments = Segments.of(ours)
    if segments is None:
        pytest.skip("no TCP_INFO on this system")
    assert segments.data_in == 1
    assert 0 < segments.facts.min_rtt < 1
    assert segments.facts.retransmits == 0


def test_long_turns_of_the_loop_are_remembered():
    """A callback that blocks the loop shows in `worst_between`, the calmest of several does not."""

    async def block() -> tuple[int, int]:
        polls: Polls = asyncio.get_running_loop().polls
        stretches = []
        for _ in range(10):
            calm_from = time.monotonic_ns()
            await asyncio.sleep(0.01)
            stretches.append(polls.worst_between(calm_from, time.monotonic_ns()))
        await asyncio.sleep(0)
        begin = time.monotonic_ns()
        time.sleep(0.06)  # noqa: ASYNC251
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return min(stretches), polls.worst_between(begin, time.monotonic_ns())

    calm, blocked = in_loop(block)
    assert blocked >= 59 * MS
    assert calm < 59 * MS


@pytest.mark.parametrize("step", [1, 2, 3, 7, 9, 10, 64, 1000])
def test_the_frame_walker_sees_headers_frames_however_the_stream_is_cut(step):
    """Only HEADERS frames count: SETTINGS, PING and DATA are skipped with their payloads."""

    def frame(kind: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3) + bytes([kind, 0]) + stream.to_bytes(4) + payload

    stream = b"".join([
        frame(4, 0, b"\x00" * 12), frame(6, 0, b"\x01" * 8), frame(1, 1, b"h" * 20), frame(0, 1, b"\x01" * 300),
        frame(4, 0, b""), frame(1, 3, b"h"),
    ])  # fmt: skip
    walker = FrameWalker()
    pieces = [walker.follow(stream[at : at + step], 1) for at in range(0, len(stream), step)]
    seen = [of for _, frames in pieces for kind, of in frames if kind == HEADERS]
    assert b"".join(passed for passed, _ in pieces) == stream
    assert seen == [1, 3]


def test_edges_are_read_from_the_headers_of_two_cdns():
    """`cf-ray` ends with the location code, `x-amz-cf-pop` is one; anything else is no edge."""
    assert edge_of({"cf-ray": "8c1f0a-LHR"}) == "LHR"
    assert edge_of({"x-amz-cf-pop": "JFK50-P1"}) == "JFK50-P1"
    assert edge_of({"cf-ray": "8c1f0a"}) is None
    assert edge_of({}) is None


@pytest.mark.parametrize("step", [1, 2, 3, 5, 19, 40, 1000])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
def test_the_head_walker_leaves_interim_responses_aside_however_they_are_cut(step, line_end):
    """The last piece in which a head begins holds the first byte of the final response."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n"
    stream = (interim + b"HTTP/1.1 200 OK\r\na: b\r\n\r\nHTTP/1.1 200 in the body\r\n\r\n").replace(b"\r\n", line_end)
    final = len(interim.replace(b"\r\n", line_end))
    walker = HeadWalker()
    begins = [at for at in range(0, len(stream), step) if walker.begins(stream[at : at + step])]
    assert begins[-1] == final // step * step


@pytest.mark.parametrize("step", [1, 2, 8, 9, 10, 17, 18, 64, 1000])
@pytest.mark.parametrize(
    ("last", "error", "kept_back"), [(1, 0, True), (2**31 - 1, 0, True), (0, 0, False), (1, 11, False)]
)
def test_only_a_polite_goaway_is_kept_back_however_the_stream_is_cut(step, last, error, kept_back):
    """It must spare the stream that waits and blame nobody; everything else passes byte for byte."""

    def frame(kind: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3) + bytes([kind, 0]) + stream.to_bytes(4) + payload

    goaway = frame(7, 0, last.to_bytes(4) + error.to_bytes(4) + b"debug")
    before, after = frame(1, 1, b"h" * 20), frame(0, 1, b"d" * 30)
    walker = FrameWalker()
    stream = before + goaway + after
    passed = b"".join(walker.follow(stream[at : at + step], 1)[0] for at in range(0, len(stream), step))
    assert passed == (before + after if kept_back else stream)
    assert walker.going_away
