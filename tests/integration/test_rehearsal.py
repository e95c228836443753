"""What a dry run shows is what an attempt sends, byte for byte but for the secrets."""

from __future__ import annotations

import asyncio

import pytest

from monitor.agent.arrivals import WatchedLoop
from monitor.agent.probe import Prober
from monitor.agent.question import Rehearsal
from monitor.clock import Clock
from monitor.model import DialectName, Probe, Purpose, Secret, Series, Slot, Target, Vantage

KEY = "sk-planted-Zq7Vx2Lm9Tr4"


async def rehearsed_and_sent(series: Series) -> Rehearsal:
    prober = Prober(Clock())
    shown = prober.rehearse(series)
    slot = Slot(vantage="v", target="t", probe="q", scheduled_at=prober.now(), number=0)
    await prober.run(slot, series, purpose=Purpose.ONE_OFF)
    await prober.close()
    return shown


@pytest.mark.parametrize("dialect", [DialectName.OPENAI_CHAT, DialectName.ANTHROPIC, DialectName.GEMINI])
def test_rehearsal_is_what_goes_out(dialect: DialectName) -> None:
    """Request line, headers in their order, and body: as a plain socket reads them."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        heard.extend([head, await reader.readexactly(length)])
        writer.write(b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def both() -> tuple[Rehearsal, str]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            target = Target(
                name="t", provider="p", model="m", dialect=dialect, url=f"http://127.0.0.1:{port}/v1",
                api_key=Secret(KEY), headers={"x-own": "yes"},
            )  # fmt: skip
            series = Series(vantage=Vantage(name="v"), target=target, probe=Probe(name="q", prompt="hi", nonce=False))
            return await rehearsed_and_sent(series), f"http://127.0.0.1:{port}"

    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        shown, origin = runner.run(both())
    assert KEY not in repr(shown)
    lines = heard[0].decode().replace(KEY, "***").split("\r\n")
    assert lines[0] == f"{shown.method} {shown.url.removeprefix(origin)} HTTP/1.1"
    headers = [tuple(line.split(": ", 1)) for line in lines[1:] if line]
    assert [(name.lower(), value) for name, value in headers] == list(shown.headers)
    assert heard[1].decode() == shown.body
