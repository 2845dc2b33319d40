"""Attempts of several processes: a placement group of the driver's, a bundle for each of them.

Removing the group ends everything in it, also stopped processes, so it is the fence of such an
attempt. A group made by a task or an actor would live until the whole job ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from regrow.search.needs import Needs
from regrow.tasks.ports.executor import ExecutionResult
from regrow.tasks.process import background

END_SECONDS = 5.0
"""Seconds for the other ranks to end after the first, while their output is written."""
TELL_SECONDS = 3.0
"""Seconds for Ray to report how a missing rank ended."""
LAST_SECONDS = 1.0
"""Seconds for rank 0 to finish when another rank is lost. It may be in the middle of a step, and
has reported everything before that; a pending commit takes one or two requests.
"""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What rank 0 returns when another rank is missing.

    Attributes:
        rank: the missing rank.
        why: what rank 0 observed.
        elsewhere: whether that rank was on another node.
        silent: whether its heartbeats stopped; else its connection was lost.

    """

    rank: int
    why: str
    elsewhere: bool
    silent: bool


class MemberLost(Exception):
    """A rank of a group was lost. `error`: Ray's error for it, None if there is none."""

    def __init__(
        self, rank: int, why: str, error: Exception | None, *, elsewhere: bool = False
    ) -> None:
        super().__init__(rank, why)
        self.rank, self.why, self.error, self.elsewhere = rank, why, error, elsewhere


@dataclass(slots=True, kw_only=True)
class Grouped:
    """A running attempt in a placement group. `refs`: the tasks of its ranks, in their order."""

    group: PlacementGroup
    refs: list[Any] = field(default_factory=list)
    removed: bool = False

    async def outcome(self) -> ExecutionResult:
        """Return the result and remove the group. Raises MemberLost, and rank 0's errors."""
        futures = [asyncio.ensure_future(_awaited(ref)) for ref in self.refs]
        others = futures[1:]
        try:
            result: ExecutionResult | Broken = await _first(futures)
            if isinstance(result, Broken):
                raise await _lost(result, others)
            if others:
                await asyncio.wait(others, timeout=END_SECONDS)
            return result
        finally:
            for future in futures:
                future.cancel()
            self.remove()

    def remove(self) -> None:
        """End the whole attempt. Returns at once."""
        if not self.removed:
            self.removed = True
            background.start(_remove, self.group, self.refs, name="group")


def make(needs: Needs, *, name: str, selector: dict[str, str] | None) -> PlacementGroup:
    """Return a placement group for an attempt. Ray places it as soon as the cluster has room.

    Its name in Ray is `name` and a random suffix: Ray refuses a name that exists, and the group of
    the previous attempt may still be being removed. Raises RayError.
    """
    labels = [selector] * len(needs.bundles) if selector else None
    group: PlacementGroup = placement_group(
        [dict(bundle) for bundle in needs.bundles],
        strategy=needs.strategy,
        name=f"{name}-{secrets.token_hex(4)}",
        bundle_label_selector=labels,
    )
    return group


async def _awaited(ref: Any) -> Any:
    return await ref


async def _first(futures: Sequence[asyncio.Future[Any]]) -> Any:
    """Return the result of rank 0, or raise the loss of the first rank that is lost."""
    waiting = set(futures)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for rank, future in enumerate(futures[1:], 1):
            if future in done and (error := future.exception()) is not None:
                if not isinstance(error, Exception):
                    raise error
                # Give rank 0 time to report its progress and output. It notices the loss at once,
                # unless it is waiting for that rank elsewhere.
                await asyncio.wait({futures[0]}, timeout=LAST_SECONDS)
                # Rank 0 had ended; or it was lost first, and this rank left; or it names the
                # missing rank.
                if futures[0].done():
                    return futures[0].result()
                raise MemberLost(rank, f"rank {rank} was lost", error)
        if futures[0] in done:
            return futures[0].result()


async def _lost(broken: Broken, others: Sequence[asyncio.Future[Any]]) -> MemberLost:
    """Return the error for the rank that rank 0 misses."""
    error: Exception | None = None
    # Ray learns late about a rank that was stopped or cut off from the network.
    if 0 < broken.rank <= len(others) and not broken.silent:
        with suppress(TimeoutError):
            missed = others[broken.rank - 1]
            await asyncio.wait({missed}, timeout=TELL_SECONDS)
            found = missed.exception() if missed.done() else None
            error = found if isinstance(found, Exception) else None
    return MemberLost(broken.rank, broken.why, error, elsewhere=broken.elsewhere)


def _remove(group: PlacementGroup, refs: Sequence[Any]) -> None:
    for ref in refs:
        with suppress(Exception):  # the task, or the cluster, has ended
            ray.cancel(ref, force=True)
    for pause in (0.0, 1.0, 5.0):
        time.sleep(pause)
        try:
            remove_placement_group(group)
        except Exception as error:  # noqa: BLE001 - Ray raises many types; the session's end removes the rest
            _LOG.info("a placement group could not be removed: %s", error)
        else:
            return
