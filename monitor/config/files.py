"""Files that somebody else names: read bounded in size and in time, whatever they are.

Hides that a path may lead to a pipe (`<(sops -d secret.yaml)`, /dev/stdin) that gives its bytes late or never: opening
and reading one would wait for ever.
"""

from __future__ import annotations

import errno
import os
import select
import ssl
import time
from pathlib import Path

PATIENCE_SECONDS = 5.0


def read_bounded(
    path: str | os.PathLike[str], limit_bytes: int, *, patience_seconds: float = PATIENCE_SECONDS
) -> bytes:
    """The first `limit_bytes` of a file or a pipe. Raises OSError; TimeoutError when they do not come in time."""
    until = time.monotonic() + patience_seconds
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        data, poll = bytearray(), select.poll()
        poll.register(fd, select.POLLIN)
        while len(data) < limit_bytes:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError(errno.ETIMEDOUT, "nothing comes from it")
            piece = os.read(fd, limit_bytes - len(data))
            if not piece:
                break
            data += piece
    finally:
        os.close(fd)
    return bytes(data)


def is_pem(path: Path) -> bool:
    """Whether a regular file holds certificates as TLS can trust them."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ValueError):
        return False
    return True
