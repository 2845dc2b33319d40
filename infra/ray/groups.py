"""Attempts of several processes: a placement group that the driver makes, with a bundle for each rank and for each child.

Its removal ends all that runs in it, stopped processes too: it is the fence of such an attempt. A group that was made by a task
or an actor would live until the whole job ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from regrow.search.needs import Needs
from regrow.tasks.executor import Carried

END_SECONDS = 5.0
"""How long the other ranks may take to end after the first: what they printed is on its way to the store."""
TELL_SECONDS = 3.0
"""How long Ray may take to say how a rank ended that another one misses."""
LAST_SECONDS = 1.0
"""How long rank 0 may take for its last word when another one is lost. It may be in the middle of a step, and has said what it
did before that; what it is about to commit takes a request or two.
"""
KEY_BYTES = 32
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What rank 0 returns when it misses another one: which, why, whether that was on another node, and whether it only fell
    silent.
    """

    rank: int
    why: str
    elsewhere: bool
    silent: bool


class MemberLost(Exception):
    """A rank of a group is gone. `error` is what Ray says of it, None for nothing."""

    def __init__(self, rank: int, why: str, error: Exception | None, *, elsewhere: bool = False) -> None:
        super().__init__(rank, why)
        self.rank, self.why, self.error, self.elsewhere = rank, why, error, elsewhere


@dataclass(slots=True, kw_only=True)
class Grouped:
    """An attempt under way in a placement group: the references of its ranks' tasks, the first rank's first."""

    group: PlacementGroup
    refs: list[Any] = field(default_factory=list)
    removed: bool = False

    async def outcome(self) -> Carried:
        """What came of it; then nothing of it is left. Raises MemberLost, and what Ray raises of rank 0."""
        futures = [asyncio.ensure_future(_awaited(ref)) for ref in self.refs]
        others = futures[1:]
        try:
            result: Carried | Broken = await _first(futures)
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
        """Ends all of it. Returns at once."""
        if not self.removed:
            self.removed = True
            threading.Thread(target=_remove, args=(self.group, self.refs), name="regrow-group", daemon=True).start()


def make(needs: Needs, *, name: str, selector: dict[str, str] | None) -> PlacementGroup:
    """The placement group of an attempt, which is there as soon as the cluster has room for it."""
    labels = [selector] * len(needs.bundles) if selector else None
    group: PlacementGroup = placement_group(
        [dict(bundle) for bundle in needs.bundles], strategy=needs.strategy, name=name, bundle_label_selector=labels,
    )
    return group


def place(group: PlacementGroup, bundle: int, *, children: bool) -> PlacementGroupSchedulingStrategy:
    """Where a rank runs. `children`: what it starts itself goes into the group as well, unless it says otherwise."""
    return PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=bundle, placement_group_capture_child_tasks=children,
    )


def new_key() -> bytes:
    """What the ranks of one attempt prove to each other that they know."""
    return secrets.token_bytes(KEY_BYTES)


async def _awaited(ref: Any) -> Any:
    return await ref


async def _first(futures: Sequence[asyncio.Future[Any]]) -> Any:
    """What rank 0 returned, or the loss of the first rank that is lost."""
    waiting = set(futures)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for rank, future in enumerate(futures[1:], 1):
            if future in done and (error := future.exception()) is not None:
                if not isinstance(error, Exception):
                    raise error
                # What it did and printed by now is still told: it notices at once, unless it waits for that rank elsewhere.
                await asyncio.wait({futures[0]}, timeout=LAST_SECONDS)
                if futures[0].done():  # it had ended; or it was lost first, and this one left; or it says whom it misses
                    return futures[0].result()
                raise MemberLost(rank, f"rank {rank} was lost", error)
        if futures[0] in done:
            return futures[0].result()


async def _lost(broken: Broken, others: Sequence[asyncio.Future[Any]]) -> MemberLost:
    """What became of the rank that rank 0 misses."""
    error: Exception | None = None
    if 0 < broken.rank <= len(others) and not broken.silent:  # of one that was stopped or cut off Ray knows nothing for long
        with suppress(TimeoutError):
            missed = others[broken.rank - 1]
            await asyncio.wait({missed}, timeout=TELL_SECONDS)
            found = missed.exception() if missed.done() else None
            error = found if isinstance(found, Exception) else None
    return MemberLost(broken.rank, broken.why, error, elsewhere=broken.elsewhere)


def _remove(group: PlacementGroup, refs: Sequence[Any]) -> None:
    for ref in refs:
        with suppress(Exception):  # it has ended; or the cluster has
            ray.cancel(ref, force=True)
    for pause in (0.0, 1.0, 5.0):
        time.sleep(pause)
        try:
            remove_placement_group(group)
        except Exception as error:  # noqa: BLE001 - Ray's own errors are many; what is left ends with the session
            _LOG.info("a placement group could not be removed: %s", error)
        else:
            return
