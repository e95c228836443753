"""The last good configuration on disk: by it an agent measures before its hub was heard, or without ever hearing it.

Hides how a file is replaced so that a power cut leaves the old or the new one. It holds no keys: a handout has none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import structlog

from monitor.agent.hub_client import MAX_CONFIG_BYTES, Handout
from monitor.agent.spoolfile import sync_directory

log = structlog.get_logger("firsttoken")


def recall(file: Path) -> Handout | None:
    """What stands there from an earlier life; None, said in the log, for what cannot be read."""
    try:
        with file.open("rb") as opened:
            told = json.loads(opened.read(MAX_CONFIG_BYTES + 1_000))
        content = json.dumps(told["config"], ensure_ascii=False, separators=(",", ":")).encode()
        return Handout(str(told["vantage"]), str(told["digest"]), content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning("the last configuration cannot be read; waiting for the hub", cause=type(error).__name__)
        return None


def remember(file: Path, handout: Handout) -> None:
    """Replace the file in one step; a disk that refuses is said in the log, and the old file stays."""
    fresh = file.with_suffix(".new")
    body = b'{"vantage":%s,"digest":%s,"config":%s}' % (
        json.dumps(handout.vantage).encode(),
        json.dumps(handout.digest).encode(),
        handout.content,
    )
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as opened:
            opened.write(body)
            opened.flush()
            os.fsync(fd)
        fresh.replace(file)
        sync_directory(file.parent)
    except OSError as error:
        log.warning("the configuration cannot be kept for the next start", cause=error.strerror)
