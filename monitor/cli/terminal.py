"""Whether those who see our output are still there: a terminal can go without a signal to us.

Closing a terminal hangs up its session's leader only. Where that is `make`, it waits for us and we hear nothing; but
our descriptors say so to whoever polls them.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterable

STANDARD = (0, 1, 2)
STDOUT = 1


def watched() -> list[int]:
    """The standard descriptors whose end means that nobody looks any more: terminals, and stdout into a pipe."""
    return [number for number in STANDARD if _is_terminal(number) or (number == STDOUT and _is_pipe(number))]


def gone(numbers: Iterable[int]) -> list[int]:
    """Those whose terminal was hung up or whose reader has left. Returns at once."""
    poll = select.poll()
    for number in numbers:
        poll.register(number, 0)  # hang-ups and errors are told without being asked for
    return [number for number, events in poll.poll(0) if events & (select.POLLHUP | select.POLLERR)]


def silence(numbers: Iterable[int]) -> None:
    """Send what is still written there nowhere, so that no last words raise an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(nowhere, number)
    os.close(nowhere)


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:
        return False
