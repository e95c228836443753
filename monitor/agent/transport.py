"""The road of one attempt: an httpcore network backend whose steps are explicit and set marks.

Name lookup, connecting, the tunnel through a proxy: each step leaves its mark on the attempt's `Tape`; what goes
over the connection then does so in `connection.py`. httpx and httpcore do the HTTP. Nothing is retried, followed
or decoded here, and cookies are never kept. See docs/measurement.md.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, Literal, cast

import certifi
import httpcore
import httpx

from monitor import __version__
from monitor.agent.arrivals import READ_BYTES
from monitor.agent.chunks import MalformedChunk, PlainChunks
from monitor.agent.connection import Connection, Tape, current_tape
from monitor.agent.turnstile import Turnstile, writable
from monitor.clock import Clock
from monitor.model import AddressFamily
from monitor.timeline import Mark

for _library in ("httpcore", "hpack", "h2", "httpx"):  # at DEBUG they write headers, and with them keys
    logging.getLogger(_library).setLevel(logging.WARNING)

MAX_PROXY_ANSWER_BYTES = 16 * 1024
USER_AGENT = f"firsttoken/{__version__}"
_TUNNELLED = re.compile(r"HTTP/1\.\d 2\d\d(?: |$)")
"""Any 2xx opens the tunnel (RFC 9110, 9.3.6)."""

_FAMILIES = {
    AddressFamily.AUTO: socket.AF_UNSPEC,
    AddressFamily.IPV4: socket.AF_INET,
    AddressFamily.IPV6: socket.AF_INET6,
}


_NOT_THE_PROXYS = frozenset({None, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


class ProxyRefused(httpcore.ProxyError):
    """The CONNECT proxy gave no tunnel, or there is no way to it; the text says which, in a sentence."""


class Backend(httpcore.AsyncNetworkBackend):
    """Resolves, connects (through a CONNECT proxy when given) and hands out `Connection`s."""

    def __init__(
        self,
        clock: Clock,
        resolver: ThreadPoolExecutor,
        turnstile: Turnstile,
        *,
        family: AddressFamily = AddressFamily.AUTO,
        proxy: str | None = None,
        http2: bool = False,
        kernel_stamps: bool = True,
    ) -> None:
        self.clock = clock
        self._turnstile = turnstile
        self._kernel_stamps = kernel_stamps
        self._http2 = http2
        self._resolver = resolver
        self._family = family
        self._proxy = httpx.URL(proxy) if proxy else None
        self.connection: Connection | None = None  # the newest

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Connection:
        """Resolve and connect, marked. Raises OSError itself (httpcore would drop the cause), ProxyRefused."""
        tape = current_tape.get()
        tape.starts_over()
        until = asyncio.get_running_loop().time() + (10.0 if timeout is None else timeout)
        first_host, first_port = (self._proxy.host, self._proxy.port or 80) if self._proxy else (host, port)
        with self._blaming_the_proxy():
            addresses = await self.resolve(tape, first_host, first_port)
            tape.mark(Mark.CONNECT_START)
            sock, connected_ns = await self._connect_first(addresses, until)
        tape.went_on(connected_ns)
        connection = Connection(
            sock,
            self.clock,
            self._turnstile,
            http2=self._http2,
            kernel_stamps=self._kernel_stamps,
            proxied=self._proxy is not None,
        )
        tape.connection = self.connection = connection
        if self._proxy is not None:
            try:
                with self._blaming_the_proxy():
                    connected_ns = await self._tunnel(connection, host, port)
            except BaseException:
                await connection.aclose()
                raise
        tape.mark(Mark.CONNECT_END, connected_ns)
        return connection

    @contextmanager
    def _blaming_the_proxy(self) -> Iterator[None]:
        """On the way to a proxy name, port and line are the proxy's. Deadlines and our own limits keep their kinds."""
        try:
            yield
        except (OSError, UnicodeError) as error:
            if self._proxy is None or (isinstance(error, OSError) and error.errno in _NOT_THE_PROXYS):
                raise
            said = getattr(error, "strerror", None) or "its name is not a legal one"
            raise ProxyRefused(f"the proxy cannot be reached: {said}") from error

    async def resolve(self, tape: Tape, host: str, port: int) -> list[tuple[Any, ...]]:
        """The addresses of a host as `getaddrinfo` has them, marked unless it is one itself. Raises OSError."""
        if _is_address(host):
            return self._allowed(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
        tape.mark(Mark.RESOLVE_START)
        loop = asyncio.get_running_loop()

        def look_up() -> tuple[list[tuple[Any, ...]] | OSError | UnicodeError, int]:
            """In the worker, so that the answer is stamped there and not when the loop gets round to it."""
            try:
                found: Any = socket.getaddrinfo(
                    host, port, family=_FAMILIES[self._family], type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
                )
            except (OSError, UnicodeError) as error:
                found = error
            return found, self.clock.monotonic_ns()

        found, answered_ns = await loop.run_in_executor(self._resolver, look_up)
        if isinstance(found, Exception):
            raise found
        tape.mark(Mark.RESOLVE_END, answered_ns)
        tape.went_on(answered_ns)
        return found

    def _allowed(self, addresses: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        wanted = _FAMILIES[self._family]
        allowed = [a for a in addresses if wanted in (socket.AF_UNSPEC, a[0])]
        if not allowed:
            raise OSError(
                errno.EADDRNOTAVAIL, f"the address is not {self._family.value}, which address_family asks for"
            )
        return allowed

    async def _connect_first(self, addresses: list[tuple[Any, ...]], until: float) -> tuple[socket.socket, int]:
        """The address policy: in getaddrinfo's order, one after the other; all but the last get half the time left."""
        loop = asyncio.get_running_loop()
        last_error: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
        for index, (family, kind, protocol, _, address) in enumerate(addresses):
            left = until - loop.time()
            share = left if index == len(addresses) - 1 else left / 2
            try:
                async with asyncio.timeout(share):
                    return await _dial(family, kind, protocol, address, self.clock, self._turnstile)
            except TimeoutError:
                last_error = OSError(errno.ETIMEDOUT, f"no answer from {address[0]} port {address[1]}")
            except OSError as error:
                last_error = error
        raise last_error

    async def _tunnel(self, connection: Connection, host: str, port: int) -> int:
        """HTTP CONNECT: the tunnel's round trip belongs to `connect`, which ends when its answer arrives (returned)."""
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        await connection.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = await connection.read(1)  # by the byte: what follows the head belongs to the tunnel
            answer += piece
            if not piece or len(answer) > MAX_PROXY_ANSWER_BYTES:
                raise ProxyRefused("the proxy closed the connection or sent no HTTP answer to CONNECT")
        status = answer.split(b"\r\n", 1)[0].decode("latin-1")
        if _TUNNELLED.match(status) is None:
            raise ProxyRefused(f"the proxy answered {status[:80]!r} to CONNECT")
        return connection.last_arrival.at_ns if connection.last_arrival else self.clock.monotonic_ns()

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Not a road that a user's request takes."""
        raise httpcore.UnsupportedProtocol("unix sockets are not probed")

    async def sleep(self, seconds: float) -> None:
        """Part of httpcore's interface; only its retries, which are off, would use it."""
        await asyncio.sleep(seconds)


async def _dial(
    family: int, kind: int, protocol: int, address: Any, clock: Clock, turnstile: Turnstile
) -> tuple[socket.socket, int]:
    """A connected socket, and when the loop saw it connected (monotonic ns)."""
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        code = sock.connect_ex(address)
        connected_ns = clock.monotonic_ns()
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR):
            connected_ns = await writable(sock, clock, turnstile)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, f"{os.strerror(code)} ({address[0]} port {address[1]})")
    except BaseException:
        sock.close()
        raise
    return sock, connected_ns


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class Lane:
    """The connection that one series' requests use: a pool of at most one, kept or thrown away after an attempt."""

    def __init__(self, pool: httpcore.AsyncConnectionPool, backend: Backend) -> None:
        self.pool = pool
        self._backend = backend

    @property
    def is_over(self) -> bool:
        """Whether the peer has ended the kept connection: httpcore does not look when it speaks HTTP/2."""
        return self._backend.connection is not None and self._backend.connection.is_over()

    async def aclose(self) -> None:
        """Close whatever connection there is."""
        await self.pool.aclose()


