"""However an attempt ends, it is a record: its failure kind, the phase it died in, a sentence, in bounded time.

Each case is met over plain and TLS connections, HTTP/1.1 and HTTP/2, in all three dialects where that makes a
difference; the ways are walked at once, so that a case costs one deadline.
"""

from __future__ import annotations

import asyncio
import socket
from itertools import product
from typing import Any

import pytest

from monitor.model import AddressFamily, Attempt, DialectName
from monitor.simulator import Behaviour, Certificate, Content, ErrorKind, Fault, Listener, Simulator
from monitor.timeline import Phase
from tests.integration.probing import (
    ask,
    attempt,
    failed,
    gathered,
    in_loop,
    prober,
    series,
    succeeded,
)
from tests.ports import free_port

WAYS = {f"{scheme} {version}": (scheme, version) for scheme, version in product(("plain", "tls"), ("1.1", "2"))}
DIALECTS = (DialectName.OPENAI_CHAT, DialectName.OPENAI_RESPONSES, DialectName.ANTHROPIC)
QUICK = {"ttft_seconds": 0.02, "tokens": 5, "tokens_per_second": 500.0}


async def every_way(
    behaviour: Behaviour, dialects: tuple[DialectName, ...] = DIALECTS, **probe: Any
) -> dict[str, Attempt]:
    """One attempt for each way and dialect at a simulator that behaves so."""
    tls = Certificate.GOOD
    models = {"m": behaviour}
    listeners = [Listener(name="plain", models=models), Listener(name="tls", models=models, tls=tls)]
    async with Simulator(listeners) as sim, prober() as one:
        return await gathered(
            (
                f"{name} {dialect.value}",
                attempt(
                    one,
                    series(
                        sim.url(scheme),
                        dialect=dialect,
                        http_version=version,
                        ca_file=sim.ca_file,
                        probe={"deadline_seconds": 8.0, **probe},
                    ),
                ),
            )
            for (name, (scheme, version)), dialect in product(WAYS.items(), dialects)
        )


BAD_ENDINGS: dict[str, tuple[Behaviour, str, str]] = {
    "web page": (Behaviour(fault=Fault.HTML_PAGE), "not_a_stream", "generate"),
    "whole JSON": (Behaviour(**QUICK, fault=Fault.WHOLE_JSON), "not_a_stream", "generate"),
    "never answers": (Behaviour(fault=Fault.SILENCE), "first_token_deadline", "wait"),
    "truncated": (Behaviour(**QUICK, fault=Fault.TRUNCATED), "truncated", "generate"),
    "truncated at once": (Behaviour(**QUICK, fault=Fault.TRUNCATED, fault_after_tokens=0), "truncated", "generate"),
    "unmarked": (Behaviour(**QUICK, fault=Fault.UNMARKED), "truncated", "generate"),
    "closed early": (Behaviour(**QUICK, fault=Fault.DISCONNECTED), "disconnected", "generate"),
    "reset": (Behaviour(**QUICK, fault=Fault.RESET), "disconnected", "generate"),
    "error first": (
        Behaviour(**QUICK, fault=Fault.ERROR_EVENT, fault_after_tokens=0),
        "stream_error",
        "generate",
    ),
    "error in mid-stream": (Behaviour(**QUICK, fault=Fault.ERROR_EVENT), "stream_error", "generate"),
    "empty answer": (Behaviour(**QUICK | {"tokens": 0}), "empty_answer", "generate"),
    "only reasoning": (Behaviour(**QUICK | {"tokens": 0}, reasoning_tokens=4), "reasoning_only", "generate"),
    "filtered": (Behaviour(**QUICK, finish_reason="content_filter"), "filtered", "generate"),
    "refused": (Behaviour(**QUICK, content=Content.REFUSAL), "filtered", "generate"),
    "endless keep-alives": (
        Behaviour(fault=Fault.KEEP_ALIVES, keep_alive_seconds=0.05),
        "first_token_deadline",
        "generate",
    ),
    "rate limited": (Behaviour(**QUICK, status=429), "rate_limited", "wait"),
    "server error": (Behaviour(**QUICK, status=500), "server_error", "wait"),
    "overloaded": (Behaviour(**QUICK, status=503), "overloaded", "wait"),
    "redirect": (
        Behaviour(status=302, body="", headers={"location": "https://elsewhere.invalid/"}),
        "redirect",
        "wait",
    ),
}


@pytest.mark.parametrize("case", BAD_ENDINGS)
def test_a_bad_ending_is_told_apart_every_way(case: str) -> None:
    """The same kind and phase over plain and TLS, HTTP/1.1 and HTTP/2, in all dialects."""
    behaviour, kind, phase = BAD_ENDINGS[case]
    patience = 1.0 if kind.endswith("deadline") else 8.0
    for way, made in in_loop(lambda: every_way(behaviour, deadline_seconds=patience)).items():
        print(way, made.failure)
        failed(made, kind, phase)
        assert made.http.remote
        assert made.http.tls_version == ("TLSv1.3" if way.startswith("tls") else None)


