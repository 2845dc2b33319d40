"""What an attempt needs of a cluster, and how many attempts the nodes have room for. Pure functions of what the nodes have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Node = Mapping[str, float]
"""What a node has in total, by Ray's names: CPU, GPU, memory (bytes), custom ones."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt needs: `bundles`, one for each of its slots, by the same names; what is not needed is not there.

    `strategy` says how the bundles lie on nodes, as Ray's placement groups call it. STRICT_PACK: all of them on one.
    """

    bundles: tuple[dict[str, float], ...] = ()
    strategy: Literal["STRICT_PACK"] = "STRICT_PACK"

    def of_node(self) -> dict[str, float]:
        """What a node must have for the bundles that lie on it."""
        match self.strategy:
            case "STRICT_PACK":
                names = dict.fromkeys(name for bundle in self.bundles for name in bundle)
                return {name: math.fsum(bundle.get(name, 0.0) for bundle in self.bundles) for name in names}

    def fitting(self, node: Node) -> int:
        """How many such attempts fit on a node at a time; 1 if they need nothing."""
        # 1e-9: three trials of 1/3 GPU fit on one
        return min((int(node.get(name, 0.0) / amount + 1e-9) for name, amount in self.of_node().items()), default=1)


def room(needs: Needs, nodes: Iterable[Node]) -> int:
    """How many such attempts fit on the nodes at a time; 0 means that none ever does."""
    return sum(needs.fitting(node) for node in nodes)


def widest(slot: Needs, nodes: Iterable[Node]) -> int:
    """How many slots one attempt can have at most, where one needs `slot`. Ray gives several GPUs only as whole ones."""
    most = max((slot.fitting(node) for node in nodes), default=0)
    gpu = slot.of_node().get("GPU", 0.0)
    return max(1, min(most, int(1 / gpu)) if 0 < gpu < 1 else most)
