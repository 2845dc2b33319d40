"""How the ranks of an attempt find rank 0: it publishes its address, the others ask for it."""

from __future__ import annotations

import asyncio

MOST = 10_000
"""Addresses that are kept; those of attempts that ended long ago are not needed."""


class Rendezvous:
    """Addresses of rank 0, by attempt. Used only in the coordinator's event loop; after a restart
    rank 0 publishes its address again.
    """

    def __init__(self) -> None:
        self._addresses: dict[tuple[int, int], str] = {}
        self._changed = asyncio.Condition()

    async def hold(self, lease: tuple[int, int], address: str) -> None:
        """Set the address of an attempt's rank 0."""
        async with self._changed:
            self._addresses[lease] = address
            while len(self._addresses) > MOST:
                del self._addresses[next(iter(self._addresses))]
            self._changed.notify_all()

    async def find(self, lease: tuple[int, int], seconds: float) -> str:
        """Wait for the address and return it; "" if it is not set within `seconds`."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: lease in self._addresses)
        except TimeoutError:
            return ""
        return self._addresses[lease]