def test_an_answer_that_stalls_is_stalled_not_late() -> None:
    """Silence between tokens ends the attempt after `stall_seconds`, long before its deadline."""
    behaviour = Behaviour(**QUICK, stall_after_tokens=2)
    for made in in_loop(lambda: every_way(behaviour, deadline_seconds=20.0, stall_seconds=0.4)).values():
        failed(made, "stalled", "generate")
        assert made.timeline.lasted_ns < 5e9
        assert made.timeline.ttft is not None
        assert made.timeline.total is None
        assert made.tcp.rtt is not None  # the line's state matters most to an attempt that died on it


def test_each_deadline_has_its_own_kind_and_phase() -> None:
    """Time to the first token, and the whole attempt, are different limits."""
    slow = Behaviour(ttft_seconds=0.02, tokens=5000, tokens_per_second=50.0)
    for made in in_loop(lambda: every_way(slow, deadline_seconds=0.8, max_output_tokens=10_000)).values():
        failed(made, "total_deadline", "generate")
    late = Behaviour(ttft_seconds=30.0, headers_seconds=0.02)
    for made in in_loop(lambda: every_way(late, deadline_seconds=20.0, first_token_deadline_seconds=2.0)).values():
        failed(made, "first_token_deadline", "generate")
        assert made.timeline.lasted_ns < 10e9


def test_a_gzip_that_was_not_asked_for_is_decoded_right() -> None:
    """The answer is whole, the coding is told, and identity had been asked for."""
    made = in_loop(lambda: every_way(Behaviour(**QUICK, gzip=True)))
    for way, one in made.items():
        succeeded(one)
        assert (one.http.content_encoding, one.token_events) == ("gzip", 5), way


def test_a_response_left_open_after_its_end_marker_is_a_success() -> None:
    """The dialect's end marker ends the answer; the attempt does not wait for the body's end for long."""
    for made in in_loop(lambda: every_way(Behaviour(**QUICK, fault=Fault.LEFT_OPEN))).values():
        succeeded(made)
        assert made.timeline.total is not None
        assert made.timeline.total < 4.0


def test_one_line_without_end_is_too_large() -> None:
    """Bounded by size, every way."""
    behaviour = Behaviour(**QUICK, fault=Fault.ENDLESS_LINE)
    made = in_loop(lambda: every_way(behaviour, (DialectName.OPENAI_CHAT,), deadline_seconds=12.0, stall_seconds=12.0))
    for one in made.values():
        failed(one, "too_large", "generate")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_wrong_key_wrong_path_and_unknown_model(dialect: DialectName) -> None:
    """401, 404 for the URL and 404 for the model are three different mistakes."""

    async def ask_badly() -> dict[str, Attempt]:
        listener = Listener(models={"known": Behaviour(**QUICK)}, api_key="right")
        async with Simulator([listener]) as sim, prober() as one:
            key = {"headers": {"authorization": "Bearer right", "x-api-key": "right"}}
            wrong_path = sim.url().replace("/v1", "/wrong")
            return await gathered(
                [
                    ("unauthorized", attempt(one, series(sim.url(), dialect=dialect))),
                    ("unauthorized 2", attempt(one, series(sim.url(), dialect=dialect, http_version="2"))),
                    ("not_found", attempt(one, series(wrong_path, dialect=dialect, **key))),
                    ("model_gone", attempt(one, series(sim.url(), dialect=dialect, **key))),
                ]
            )

    for name, made in in_loop(ask_badly).items():
        failed(made, name.split()[0], "wait")
        assert made.http.status in (401, 404)


# Before there is a connection.


def test_an_unknown_host_dies_in_resolve() -> None:
    """No phase after the name lookup has a duration, nor has the lookup."""
    made = in_loop(lambda: ask("http://nowhere.invalid/v1"))
    failed(made, "dns", "resolve")
    assert made.timeline.phase(Phase.RESOLVE) is None
    assert made.http.remote is None
    assert made.clock_source is None


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "nul\u00adl..example", "-.invalid", "xn--.invalid"])
def test_a_host_that_cannot_be_a_name_is_a_failure_too(host: str) -> None:
    """Whatever is written as a host, the slot gets its record."""
    made = in_loop(lambda: ask(f"http://{host}/v1"))
    assert made.failure is not None
    assert made.failure.kind.value in ("dns", "bad_request"), made.failure
    assert made.failure.phase is Phase.RESOLVE


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_refused_connection_dies_in_connect(scheme: str, version: str) -> None:
    """A port where nobody listens."""
    failed(in_loop(lambda: ask(f"{scheme}://127.0.0.1:{free_port()}/v1", http_version=version)), "refused", "connect")


