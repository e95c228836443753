"""The streams of a load, measured by llmeter. Runs in the interpreter that llmeter is installed in; see peers.py.

    python llmeter_streams.py BASE_URL MODEL CLIENTS REQUESTS_PER_CLIENT SPREAD_SECONDS

One JSON line for each response: its id, llmeter's own `time_to_first_token`, and the reading of the clock that
llmeter subtracted to get it.
"""

import asyncio
import itertools
import json
import sys
from typing import Any

from llmeter.callbacks import Callback  # type: ignore[import-not-found, unused-ignore]  # elsewhere
from llmeter.endpoints.openai import (  # type: ignore[import-not-found, unused-ignore]
    OpenAICompletionStreamEndpoint,
)
from llmeter.runner import Runner  # type: ignore[import-not-found, unused-ignore]


class KnownStart(OpenAICompletionStreamEndpoint):  # type: ignore[misc, unused-ignore]
    """Keeps the start that llmeter hands to its parser; the parser is llmeter's."""

    def process_raw_response(self, raw_response: Any, start_t: float, response: Any) -> None:
        super().process_raw_response(raw_response, start_t, response)
        response.annotations["started"] = start_t


class SpreadStarts(Callback):  # type: ignore[misc, unused-ignore]
    """Each client's first request waits its turn, before llmeter starts its clock, so that not all begin at once."""

    def __init__(self, clients: int, spread_seconds: float) -> None:
        self._turns = itertools.chain(
            (number * spread_seconds / clients for number in range(clients)), itertools.repeat(0)
        )

    async def before_invoke(self, payload: dict[str, Any]) -> None:
        await asyncio.sleep(next(self._turns))


async def main(url: str, model: str, clients: int, requests: int, spread_seconds: float) -> None:
    endpoint = KnownStart(model_id=model, base_url=url, api_key="none", max_retries=0)
    payload = endpoint.create_payload("hello", max_tokens=1000)
    endpoint.invoke(payload)  # warms up: the SDK imports parts of itself with the first request
    runner = Runner(
        endpoint=endpoint, clients=clients, n_requests=requests, callbacks=[SpreadStarts(clients, spread_seconds)]
    )
    result = await runner.run(payload=payload)
    for response in result.responses:
        started = response.annotations.get("started")
        line = {"id": response.id, "ttft": response.time_to_first_token, "started": started, "error": response.error}
        print(json.dumps(line))


if __name__ == "__main__":
    base_url, wanted, *numbers = sys.argv[1:]
    asyncio.run(main(base_url, wanted, int(numbers[0]), int(numbers[1]), float(numbers[2])))
