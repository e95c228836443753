"""`firsttoken demo`: everything on this machine, without key, Docker or root, and nothing left behind.

Starts the simulated providers, the distances and a real model as children, then the product itself (`Station`) on a
configuration like anybody's, and shows a live table. Whatever ends it, everything it started ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.live import Live

from monitor import config as configuration
from monitor.agent.arrivals import WatchedLoop
from monitor.cli import demo_plan, logs, model_server, terminal
from monitor.cli.board import Board
from monitor.cli.children import Child
from monitor.cli.demo_state import DemoFolder, default_folder
from monitor.cli.screen import Screen
from monitor.cli.station import Station
from monitor.model import Attempt, MonitorError, Series

FIRST_PORT = 8765
PORTS_TRIED = 50
CHILD_READY_SECONDS = 30.0
DRAIN_SECONDS = 1.0
FRAMES_PER_SECOND = 2
TERMINAL_SECONDS = 0.5


class DemoFailed(MonitorError):
    """The demo cannot start; the message says why and what to do."""


class Model(StrEnum):
    SMOLLM2 = "smollm2"
    NONE = "none"


def demo(
    model: Annotated[
        Model, typer.Option("--model", help="The real model, or none: simulated providers only.")
    ] = Model.SMOLLM2,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="Port of the page; without it the first free from 8765."),
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", min=1.0, help="End by itself after so many seconds.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="Folder for everything it writes; removed at the end.")
    ] = None,
) -> None:
    """Show it all on this machine: a real model, simulated providers and distances, database, metrics and live page.

    Needs no key, no Docker and no root. Ctrl-C ends everything it started and leaves nothing behind.
    """
    console = Screen()
    if model is Model.SMOLLM2 and (problem := model_server.why_not()):
        raise DemoFailed(f"{problem} `make demo` installs them; `firsttoken demo --model none` runs without it.")
    chosen = free_port(port)
    folder = DemoFolder((state or default_folder(os.environ, Path.cwd())).absolute())
    try:
        for line in folder.cleaned:
            console.print(line)
        if port is None and chosen != FIRST_PORT:
            console.print(f"Port {FIRST_PORT} is taken; the page is on {chosen} instead.")
        with (folder.path / "demo.log").open("w", encoding="utf-8") as log:
            one = Demo(console, folder, log, with_model=model is not Model.NONE)
            with asyncio.Runner(loop_factory=WatchedLoop) as runner:
                runner.run(one.run(chosen, duration))
    finally:
        folder.remove()


def free_port(asked: int | None) -> int:
    """The port asked for, or the first free one from 8765 on. Raises DemoFailed with a sentence when it is taken."""
    for port in [asked] if asked else range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            if asked and error.errno == errno.EACCES:
                raise DemoFailed(f"port {asked} needs root; choose one above 1023 with --port") from error
            continue
        return port
    taken = f"port {asked} is" if asked else f"the ports {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} are"
    raise DemoFailed(f"{taken} taken by another program; choose another with --port, or leave --port out")


@dataclass(slots=True)
class Demo:
    """One run, from the first child to the last line."""

    console: Screen
    folder: DemoFolder
    log: TextIO
    with_model: bool
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    children: list[Child] = field(default_factory=list)
    station: Station | None = None
    board: Board | None = None
    watched: list[int] = field(default_factory=terminal.watched)
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    async def run(self, port: int, duration: float | None) -> None:
        """Start everything, show it until a signal or for `duration` seconds, end everything."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        watching: asyncio.Task[None] | None = None
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup asks
            numbers.append(signal.SIGHUP)
            watching = asyncio.create_task(self._end_with_the_terminal())
        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, self.ending.set)
        try:
            if await self._unless_ended(self._start(port)):
                await self._show(duration)
        finally:
            await self._stop()
            if watching is not None:
                watching.cancel()

    async def _end_with_the_terminal(self) -> None:
        """A hang-up reaches the leader of the session only, which may be a `make` that waits for us."""
        while not terminal.gone(self.watched):  # noqa: ASYNC110 (nothing but asking tells it)
            await asyncio.sleep(TERMINAL_SECONDS)
        self._spare_the_gone()
        self.ending.set()

    def _spare_the_gone(self) -> None:
        """Nobody reads our last words: they must not become errors."""
        terminal.silence(terminal.gone(self.watched))

    # ------------------------------------------------------------------------------------------------ start and end

    async def _unless_ended(self, start: Any) -> bool:
        """Run the start; False when a signal ended it first."""
        starting, ended = asyncio.ensure_future(start), asyncio.ensure_future(self.ending.wait())
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not starting.done():
            starting.cancel()
            for child in self.children:
                child.stop()  # ends the reading of its first line
            await asyncio.wait({starting})
            return False
        starting.result()
        return True

    async def _start(self, port: int) -> None:
        began = time.monotonic()
        names = "the simulated providers and distances" + (" and a real model" if self.with_model else "")
        self.console.print(f"Starting {names} ...")
        simulator = self._child("simulator", "monitor.simulator.__main__", demo_plan.simulator_arguments())
        model = self._start_model() if self.with_model else None
        described = json.loads(await self._ready(simulator))
        model_url = await self._ready(model) if model else None
        self.console.print("Starting Postgres, the schedule and the page ...")
        config = self._configure(described, model_url, port)
        self.station = Station(config, state_directory=self.folder.path, on_attempt=self._take)
        self.board = Board(self.station.series, f"http://127.0.0.1:{port}/")
        await self.station.start()
        self.folder.announce(self.station.url)
        self.console.print(f"Up after {time.monotonic() - began:.1f} s: {self.station.url}  (Ctrl-C ends it all)")

    def _configure(self, simulator: dict[str, Any], model_url: str | None, port: int) -> configuration.Config:
        file = self.folder.path / "firsttoken.yaml"
        file.write_text(demo_plan.configuration(simulator, model_url, port), encoding="utf-8")
        config = configuration.load(file, {demo_plan.KEY_VARIABLE: self.key})
        logs.configure(config.log.level, config.log.format, logs.Scrubber(config.secrets()), self.log)
        return config

    def _start_model(self) -> Child:
        child = model_server.start(self.folder.path / "model.log", self.folder.ledger, self.key, demo_plan.IDLE_SECONDS)
        self.children.append(child)
        return child

    def _child(self, name: str, module: str, arguments: list[str]) -> Child:
        scratch = self.folder.path / "tmp"
        scratch.mkdir(exist_ok=True)
        child = Child(
            name,
            module,
            arguments,
            log=self.folder.path / f"{name}.log",
            ledger=self.folder.ledger,
            environment={"TMPDIR": str(scratch)},
        )
        self.children.append(child)
        return child

    async def _ready(self, child: Child) -> str:
        """A child's first line; DemoFailed with its last words when it leaves or stays silent."""
        try:
            line = await asyncio.wait_for(asyncio.to_thread(child.read_line), CHILD_READY_SECONDS)
        except TimeoutError:
            line = ""
        if not line:
            hint = " `firsttoken demo --model none` runs without it." if child.name == "model" else ""
            raise DemoFailed(f"the {child.name} does not start: {child.last_words()}.{hint}")
        return line

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # nobody is there to read it; what is noticed ends the demo
            self.console.print(line)

    async def _stop(self) -> None:
        self._spare_the_gone()
        if self.station is not None:
            self._say("Ending everything that was started ...")
            await self.station.stop(DRAIN_SECONDS)
        for child in self.children:
            child.stop()
        if self.board is not None:
            self._say(f"Ended after {self.board.taken} attempts. Nothing is left behind.")

    # ------------------------------------------------------------------------------------------------ showing

    def _take(self, attempt: Attempt, series: Series) -> None:
        assert self.board is not None
        if self.ending.is_set():
            return  # what was cut short is no measurement worth a line
        word = self.board.take(attempt)
        if not self.console.is_terminal:
            with contextlib.suppress(OSError):  # the reader has left: noticed within a second
                terminal.say(self.board.line(attempt, word).plain)

    async def _show(self, duration: float | None) -> None:
        deadline = None if duration is None else time.monotonic() + duration
        with self._live():
            while not self.ending.is_set() and (deadline is None or time.monotonic() < deadline):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ending.wait(), 1 / FRAMES_PER_SECOND)
                self._look_after()
            self._spare_the_gone()
        self.ending.set()

    @contextlib.contextmanager
    def _live(self) -> Iterator[None]:
        """The live table, drawn by a thread of its own; nothing where there is no terminal."""
        board, console = self.board, self.console
        if board is None or not console.is_terminal:
            yield
            return
        with Live(
            get_renderable=lambda: board.render(console.width),
            console=console,
            refresh_per_second=FRAMES_PER_SECOND,
            screen=False,
            vertical_overflow="ellipsis",
        ):
            yield

    def _look_after(self) -> None:
        """Notice what is wrong with our own parts, and say it once."""
        assert self.station is not None
        assert self.board is not None
        troubles = [f"{part}: {said}" for part, said in self.station.health().items() if said]
        troubles += [
            f"the {child.name} has ended: {child.last_words()}"
            for child in self.children
            if child.exit_code is not None
        ]
        for trouble in set(troubles) - set(self.board.troubles):
            if not self.console.is_terminal:
                with contextlib.suppress(OSError):
                    terminal.say(trouble, err=True)
        self.board.troubles = tuple(troubles)