def test_an_address_of_another_family_is_unreachable() -> None:
    """`address_family: ipv6` with an IPv4 address in the URL: a sentence, no connection."""
    made = in_loop(lambda: ask("http://127.0.0.1:9/v1", address_family=AddressFamily.IPV6))
    assert made.failure is not None
    assert "ipv6" in made.failure.text


def test_a_server_that_takes_no_more_connections_times_out_in_connect() -> None:
    """Its queue of connections is full: the handshake is never answered."""

    async def ask_full() -> Attempt:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.socket() for _ in range(4)]
            for sock in waiting:
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            await asyncio.sleep(0.05)
            try:
                url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
                return await ask(url, probe={"connect_timeout_seconds": 0.5})
            finally:
                for sock in waiting:
                    sock.close()

    failed(in_loop(ask_full), "connect_timeout", "connect")


@pytest.mark.parametrize(
    ("certificate", "kind"),
    [
        (Certificate.EXPIRED, "tls_expired"),
        (Certificate.SELF_SIGNED, "tls_self_signed"),
        (Certificate.WRONG_NAME, "tls_wrong_name"),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_bad_certificate_dies_in_tls(certificate: Certificate, kind: str, version: str) -> None:
    """Expired, self-signed and wrong-name certificates are told apart; nothing is sent."""

    async def ask_it() -> Attempt:
        async with Simulator([Listener(tls=certificate)]) as sim:
            return await ask(sim.url(), http_version=version, ca_file=sim.ca_file)

    made = in_loop(ask_it)
    failed(made, kind, "tls")
    assert made.timeline.phase(Phase.CONNECT) is not None
    assert made.http.remote is not None


def test_an_issuer_nobody_trusts_dies_in_tls() -> None:
    """A good certificate of an unknown authority."""

    async def ask_it() -> Attempt:
        async with Simulator([Listener(tls=Certificate.GOOD)]) as sim:
            return await ask(sim.url())

    made = in_loop(ask_it)
    assert made.failure is not None
    assert made.failure.kind.value in ("tls", "tls_self_signed")
    assert made.failure.phase is Phase.TLS


def test_a_server_that_accepts_and_never_says_anything() -> None:
    """Before TLS it is a connection that does not come about; on a plain connection a request without an answer."""

    async def ask_both() -> list[Attempt]:
        async with Simulator([Listener(name="silent", silent=True)]) as sim, prober() as one:
            port = sim.port("silent")
            limits = {"connect_timeout_seconds": 0.5, "deadline_seconds": 1.0}
            asked = [(s, v) for s in ("https", "http") for v in ("1.1", "2")]
            return await asyncio.gather(
                *(attempt(one, series(f"{s}://127.0.0.1:{port}/v1", http_version=v, probe=limits)) for s, v in asked)
            )

    secure1, secure2, plain1, plain2 = in_loop(ask_both)
    failed(secure1, "connect_timeout", "tls")
    failed(secure2, "connect_timeout", "tls")
    failed(plain1, "first_token_deadline", "wait")
    assert plain2.failure is not None
    assert plain2.failure.kind.value == "first_token_deadline"


def test_tls_on_a_plain_port_and_plain_on_a_tls_port() -> None:
    """The two ways to confuse http and https."""

    async def ask_both() -> list[Attempt]:
        listeners = [Listener(name="plain", http=("1.1",)), Listener(name="tls", tls=Certificate.GOOD)]
        async with Simulator(listeners) as sim:
            return [
                await ask(f"https://127.0.0.1:{sim.port('plain')}/v1"),
                await ask(f"http://127.0.0.1:{sim.port('tls')}/v1"),
            ]

    secure, plain = in_loop(ask_both)
    assert secure.failure is not None
    assert (secure.failure.kind.value, secure.failure.phase) == ("tls", Phase.TLS), secure.failure
    assert plain.failure is not None
    assert plain.failure.kind.value in ("protocol_error", "disconnected", "bad_request"), plain.failure
    assert plain.failure.phase is Phase.WAIT


def test_an_overloaded_vendor_in_its_own_words() -> None:
    """A machine that turns away is overloaded or rate limited in every dialect."""
    for kind, expected in ((ErrorKind.OVERLOADED, "overloaded"), (ErrorKind.RATE_LIMITED, "rate_limited")):
        behaviour = Behaviour(capacity=1, queue_limit=0, ttft_seconds=0.5, refusal=kind)
        made = in_loop(lambda behaviour=behaviour: every_way(behaviour, deadline_seconds=3.0, max_output_tokens=1))
        kinds = sorted({one.failure.kind.value for one in made.values() if one.failure})
        assert kinds == [expected]
