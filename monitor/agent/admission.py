"""Who may probe now: concurrency caps, overall and for each provider, and the pace of each provider.

So that we never cause the 429 that we then report.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from monitor.agent.pace import Pace


class Admission:
    """Places for attempts. Places are given in the order of asking."""

    def __init__(self, max_concurrent: int, per_provider: Mapping[str, int], pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._waiting: set[asyncio.Task[Any]] = set()
        self._caps: tuple[int, Mapping[str, int]] = (0, {})
        self.limit(max_concurrent, per_provider)

    def limit(self, max_concurrent: int, per_provider: Mapping[str, int]) -> None:
        """New caps; attempts under way count against the old ones to their end. Equal caps change nothing."""
        caps = (max_concurrent, dict(per_provider))
        if caps == self._caps:
            return
        self._caps = caps
        self._overall = asyncio.Semaphore(max(1, max_concurrent))
        self._providers = {name: asyncio.Semaphore(max(1, cap)) for name, cap in per_provider.items()}

    @asynccontextmanager
    async def place(self, provider: str, patience_seconds: float) -> AsyncIterator[bool]:
        """Hold a place for one attempt; False when none became free within `patience_seconds`."""
        async with AsyncExitStack() as places:
            yield await self._wait(places, provider, patience_seconds)

    async def _wait(self, places: AsyncExitStack, provider: str, patience_seconds: float) -> bool:
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            async with asyncio.timeout(patience_seconds):
                if provider in self._providers:
                    await places.enter_async_context(self._providers[provider])
                async with self._pace.turn(provider, patience_seconds):  # without a place that others could use
                    await places.enter_async_context(self._overall)
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(task)
        return True

    def give_back(self, provider: str) -> None:
        """An attempt that had its place was not made after all: it does not count against the provider's pace."""
        self._pace.give_back(provider)

    def turn_away(self) -> None:
        """Cancel the tasks of all that wait for a place."""
        for task in list(self._waiting):
            task.cancel()
