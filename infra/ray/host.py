"""The machine of an attempt, as a Ray worker knows it: the Host port."""

from __future__ import annotations

import logging
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from regrow.infra.machine import descendants
from regrow.infra.ray import private
from regrow.infra.ray.labels import MARKET_LABEL, price_of
from regrow.infra.ray.notices import NodeNotices, Notify
from regrow.search.events import Place
from regrow.search.needs import Bundle
from regrow.tasks.process import background
from regrow.tasks.process.gpus import DEVICES

NODE_TYPES = ("regrow.io/instance-type", "node.kubernetes.io/instance-type", "ray.io/node-group")
"""Labels for the type of a node, the most specific one first. With the last one, launchers (Ray's
own, KubeRay) name their node group.
"""
WAIT_SECONDS = 10.0
"""Seconds between two checks for waiting actors; one found by two of them has no room."""
LOOK_SECONDS = 5.0
"""Seconds between two searches, of some milliseconds each, for remains of dead workers."""
_LOG = logging.getLogger("regrow.trial")


# Without slots, which would create a second class that super() does not know.
@dataclass(frozen=True, kw_only=True)
class RayHost(NodeNotices):
    """Name and id of the node, notices of its end, and the worker's child processes. Sent to the
    workers.

    Attributes:
        bundles: the worker's part of its node if it is in a placement group, whose resources have
            special names; empty: not in a group.
        children: how many bundles, counted from the last, are for what the trial starts.

    """

    bundles: tuple[Bundle, ...] = ()
    children: int = 0

    def place(self) -> Place:
        """See Host."""
        import ray

        context = ray.get_runtime_context()
        labels = {name: str(value) for name, value in context.get_node_labels().items()}
        price = price_of(labels)
        return Place(
            platform.node(),
            context.get_node_id(),
            next((labels[name] for name in NODE_TYPES if labels.get(name)), ""),
            market=labels.get(MARKET_LABEL, ""),
            price=price,
            share=1.0 if price is None else _share(context, self.bundles),
            gpus=self.gpus(),
        )

    def gpus(self) -> str:
        """Return the GPUs of this worker alone, as Ray has set them in CUDA_VISIBLE_DEVICES; empty
        for none.
        """
        import ray

        context: Any = ray.get_runtime_context()
        assigned = context.get_assigned_resources()
        has_some = any(name.split("_group_")[0] == "GPU" for name in assigned)
        return os.environ.get(DEVICES, "") if has_some else ""

    @contextmanager
    def listen(self, notify: Notify) -> Iterator[None]:
        """See Host."""
        descendants.adopt()
        # they keep memory and GPUs that the attempt needs
        if time.monotonic() - _looked[0] >= LOOK_SECONDS:
            descendants.end_orphans()
            _looked[0] = time.monotonic()
        bundles = self.bundles[len(self.bundles) - self.children :]
        with super().listen(notify), _waiting_reported(bundles):
            yield

    def end_children(self) -> None:
        """See Host."""
        descendants.end_children()


_looked = [float("-inf")]


def _share(here: Any, bundles: Sequence[Bundle]) -> float:
    """Return the task's share of this node: the largest of its shares of the node's resources."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # ray's
    node: dict[str, float] = next(
        (node["Resources"] for node in nodes if node["NodeID"] == here.get_node_id()), {}
    )
    assigned: dict[str, float] = here.get_assigned_resources()
    if bundles:
        names = dict.fromkeys(name for bundle in bundles for name in bundle)
        assigned = {name: math.fsum(bundle.get(name, 0.0) for bundle in bundles) for name in names}
    parts = [
        amount / node[name]
        for name, amount in assigned.items()
        if node.get(name, 0.0) > 0 and not name.startswith("node:")
    ]
    return min(1.0, max(parts, default=1.0))


@contextmanager
def _waiting_reported(bundles: tuple[Bundle, ...]) -> Iterator[None]:
    """Within the block, in which the trial trains, report its actors for which it has no room: Ray
    lets them wait forever, without a word. `bundles`: the bundles of its children.
    """
    if not bundles:
        yield
        return
    before, reported = dict[str, str](), set[str]()

    def check() -> None:
        nonlocal before
        try:
            now = private.waiting_actors()
        except Exception as error:  # noqa: BLE001 - Ray raises many types; none may disturb the trial
            _LOG.debug("waiting actors could not be looked for: %s", error)
            return
        new = {
            actor: name for actor, name in now.items() if actor in before and actor not in reported
        }
        if new:
            _LOG.warning("%s", line(new.values(), bundles))
            reported.update(new)
        before = now

    with background.every(WAIT_SECONDS, check, name="waiting", wait=0.0):
        yield


def line(classes: Iterable[str], bundles: tuple[Bundle, ...]) -> str:
    """Return the warning: which actors wait, and what room the trial has."""
    count = Counter(classes)
    who = ", ".join(
        f"{number} of {name}" if number > 1 else name for name, number in sorted(count.items())
    )
    has = ", ".join(f"{name.lower()} {amount:g}" for name, amount in bundles[0].items())
    total = count.total()
    return (
        f"{total} actor{'s' if total > 1 else ''} ({who}) wait{'' if total > 1 else 's'} for room:"
        f" this trial's children have {len(bundles)} bundle{'s' if len(bundles) > 1 else ''} of"
        f" {has}; raise resources.children.count, or start fewer"
    )
