"""Where the ranks of an attempt find the first of them: it says at which address it waits, the others ask."""

from __future__ import annotations

import asyncio

MOST = 10_000
"""Addresses that are kept; of attempts that ended long ago nobody asks."""


class Meetings:
    """Addresses by attempt. In the coordinator's event loop alone; after a restart rank 0 says it again."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[int, int], str] = {}
        self._changed = asyncio.Condition()

    async def hold(self, lease: tuple[int, int], address: str) -> None:
        """Rank 0 of an attempt waits there."""
        async with self._changed:
            self._addresses[lease] = address
            while len(self._addresses) > MOST:
                del self._addresses[next(iter(self._addresses))]
            self._changed.notify_all()

    async def find(self, lease: tuple[int, int], seconds: float) -> str:
        """The address, once it is there; "" if it is not within so many `seconds`."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: lease in self._addresses)
        except TimeoutError:
            return ""
        return self._addresses[lease]
