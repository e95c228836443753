"""Every attempt says what about its own measurement is in doubt, and nothing else."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from monitor.agent.probe import Prober
from monitor.agent.validity import CpuSteal, CpuThrottling, Machine
from monitor.clock import Clock, CorrectedClock, wall_ns
from monitor.model import Attempt, ClockSource, ConnectionPolicy, Doubt
from tests.integration.probing import (
    CHUNK,
    DONE,
    FINISH,
    STREAM_HEAD,
    attempt,
    in_loop,
    prober,
    request,
    says,
    series,
    served,
    succeeded,
    whole,
)

REUSED = {"connection": ConnectionPolicy.REUSED}


@dataclass
class Streaming:
    """A server in a thread of its own, so that it keeps its pace while the measuring loop is blocked."""

    port: int
    asked: threading.Event = field(default_factory=threading.Event)  # it has the request
    sends: list[tuple[int, int]] = field(default_factory=list)  # wall time before and after each token's send, ns


@contextmanager
def streaming_thread(*, first: float, gap: float, tokens: int) -> Iterator[Streaming]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                connection.recv(65536)
                streaming.asked.set()
                connection.sendall(STREAM_HEAD + b"\r\n")
                time.sleep(first)
                for _ in range(tokens):
                    before_ns = Clock().wall_ns()
                    connection.sendall(CHUNK)
                    streaming.sends.append((before_ns, Clock().wall_ns()))
                    time.sleep(gap)
                connection.sendall(FINISH + DONE)

        streaming = Streaming(server.getsockname()[1])
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield streaming
        thread.join(10)


async def block(times: int, for_seconds: float, free_seconds: float) -> None:
    """Keep the loop busy, as somebody else's callback would."""
    for _ in range(times):
        time.sleep(for_seconds)  # noqa: ASYNC251  # a blocked loop is the point
        await asyncio.sleep(free_seconds)


def measured(streaming: Streaming, *, blocked: tuple[int, float, float], after: float) -> Attempt:
    """An attempt while the loop is blocked so, beginning `after` seconds behind the moment at which it was asked."""

    async def ask_it() -> Attempt:
        async with prober() as one:
            running = asyncio.create_task(attempt(one, series(f"http://127.0.0.1:{streaming.port}/v1")))
            while not streaming.asked.is_set():  # noqa: ASYNC110  # an event of another thread
                await asyncio.sleep(0.001)
            await asyncio.sleep(after)
            await block(*blocked)
            return await running

    return in_loop(ask_it)


def test_a_blocked_loop_that_merges_tokens_is_said_and_gaps_are_left_out() -> None:
    """Tokens every 5 ms, read every 30: the gaps are not known, and are not invented. The phases stay good."""
    with streaming_thread(first=0.15, gap=0.005, tokens=60) as streaming:
        made = measured(streaming, blocked=(10, 0.03, 0.001), after=0.2)
    succeeded(made)
    assert Doubt.COALESCED in made.validity
    assert made.gaps is None
    assert made.coalesced_reads > 0
    assert made.token_events == 60


def test_a_first_token_that_merged_with_the_next_makes_the_attempt_invalid() -> None:
    """The loop is away when the first token comes and others follow: ttft is uncertain, and says so."""
    with streaming_thread(first=0.15, gap=0.005, tokens=20) as streaming:
        made = measured(streaming, blocked=(1, 0.2, 0.0), after=0.05)
    succeeded(made)
    assert Doubt.FIRST_TOKEN_COALESCED in made.validity
    assert Doubt.LOOP_LAG in made.validity
    assert not made.valid


def test_a_late_read_of_a_lone_first_token_is_exact_all_the_same() -> None:
    """One segment has one stamp: the loop was away for 45 ms, and ttft is right to a few."""
    with streaming_thread(first=0.15, gap=0.3, tokens=2) as streaming:
        made = measured(streaming, blocked=(1, 0.045, 0.0), after=0.13)
    succeeded(made)
    if made.clock_source is not ClockSource.KERNEL:
        pytest.skip("no kernel stamps on this system")
    assert Doubt.FIRST_TOKEN_COALESCED not in made.validity
    assert made.timeline.ttft is not None
    arrived_ns = wall_ns(made.started_at) + round(made.timeline.ttft * 1e9)
    before_ns, after_ns = streaming.sends[0]
    assert before_ns - 2_000_000 < arrived_ns < after_ns + 2_000_000  # when the server sent it, however late that was