class _LaneTransport(httpx.AsyncBaseTransport):
    """Hands a request to the lane that its extensions name. Errors stay httpcore's: `failures` knows them."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lane: Lane = request.extensions["lane"]
        answer = await lane.pool.handle_async_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(
                    scheme=request.url.raw_scheme,
                    host=request.url.raw_host,
                    port=request.url.port,
                    target=request.url.raw_path,
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions, request=request
        )


class _Body(httpx.AsyncByteStream):
    """A response's body: chunks are read straight from the connection, everything else as httpcore reads it."""

    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if _is_chunked(self._answer):
            connection: Connection = self._answer.extensions["network_stream"]
            chunks = PlainChunks()
            while chunks.handed_over is None:
                try:
                    piece = chunks.feed(await connection.read(READ_BYTES))
                except MalformedChunk as error:
                    raise httpcore.RemoteProtocolError(str(error)) from error
                if piece:
                    yield piece
            connection.put_back(chunks.handed_over)
        async for piece in self._answer.aiter_stream():
            yield piece

    async def aclose(self) -> None:
        await self._answer.aclose()


def _is_chunked(answer: httpcore.Response) -> bool:
    """Whether a body follows in chunks and nothing else (RFC 9112, 6.3)."""
    codings = [value for name, value in answer.headers if name.lower() == b"transfer-encoding"]
    chunked = len(codings) == 1 and codings[0].strip().lower() == b"chunked"
    return chunked and answer.extensions["http_version"] == b"HTTP/1.1" and answer.status not in (204, 304)


