"""Notices that the configuration file has changed, also through swapped symlinks as Kubernetes does.

Hides polling: no inotify, which network file systems and container mounts do not serve.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

POLL_SECONDS = 2.0
SETTLE_SECONDS = 0.5
GONE_SECONDS = 4.0

Fingerprint = tuple[str, int, int, int] | None


def fingerprint(path: Path) -> Fingerprint:
    """Real path, inode, size and modification time; None while there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (os.path.realpath(path), status.st_ino, status.st_size, status.st_mtime_ns)


async def changes(
    path: Path,
    *,
    poll_seconds: float = POLL_SECONDS,
    settle_seconds: float = SETTLE_SECONDS,
    gone_seconds: float = GONE_SECONDS,
) -> AsyncIterator[None]:
    """Yields each time the file has changed and then stayed the same for `settle_seconds`: a half-written file is no
    change yet, a file that is gone for a moment neither. One that stays away for `gone_seconds` has changed, once.
    """
    known = await asyncio.to_thread(fingerprint, path)
    while True:
        await asyncio.sleep(poll_seconds)
        found = await asyncio.to_thread(fingerprint, path)
        if found == known:
            continue
        await asyncio.sleep(gone_seconds if found is None else settle_seconds)
        if await asyncio.to_thread(fingerprint, path) == found:
            known = found
            yield