def test_a_loop_blocked_for_long_is_said() -> None:
    """Over 50 ms our own marks are in doubt: `loop_lag`, with how long."""
    with streaming_thread(first=0.3, gap=0.02, tokens=3) as streaming:
        made = measured(streaming, blocked=(1, 0.08, 0.0), after=0.1)
    succeeded(made)
    assert Doubt.LOOP_LAG in made.validity
    assert made.loop_lag_seconds >= 0.079
    assert not made.valid


# The clock.


class SteppingClock(Clock):
    """The machine's clock, whose wall side an administrator moves."""

    ahead_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_wrong_clock_that_was_put_right_spoils_nothing(seconds: float) -> None:
    """The machine is an hour off and the hub has said so: phases as ever, no doubt, and the right instant."""
    clock = CorrectedClock()
    clock.correct(seconds)

    async def ask_it() -> Attempt:
        talk = says(0.1, STREAM_HEAD + b"\r\n", 0.1, CHUNK + FINISH + DONE)
        async with served(talk) as port, prober(clock=clock) as one:
            return await attempt(one, series(f"http://127.0.0.1:{port}/v1"))

    before = clock.now()
    made = in_loop(ask_it)
    succeeded(made)
    assert before <= made.started_at <= clock.now()
    assert Doubt.CLOCK_STEP not in made.validity
    assert made.timeline.ttft is not None
    assert 0.19 <= made.timeline.ttft < 20


@pytest.mark.parametrize("step_ns", [5_000_000, -3_600_000_000_000])
def test_a_step_of_the_clock_during_an_attempt_is_said(step_ns: int) -> None:
    """5 ms forward or an hour back: `clock_step`, and the durations are those of the monotonic clock."""
    clock = SteppingClock()

    async def ask_it() -> Attempt:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request(reader)
            writer.write(STREAM_HEAD + b"\r\n")
            await asyncio.sleep(0.1)
            clock.ahead_ns += step_ns
            writer.write(CHUNK + FINISH + DONE)

        async with served(talk) as port, prober(clock=clock, kernel_stamps=False) as one:
            return await attempt(one, series(f"http://127.0.0.1:{port}/v1"))

    made = in_loop(ask_it)
    succeeded(made)
    assert Doubt.CLOCK_STEP in made.validity
    assert not made.valid
    assert made.timeline.ttft is not None
    assert 0.1 <= made.timeline.ttft < 2


def test_a_step_between_two_attempts_taints_neither() -> None:
    """A connection outlives a correction of the clock: later attempts on it are measured with the new offset."""
    clock = SteppingClock()

    async def ask_thrice() -> list[Attempt]:
        async with served(says(whole(), then="again")) as port, prober(clock=clock, kernel_stamps=False) as one:
            asked = series(f"http://127.0.0.1:{port}/v1", probe=REUSED)
            made = []
            for _ in range(3):
                made.append(await attempt(one, asked))
                clock.ahead_ns += 60_000_000_000
            return made

    made = in_loop(ask_thrice)
    for one in made:
        succeeded(one)
        assert Doubt.CLOCK_STEP not in one.validity
    assert made[2].http.reused
    assert (made[1].started_at - made[0].started_at).total_seconds() >= 59


# The machine.

V2_PLAIN = "usage_usec 100\nuser_usec 60\nsystem_usec 40\n"


def v2(throttled_usec: int) -> str:
    return f"{V2_PLAIN}nr_periods 5\nnr_throttled 1\nthrottled_usec {throttled_usec}\n"


def v1(throttled_ns: int) -> str:
    return f"nr_periods 5\nnr_throttled 1\nthrottled_time {throttled_ns}\n"


def cgroup(tmp_path: Path, lines: str, **files: str) -> CpuThrottling:
    """A cgroup tree: `lines` of /proc/self/cgroup and cpu.stat files by folder (`__` stands for a slash)."""
    (tmp_path / "cgroup").write_text(lines)
    for folder, text in files.items():
        path = tmp_path / "fs" / folder.replace("__", "/").strip(".") / "cpu.stat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CpuThrottling(tmp_path / "cgroup", tmp_path / "fs")


def test_throttling_is_read_from_cgroup_v2(tmp_path: Path) -> None:
    """The process's own group."""
    assert cgroup(tmp_path, "0::/app\n", app=v2(120)).throttled() == 120


def test_a_quota_further_up_counts_too(tmp_path: Path) -> None:
    """systemd's session scope has no quota of its own; the slice it lies in may have one."""
    found = cgroup(tmp_path, "0::/user.slice/session-1.scope\n", **{
        "user.slice": v2(70), "user.slice__session-1.scope": V2_PLAIN, ".": V2_PLAIN,
    })  # fmt: skip
    assert found.throttled() == 70


