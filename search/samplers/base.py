"""The port between the planner and a sampler: two methods, and their two records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, overload, runtime_checkable

from regrow.search.space.domains import Json

TrialStatus: TypeAlias = Literal["running", "paused", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A flat configuration to try, and data that the sampler gets back with its result.

    Both are JSON and go into the log. Only the sampler interprets `state`.
    """

    config: dict[str, Json]
    state: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What is known of a trial: its proposal and how far it got.

    Results of earlier experiments (warm start) have negative numbers, no state, and come before all
    others.

    Attributes:
        number: the trial's number.
        config: the flat configuration.
        status: "stopped" if a scheduler ended it early; "paused" if it may continue later (its
            values so far may be all there ever are); "failed" if it gave no result.
        state: the sampler's data from the proposal.
        value: the objective, None if there is none (yet).
        intermediate: the objective by step, each step once.
        values: with several metrics all of them at the trial's last step, the objective first.
        violations: by how much each constraint is broken there, 0 or less if it is met; empty if
            there are none or nothing is known.
        revived: how often the trial was retried after it had failed. Each retry invalidates earlier
            results of the trial.
        distributions: for a define-by-run trial, the distribution from which each value in `config`
            was drawn.
        attributes: for a define-by-run trial, what it recorded.

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
    """Values as (step, value), steps counted from 1. The pairs are made when they are accessed."""

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

    __hash__ = None  # type: ignore[assignment]  # comparable by value, hence unhashable, as a list is

    def __repr__(self) -> str:
        return repr(list(self))


class Sampler(Protocol):
    """Proposes configurations. Constructed with a Setting; its options are the keyword-only
    parameters of its class.

    A class attribute `several = True` declares that it takes several metrics and constraints into
    account. A sampler that runs out of configurations has an attribute `size`.

    `ask` is a pure function of the space, the sampler's options, the set of results received so far
    (not the order of their trials), `number` and `seed`: no clock, no global random state. So a
    sampler is never stored; it is rebuilt by passing all results again. Numbers count from 0
    without gaps. A trial that the user proposed has an empty `state`.
    """

    def ask(self, number: int, seed: int) -> Proposal | None:
        """Return a configuration for trial `number`, None for none. `seed` is not negative."""
        ...

    def tell(self, result: Result) -> None:
        """Add a result; again for the same trial as it goes from running to its end."""
        ...


@runtime_checkable
class Suggesting(Protocol):
    """Optional part of a sampler that suggests single values to running trials."""

    def suggest(
        self, name: str, distribution: Mapping[str, Json], trial: Result, seed: int
    ) -> Json:
        """Return a value of parameter `name` for a running trial, whose current result is `trial`.

        `distribution` is in Optuna's JSON form, `seed` is not negative. A pure function of these
        and of what `ask` depends on.
        """
        ...


@runtime_checkable
class Advised(Protocol):
    """Optional part of a sampler that learns from other tasks, whose values do not compare."""

    def advise(self, others: Sequence[Sequence[Result]]) -> None:
        """Take the results of each of the other experiments. Called before any other method."""
        ...


@runtime_checkable
class Watching(Protocol):
    """Optional part of a sampler that learns from the curves of running trials. Other samplers get
    a trial's result when it begins and when it ends.
    """

    def watch(self, running: Sequence[Result]) -> None:
        """Take the current results of running trials that have reported something. Called before
        each `ask`; replaces those of the last call.
        """
        ...