class Response:
    """The answer to one request, its body still to be read. Header names are lower-case."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer
        self._pieces = aiter(cast("httpx.AsyncByteStream", answer.stream))
        self.status = answer.status_code
        self.headers = dict(answer.headers)
        self.version = answer.http_version.removeprefix("HTTP/")

    def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, coding and all; every call goes on where the one before stopped."""
        return self._pieces

    async def aclose(self) -> None:
        """Let go of the response: its connection can be used again if the body was read, and is closed if not."""
        await self._answer.aclose()


def no_cookies() -> CookieJar:
    """A jar that takes none: one that is never emptied only grows, and goes with every request."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


class Roads:
    """Opens lanes and sends requests over them: owns the resolver's threads, TLS contexts and the httpx client.

    Make it in the loop it is used in; `max_concurrent` sizes the resolver, so that dead names delay only themselves.
    """

    def __init__(self, clock: Clock, *, max_concurrent: int = 64, kernel_stamps: bool = True) -> None:
        self._clock = clock
        self._kernel_stamps = kernel_stamps
        self._resolver = ThreadPoolExecutor(max_concurrent, thread_name_prefix="resolve")
        self._turnstile = Turnstile(asyncio.get_running_loop())
        self._contexts: dict[tuple[str | None, bool], ssl.SSLContext] = {}
        self._transport = _LaneTransport()
        self._client = httpx.AsyncClient(
            transport=self._transport,
            timeout=None,  # noqa: S113  # the attempt has its own, hard deadline
            follow_redirects=False,
            trust_env=False,
            cookies=no_cookies(),
            headers={"user-agent": USER_AGENT, "accept-encoding": "identity"},
        )

    def lane(
        self, url: str, *, http_version: str, family: AddressFamily, proxy: str | None, ca_file: str | None
    ) -> Lane:
        """A lane to the host of `url`. Raises OSError or ssl.SSLError when `ca_file` cannot be used."""
        http2 = http_version == "2"
        secure = url.lower().startswith("https:")
        backend = Backend(
            self._clock,
            self._resolver,
            self._turnstile,
            family=family,
            proxy=proxy,
            http2=http2,
            kernel_stamps=self._kernel_stamps,
        )
        pool = httpcore.AsyncConnectionPool(
            ssl_context=self._context(ca_file, http2) if secure else None,
            max_connections=1,
            max_keepalive_connections=1,
            http1=not http2 or secure,
            http2=http2,
            retries=0,
            network_backend=backend,
        )
        return Lane(pool, backend)

    async def turn(self) -> None:
        """Wait until the loop has drained its sockets and few others go on: before an attempt begins."""
        await self._turnstile.turn()

    def trust(self) -> None:
        """Read the system's certificates now: the first TLS attempt shall not wait for it."""
        self._context(None, http2=False)

    def _context(self, ca_file: str | None, http2: bool) -> ssl.SSLContext:
        key = (ca_file, http2)
        if key not in self._contexts:
            self._contexts[key] = trusting(ca_file)
        return self._contexts[key]

    def headers(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> list[tuple[str, str]]:
        """All headers with which a request would go out, in the order of the wire. Sends nothing."""
        request = self._client.build_request(method, url, headers=dict(headers), content=content)
        return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.headers.raw]

    async def send(
        self,
        tape: Tape,
        lane: Lane,
        method: Literal["GET", "POST"],
        url: str,
        headers: Mapping[str, str],
        content: bytes | None,
        connect_timeout: float,
    ) -> Response:
        """Send one request over a lane; returns once its response headers are read. Marks go onto the tape."""
        current_tape.set(tape)
        request = self._client.build_request(
            method,
            _parsed(url),
            headers=dict(headers),
            content=content,
            extensions={"lane": lane, "trace": tape_steps(tape), "timeout": {"connect": connect_timeout}},
        )
        try:
            answer = await self._transport.handle_async_request(request)  # the client would read a redirect's address
        except ValueError as error:
            if Mark.SEND_END not in tape.marks:
                raise
            raise httpcore.RemoteProtocolError("its status is no number") from error  # h2 hands on any text
        tape.connection = answer.extensions["network_stream"]
        return Response(answer)

    async def aclose(self) -> None:
        """Close the client and let the resolver's threads end."""
        await self._client.aclose()
        self._resolver.shutdown(wait=False, cancel_futures=True)


