"""What an attempt needs of a cluster, and how many attempts fit on its nodes. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Node = Mapping[str, float]
"""Total resources of a node, by Ray's names: CPU, GPU, memory (bytes), custom ones."""
Bundle = dict[str, float]
"""Resources needed in one piece, on one node, by the same names. Only what is needed is listed."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt needs.

    Attributes:
        bundles: one for each of its slots, then one for each child that it starts itself.
        strategy: how the bundles are placed, as in Ray's placement groups. STRICT_PACK: all of them
            on one node; PACK: on as few nodes as possible.
        children: how many of the last bundles are for children.

    """

    bundles: tuple[Bundle, ...] = ()
    strategy: Literal["STRICT_PACK", "PACK"] = "STRICT_PACK"
    children: int = 0

    def of_node(self) -> Bundle:
        """Return what a node must have to hold all of the bundles."""
        names = dict.fromkeys(name for bundle in self.bundles for name in bundle)
        return {name: math.fsum(bundle.get(name, 0.0) for bundle in self.bundles) for name in names}

    @property
    def gpus(self) -> bool:
        """Whether the attempt itself gets GPUs, apart from its children."""
        own = self.bundles[: len(self.bundles) - self.children]
        return any(bundle.get("GPU", 0.0) > 0 for bundle in own)

    def fitting(self, node: Node) -> int:
        """Return how many such attempts fit on one node at a time; 1 if they need nothing."""
        return _fitting(self.of_node(), node)

    def may_use(self, node: Node) -> bool:
        """Return whether a node is large enough: for all bundles, or for one if they may spread."""
        if self.strategy == "STRICT_PACK":
            return self.fitting(node) > 0
        return any(_fitting(bundle, node) for bundle in self.bundles)

    def have_room(self, nodes: Iterable[Node]) -> bool:
        """Return whether these nodes, if nothing else ran on them, could hold one attempt."""
        if self.strategy == "STRICT_PACK":
            return any(map(self.may_use, nodes))
        left = [dict(node) for node in nodes]
        for bundle in self.bundles:
            node = next((node for node in left if _fitting(bundle, node)), None)
            if node is None:
                return False
            for name, amount in bundle.items():
                node[name] -= amount
        return True


class ClusterCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """How many attempts fit on the cluster at a time.

    Attributes:
        slots: slots of all nodes, free or not.
        widest: slots that one attempt can have at most.
        spot: how many of `slots` are on spot machines.

    """

    slots: int
    widest: int
    spot: int = 0


class ClusterPrice(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster costs.

    Attributes:
        per_hour: sum of the prices on its nodes' labels.
        nodes: number of nodes with a price.

    """

    per_hour: float
    nodes: int


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What the attempts of an experiment may need.

    Attributes:
        slot: the bundle of each slot.
        child: the bundle of each child.
        children: how many children an attempt has.
        grouped: the bundles may be on several nodes, and an attempt has `least` to `most` slots. If
            not, it has as many as it is given, on one node.
        least: fewest slots of a group.
        most: most slots of a group.

    """

    slot: Bundle
    child: Bundle = {}
    children: int = 0
    grouped: bool = False
    least: int = 1
    most: int = 1

    def needs(self, width: int = 1) -> Needs:
        """Return what an attempt of `width` slots needs."""
        own = (self.slot,) * width if self.slot else ()
        if not self.grouped:
            return Needs(bundles=own)
        return Needs(
            bundles=(*own, *(self.child,) * self.children), strategy="PACK", children=self.children
        )

    def slots(self, nodes: Iterable[Node]) -> int:
        """Return how many slots attempts can have at a time; 0 means that no attempt ever fits.

        Groups of several widths are counted as many of the widest as fit, then one in what is left.
        """
        if not self.grouped:
            return room(self.needs(), nodes)
        packing = _Packing(nodes, self)
        found = packing.together() * self.most
        while (width := packing.group()) == self.most:
            found += width + packing.together() * self.most
        return found + (width if width >= self.least else 0)

    def widest(self, nodes: Iterable[Node]) -> int:
        """Return the most slots that one attempt can have; the least allowed if none fits."""
        if self.grouped:
            return max(self.least, _Packing(nodes, self).group())
        slot = self.needs()
        most = max((slot.fitting(node) for node in nodes), default=0)
        gpu = self.slot.get("GPU", 0.0)
        # Ray assigns more than one GPU only as whole GPUs
        return max(1, min(most, int(1 / gpu)) if 0 < gpu < 1 else most)


def room(needs: Needs, nodes: Iterable[Node]) -> int:
    """Return how many such attempts fit on the nodes, each on one. For groups see `Shape.slots`."""
    return sum(needs.fitting(node) for node in nodes)


class _Packing:
    """Places groups on nodes, one after the other: each bundle on the first node that still has
    room for it.

    The free resources of a node only decrease, so a node that is too small for a kind of bundle
    stays too small. Workers of 1 CPU are packed onto 300 nodes of 64 in some 10 ms.
    """

    def __init__(self, nodes: Iterable[Node], shape: Shape) -> None:
        self._shape = shape
        self._whole = shape.needs(shape.most).of_node()
        self._left = [dict(node) for node in nodes]
        self._at = {"slot": 0, "child": 0}

    def together(self) -> int:
        """Place as many complete groups as fit on the next node, and return how many. Equivalent to
        calling `group` that often, but faster.
        """
        shape, at = self._shape, self._at["slot"]
        if (shape.children and at != self._at["child"]) or at == len(self._left):
            return 0
        count = _fitting(self._whole, self._left[at])
        self._occupy(at, self._whole, count)
        return count

    def group(self) -> int:
        """Place one more group and return how many slots it has: `most` if there is room. Fewer
        than `least` means that it does not fit.
        """
        shape = self._shape
        if self._place("child", shape.child, shape.children) < shape.children:
            return 0
        return self._place("slot", shape.slot, shape.most)

    def _place(self, kind: str, bundle: Bundle, count: int) -> int:
        """Place up to `count` bundles and return how many fit."""
        placed, at = 0, self._at[kind]
        while placed < count and at < len(self._left):
            here = min(_fitting(bundle, self._left[at]), count - placed)
            self._occupy(at, bundle, here)
            placed += here
            if placed < count:
                at += 1
        self._at[kind] = at
        return placed

    def _occupy(self, at: int, bundle: Bundle, count: int) -> None:
        for name, amount in bundle.items() if count else ():
            self._left[at][name] -= amount * count


def _fitting(bundle: Bundle, node: Node) -> int:
    # 1e-9 absorbs rounding: three trials of 1/3 GPU fit on one GPU.
    return min(
        (int(node.get(name, 0.0) / amount + 1e-9) for name, amount in bundle.items()), default=1
    )
