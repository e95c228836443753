"""Chunked bodies read without the HTTP library, judged by it: h11 reads the same bytes, whole and from the handover."""

from __future__ import annotations

import h11
import pytest

from monitor.agent.chunks import MalformedChunk, PlainChunks

ORDINARY = b"5\r\nhello\r\n1\r\n,\r\nA\r\n01234\r\n789\r\n000c\r\nwith leading\r\n"
ENDS = {
    "an ordinary end": b"0\r\n\r\n",
    "an end with trailers": b"0\r\nx-cost: 1\r\n\r\n",
    "several zeros": b"0000\r\n\r\n",
    "bytes behind the end": b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "an extension": b"3;name=value\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    "a space behind the size": b"3 \r\nabc\r\n0\r\n\r\n",
    "a size of twelve digits": b"000000000003\r\nabc\r\n0\r\n\r\n",
    "the connection's end": b"",
    "the connection's end within a size": b"1",
    "the connection's end within the data": b"5\r\nhel",
    "no size": b"hello\r\n0\r\n\r\n",
    "an empty size": b"\r\nhello\r\n",
    "a negative size": b"-5\r\nhello\r\n",
}
STEPS = [1, 2, 3, 4, 5, 7, 11, 1000]


def by_h11(stream: bytes) -> tuple[bytes, str | None]:
    """The data that h11 finds in a chunked body whose connection ends, and what it says about the rest."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + stream)
    client.receive_data(b"")
    data = b""
    try:
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            data += event.data if isinstance(event, h11.Data) else b""
    except h11.RemoteProtocolError as error:
        return data, str(error)
    return data, None


def by_us(stream: bytes, step: int) -> tuple[bytes, str | None]:
    """The same as the transport does it: plainly as far as that goes, then h11 from there."""
    chunks, data = PlainChunks(), b""
    pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
    while chunks.handed_over is None:
        data += chunks.feed(pieces.pop(0) if pieces else b"")
    rest, said = by_h11(chunks.handed_over + b"".join(pieces))
    return data + rest, said


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_body_is_what_the_http_library_finds_however_it_is_cut_and_ends(end, step):
    """The same data, and the same words about what is wrong with it."""
    assert by_us(ORDINARY + end, step) == by_h11(ORDINARY + end)


@pytest.mark.parametrize("step", STEPS)
def test_ordinary_chunks_are_all_read_plainly(step):
    """What is handed over is the last chunk alone, so that ordinary streams never take the slow road."""
    chunks, stream = PlainChunks(), ORDINARY + b"0\r\n\r\n"
    data, fed = b"", 0
    while chunks.handed_over is None:
        data += chunks.feed(stream[fed : fed + step])
        fed += step
    assert data == b"hello,01234\r\n789with leading"
    assert chunks.handed_over + stream[fed:] == b"0\r\n\r\n"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("footer", [b"XX", b"\n\n", b"\rX", b"5\r\n"])
def test_data_longer_than_its_size_is_a_broken_body_at_once(footer, step):
    """Like the library, without waiting for more: what follows cannot be told from data."""
    stream = b"3\r\nabc" + footer
    with pytest.raises(MalformedChunk, match="malformed chunk footer"):
        by_us(stream, step)
    assert "malformed chunk footer" in str(by_h11(stream)[1])


def test_a_size_line_without_end_is_handed_over_at_its_ninth_digit():
    """Nothing is gathered here: what grows is the business of whoever bounds it."""
    chunks = PlainChunks()
    assert chunks.feed(b"1" * 8) == b""
    assert chunks.handed_over is None
    chunks.feed(b"1")
    assert chunks.handed_over == b"1" * 9
