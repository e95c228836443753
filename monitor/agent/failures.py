"""Failures as data: every way an attempt can end badly, mapped onto the closed list of kinds.

The one door to `classify_status` and `classify_error_object` (error_bodies.py), `judge` (endings.py), `scrub`
(scrub.py) and `ADVICE` (advice.py). Its own part is the map from foreign exceptions (httpx, httpcore, ssl, sockets),
of which the most specific in the chain of causes decides. The exception tree behind httpx, as of 0.28:

    TransportError
      TimeoutException    ConnectTimeout ReadTimeout WriteTimeout PoolTimeout
      NetworkError        ConnectError ReadError WriteError CloseError
      ProtocolError       LocalProtocolError RemoteProtocolError
      ProxyError          UnsupportedProtocol
    DecodingError (beside TransportError, under RequestError)     InvalidURL (on its own)
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
import zlib
from asyncio import IncompleteReadError, LimitOverrunError
from collections.abc import Callable, Iterator

import httpcore
import httpx

from monitor.agent.advice import ADVICE
from monitor.agent.endings import Ending, judge
from monitor.agent.error_bodies import classify_error_object, classify_status
from monitor.agent.scrub import scrub, without_secrets
from monitor.model import FailureKind
from monitor.timeline import Phase

__all__ = [
    "ADVICE",
    "Ending",
    "classify_error_object",
    "classify_exception",
    "classify_status",
    "judge",
    "scrub",
    "without_secrets",
]

K = FailureKind
Verdict = tuple[FailureKind, str]

_BEFORE_TLS_ENDS = frozenset({Phase.RESOLVE, Phase.CONNECT, Phase.TLS})
_MAX_CHAIN = 32

_VERIFY_CODES = {  # X509_V_ERR_* of OpenSSL
    10: (K.TLS_EXPIRED, "the certificate has expired"),
    18: (K.TLS_SELF_SIGNED, "the certificate is self-signed"),
    19: (K.TLS_SELF_SIGNED, "the certificate chain ends in a self-signed certificate that is not trusted here"),
    62: (K.TLS_WRONG_NAME, "the certificate is for another name"),
    64: (K.TLS_WRONG_NAME, "the certificate is not for this address"),
}
_UNREACHABLE = frozenset(
    {
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.EHOSTDOWN,
        errno.EADDRNOTAVAIL,
        errno.EACCES,
        errno.EPERM,
    }
)
_BROKEN = frozenset(
    {errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN, errno.ESHUTDOWN, errno.ENETRESET}
)
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_BYTEARRAY = re.compile(r"bytearray\(b('.{0,60}).*?'\)")  # h11 shows what it could not read
_CLOSED = ("disconnected", "peer closed", "connection closed", "streamreset", "stream reset", "connectionterminated")
_TOO_LARGE = ("too long", "too large", "larger than", "oversized", "header list", "denialofservice", "max size")


def classify_exception(exc: BaseException, phase: Phase) -> Verdict:
    """The failure kind and one sentence (scrubbed of what looks like a key) for an exception that ended an attempt.

    `phase` is where the attempt stood. What is not recognised is `internal`: a defect of our own.
    """
    chain = list(_chain(exc))
    for read in _READERS:
        for link in chain:
            verdict = read(link, phase)
            if verdict is not None:
                return verdict[0], scrub(verdict[1])
    return K.INTERNAL, scrub(f"{type(exc).__name__}: {exc}")


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """The exception, what it groups and what caused it, outermost first, each once."""
    waiting, known = [exc], set[int]()
    while waiting and len(known) < _MAX_CHAIN:
        link = waiting.pop(0)
        if id(link) in known:
            continue
        known.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions
        cause = link.__cause__ or (link.__context__ if _shows_context(link) else None)
        if cause is not None:
            waiting.append(cause)


def _shows_context(link: BaseException) -> bool:
    """Whether what was being handled is the reason: httpcore's pool re-raises `from None` and so hides real causes."""
    return not link.__suppress_context__ or type(link).__module__.startswith("httpcore")


def _from_names(link: BaseException, phase: Phase) -> Verdict | None:
    if isinstance(link, socket.gaierror):
        return K.DNS, f"the name does not resolve: {link.strerror or link}"
    if isinstance(link, UnicodeError) and phase is Phase.RESOLVE:
        return K.DNS, "the host name is not a legal one"
    return None


