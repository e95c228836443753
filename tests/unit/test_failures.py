"""Foreign exceptions become failure kinds: real ones where loopback can make them, built ones else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import h2.config
import h2.connection
import h2.errors
import h2.events
import httpcore
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from monitor.agent.failures import ADVICE, classify_exception
from monitor.clock import Clock
from monitor.model import FailureKind
from monitor.timeline import Phase
from tests.ports import free_port

K, P = FailureKind, Phase
Signer = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


@contextmanager
def server(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """One connection on loopback: reads a little, sends `answer`, closes. Yields its port."""

    def serve() -> None:
        try:
            connection, _ = listener.accept()
            with connection, tls.wrap_socket(connection, server_side=True) if tls else connection as wire:
                wire.recv(65536)
                wire.sendall(answer)
        except OSError:
            pass  # the client hung up on us, or nobody came: that is the test's business

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def raised(url: str, verify: ssl.SSLContext | bool = False) -> Exception:
    """What httpx raises for a GET that fails."""
    with httpx.Client(verify=verify, timeout=5, trust_env=False) as client, pytest.raises(httpx.HTTPError) as caught:
        client.get(url)
    return caught.value


def certificate(
    folder: Path, name: str, days: int, issuer: Signer | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey, Path]:
    """A certificate for `name` that ends `days` from now, with the paths of its two files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = Clock().now()
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(made.public_bytes(pem) + private)
    return made, key, file


@pytest.mark.parametrize(
    ("name", "days", "trusted", "kind"),
    [
        ("localhost", -1, True, K.TLS_EXPIRED),
        ("localhost", 9, False, K.TLS_SELF_SIGNED),
        ("elsewhere.test", 9, True, K.TLS_WRONG_NAME),
    ],
)
def test_certificates(tmp_path: Path, name: str, days: int, trusted: bool, kind: FailureKind) -> None:
    """Expired, self-signed, for another name: told apart by OpenSSL's verify code."""
    ca, ca_key, ca_file = certificate(tmp_path, "ca.test", 99, None)
    _, _, file = certificate(tmp_path, name, days, (ca, ca_key) if trusted else None)
    ours = ssl.create_default_context(cafile=str(ca_file))
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(file)
    with server(b"", theirs) as port:
        found, text = classify_exception(raised(f"https://localhost:{port}/", ours), P.TLS)
    assert found is kind
    assert "certificate" in text


def test_an_unknown_issuer_is_not_self_signed(tmp_path: Path) -> None:
    """A chain that ends nowhere here is plain `tls`, with OpenSSL's words."""
    ca, ca_key, _ = certificate(tmp_path, "ca.test", 99, None)
    _, _, file = certificate(tmp_path, "localhost", 9, (ca, ca_key))
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(file)
    with server(b"", theirs) as port:
        found, text = classify_exception(raised(f"https://localhost:{port}/", ssl.create_default_context()), P.TLS)
    assert found is K.TLS
    assert "issuer" in text


def test_a_port_that_does_not_speak_tls() -> None:
    """Plain HTTP behind https:// is a TLS failure."""
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert classify_exception(raised(f"https://127.0.0.1:{port}/"), P.TLS)[0] is K.TLS


def test_a_closed_port_refuses() -> None:
    """Connection refused, through httpx and httpcore down to the socket's own error."""
    assert classify_exception(raised(f"http://127.0.0.1:{free_port()}/"), P.CONNECT)[0] is K.REFUSED


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "phase", "kind"),
    [
        (b"", P.WAIT, K.DISCONNECTED),
        (OK + b"content-length: 100\r\n\r\nshort", P.GENERATE, K.DISCONNECTED),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", P.GENERATE, K.DISCONNECTED),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n", P.GENERATE, K.PROTOCOL_ERROR),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", P.WAIT, K.PROTOCOL_ERROR),
        (b"\x00\xff" * 100, P.WAIT, K.PROTOCOL_ERROR),
        (OK + b"x: " + b"y" * 200_000, P.WAIT, K.TOO_LARGE),
        (OK + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope", P.GENERATE, K.PROTOCOL_ERROR),
    ],
    ids=["nothing", "short body", "cut chunks", "bad chunk", "ssh", "garbage", "endless header", "bad gzip"],
)
def test_answers_that_break_http(answer: bytes, phase: Phase, kind: FailureKind) -> None:
    """A server that closes early, speaks something else or never ends its headers."""
    with server(answer) as port:
        assert classify_exception(raised(f"http://127.0.0.1:{port}/"), phase)[0] is kind


