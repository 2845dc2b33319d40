"""The price of an attempt's slots, from the prices of its nodes when it begins."""

from __future__ import annotations

from regrow.search.events import Began, Place


def prices_of(began: Began, width: int, usual: float | None) -> tuple[float | None, float | None]:
    """Return the price of a slot and hour, and that of the nodes as a whole; None for a price that
    is unknown.

    Args:
        began: the attempt's beginning, with the prices of its nodes.
        width: slots of the attempt, each one worker's.
        usual: the specification's price of a slot, which counts for nodes without a price; None for
            none.

    """
    own = Place(began.node, began.node_id, began.node_type, began.market, began.price, began.share)
    told = [place.price * place.share for place in (own, *began.others) if place.price is not None]
    nodes = {
        place.node_id or place.node: place.price
        for place in (own, *began.others)
        if place.price is not None
    }
    if not told:
        return usual, None
    untold = (1 + len(began.others) - len(told)) * (usual or 0.0)
    return (sum(told) + untold) / width, sum(nodes.values())
