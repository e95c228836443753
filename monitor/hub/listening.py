"""The address of the web page, bound before anything else is begun: it may be another's, and then nothing shall run.

Apart from the server because loading that takes a second.
"""

from __future__ import annotations

import errno
import socket

from monitor.model import MonitorError

BACKLOG = 512
"""Agents of a whole fleet come at one moment when a hub is back."""
LAST_PORT = 65535


class ListenError(MonitorError):
    """The web server's address cannot be used; the sentence names it and what to change."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ListenError with a sentence when the address is taken, foreign or forbidden."""
    if not 0 <= port <= LAST_PORT:  # getaddrinfo would cut it to 16 bits
        raise ListenError(f"the web page cannot be served on port {port}: web.listen takes 1 ... {LAST_PORT}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ListenError(_sentence(host, port, error)) from error


def _sentence(host: str, port: int, error: OSError) -> str:
    where = f"the web page cannot be served on {address_of(host, port)}: "
    if error.errno == errno.EADDRINUSE:
        free = address_of(host, port % LAST_PORT + 1)
        return where + f"another program listens there; stop it, or set web.listen to a free port (such as {free})"
    if error.errno == errno.EACCES:
        return where + "ports below 1024 need root; set web.listen to a higher port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return where + f"this machine has no such address; set web.listen to 127.0.0.1:{port} or 0.0.0.0:{port}"
    return where + f"{error}; change web.listen (host:port)"


def address_of(host: str, port: int) -> str:
    """host:port, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
