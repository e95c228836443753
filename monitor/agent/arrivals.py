"""When bytes arrived, and how sure that is: kernel stamps, TCP_INFO, and what the event loop was doing meanwhile.

The kernel stamps the last segment of a read and merges segments that wait, so a read that came late may hold
bytes older than its stamp says. `Arrival.spread_ns` bounds by how much, from three facts: the kernel's count of
data segments (one segment: exact), the moment at which the loop last saw the socket empty, and the time the
thread waited for a processor. Where the system gives no stamps, the moment of the read serves instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import selectors
import socket
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from monitor.clock import NS, Clock
from monitor.model import TcpFacts

SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
TCP_INFO = getattr(socket, "TCP_INFO", None)
READ_BYTES = 64 * 1024
GIL_SLACK_NS = 500_000
"""What another Python thread may delay the return from a poll without the kernel knowing (our switch interval)."""
BRIEFLY_NS = 200_000
"""A turn so short that all of it may count as waiting for a processor: asking once a turn is then enough."""
NOTICED_BUSY_NS = 5_000_000
"""Turns of the loop longer than this are remembered, for `Polls.worst_between`."""
_EPOLL: tuple[type, ...] = (select.epoll,) if hasattr(select, "epoll") else ()
_TIMESPEC = struct.Struct("@qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


class Arrival(NamedTuple):
    """One read of a socket. Times are monotonic nanoseconds."""

    data: bytes
    at_ns: int  # when the last segment of it arrived
    spread_ns: int  # the first segment of it came at most this long before `at_ns`
    lag_ns: int  # from `at_ns` to the read
    stamped: bool  # by the kernel
    offset_ns: int  # wall minus monotonic, as the stamp was converted with it


class Caught(NamedTuple):
    """One read of a socket, as little as the moment allows: a process that has just woken is slow in all it does."""

    data: bytes
    ancillary: list[tuple[int, int, bytes]]
    began_ns: int  # monotonic, just before the read: what it left behind came later
    now_ns: int  # monotonic, just after the read
    offset_ns: int  # wall minus monotonic then
    tcp_info: bytes | None
    empty_since_ns: int | None  # when the loop last saw the socket empty; None in a loop that is not watched


@dataclass(frozen=True, slots=True)
class Segments:
    """What TCP_INFO says about a socket at one moment (struct tcp_info of linux/tcp.h)."""

    data_in: int
    bytes_in: int
    facts: TcpFacts

    @classmethod
    def of(cls, sock: socket.socket) -> Segments | None:
        """None where the system has no TCP_INFO or an older, shorter one."""
        if TCP_INFO is None or not hasattr(socket, "TCP_INFO") or os.name != "posix" or not _IS_LINUX:
            return None
        try:
            raw = sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256)
        except OSError:
            return None
        if len(raw) < _TCP_INFO_BYTES:
            return None
        rtt, total_retransmits = (_U32.unpack_from(raw, at)[0] for at in (68, 100))
        (bytes_in,) = _U64.unpack_from(raw, 128)
        min_rtt, data_in, out_of_order = (_U32.unpack_from(raw, at)[0] for at in (148, 152, 224))
        facts = TcpFacts(
            min_rtt=None if min_rtt in (0, 0xFFFFFFFF) else min_rtt / 1e6,
            rtt=rtt / 1e6 if rtt else None,
            retransmits=total_retransmits,
            out_of_order=out_of_order,
        )
        return cls(data_in, bytes_in, facts)


_IS_LINUX = os.uname().sysname == "Linux" if hasattr(os, "uname") else False
_TCP_INFO_BYTES = 228  # up to tcpi_rcv_ooopack (Linux 5.4)
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")
_COUNTS = struct.Struct("=84x I 40x Q 16x I")  # tcpi_advmss, tcpi_bytes_received, tcpi_data_segs_in
_OPTION_BYTES = 40
"""The most that TCP options take from the advertised segment size."""


class Polls(selectors.DefaultSelector):
    """A selector that remembers when it last found a socket empty, and how long the loop ran between polls."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        own = getattr(self, "_selector", None)
        self._epoll: Any = own if isinstance(own, _EPOLL) else None  # other systems have other selectors
        self._now = (clock or Clock()).monotonic_ns
        self._schedstat = _SchedStat()
        self._waited_ns = 0  # by this thread for a processor so far, as known at `_asked_ns`
        self._asked_ns: int | None = None
        self.turns = 0
        self.empty_since_ns = self.returned_ns = self._now()
        self._looked_ns = self.returned_ns  # the last poll looked no earlier: what it did not report was empty then
        self._long_turns: deque[tuple[int, int]] = deque(maxlen=4096)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Poll in two steps, so that it is known whether anything was ready before we slept."""
        entered = self._now()
        self.turns += 1
        if entered - self.returned_ns >= NOTICED_BUSY_NS:
            self._long_turns.append((entered, entered - self.returned_ns))
        events = super().select(0) if self._anything_ready() else []
        if events or (timeout is not None and timeout <= 0):
            self.empty_since_ns, self._looked_ns = self._looked_ns, entered
            self.returned_ns = self._now()
            return events
        if self._asked_ns is None or entered - self._asked_ns > BRIEFLY_NS:
            self._waited_ns = self._schedstat.waited_ns()
        waited_before = self._waited_ns
        events = super().select(timeout)
        self.returned_ns = self._asked_ns = self._now()
        self._waited_ns = self._schedstat.waited_ns()  # after the clock: what delays us in between counts as waiting
        waited = self._waited_ns - waited_before
        self.empty_since_ns = self._looked_ns = max(entered, self.returned_ns - waited - GIL_SLACK_NS)
        return events

    def _anything_ready(self) -> bool:
        """Ask the kernel alone: most polls find nothing at first, and a whole `select` costs several times as much."""
        return self._epoll is None or bool(self._epoll.poll(0, 1))

    def worst_between(self, begin_ns: int, end_ns: int) -> int:
        """The longest turn of the loop that overlaps the interval, ns; 0 when none exceeded `NOTICED_BUSY_NS`."""
        overlapping = (length for ended, length in self._long_turns if ended >= begin_ns and ended - length <= end_ns)
        return max(overlapping, default=0)


class _SchedStat:
    """How long this thread has waited for a processor: /proc/thread-self/schedstat, second field, ns."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self._thread: int | None = None

    def waited_ns(self) -> int:
        """0 where the system does not say: the wake-up is then taken as immediate."""
        try:
            if self._fd is None:
                self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._fd, 96, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0


