"""The SSE parser: what the standard asks, what real servers send instead, and nothing without a bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.agent.sse import Frame, SSEParser


def parsed(*pieces: bytes, **bounds: int) -> list[Frame]:
    parser = SSEParser(**bounds)
    return [frame for piece in pieces for frame in parser.feed(piece)] + parser.finish()


def datas(body: bytes) -> list[str | None]:
    return [frame.data for frame in parsed(body)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_three_line_ends(end: bytes) -> None:
    """LF, CRLF and CR end lines alike."""
    assert datas(b"data: a" + end + b"data: b" + end * 2 + b"data: c" + end * 2) == ["a\nb", "c"]


def test_crlf_cut_in_two_is_one_line_end() -> None:
    """A CR at the end of one piece and the LF at the start of the next do not make a blank line."""
    assert parsed(b"data: a\r", b"\ndata: b\r", b"\n", b"\r", b"\n") == [Frame(data="a\nb")]


def test_a_cr_ends_the_event_without_waiting_for_the_next_byte() -> None:
    """An event closed by CR CR is given out at once: waiting for a possible LF would falsify its time."""
    assert SSEParser().feed(b"data: a\r\r") == [Frame(data="a")]


@pytest.mark.parametrize("sep", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_only_cr_and_lf_end_lines(sep: str) -> None:
    """Characters at which str.splitlines cuts stand inside JSON and cut nothing."""
    assert datas(f'data: {{"a":"x{sep}y"}}\n\n'.encode()) == [f'{{"a":"x{sep}y"}}']


def test_byte_order_mark_is_dropped_once() -> None:
    """One U+FEFF at the very start belongs to no field, cut in two or not; a second one does."""
    assert parsed(b"\xef", b"\xbb\xbfdata: a\n\n") == [Frame(data="a")]
    assert datas(b"data: \xef\xbb\xbfa\n\n") == ["\ufeffa"]


@pytest.mark.parametrize(
    ("line", "data"), [(b"data:a", "a"), (b"data: a", "a"), (b"data:  a", " a"), (b"data:\ta", "\ta")]
)
def test_at_most_one_space_is_stripped(line: bytes, data: str) -> None:
    """`data:a` and `data: a` are the same; further blanks belong to the data."""
    assert datas(line + b"\n\n") == [data]


def test_fields_are_kept() -> None:
    """event, id and data are kept; retry says nothing; the last event name and id win."""
    body = b"retry: 10\nevent: x\nevent: output\nid: 7:1\ndata: a\ndata: b\n\ndata: c\n\n"
    assert parsed(body) == [Frame(data="a\nb", event="output", last_id="7:1"), Frame(data="c")]


def test_comments_are_frames_of_their_own() -> None:
    """A comment proves liveness when it arrives, inside an event or alone, and is never data."""
    assert SSEParser().feed(b": ping\ndata: a\n:\n") == [Frame(comment=True), Frame(comment=True)]
    assert parsed(b": x\n\n: y\n\n") == [Frame(comment=True), Frame(comment=True)]


def test_empty_data_is_not_absent_data() -> None:
    """`data:` alone and an event without data are told apart; blank lines alone are nothing."""
    assert parsed(b"data:\n\ndata\n\nevent: x\n\n\n\n\n") == [Frame(data=""), Frame(data=""), Frame(event="x")]


def test_error_line_is_kept() -> None:
    """The non-standard `error:` field of older llama.cpp servers."""
    assert parsed(b'error: {"code":500}\n\n') == [Frame(error='{"code":500}')]


def test_lines_without_a_known_field_are_kept() -> None:
    """Bare JSON after an event, or instead of any, arrives whole with its line ends."""
    body = b'data: a\n\n{\n  "error": {\n    "code": 503\n  }\n}\n'
    assert parsed(body)[1].bare == '{\n  "error": {\n    "code": 503\n  }\n}'
    assert parsed(b'{"error":"x"}') == [Frame(bare='{"error":"x"}', unterminated=True)]


def test_the_last_event_without_a_blank_line_is_flushed_and_flagged() -> None:
    """What came before the peer closed is not lost, and says that it may be cut short."""
    assert parsed(b"data: a\n\ndata: b\n") == [Frame(data="a"), Frame(data="b", unterminated=True)]
    assert parsed(b"data: a\n\ndata: b") == [Frame(data="a"), Frame(data="b", unterminated=True)]


def test_finishing_twice_gives_nothing_twice() -> None:
    """After the end there is no more."""
    parser = SSEParser()
    parser.feed(b"data: a")
    assert len(parser.finish()) == 1
    assert parser.finish() == []
    assert parser.feed(b"data: b\n\n") == []


def test_illegal_utf8_is_replaced() -> None:
    """Bytes that are no UTF-8 become U+FFFD instead of an exception, as the standard asks."""
    assert datas(b"data: \xff\xfe\x00\n\n") == ["\ufffd\ufffd\x00"]


@pytest.mark.parametrize("body", [b"data: " + b"x" * 200, b"data: " + b"x" * 200 + b"\n\n", b":" + b"x" * 200 + b"\n"])
def test_an_endless_line_ends_the_parse(body: bytes) -> None:
    """A line beyond its bound is told once, with or without its end; then the parser swallows everything."""
    frames = parsed(b"data: a\n\n" + body, b"data: b\n\n", max_line_bytes=100)
    assert frames[0] == Frame(data="a")
    assert [bool(frame.too_large) for frame in frames] == [False, True]


def test_an_endless_event_ends_the_parse() -> None:
    """Many short lines without a blank line are bounded too, empty ones included."""
    parser = SSEParser(max_event_bytes=10_000)
    frames = [frame for _ in range(1000) for frame in parser.feed(b"data:\n")]
    assert [frame.too_large is not None for frame in frames] == [True]


@given(
    body=st.lists(
        st.sampled_from(
            [b"data:", b"data: ", b"event: e", b"error: x", b": c", b"id: 1", b"\n", b"\r", b"\r\n", b"\n\n", b"{",
             "ü€😀\u2028".encode(), b"\xef\xbb\xbf", b"\x00", b"\xff", b"x" * 30]
        ),
        max_size=40,
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    bound=st.sampled_from([40, 1000]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_any_way_of_cutting_gives_the_same_frames(body: bytes, cuts: list[int], bound: int) -> None:
    """All at once, one byte at a time or anything between: the same frames, bounds passed or not."""
    bounds = {"max_line_bytes": bound, "max_event_bytes": 4 * bound}
    marks = sorted(min(cut, len(body)) for cut in cuts)
    pieces = [body[a:b] for a, b in zip([0, *marks], [*marks, len(body)], strict=True)]
    whole = parsed(body, **bounds)
    assert parsed(*pieces, **bounds) == whole
    assert parsed(*(body[i : i + 1] for i in range(len(body))), **bounds) == whole


LINES = [b"data: {}", b"data:x", b"data:  y", b"data", b"event: kind", b"event:", b"event:k", b"id: 7", b": note"]
ODD = [b"{}", b"error: no", b"retry: 1", b"", b"", b"", b"data: \xc3\x28", b"data: \xef\xbb\xbfz", b"event: \xff"]


@given(st.lists(st.sampled_from([*LINES, *ODD]), max_size=30), st.sampled_from([b"\n", b"\r\n", b"\r"]))
@settings(max_examples=300, deadline=None)
def test_events_that_come_whole_mean_what_they_mean_byte_by_byte(lines: list[bytes], end: bytes) -> None:
    """Whole events are recognised at a glance; reading them line by line finds the same."""
    body = b"data: first" + end * 2 + end.join(lines)
    split = len(b"data: first" + end * 2)
    at_a_glance = parsed(body[:split], body[split:])
    assert at_a_glance == parsed(*(body[at : at + 1] for at in range(len(body))))


def test_a_whole_event_is_held_to_the_bounds_too() -> None:
    """A line or an event beyond its bound ends the parse, also when all of it comes at once."""
    assert parsed(b"data: a\n\n", b"data: " + b"x" * 60 + b"\n\n", max_line_bytes=50)[-1].too_large
    long_event = b"event: " + b"x" * 90 + b"\ndata: " + b"x" * 90 + b"\n\n"
    assert parsed(b"data: a\n\n", long_event, max_event_bytes=250)[-1].too_large
