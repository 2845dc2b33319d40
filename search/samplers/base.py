"""The port between the planner and a sampler: two methods and the two records that pass through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from regrow.search.domains import Json

Status: TypeAlias = Literal["running", "paused", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A flat configuration to try, and what the sampler wants to be given back with its result.

    Both are JSON and go into the log; `state` is opaque to everybody else.
    """

    config: dict[str, Json]
    state: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What is known of trial `number`: its proposal and how far it got.

    `value` is the objective, None if there is none (yet). `intermediate` has its value by step, each step
    once. "stopped" is a trial that a scheduler ended early, "paused" one that may go on later (what it has so far is
    all that there may ever be), "failed" one that gave nothing. With several metrics
    `values` has all of them, the objective first, of the trial's last step. `violations`: by how much each
    constraint is broken there, 0 or less where it is met; empty where there are none or nothing is known. Results
    of earlier experiments (warm start) have negative numbers, no state, and come before all others.
    """

    number: int
    config: Mapping[str, Json]
    status: Status
    state: Mapping[str, Json] = field(default_factory=dict)
    value: float | None = None
    intermediate: Sequence[tuple[int, float]] = ()
    values: tuple[float, ...] | None = None
    violations: tuple[float, ...] = ()


class Sampler(Protocol):
    """Proposes configurations. Made with a Setting; its options are the keyword-only parameters of its class.

    A class attribute `several = True` says that it takes several metrics and constraints into account. One that
    runs out of configurations has an attribute `size`.

    `ask` is a pure function of the space, the sampler's options, the set of results told so far (not the order of
    their trials), `number` and `seed`: no clock, no global random state. So a sampler is never stored; it is told
    everything again. Numbers count from 0 without gaps. A trial that the user proposed has an empty `state`.
    """

    def ask(self, number: int, seed: int) -> Proposal | None:
        """What trial `number` should try; None when there is nothing left to try. `seed` is a non-negative
        int."""
        ...

    def tell(self, result: Result) -> None:
        """Takes in a result; may be called again for the same trial as it goes from running to its end."""
        ...
