"""`search: auto`: the rule that chooses a sampler and a scheduler for a specification that names
none. A pure rule; nothing is made here.

It is applied once, when an experiment is created, and its result is written into the log. Replays
and resumptions read the log, so a later version's rule does not affect existing experiments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from regrow.search import samplers, schedulers
from regrow.search.errors import SpecError
from regrow.search.options import AUTO, chosen
from regrow.search.samplers.cube import modelled
from regrow.search.samplers.grid import Cells
from regrow.search.space.domains import Grid

if TYPE_CHECKING:
    from regrow.search.spec.spec import Named, Spec

MOST_TRIALS = 2000
"""Most trials in total for a Gaussian process over all of their curves. With more, a proposal takes
too long.
"""
MOST_DIMENSIONS = 40
"""Most parameters with a dimension for a Gaussian process. With more, distances in the unit cube
mean little.
"""
MOST_EAGER = 24
"""At most this many of the first trials, and at most a third of all, are judged as early as
possible, so that good regions are known sooner.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The search and the schedule of a specification, named by the user or chosen. `why`: for each
    chosen key, the reason in words.
    """

    search: Named
    schedule: Named
    why: dict[str, str] = field(default_factory=dict)

    def told(self) -> str:
        """Return the choice in one line, for people."""
        why = f" ({AUTO}: {'; '.join(self.why.values())})" if self.why else ""
        return f"search: {chosen(self.search)}, schedule: {chosen(self.schedule)}{why}"


def choose(spec: Spec) -> Choice:
    """Return the search and the schedule of `spec`; instead of `auto`, those that fit its space,
    metrics and budget.
    """
    if spec.search != AUTO:
        return Choice(search=spec.search, schedule=spec.schedule)
    search, because = _search(spec)
    if spec.schedule != AUTO:
        return Choice(search=search, schedule=spec.schedule, why={"search": because})
    schedule, reason = _schedule(spec)
    return Choice(search=search, schedule=schedule, why={"search": because, "schedule": reason})


def check(spec: Spec) -> None:
    """Raise SpecError for `auto` with options, or in a place where it is not allowed."""
    for key, choice in (("search", spec.search), ("schedule", spec.schedule)):
        if choice != AUTO and chosen(choice) == AUTO:
            hint = f"write {key}: {AUTO}, or name one and its options"
            raise SpecError(f"{key}.{AUTO}", _options(choice), "has no options", hint)
    if spec.schedule == AUTO and spec.search != AUTO:
        hint = f"leave it out, which is {schedulers.DEFAULT}, or name one"
        raise SpecError("schedule", AUTO, f"goes with search: {AUTO} alone", hint)


def _options(choice: Named) -> Any:
    return next(iter(choice.values())) if isinstance(choice, dict) else None


def _search(spec: Spec) -> tuple[str, str]:
    """Return the sampler, and the reason."""
    kinds = [schedulers.kind(name) for name in schedulers.named(spec.schedule)]
    if any(kind.takes_budgets for kind in kinds):
        name = next(name for name in samplers.REGISTRY if samplers.gives_budgets(name))
        return name, f"it is the other half of schedule: {chosen(spec.schedule)}"
    dimensions = len(modelled(spec.space))
    if not dimensions:
        return _turns(spec)
    if any(kind.layout == "population" for kind in kinds):
        return "random", "a population begins with random configurations"
    if len(spec.metrics) > 1 or spec.constraints:
        return (
            "tpe",
            (
                f"it takes {'several metrics' if len(spec.metrics) > 1 else 'constraints'} into"
                " account"
            ),
        )
    trials = spec.trials or 0
    if trials > MOST_TRIALS:
        return "tpe", f"{trials:,} trials are more than {MOST_TRIALS:,}"
    if dimensions > MOST_DIMENSIONS:
        return "tpe", f"{dimensions} parameters are more than {MOST_DIMENSIONS}"
    return (
        "mobster",
        (
            f"{trials:,} trial{'' if trials == 1 else 's'}, {dimensions}"
            f" parameter{'' if dimensions == 1 else 's'}"
        ),
    )


def _turns(spec: Spec) -> tuple[str, str]:
    """Return the sampler if no parameter has a dimension, and the reason: a grid if each cell is
    tried at most once, else random search.
    """
    cells = _cells(spec)
    if (
        cells > 1
        and (spec.trials or 0) <= cells * spec.repeats
        and all(point.metrics is not None for point in spec.points)
    ):
        return "grid", f"a grid of {cells} cells and nothing else"
    if cells > 1:
        return "random", f"a grid of {cells} cells, one after the other"
    return "random", "there is nothing to learn a model of"


def _cells(spec: Spec) -> int:
    return Cells(spec.space, Grid).count


def _schedule(spec: Spec) -> tuple[Named, str]:
    """Return the scheduler if none is given, and the reason."""
    unfit = (
        (
            not modelled(spec.space),
            "each cell is to be seen whole" if _cells(spec) > 1 else "there is nothing to compare",
        ),
        (len(spec.metrics) > 1, "no trial is ended early by one metric of several"),
        (
            bool(spec.constraints),
            "no trial is ended early by its metric while constraints count, too",
        ),
        (spec.repeats > 1, "repeats are compared by the mean of whole trials"),
        (spec.max_steps is None, "max_steps is not given"),
        (spec.max_steps == 1, "trials have one step"),
    )
    for holds, why in unfit:
        if holds:
            return schedulers.DEFAULT, why
    eager = min(MOST_EAGER, (spec.trials or 0) // 3)
    return {"async_hyperband": {"eager": eager}}, f"trials of at most {spec.max_steps:,} steps"