def test_a_name_that_does_not_resolve() -> None:
    """The resolver's own error, here without asking any server."""
    with pytest.raises(socket.gaierror) as caught:
        socket.getaddrinfo("no-such-host", 80, flags=socket.AI_NUMERICHOST)
    assert classify_exception(chained(httpx.ConnectError("x"), caught.value), P.RESOLVE)[0] is K.DNS


def test_a_key_with_a_line_break_is_not_shown() -> None:
    """h11 quotes an illegal header's value in its message: the key must not get out that way."""
    with server(b"") as port, httpx.Client(trust_env=False) as client:
        with pytest.raises(httpx.LocalProtocolError) as caught:
            client.get(f"http://127.0.0.1:{port}/", headers={"authorization": "Bearer planted\nkey"})
        socket.create_connection(("127.0.0.1", port)).close()
    kind, text = classify_exception(caught.value, P.SEND)
    assert kind is K.BAD_REQUEST
    assert "planted" not in text


def os_error(number: int) -> OSError:
    return OSError(number, errno.errorcode[number])


@pytest.mark.parametrize(
    ("exc", "phase", "kind"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), P.RESOLVE, K.DNS),
        (UnicodeError("label too long"), P.RESOLVE, K.DNS),
        (os_error(errno.ENETUNREACH), P.CONNECT, K.UNREACHABLE),
        (os_error(errno.EHOSTUNREACH), P.CONNECT, K.UNREACHABLE),
        (os_error(errno.EPERM), P.CONNECT, K.UNREACHABLE),
        (os_error(errno.ETIMEDOUT), P.CONNECT, K.CONNECT_TIMEOUT),
        (os_error(errno.ETIMEDOUT), P.GENERATE, K.DISCONNECTED),
        (os_error(errno.ECONNRESET), P.GENERATE, K.DISCONNECTED),
        (os_error(errno.EPIPE), P.SEND, K.DISCONNECTED),
        (os_error(errno.EMFILE), P.CONNECT, K.INTERNAL),
        (httpx.ConnectTimeout("t"), P.CONNECT, K.CONNECT_TIMEOUT),
        (TimeoutError(), P.TLS, K.CONNECT_TIMEOUT),
        (TimeoutError(), P.GENERATE, K.TOTAL_DEADLINE),
        (httpcore.ReadTimeout(), P.WAIT, K.FIRST_TOKEN_DEADLINE),
        (httpcore.ReadTimeout(), P.GENERATE, K.STALLED),
        (httpx.ProxyError("403 Forbidden"), P.CONNECT, K.PROXY),
        (
            httpcore.RemoteProtocolError("<StreamReset stream_id:1, error_code:2, remote_reset:True>"),
            P.GENERATE,
            K.DISCONNECTED,
        ),
        (httpcore.RemoteProtocolError("<ConnectionTerminated error_code:0, last_stream_id:1>"), P.WAIT, K.DISCONNECTED),
        (httpcore.RemoteProtocolError("Header list too large"), P.WAIT, K.TOO_LARGE),
        (httpx.ReadError(""), P.GENERATE, K.DISCONNECTED),
        (httpx.ConnectError("All connection attempts failed"), P.CONNECT, K.UNREACHABLE),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), P.GENERATE, K.DISCONNECTED),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] alert"), P.TLS, K.TLS),
        (asyncio.IncompleteReadError(b"", 5), P.GENERATE, K.DISCONNECTED),
        (asyncio.LimitOverrunError("too long", 5), P.WAIT, K.TOO_LARGE),
        (zlib.error("incorrect header check"), P.GENERATE, K.PROTOCOL_ERROR),
        (httpx.UnsupportedProtocol("no scheme"), P.CONNECT, K.BAD_REQUEST),
        (ZeroDivisionError("ours"), P.GENERATE, K.INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_exceptions_by_phase(exc: Exception, phase: Phase, kind: FailureKind) -> None:
    """The kind follows from the exception and, where it says too little, from the phase."""
    found, text = classify_exception(exc, phase)
    assert found is kind
    assert text
    assert len(text) <= 500


def chained(*links: BaseException) -> BaseException:
    for outer, inner in pairwise(links):
        outer.__cause__ = inner
    return links[0]


def test_the_most_telling_cause_decides() -> None:
    """However deep it lies under general network errors, in groups too, and never in a loop."""
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    deep = chained(httpx.ConnectError("x"), httpcore.ConnectError("x"), refused)
    assert classify_exception(deep, P.CONNECT)[0] is K.REFUSED
    assert classify_exception(ExceptionGroup("all failed", [ValueError("x"), refused]), P.CONNECT)[0] is K.REFUSED
    loop = httpx.ConnectError("x")
    loop.__context__ = httpcore.ConnectError("y")
    loop.__context__.__context__ = loop
    assert classify_exception(loop, P.CONNECT)[0] is K.UNREACHABLE


def test_a_suppressed_context_does_not_decide() -> None:
    """`raise ... from None` says that what went before is not the reason."""
    later = httpx.ReadError("later")
    later.__context__, later.__suppress_context__ = ConnectionRefusedError(errno.ECONNREFUSED, "earlier"), True
    assert classify_exception(later, P.GENERATE)[0] is K.DISCONNECTED


def test_every_kind_has_its_advice() -> None:
    """One sentence for each, short enough for a terminal."""
    assert set(ADVICE) == set(FailureKind)
    for kind, sentence in ADVICE.items():
        assert sentence.endswith("."), kind
        assert 20 < len(sentence) < 130, kind


def test_the_documented_table_is_the_one_in_the_code() -> None:
    """docs/failures.md lists every kind with the advice that the product shows."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "failures.md").read_text()
    rows = dict(line.strip("| \n").split(" | ")[::2] for line in page.splitlines() if line.startswith("| `"))
    assert rows == {f"`{kind.value}`": sentence for kind, sentence in ADVICE.items()}


class H2Server:
    """A server of HTTP/2 by prior knowledge on loopback that answers one request as told and closes."""

    def __init__(self, answer: Callable[[h2.connection.H2Connection, int], None]) -> None:
        self.answer = answer

    def serve(self, listener: socket.socket) -> None:
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        wire, _ = listener.accept()
        with wire:
            connection.initiate_connection()
            while not any(isinstance(event, h2.events.RequestReceived) for event in self.received(wire, connection)):
                pass
            self.answer(connection, 1)
            wire.sendall(connection.data_to_send())
            with contextlib.suppress(OSError):
                wire.recv(65536)

    @staticmethod
    def received(wire: socket.socket, connection: h2.connection.H2Connection) -> list[h2.events.Event]:
        wire.sendall(connection.data_to_send())
        return connection.receive_data(wire.recv(65536))


def reset(connection: h2.connection.H2Connection, stream: int) -> None:
    connection.send_headers(stream, [(":status", "200")])
    connection.reset_stream(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)


def go_away(connection: h2.connection.H2Connection, stream: int) -> None:
    connection.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, last_stream_id=0)


def endless_header(connection: h2.connection.H2Connection, stream: int) -> None:
    connection.send_headers(stream, [(":status", "200"), *((f"x-{n}", "y" * 1000) for n in range(200))])


@pytest.mark.parametrize(
    ("answer", "phase", "kind"),
    [
        (reset, P.GENERATE, K.DISCONNECTED),
        (go_away, P.WAIT, K.DISCONNECTED),
        (endless_header, P.WAIT, K.TOO_LARGE),
    ],
)
def test_http2_endings(
    answer: Callable[[h2.connection.H2Connection, int], None], phase: Phase, kind: FailureKind
) -> None:
    """A reset stream and a GOAWAY are broken connections, a header block beyond its bound is too large."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=H2Server(answer).serve, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        client = httpx.Client(http1=False, http2=True, timeout=5, trust_env=False)
        with client, pytest.raises(httpx.HTTPError) as caught:
            client.get(url)
        thread.join(10)
    found, text = classify_exception(caught.value, phase)
    assert found is kind, text
