"""How a command ends that may have left threads behind: a name lookup cannot be cancelled, only abandoned."""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

import typer


def leave(code: int) -> NoReturn:
    """End the process; threads that hang in a database or a resolver are not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(code)
    raise typer.Exit(code)
