"""The port behind which the engines are that bring clusters up: Ray's launcher, KubeRay."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from regrow.infra.clusters.description import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One line of what may be started: at most `most` machines of a type. `price`: USD an hour for each; None: not known."""

    role: Literal["head", "workers"]
    type: str
    market: Market | None
    most: int
    price: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine or pod of the cluster that is there, whatever state it is in."""

    address: str
    role: Literal["head", "worker"]
    type: str = ""
    market: Market | None = None
    state: str = "running"
    """`running`, or what is the matter with it."""


class Provider(Protocol):
    """One cluster, as an engine sees it. All methods raise RegrowError for what the engine could not do, with its words."""

    def plan(self) -> list[Offer]:
        """What may be started at most, for people to say yes to."""

    def files(self) -> dict[str, bytes]:
        """What the engine is given, by file name; the same bytes each time. Without secrets."""

    def check(self) -> None:
        """Looks for mistakes as far as that goes without an account or network. Raises SpecError or UserError."""

    def up(self, say: Callable[[str], None]) -> None:
        """Brings the cluster up, or what is missing of it; changes nothing that runs. `say` is given lines for people."""

    def status(self) -> list[Machine]:
        """What is there, the head first; empty if nothing is."""

    def command(self, words: Sequence[str], *, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Runs a command on the head, in the cluster's environment, and returns when it has ended."""

    def hold(self, words: Sequence[str]) -> AbstractContextManager[None]:
        """Has a command run on the head as long as the block lasts."""

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        """A port of this machine's loopback that leads to one of the head's, as long as the block lasts."""

    def down(self, say: Callable[[str], None]) -> None:
        """Ends the cluster and looks whether anything is left; raises RegrowError, naming it, if so."""
