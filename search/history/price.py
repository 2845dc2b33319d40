"""What an attempt pays for its slots, by what its nodes tell when it begins."""

from __future__ import annotations

from regrow.search.events import Began, Place


def prices_of(began: Began, width: int, usual: float | None) -> tuple[float | None, float | None]:
    """The price of a slot and hour, and that of the nodes as a whole; None where nobody tells one.

    `usual` is the specification's for a slot, which counts where a node tells none, each of `width` slots being one worker's.
    """
    own = Place(began.node, began.node_id, began.node_type, began.market, began.price, began.share)
    told = [place.price * place.share for place in (own, *began.others) if place.price is not None]
    nodes = {place.node_id or place.node: place.price for place in (own, *began.others) if place.price is not None}
    if not told:
        return usual, None
    untold = (1 + len(began.others) - len(told)) * (usual or 0.0)
    return (sum(told) + untold) / width, sum(nodes.values())