@pytest.mark.parametrize("mounted", ["cpu,cpuacct", "cpu"])
def test_throttling_is_read_from_cgroup_v1(tmp_path: Path, mounted: str) -> None:
    """The cpu controller, under whichever name it is mounted; other controllers do not matter."""
    lines = "5:memory:/x\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/y\n1:name=systemd:/z\n"
    found = cgroup(tmp_path, lines, **{f"{mounted}__docker__abc": v1(99), "memory__x": v1(5)})
    assert found.throttled() == 99


def test_inside_a_container_the_path_is_the_hosts(tmp_path: Path) -> None:
    """Without a cgroup namespace the path does not exist inside; the root of the mount is our group."""
    assert cgroup(tmp_path, "4:cpu:/docker/abc\n", cpu=v1(7)).throttled() == 7


@pytest.mark.parametrize(
    ("lines", "text"),
    [("0::/\n", V2_PLAIN), ("", v2(3)), ("garbage\n\n::\n", "more garbage"), ("0::/\n", "throttled_usec lots\n")],
)
def test_a_machine_that_does_not_tell_is_not_throttled(tmp_path: Path, lines: str, text: str) -> None:
    """Unknown is None, never an error."""
    assert cgroup(tmp_path, lines, **{".": text}).throttled() is None
    assert CpuThrottling(tmp_path / "nothing", tmp_path / "nowhere").throttled() is None


@pytest.mark.parametrize("grows", [0, 1500])
def test_an_attempt_during_which_the_quota_stopped_us_says_so(tmp_path: Path, grows: int) -> None:
    """`cpu_throttled` when the counter grew while the attempt ran, and only then."""
    found = cgroup(tmp_path, "0::/app\n", app=v2(1000))

    async def ask_it() -> Attempt:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await request(reader)
            (tmp_path / "fs/app/cpu.stat").write_text(v2(1000 + grows))
            writer.write(whole())

        async with served(talk) as port, prober() as one:
            one._machine = Machine(found, CpuSteal(tmp_path / "no stat"))
            return await attempt(one, series(f"http://127.0.0.1:{port}/v1"))

    made = in_loop(ask_it)
    succeeded(made)
    assert (Doubt.CPU_THROTTLED in made.validity) is bool(grows)


# Ourselves.


def test_the_first_attempt_of_a_process_that_was_not_warmed_up_says_so() -> None:
    """`start` warms the whole path; without it the first attempt is the warm-up."""

    async def ask_twice(start: bool) -> list[Attempt]:
        async with served(says(whole())) as port:
            one = Prober(Clock())
            if start:
                await one.start()
            try:
                return [await attempt(one, series(f"http://127.0.0.1:{port}/v1")) for _ in range(2)]
            finally:
                await one.close()

    cold, warm = in_loop(lambda: ask_twice(False))
    assert Doubt.WARM_UP in cold.validity
    assert Doubt.WARM_UP not in warm.validity
    assert not cold.valid
    assert all(Doubt.WARM_UP not in made.validity for made in in_loop(lambda: ask_twice(True)))


def test_a_warm_up_that_failed_is_none() -> None:
    """Without a descriptor for its connection nothing was warmed: attempts are doubted until one is answered."""

    async def ask_thrice() -> list[Attempt]:
        async with served(says(whole())) as port, served(says()) as mute:
            one = Prober(Clock())
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            os.close(free := os.open(os.devnull, os.O_RDONLY))
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, limits[1]))  # its socket of stamps, and its server
            try:
                await one.start()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            try:
                return [await attempt(one, series(f"http://127.0.0.1:{at}/v1")) for at in (mute, port, port)]
            finally:
                await one.close()

    unanswered, cold, warm = in_loop(ask_thrice)
    assert Doubt.WARM_UP in unanswered.validity
    assert Doubt.WARM_UP in cold.validity
    assert Doubt.WARM_UP not in warm.validity


def test_nothing_is_doubted_where_nothing_is_wrong() -> None:
    """Of a few calm attempts most carry no doubt at all (the machine may be busy with others)."""

    async def ask_it() -> list[Attempt]:
        async with served(says(whole())) as port, prober() as one:
            return [await attempt(one, series(f"http://127.0.0.1:{port}/v1")) for _ in range(8)]

    made = in_loop(ask_it)
    assert any(one.valid and not one.validity for one in made)
    assert all(one.clock_source is not None and one.reads >= 1 for one in made)
