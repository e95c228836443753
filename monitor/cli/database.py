"""The database that a command works on, opened for as long as the command runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.cli.migrate import DEFAULT_FILE
from monitor.clock import Clock
from monitor.config.handout import load_fleet
from monitor.model import ConfigError

if TYPE_CHECKING:
    from monitor.cli.storage import Storage


@contextmanager
def open_database(file: Path | None, state: Path | None = None) -> Iterator[tuple[Storage, datetime]]:
    """The database of the file, else DATABASE_URL, else of the file in this folder; the hub's embedded one too.

    With the instant of asking. `state`: the folder of the embedded one, instead of the file's own. Raises ConfigError.
    """
    from monitor.cli.storage import Storage

    if file is None and not os.environ.get("DATABASE_URL") and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    config = None if file is None else load_fleet(file).config
    url = os.environ.get("DATABASE_URL") if config is None else config.database_url
    if config is None and not url:
        raise ConfigError("no database is named: give the configuration file that names it, or set DATABASE_URL")
    clock = Clock()
    folder = state or Path(config.spool.directory if config else ".")
    storage = Storage(url, folder / "postgres", clock)
    try:
        yield storage, clock.now()
    finally:
        storage.close()
