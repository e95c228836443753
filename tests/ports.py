"""Ports for servers that want a number in their configuration, and ports at which nobody listens.

A port that the system picks (port 0) and that is let go again may be given to any outgoing connection before its server
takes it. These lie outside the range that the system picks from, and no process of a run gets one twice.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()


def free_port() -> int:
    """A TCP port of 127.0.0.1 at which nobody listens, and which nobody gets by chance."""
    for port in random.sample(_candidates(), 1_000):  # by chance, so that processes side by side seldom agree
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise AssertionError("no port is free")


def _candidates() -> range:
    lowest = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    return range(10_240, lowest) if lowest > 20_000 else range(62_000, 65_000)


def _is_free(port: int) -> bool:
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            asked.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
