"""What decoding costs: processor time for each event, from the bytes of a read to the marks' vocabulary, per dialect.

    .venv/bin/python benchmarks/decoding.py [--events 20000] [--json]

Each dialect decodes a stream of ordinary token events of its own, one event a read, as a calm line delivers them.
Where the recorded streams lie beside the project, those that decode are read as well, cut into pieces of 1,400 bytes.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from monitor.agent.dialects import DIALECTS
from monitor.model import DialectName

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "recorded_streams" / "streams.jsonl.gz"
TARGET_MICROSECONDS = 30.0
PIECE = 1400


def sse(payload: dict[str, object], event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(payload)}\n\n".encode()


def bedrock(payload: dict[str, object]) -> bytes:
    """One frame of AWS's binary event stream."""
    headers = b""
    names = {":event-type": "contentBlockDelta", ":content-type": "application/json", ":message-type": "event"}
    for name, value in names.items():
        headers += bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    frame = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + body
    return frame + struct.pack(">I", zlib.crc32(frame))


TOKENS: dict[DialectName, bytes] = {
    DialectName.OPENAI_CHAT: sse(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
        }
    ),
    DialectName.OPENAI_RESPONSES: sse(
        {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0, "delta": " word"},
        "response.output_text.delta",
    ),
    DialectName.ANTHROPIC: sse(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " word"}},
        "content_block_delta",
    ),
    DialectName.GEMINI: sse(
        {
            "candidates": [{"content": {"parts": [{"text": " word"}], "role": "model"}, "index": 0}],
            "usageMetadata": {"promptTokenCount": 8, "candidatesTokenCount": 4, "totalTokenCount": 12},
        }
    ),
    DialectName.OLLAMA: json.dumps(
        {"model": "m", "created_at": "x", "message": {"role": "assistant", "content": " word"}, "done": False}
    ).encode()
    + b"\n",
    DialectName.BEDROCK: bedrock({"contentBlockIndex": 0, "delta": {"text": " word"}, "p": "abcdefgh"}),
    DialectName.COHERE: sse(
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": " word"}}}}, "content-delta"
    ),
}


def cost(name: DialectName, events: int) -> float:
    """Microseconds of processor time for each event."""
    decoder, one = DIALECTS[name].decoder(), TOKENS[name]
    began = time.process_time()
    for _ in range(events):
        decoder.feed(one)
    spent = time.process_time() - began
    if decoder.seen.token_events != events:
        sys.exit(f"{name}: {decoder.seen.token_events} of {events} events were tokens: this benchmark has rotted")
    return spent / events * 1e6


def recorded() -> Iterator[tuple[DialectName, bytes]]:
    """The recorded bodies of the three most frequent shapes, by their paths."""
    shapes = {"/chat/completions": "openai_chat", "/responses": "openai_responses", "/messages": "anthropic"}
    with gzip.open(RECORDED, "rt") as lines:
        for line in lines:
            stream = json.loads(line)
            name = next((shape for end, shape in shapes.items() if stream["path"].endswith(end)), None)
            if name:
                yield DialectName(name), base64.b64decode(stream["body"])


def cost_of_recorded() -> float:
    """Microseconds for each event of the recordings."""
    bodies, frames, spent = list(recorded()), 0, 0.0
    for name, body in bodies:
        decoder = DIALECTS[name].decoder()
        began = time.process_time()
        for at in range(0, len(body), PIECE):
            decoder.feed(body[at : at + PIECE])
        decoder.finish()
        spent += time.process_time() - began
        frames += decoder.seen.frames
    return spent / frames * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    costs = {name.value: cost(name, arguments.events) for name in TOKENS}
    if RECORDED.exists():
        costs["recorded streams"] = cost_of_recorded()
    if arguments.json:
        print(json.dumps({"microseconds_per_event": costs, "met": max(costs.values()) <= TARGET_MICROSECONDS}))
        return
    table = Table("dialect", "µs an event", title="Processor time of decoding")
    for name, microseconds in costs.items():
        table.add_row(name, f"{microseconds:.1f}")
    Console().print(table)
    print(
        f"every figure is at most {TARGET_MICROSECONDS:.0f} µs"
        if max(costs.values()) <= TARGET_MICROSECONDS
        else "missed"
    )
    if not RECORDED.exists():
        print("the recorded streams are not here: only streams of the benchmark's own")


if __name__ == "__main__":
    main()
