"""The port to a sampler of another library's interface that is no function of the results: the
user's own class for Optuna or Ray Tune. It runs beside the planner, in the coordinator, and each
answer is an event (`Answered`) before it is used. So `regrow verify` needs none of its code.

`search: {define_by_run: {sampler: NAME, external: true}}` says that trials have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from regrow.search.events import Answered, AnyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the planner waits for.

    Attributes:
        trial: the next trial, whose proposal is wanted, or one that runs and has asked.
        name: the parameter of a running trial; empty for a proposal.
        distribution: of the parameter, in Optuna's JSON form.

    """

    trial: int
    name: str = ""
    distribution: Mapping[str, Any] | None = None


class External(Protocol):
    """A sampler in the coordinator, made anew in each of its processes."""

    def observe(self, event: AnyEvent) -> None:
        """Take one event of the log; called for all of them, from the first, in order."""
        ...

    def answer(self, wanted: Wanted | None, now: float) -> Answered | None:
        """Return the answer to what is wanted, at `now`; None for none yet: it is asked again after
        the next event. With None as `wanted`, only trials that have ended can be answered.
        """
        ...


@runtime_checkable
class HasExternal(Protocol):
    """A trainable whose trials have an external sampler: it is pickled with it."""

    def external(self) -> External | None:
        """Return the sampler, None for none."""
        ...
