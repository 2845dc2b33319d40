"""The port between the planner and a sampler: two methods and the two records that pass through them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, overload, runtime_checkable

from regrow.search.space.domains import Json

TrialStatus: TypeAlias = Literal["running", "paused", "done", "stopped", "failed"]


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
    of earlier experiments (warm start) have negative numbers, no state, and come before all others. `revived`: how often
    the trial was tried again after it had failed; each time what was said of it before holds no more. Of a define-by-run trial,
    `distributions` says from what each value in `config` was drawn, `attributes` what it noted.
    """

    number: int
    config: Mapping[str, Json]
    status: TrialStatus
    state: Mapping[str, Json] = field(default_factory=dict)
    value: float | None = None
    intermediate: Sequence[tuple[int, float]] = ()
    values: tuple[float, ...] | None = None
    violations: tuple[float, ...] = ()
    revived: int = 0
    distributions: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    attributes: Mapping[str, Json] = field(default_factory=dict)


class Steps(Sequence[tuple[int, float]]):
    """Values as (step, value), steps counted from 1; the pairs are made when they are looked at."""

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[float]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, place: int) -> tuple[int, float]: ...

    @overload
    def __getitem__(self, place: slice) -> list[tuple[int, float]]: ...

    def __getitem__(self, place: int | slice) -> tuple[int, float] | list[tuple[int, float]]:
        if isinstance(place, slice):
            return list(self)[place]
        step = range(1, len(self) + 1)[place]
        return step, self._values[step - 1]

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return iter(enumerate(self._values, start=1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as for a list, the way Python has it

    def __repr__(self) -> str:
        return repr(list(self))


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


@runtime_checkable
class Suggesting(Protocol):
    """Of a sampler that gives values one by one, to trials that say while they run what they need."""

    def suggest(self, name: str, distribution: Mapping[str, Json], trial: Result, seed: int) -> Json:
        """A value of parameter `name` from a distribution, written as Optuna writes one, for a running trial as it is now.

        It is a pure function of that and of what `ask` is one of.
        """
        ...


@runtime_checkable
class Advised(Protocol):
    """Of a sampler that learns from experiments on other tasks, whose values do not compare with its own."""

    def advise(self, others: Sequence[Sequence[Result]]) -> None:
        """The results of each of the other experiments, before all else."""
        ...


@runtime_checkable
class Watching(Protocol):
    """Of a sampler that learns from the curves of trials that still run. Others hear of these when they begin and end."""

    def watch(self, running: Sequence[Result]) -> None:
        """The running trials that have reported something, as they are now; before each `ask`, in place of those said before."""
        ...