@lru_cache(maxsize=1024)  # every attempt of a target asks there
def _parsed(url: str) -> httpx.URL:
    return httpx.URL(url)


def tape_steps(tape: Tape) -> Callable[[str, dict[str, Any]], Any]:
    """httpcore's trace of a request, turned into marks: what is sent, and on which HTTP/2 stream."""

    async def trace(name: str, info: dict[str, Any]) -> None:
        _, _, step = name.partition(".")
        if step in ("send_connection_init.started", "send_request_headers.started"):
            if step == "send_request_headers.started":
                tape.h2_stream = info.get("stream_id")
            tape.mark(Mark.SEND_START)
        elif step in ("send_request_body.complete", "send_request_body.failed", "send_request_headers.failed"):
            tape.mark(Mark.SEND_END, tape.last_write_ns)
        elif step == "receive_response_headers.complete":
            status = next(value for value in info["return_value"] if isinstance(value, int))
            if not 100 <= status <= 999:
                raise httpcore.RemoteProtocolError("its status is not of three digits")
            tape.answered()

    return trace


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """The system's trust (SSL_CERT_FILE and SSL_CERT_DIR honoured), certifi's where it has none, and `ca_file`."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not context.get_ca_certs() and not (paths.cafile or _has_files(paths.capath)):
        context.load_verify_locations(certifi.where())
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


def _has_files(directory: str | None) -> bool:
    try:
        return bool(directory and any(Path(directory).iterdir()))
    except OSError:
        return False