def _from_tls(link: BaseException, phase: Phase) -> Verdict | None:
    if isinstance(link, ssl.SSLCertVerificationError):
        kind, text = _VERIFY_CODES.get(link.verify_code, (K.TLS, "the certificate is not trusted"))
        return kind, f"{text}: {link.verify_message}"
    if isinstance(link, ssl.SSLError):
        if phase in _BEFORE_TLS_ENDS:
            return K.TLS, f"the TLS handshake failed: {_reason(link)}"
        if isinstance(link, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
            return K.DISCONNECTED, "the server ended the TLS connection"
        return K.TLS, f"the TLS connection failed: {_reason(link)}"
    return None


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's own word for it, where it has one."""
    return str(getattr(error, "reason", None) or error)


def _from_proxy(link: BaseException, phase: Phase) -> Verdict | None:
    if isinstance(link, httpx.ProxyError | httpcore.ProxyError):
        return K.PROXY, f"{link}"
    return None


def _from_os(link: BaseException, phase: Phase) -> Verdict | None:
    if not isinstance(link, OSError) or isinstance(link, ssl.SSLError) or link.errno is None:
        return None
    said = link.strerror or str(link)
    if link.errno == errno.ECONNREFUSED:
        return K.REFUSED, f"the connection was refused: {said}"
    if link.errno == errno.ETIMEDOUT:
        return (K.CONNECT_TIMEOUT if phase in _BEFORE_TLS_ENDS else K.DISCONNECTED), f"the network gave up: {said}"
    if link.errno in _UNREACHABLE:
        return K.UNREACHABLE, f"the server cannot be reached: {said}"
    if link.errno in _BROKEN:
        return K.DISCONNECTED, f"the connection broke: {said}"
    if link.errno in _OURS:
        return K.INTERNAL, f"this machine ran out of resources: {said}"
    return None


def _from_protocol(link: BaseException, phase: Phase) -> Verdict | None:
    if isinstance(link, httpx.LocalProtocolError | httpcore.LocalProtocolError):
        return _from_local_protocol(link)
    if isinstance(link, httpx.RemoteProtocolError | httpcore.RemoteProtocolError):
        said = _BYTEARRAY.sub(r"\1'", str(link)).replace("illegal request line", "illegal status line")  # h11's slip
        if any(word in said.lower() for word in _TOO_LARGE):
            return K.TOO_LARGE, f"the response headers are beyond their bound: {said}"
        if any(word in said.lower() for word in _CLOSED):
            return K.DISCONNECTED, f"the connection ended early: {said}"
        return K.PROTOCOL_ERROR, f"the response is no HTTP: {said}"
    if _is_h2s(link):  # httpcore lets them through in a body
        return _from_h2(link)
    if isinstance(link, httpx.DecodingError | zlib.error):
        return K.PROTOCOL_ERROR, f"the body is not what its content-encoding says: {link}"
    return None


def _is_h2s(error: object) -> bool:
    return type(error).__module__.startswith(("h2.", "hpack.", "hyperframe."))


def _from_h2(error: object) -> Verdict:
    said = f"{type(error).__name__}: {error}"
    kind = K.TOO_LARGE if any(word in said.lower() for word in _TOO_LARGE) else K.PROTOCOL_ERROR
    return kind, f"the server broke the rules of HTTP/2 ({said})"


def _from_local_protocol(link: BaseException) -> Verdict:
    if link.args and _is_h2s(link.args[0]):  # httpcore thinks that it was us
        return _from_h2(link.args[0])
    if any(word in str(link).lower() for word in ("illegal header", "invalid header")):  # the text would show the value
        return K.BAD_REQUEST, "a request header holds a character that HTTP does not allow (a line break in the key?)"
    if any(word in str(link).lower() for word in _TOO_LARGE):
        return K.TOO_LARGE, f"the response is beyond a bound: {link}"
    return K.PROTOCOL_ERROR, f"the connection is in no state for this request: {link}"


def _from_timeout(link: BaseException, phase: Phase) -> Verdict | None:
    if not isinstance(link, TimeoutError | httpx.TimeoutException | httpcore.TimeoutException):
        return None
    if phase in _BEFORE_TLS_ENDS:
        return K.CONNECT_TIMEOUT, f"no connection in time, stopped at {phase.value}"
    if isinstance(link, httpx.ReadTimeout | httpcore.ReadTimeout):
        kind = K.STALLED if phase is Phase.GENERATE else K.FIRST_TOKEN_DEADLINE
        return kind, "the server sent nothing for too long"
    return K.TOTAL_DEADLINE, f"the attempt took longer than its deadline, stopped at {phase.value}"


def _from_network(link: BaseException, phase: Phase) -> Verdict | None:
    if isinstance(link, LimitOverrunError):
        return K.TOO_LARGE, f"a line is beyond its bound: {link}"
    if isinstance(link, EOFError | IncompleteReadError):
        return K.DISCONNECTED, "the connection ended early"
    if isinstance(link, httpx.UnsupportedProtocol | httpcore.UnsupportedProtocol | httpx.InvalidURL):
        return K.BAD_REQUEST, f"the URL cannot be used: {link}"
    if isinstance(link, httpx.NetworkError | httpcore.NetworkError | ConnectionError):
        connecting = isinstance(link, httpx.ConnectError | httpcore.ConnectError)
        kind = K.UNREACHABLE if connecting and phase is not Phase.TLS else K.DISCONNECTED
        return kind, f"the connection failed: {link or type(link).__name__}"
    return None


_READERS: tuple[Callable[[BaseException, Phase], Verdict | None], ...] = (  # the most telling first
    _from_proxy,
    _from_names,
    _from_tls,
    _from_os,
    _from_protocol,
    _from_timeout,
    _from_network,
)
