"""Logs of the long-running commands: one line an event on stderr, as JSON or as text, with every secret taken out.

Hides structlog and the standard library's logging: what libraries log from WARNING on goes the same way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, TextIO

import structlog

from monitor.agent.failures import scrub
from monitor.model import Secret

LINE_LIMIT = 4_000
VALUE_LIMIT = 16_000
LIBRARIES = ("apscheduler", "uvicorn", "alembic", "sqlalchemy", "httpx", "httpcore", "asyncio")

Event = MutableMapping[str, Any]


class Scrubber:
    """A log processor that takes all known secrets out of every value. `know` adds those of a new configuration."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._secrets: tuple[Secret, ...] = tuple(secrets)

    def know(self, secrets: Iterable[Secret]) -> None:
        """Take these out too, from now on; earlier ones stay known."""
        self._secrets = tuple(dict.fromkeys((*self._secrets, *secrets)))

    def __call__(self, logger: object, method: str, event: Event) -> Event:
        return {key: self._clean(value) for key, value in event.items()}

    def _clean(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, dict):
            return {str(key): self._clean(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(inner) for inner in value]
        return self.clean(str(value))

    def clean(self, text: str) -> str:
        """The text without secrets, and of a bounded length."""
        lines = text[:VALUE_LIMIT].splitlines() or [""]
        return "\n".join(_indent(line) + scrub(line, self._secrets, LINE_LIMIT) for line in lines)


def _for_people(render: Callable[..., str]) -> Callable[..., str]:
    """Lists written out: names after each other, sentences below the line, one each."""

    def written_out(logger: object, method: str, event: Event) -> str:
        sentences = [str(one) for value in event.values() if _is_of_sentences(value) for one in value]
        rest = {key: _joined(value) for key, value in event.items() if not _is_of_sentences(value)}
        return render(logger, method, rest) + "".join(f"\n  {one}" for one in sentences)

    return written_out


def _is_of_sentences(value: object) -> bool:
    return isinstance(value, list) and any(" " in str(one) for one in value)


def _joined(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]


def configure(level: str, style: str, scrubber: Scrubber, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (stderr): `level` debug to error, `style` json or text. May be called again."""
    stream = stream or sys.stderr
    number = getattr(logging, level.upper())
    shared: list[Callable[..., Any]] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        scrubber,
    ]
    if style == "json":
        render: list[Callable[..., Any]] = [
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(),
        ]
    else:
        render = [
            _for_people(
                structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
            )
        ]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    _adopt_libraries(stream, max(number, logging.WARNING), shared, render)


def _adopt_libraries(stream: TextIO, number: int, shared: list[Any], render: list[Any]) -> None:
    handler = logging.StreamHandler(stream)
    strip = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared[:-1], processors=[strip, shared[-1], *render])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(number)
