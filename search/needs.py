"""What an attempt needs of a cluster, and how many attempts the nodes have room for. Pure functions of what the nodes have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

Node = Mapping[str, float]
"""What a node has in total, by Ray's names: CPU, GPU, memory (bytes), custom ones."""
Bundle = dict[str, float]
"""What is needed in one piece, on one node, by the same names; what is not needed is not there."""


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt needs: `bundles`, one for each of its slots; the last `children` are for what it starts itself.

    `strategy` says how the bundles lie on nodes, as Ray's placement groups call it. STRICT_PACK: all of them on one; PACK: on as
    few as possible.
    """

    bundles: tuple[Bundle, ...] = ()
    strategy: Literal["STRICT_PACK", "PACK"] = "STRICT_PACK"
    children: int = 0

    def of_node(self) -> Bundle:
        """What a node must have for all of the bundles to lie on it."""
        names = dict.fromkeys(name for bundle in self.bundles for name in bundle)
        return {name: math.fsum(bundle.get(name, 0.0) for bundle in self.bundles) for name in names}

    def fitting(self, node: Node) -> int:
        """How many such attempts fit on one node at a time; 1 if they need nothing."""
        return _fitting(self.of_node(), node)

    def may_use(self, node: Node) -> bool:
        """Whether a node is large enough: for all of it or, where it may lie on several nodes, for one of its bundles."""
        if self.strategy == "STRICT_PACK":
            return self.fitting(node) > 0
        return any(_fitting(bundle, node) for bundle in self.bundles)

    def have_room(self, nodes: Iterable[Node]) -> bool:
        """Whether these nodes, of which nothing is taken, can hold all of it."""
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


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What the attempts of an experiment may need: a bundle `slot` for each of their slots, beside them `children` times `child`.

    `grouped`: the bundles may lie on several nodes, and an attempt has `least` to `most` slots; else it has as many as it is
    given, on one node.
    """

    slot: Bundle
    child: Bundle = {}
    children: int = 0
    grouped: bool = False
    least: int = 1
    most: int = 1

    def needs(self, width: int = 1) -> Needs:
        """What an attempt of `width` slots needs."""
        own = (self.slot,) * width if self.slot else ()
        if not self.grouped:
            return Needs(bundles=own)
        return Needs(bundles=(*own, *(self.child,) * self.children), strategy="PACK", children=self.children)

    def slots(self, nodes: Iterable[Node]) -> int:
        """How many slots attempts can have at a time; 0 means that none ever fits.

        Of groups of several widths the widest come first, and then one of what is left.
        """
        if not self.grouped:
            return room(self.needs(), nodes)
        packing = _Packing(nodes, self)
        found = packing.together() * self.most
        while (width := packing.group()) == self.most:
            found += width + packing.together() * self.most
        return found + (width if width >= self.least else 0)

    def widest(self, nodes: Iterable[Node]) -> int:
        """How many slots one attempt can have at most; the least that it may have, also where none fits."""
        if self.grouped:
            return max(self.least, _Packing(nodes, self).group())
        slot = self.needs()
        most = max((slot.fitting(node) for node in nodes), default=0)
        gpu = self.slot.get("GPU", 0.0)
        return max(1, min(most, int(1 / gpu)) if 0 < gpu < 1 else most)  # Ray gives several GPUs only as whole ones


def room(needs: Needs, nodes: Iterable[Node]) -> int:
    """How many such attempts fit on the nodes, each on one of them; 0: none ever does. Groups: `Shape.slots`."""
    return sum(needs.fitting(node) for node in nodes)


class _Packing:
    """Groups on nodes, one after the other: each bundle on the first node that still has room for it.

    What is left of a node only becomes less, so that one that is too small for a kind of bundle stays so. Workers of 1 CPU are
    packed onto 300 nodes of 64 in some 10 ms.
    """

    def __init__(self, nodes: Iterable[Node], shape: Shape) -> None:
        self._shape = shape
        self._whole = shape.needs(shape.most).of_node()
        self._left = [dict(node) for node in nodes]
        self._at = {"slot": 0, "child": 0}

    def together(self) -> int:
        """How many groups lie on the node that is next as a whole: what `group` would do with them, at once."""
        shape, at = self._shape, self._at["slot"]
        if (shape.children and at != self._at["child"]) or at == len(self._left):
            return 0
        count = _fitting(self._whole, self._left[at])
        self._take(at, self._whole, count)
        return count

    def group(self) -> int:
        """How many slots one more group has, `most` if there is room; fewer than `least`: there is none for it."""
        shape = self._shape
        if self._place("child", shape.child, shape.children) < shape.children:
            return 0
        return self._place("slot", shape.slot, shape.most)

    def _place(self, kind: str, bundle: Bundle, count: int) -> int:
        """How many of `count` bundles there was room for."""
        placed, at = 0, self._at[kind]
        while placed < count and at < len(self._left):
            here = min(_fitting(bundle, self._left[at]), count - placed)
            self._take(at, bundle, here)
            placed += here
            if placed < count:
                at += 1
        self._at[kind] = at
        return placed

    def _take(self, at: int, bundle: Bundle, count: int) -> None:
        for name, amount in bundle.items() if count else ():
            self._left[at][name] -= amount * count


def _fitting(bundle: Bundle, node: Node) -> int:
    # 1e-9: three trials of 1/3 GPU fit on one
    return min((int(node.get(name, 0.0) / amount + 1e-9) for name, amount in bundle.items()), default=1)
