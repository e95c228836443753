"""Notices that files have changed, also through swapped symlinks as Kubernetes does.

Hides polling: no inotify, which network file systems and container mounts do not serve.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
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
    paths: Callable[[], Sequence[Path]],
    *,
    poll_seconds: float = POLL_SECONDS,
    settle_seconds: float = SETTLE_SECONDS,
    gone_seconds: float = GONE_SECONDS,
) -> AsyncIterator[None]:
    """Yields each time one of the files has changed and all then stayed the same for `settle_seconds`: a half-written
    file is no change yet, a file that is gone for a moment neither. One that stays away for `gone_seconds` has changed,
    once. `paths` is asked at every look, and may answer otherwise after a change.
    """
    watched = paths()
    known = await asyncio.to_thread(_fingerprints, watched)
    while True:
        await asyncio.sleep(poll_seconds)
        if (now := paths()) != watched:  # what was watched before is known as it was then: it may have changed since
            before = dict(zip(watched, known, strict=True))
            fresh = await asyncio.to_thread(_fingerprints, now)
            watched, known = now, [before.get(path, found) for path, found in zip(now, fresh, strict=True)]
            continue
        found = await asyncio.to_thread(_fingerprints, watched)
        if found == known:
            continue
        gone = any(after is None for before, after in zip(known, found, strict=True) if before != after)
        await asyncio.sleep(gone_seconds if gone else settle_seconds)
        if await asyncio.to_thread(_fingerprints, watched) == found:
            known = found
            yield


def _fingerprints(paths: Sequence[Path]) -> list[Fingerprint]:
    return [fingerprint(path) for path in paths]
