"""The port for engines that start clusters: Ray's launcher, KubeRay."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Literal, Protocol

from regrow.infra.clusters.description import Market

DASHBOARD_PORT = 8265
"""Port of Ray's dashboard on the head's loopback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One line of what may be started, `most` at a time. `price`: USD per hour; None: unknown."""

    role: Literal["head", "workers"]
    type: str
    market: Market | None
    most: int
    price: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An existing machine or pod of the cluster, in any state."""

    address: str
    role: Literal["head", "worker"]
    type: str = ""
    market: Market | None = None
    state: str = "running"
    """`running`, or a description of the problem."""


def offers(
    head: str,
    market: Market | None,
    workers: Iterable[tuple[str, Market | None, int]],
    price: Callable[[str, Market | None], float | None],
) -> list[Offer]:
    """Return the most that may be started: the head, and (type, market, number) of each group.

    `price`: returns USD per hour of a type in a market; None: unknown.
    """
    groups = [
        Offer(role="workers", type=kind, market=market, most=most, price=price(kind, market))
        for kind, market, most in workers
    ]
    return [
        Offer(role="head", type=head, market=market, most=1, price=price(head, market)),
        *groups,
    ]


def described(offers: Sequence[Offer]) -> list[str]:
    """Describe what may be started and its price, for people to confirm."""
    lines = []
    for one in offers:
        several = one.role == "workers" and one.most > 1
        what = f"up to {one.most} x {one.type}" if several else one.type
        market = f", {one.market}" if one.market else ""
        price = f", {one.price * one.most:.2f} USD an hour" if one.price else ""
        lines.append(f"  {one.role + ':':9}{what}{market}{price}")
    if all(one.price == 0 for one in offers):
        return lines
    if unknown := dict.fromkeys(one.type for one in offers if one.price is None):
        hint = "a file of prices, at `prices` in the cluster file, says it"
        total = f"what {', '.join(unknown)} costs is not known; {hint}"
    else:
        total = f"at most {sum((one.price or 0) * one.most for one in offers):.2f} USD an hour"
    return [*lines, f"  {total}"]


class Provider(Protocol):
    """One cluster, as managed by an engine. All methods raise RegrowError, with the engine's
    message, for what the engine could not do.
    """

    def plan(self) -> list[Offer]:
        """Return the most that may be started, for the user to confirm."""

    def files(self) -> dict[str, bytes]:
        """Return the engine's input by file name, always the same bytes, without secrets."""

    def check(self) -> None:
        """Check for mistakes without an account or network. Raises SpecError or UserError."""

    def up(self, say: Callable[[str], None]) -> None:
        """Start what is missing of the cluster. `say` gets lines for people."""

    def status(self) -> list[Machine]:
        """Return the existing machines, the head first; empty if there are none."""

    def command(self, words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        """Run a command on the head, in the cluster's environment, and return when it has ended."""

    def hold(self, words: Sequence[str]) -> AbstractContextManager[IO[bytes]]:
        """Run a command on the head for the duration of the block. Yields its output."""

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        """Open a local port that leads to a loopback port of the head, within the block."""

    def down(self, say: Callable[[str], None]) -> None:
        """End the cluster. Raises RegrowError, naming what is left, if something is."""
