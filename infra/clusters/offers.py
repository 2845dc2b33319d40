"""What may be started for an experiment, and what it costs, for people to confirm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regrow.infra.clusters.description import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A group of machines. `price`: USD per hour of one; None: unknown."""

    type: str
    market: Market
    most: int
    price: float | None = None


def described(offers: Sequence[Offer]) -> list[str]:
    """Describe what may be started and its price, for people to confirm."""
    lines = []
    for one in offers:
        what = f"up to {one.most} x {one.type}" if one.most > 1 else one.type
        price = f", {one.price * one.most:.2f} USD an hour" if one.price else ""
        lines.append(f"  {what}, {one.market}{price}")
    if all(one.price == 0 for one in offers):
        return lines
    if unknown := dict.fromkeys(one.type for one in offers if one.price is None):
        hint = "give a file of prices at `prices` in the cluster file"
        total = f"what {', '.join(unknown)} costs is not known; {hint}"
    else:
        total = f"at most {sum((one.price or 0) * one.most for one in offers):.2f} USD an hour"
    return [*lines, f"  {total}"]
