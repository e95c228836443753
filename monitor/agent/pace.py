"""How often a provider may be asked: caps on attempts begun in any minute, so that we never cause the 429 we report."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

WINDOW_SECONDS = 61.0
"""A second more than the minute that is promised: what begins a minute apart may arrive a little closer."""


class Pace:
    """At most so many attempts to a provider begin in any 60 seconds. For one event loop, first come first served."""

    def __init__(self, per_minute: Mapping[str, int] | None = None, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._caps: dict[str, int] = {}
        self._begun: dict[str, deque[float]] = {}
        self._queues: dict[str, asyncio.Lock] = {}
        self.limit(per_minute or {})

    def limit(self, per_minute: Mapping[str, int]) -> None:
        """New caps; what began lately counts against them."""
        self._caps = dict(per_minute)
        for name, cap in self._caps.items():
            self._begun[name] = deque(self._begun.get(name, ()), maxlen=cap)

    @asynccontextmanager
    async def turn(self, provider: str, patience_seconds: float) -> AsyncIterator[None]:
        """Wait until an attempt may begin, which it does at the end of the block.

        Raises TimeoutError as soon as it is known that this takes longer than `patience_seconds`.
        """
        if provider not in self._caps:
            yield
            return
        ends = self._now() + patience_seconds
        async with self._queues.setdefault(provider, asyncio.Lock()):
            while (wait := self._wait_seconds(provider)) > 0:
                if self._now() + wait > ends:
                    raise TimeoutError
                await asyncio.sleep(wait)
            yield
            self._begun[provider].append(self._now())

    def take(self, provider: str) -> bool:
        """Begin one more attempt now, if that is possible without waiting."""
        if provider not in self._caps:
            return True
        if self._queues.setdefault(provider, asyncio.Lock()).locked() or self._wait_seconds(provider) > 0:
            return False
        self._begun[provider].append(self._now())
        return True

    def give_back(self, provider: str) -> None:
        """What had begun last was not asked after all."""
        if self._begun.get(provider):
            self._begun[provider].pop()

    def _wait_seconds(self, provider: str) -> float:
        begun = self._begun.get(provider)
        if begun is None or begun.maxlen is None or len(begun) < begun.maxlen:
            return 0.0
        return begun[0] + self._window_seconds - self._now()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
