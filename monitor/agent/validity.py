"""Suspect yourself first: what about our own measurement is in doubt.

Looks at the machine (CPU throttling by the cgroup, CPU time stolen by its host), the event loop (how long it was
blocked), the clocks (a step of the wall clock) and the reads (segments that merged before we came). Says so in
`Doubt`s; never repairs.
"""

from __future__ import annotations

import os
import re
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from monitor.agent.arrivals import running_polls
from monitor.agent.connection import Tape
from monitor.clock import Clock
from monitor.model import ClockSource, Doubt

LOOP_LAG_NS = 50_000_000
"""A blocked event loop delays our own marks (start, send, connect): over 50 ms the attempt is tainted."""
OWN_LATENESS_NS = 10_000_000
"""Connected, answered or greeted, but not going on: many short turns of a crowded loop delay the sending as well."""
CLOCK_STEP_NS = 1_000_000
"""Wall minus monotonic may not move by more than this during an attempt: stamps are converted with it."""
STEAL_NS = 50_000_000
STEAL_SHARE = 0.05
"""The host may take 50 ms in all, or a twentieth of the processors' time: that is an ordinary shared machine. More
than both means that packets and threads waited for a processor while an attempt was timed.
"""


_KERNEL_FILE_BYTES = 1024
_THROTTLED = re.compile(rb"^throttled_(?:usec|time) (\d+)$", re.MULTILINE)  # cgroup v2, v1


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the machine tells what it did to us: made once for a process."""

    cgroup: CpuThrottling
    steal: CpuSteal

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        return cls(CpuThrottling(), CpuSteal())


@dataclass(frozen=True, slots=True)
class Conditions:
    """The machine as it stood when an attempt began."""

    began_ns: int
    offset_ns: int
    throttled: int | None
    stolen_ns: int | None

    @classmethod
    def now(cls, clock: Clock, machine: Machine) -> Conditions:
        return cls(clock.monotonic_ns(), clock.offset_ns(), machine.cgroup.throttled(), machine.steal.stolen_ns())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the attempt carries about its own measurement."""

    doubts: tuple[Doubt, ...]
    loop_lag_ns: int
    clock_source: ClockSource | None


def judge(
    began: Conditions,
    clock: Clock,
    machine: Machine,
    tape: Tape,
    *,
    coalesced: bool,
    first_token_coalesced: bool,
    warm: bool,
    reconnected: bool,
) -> Verdict:
    """Compare the machine now with how it stood when the attempt began."""
    polls = running_polls()
    blocked = polls.worst_between(began.began_ns, clock.monotonic_ns()) if polls else tape.worst_lag_ns
    step = max(abs(clock.offset_ns() - began.offset_ns), tape.worst_step_ns)
    throttled = machine.cgroup.throttled()
    found = {
        Doubt.LOOP_LAG: blocked > LOOP_LAG_NS or tape.late_ns > OWN_LATENESS_NS,
        Doubt.COALESCED: coalesced,
        Doubt.FIRST_TOKEN_COALESCED: first_token_coalesced,
        Doubt.CPU_THROTTLED: throttled is not None and began.throttled is not None and throttled > began.throttled,
        Doubt.CPU_STEAL: machine.steal.is_much(began.stolen_ns, clock.monotonic_ns() - began.began_ns),
        Doubt.CLOCK_STEP: step > CLOCK_STEP_NS,
        Doubt.WARM_UP: not warm,
        Doubt.RECONNECTED: reconnected,
    }
    source = None if not tape.reads else ClockSource.USER if tape.unstamped else ClockSource.KERNEL
    return Verdict(tuple(doubt for doubt, holds in found.items() if holds), blocked, source)


class KernelFile:
    """A small file in which the kernel tells numbers, kept open: opening it costs more than reading it."""

    def __init__(self, path: Path) -> None:
        self._fd: int | None = None
        with suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._fd)

    def content(self) -> bytes:
        """The first kilobyte or so as it is now; b"" when it cannot be read."""
        if self._fd is None:
            return b""
        try:
            return os.pread(self._fd, _KERNEL_FILE_BYTES, 0)
        except OSError:
            return b""


class CpuThrottling:
    """The time for which CPU quotas of our cgroup, and of those it lies in, have stopped us: cpu.stat, v2 or v1."""

    def __init__(self, proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> None:
        files = [KernelFile(path) for path in _cpu_stat_files(proc, root)]
        self._files = tuple(file for file in files if _throttled(file) is not None)

    def throttled(self) -> int | None:
        """A number that grows while we are throttled (microseconds in v2, nanoseconds in v1); None when unknown."""
        told = [value for file in self._files if (value := _throttled(file)) is not None]
        return sum(told) if told else None


def _throttled(cpu_stat: KernelFile) -> int | None:
    found = _THROTTLED.search(cpu_stat.content())
    return int(found[1]) if found else None


class CpuSteal:
    """The time for which the host of a virtual machine ran something else on our processors, from /proc/stat.

    The kernel counts it in ticks of (usually) 10 ms, over all processors.
    """

    def __init__(self, stat: Path = Path("/proc/stat"), processors: int | None = None) -> None:
        self._file = KernelFile(stat)
        self._processors = processors or os.cpu_count() or 1
        self._tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def stolen_ns(self) -> int | None:
        """Nanoseconds stolen since the machine's start; None where the system does not tell."""
        try:
            fields = self._file.content().split(b"\n", 1)[0].split()
            return int(fields[8]) * self._tick_ns if fields[0] == b"cpu" else None
        except (ValueError, IndexError):
            return None

    def is_much(self, before_ns: int | None, elapsed_ns: int) -> bool:
        """Whether more was stolen since `before_ns` than `STEAL_NS` and than `STEAL_SHARE` of all processors' time."""
        now_ns = self.stolen_ns()
        if before_ns is None or now_ns is None:
            return False
        stolen = now_ns - before_ns
        return stolen > STEAL_NS and stolen > STEAL_SHARE * elapsed_ns * self._processors


def _cpu_stat_files(proc: Path, root: Path) -> list[Path]:
    """cpu.stat of the process's cgroup and of every one above it; each once, whatever names lead there."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    found: dict[Path, Path] = {}
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        names = ("", controllers, "cpu", "cpu,cpuacct") if controllers else ("",)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for group in (PurePosixPath(inside), *PurePosixPath(inside).parents):
            for name in names:
                path = root / name / str(group).lstrip("/") / "cpu.stat"
                found.setdefault(path.resolve(), path)
    return list(found)