class WatchedLoop(asyncio.SelectorEventLoop):
    """The event loop that measurements run in: an ordinary one whose polls are watched."""

    def __init__(self) -> None:
        self.polls = Polls()
        super().__init__(self.polls)


def settle() -> None:
    """Put all that start-up has made out of the garbage collector's sight.

    A full collection stops the loop, for 80 ms with the libraries of `up` loaded; what stays for ever need not be
    looked through again.
    """
    gc.collect()
    gc.freeze()


def running_polls() -> Polls | None:
    """The watched polls of the running loop; None in a loop that is not a `WatchedLoop`."""
    return getattr(asyncio.get_running_loop(), "polls", None)


class ArrivalReader:
    """Reads one socket and says when what it read arrived. Not thread-safe; one per connection."""

    def __init__(self, sock: socket.socket, clock: Clock, *, kernel_stamps: bool = True) -> None:
        self._sock = sock
        self._clock = clock
        self._kernel = kernel_stamps and enable_kernel_stamps(sock)
        self._polls = running_polls()
        self._drained_ns = clock.monotonic_ns()
        self._segments_read: int | None = 0  # None: not known, as more arrived between the read and the count
        self._bytes_read = 0

    def read(self) -> Arrival:
        """One non-blocking read. Raises OSError as recvmsg does."""
        return self.arrival(self.catch())

    def catch(self) -> Caught:
        """One non-blocking read with all that only this moment knows; `arrival` may think about it later, in order.

        Data b"" at the end of the stream. Raises OSError as recvmsg does.
        """
        began = self._clock.monotonic_ns()
        data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, _ANCILLARY_BYTES)
        before = self._clock.monotonic_ns()
        wall = self._clock.wall_ns() - self._clock.correction_ns
        now = self._clock.monotonic_ns()
        offset = wall - (before + now) // 2
        if now - before > 20_000:  # interrupted between the readings
            now, offset = self._clock.monotonic_ns(), self._clock.offset_ns()
        empty = None if self._polls is None else self._polls.empty_since_ns
        return Caught(data, ancillary, began, now, offset, self._tcp_info() if self._kernel else None, empty)

    def arrival(self, caught: Caught) -> Arrival:
        """When what was caught arrived; to be asked once for each read, in their order."""
        data, now, offset = caught.data, caught.now_ns, caught.offset_ns
        stamp = _stamp_ns(caught.ancillary) if self._kernel else None
        at = now if stamp is None else min(now, stamp - offset)
        self._bytes_read += len(data)
        if stamp is not None and self._came_as_one(len(data), caught.tcp_info):
            spread = 0
        else:
            spread = max(0, at - max(self._drained_ns, caught.empty_since_ns or 0))
        self._drained_ns = caught.began_ns
        return Arrival(data, at, spread, now - at, stamp is not None, offset)

    def _came_as_one(self, size: int, tcp_info: bytes | None) -> bool:
        """Whether the bytes of this read were one segment, or one write of the peer cut into full segments."""
        if tcp_info is None or len(tcp_info) < _COUNTS.size:
            return False
        full_segment, bytes_in, data_in = map(int, _COUNTS.unpack_from(tcp_info))
        segments = None if self._segments_read is None else data_in - self._segments_read
        drained = bytes_in <= self._bytes_read + 1  # a FIN counts one
        self._segments_read = data_in if drained else None
        if segments is None:
            return False
        return segments <= 1 or (drained and size >= (segments - 1) * (full_segment - _OPTION_BYTES))

    def _tcp_info(self) -> bytes | None:
        """The largest segment, and bytes and data segments that have arrived so far, read or not: as `_COUNTS`."""
        try:
            return self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
        except OSError:
            return None


def enable_kernel_stamps(sock: socket.socket) -> bool:
    """Ask for arrival stamps; False where the system has none."""
    if not _IS_LINUX:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def stamping() -> Iterator[None]:
    """Keep the kernel's stamping switched on meanwhile: it starts a little after the first socket asks for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anchor:
        enable_kernel_stamps(anchor)
        yield


def _stamp_ns(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            whole, rest = _TIMESPEC.unpack_from(data)
            return int(whole * NS + rest)
    return None


def edge_of(headers: Mapping[str, str]) -> str | None:
    """The edge location code that a CDN's header names: `cf-ray: 8c1f...-LHR`, `x-amz-cf-pop: JFK50-P1`."""
    ray = headers.get("cf-ray", "")
    if "-" in ray:
        return ray.rpartition("-")[2][:16] or None
    return headers.get("x-amz-cf-pop", "")[:16] or None
