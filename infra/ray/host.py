"""The machine of an attempt, as a Ray worker knows it: the Host port."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from regrow.infra.machine import descendants
from regrow.infra.ray import waiting
from regrow.infra.ray.nodes import MARKET_LABEL
from regrow.infra.ray.notices import NodeNotices, Tell
from regrow.search.events import Place
from regrow.search.needs import Bundle

NODE_TYPES = ("regrow.io/instance-type", "node.kubernetes.io/instance-type", "ray.io/node-group")
"""Labels for the type of a node, the most specific one first. With the last one, launchers (Ray's
own, KubeRay) name their node group.
"""
PRICE = "regrow.io/price"
"""Label for the price of the whole node per hour."""
LOOK_SECONDS = 5.0
"""Seconds between two searches for remains of dead workers: a search takes some milliseconds, and
some trials are as short.
"""


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

        there = ray.get_runtime_context()
        labels = {name: str(value) for name, value in there.get_node_labels().items()}
        price = _price(labels.get(PRICE, ""))
        return Place(
            platform.node(),
            there.get_node_id(),
            next((labels[name] for name in NODE_TYPES if labels.get(name)), ""),
            market=labels.get(MARKET_LABEL, ""),
            price=price,
            share=1.0 if price is None else _share(there, self.bundles),
        )

    @contextmanager
    def listen(self, tell: Tell) -> Iterator[None]:
        """See Host."""
        descendants.adopt()
        _look_for_orphans()
        with super().listen(tell), waiting.told(self.bundles[len(self.bundles) - self.children :]):
            yield

    def end_children(self) -> None:
        """See Host."""
        descendants.end_children()


_looked = [float("-inf")]


def _look_for_orphans() -> None:
    """End processes that dead workers left: they would keep memory and GPUs that the attempt
    needs.
    """
    if time.monotonic() - _looked[0] >= LOOK_SECONDS:
        descendants.end_orphans()
        _looked[0] = time.monotonic()


def _price(text: str) -> float | None:
    """Return the price in a label; None if it is missing or not a price."""
    try:
        price = float(text)
    except ValueError:
        return None
    return price if 0 <= price < math.inf else None


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
