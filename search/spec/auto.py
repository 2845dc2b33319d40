"""`search: auto`: the rule that chooses a sampler and a scheduler for a specification that names
none. A pure rule; nothing is made here.

It is applied once, when an experiment is created, and its result is written into the log. Replays
and resumptions read the log, so a later version's rule does not affect existing experiments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from regrow.search import samplers, schedulers
from regrow.search.errors import SpecError
from regrow.search.options import AUTO, Named, chosen
from regrow.search.samplers.cube import modelled
from regrow.search.samplers.grid import Cells
from regrow.search.space.domains import Grid
from regrow.search.space.setting import Setting

MOST_TRIALS = 2000
"""Most trials for a Gaussian process over all of their curves: then a proposal is slow."""
MOST_DIMENSIONS = 40
"""Most dimensions for a Gaussian process: then distances in the unit cube mean little."""
EARLY = 4
"""Trials that take the steps of a full training, where a schedule ends the worse ones early: 3 to 5
with "hyperband" under the guard and 52 steps.
"""
ETA = 3
"""HyperBand's reduction factor."""
MOST_HALVINGS = 4
"""Most halvings of a bracket: the first one has at most ETA**4 trials."""
FIRST_BRACKET = 0.75
"""The first bracket has at most this share of all trials, as it is complete only with all of its
own.
"""
GUARD = 0.2
"""Least agreement of a step at which trials are judged. A step after more than a ninth of
`max_steps` needs no evidence, as HyperBand's brackets do not all begin with the same step.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchChoice:
    """The search and the schedule of a specification, named by the user or chosen. `why`: for each
    chosen key, the reason in words.
    """

    search: Named
    schedule: Named
    why: dict[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Return the choice in one line, for people."""
        reasons = [self.why[key] for key in ("search", "schedule") if key in self.why]
        why = f" ({AUTO}: {'; '.join(reasons)})" if reasons else ""
        return f"search: {chosen(self.search)}, schedule: {chosen(self.schedule)}{why}"


def choose(
    search: Named, schedule: Named, setting: Setting, *, repeats: int, first: bool
) -> SearchChoice:
    """Return the search and the schedule; instead of `auto`, those that fit the space, the metrics
    and the budget. `first`: whether configurations to try first are given.
    """
    if search != AUTO:
        return SearchChoice(search=search, schedule=schedule)
    search, because = _search(schedule, setting, repeats=repeats, first=first)
    if schedule != AUTO:
        return SearchChoice(search=search, schedule=schedule, why={"search": because})
    schedule, reason = _schedule(setting, repeats=repeats)
    return SearchChoice(
        search=search, schedule=schedule, why={"search": because, "schedule": reason}
    )


def expected_trials(setting: Setting, *, early: bool = False) -> int | None:
    """Return the number of trials to be expected, None if nothing limits it. `early`: trials of a
    budget are ended early, so that there are EARLY times as many as it has trainings.
    """
    if setting.trainings is None:
        return setting.trials
    found = max(1, int(setting.trainings * (EARLY if early else 1)))
    return found if setting.trials is None else min(setting.trials, found)


def check(search: Named, schedule: Named) -> None:
    """Raise SpecError for `auto` with options, or in a place where it is not allowed."""
    for key, choice in (("search", search), ("schedule", schedule)):
        if choice != AUTO and chosen(choice) == AUTO:
            hint = f"write {key}: {AUTO}, or name one and its options"
            raise SpecError(
                f"{key}.{AUTO}",
                (next(iter(choice.values())) if isinstance(choice, dict) else None),
                "has no options",
                hint,
            )
    if schedule == AUTO and search != AUTO:
        hint = f"leave it out, which is {schedulers.DEFAULT}, or name one"
        raise SpecError("schedule", AUTO, f"goes with search: {AUTO} alone", hint)


def _search(schedule: Named, setting: Setting, *, repeats: int, first: bool) -> tuple[Named, str]:
    """Return the sampler, and the reason."""
    kinds = [schedulers.kind(name) for name in schedulers.named(schedule)]
    if any(kind.takes_budgets for kind in kinds):
        name = next(name for name in samplers.NAMES if samplers.gives_budgets(name))
        return name, f"it is the other half of schedule: {chosen(schedule)}"
    dimensions = len(modelled(setting.space))
    if not dimensions:
        cells = _cells(setting)
        if cells > 1 and (expected_trials(setting) or 0) <= cells * repeats and not first:
            return "grid", f"a grid of {cells} cells and nothing else"
        if cells > 1:
            return "random", f"a grid of {cells} cells, one after the other"
        return "random", "there is nothing to learn a model of"
    if any(kind.layout == "population" for kind in kinds):
        return "random", "a population begins with random configurations"
    if len(setting.modes) > 1 or setting.constraints:
        what = "several metrics" if len(setting.modes) > 1 else "constraints"
        return "tpe", f"it takes {what} into account"
    trials = expected_trials(setting, early=True)
    if trials is not None and trials > MOST_TRIALS:
        return "tpe", f"{trials:,} trials are more than {MOST_TRIALS:,}"
    if dimensions > MOST_DIMENSIONS:
        return "tpe", f"{dimensions} parameters are more than {MOST_DIMENSIONS}"
    many = "as many trials as fit"
    if setting.trainings is not None:
        many = f"the steps of {setting.trainings:.4g} trainings"
    elif trials is not None:
        many = f"{trials:,} trial{'' if trials == 1 else 's'}"
    many = f"{many}, {dimensions} parameter{'' if dimensions == 1 else 's'}"
    return {"mobster": {"by_step": True, "augmented": True}}, many


def _cells(setting: Setting) -> int:
    return Cells(setting.space, Grid).count


def _schedule(setting: Setting, *, repeats: int) -> tuple[Named, str]:
    """Return the scheduler if none is given, and the reason."""
    alike = "there is nothing to compare"
    if _cells(setting) > 1:
        alike = "each cell is to be seen whole"
    bound = "no trial is ended early by its metric while constraints count, too"
    unfit = (
        (not modelled(setting.space), alike),
        (len(setting.modes) > 1, "no trial is ended early by one metric of several"),
        (bool(setting.constraints), bound),
        (repeats > 1, "repeats are compared by the mean of whole trials"),
        (setting.max_steps is None, "max_steps is not given"),
        (setting.max_steps == 1, "trials have one step"),
        ((setting.max_steps or 0) < ETA, "trials have two steps"),
    )
    for holds, why in unfit:
        if holds:
            return schedulers.DEFAULT, why
    options = {"grace_period": _grace(setting), "guard": GUARD}
    return {"hyperband": options}, f"trials of at most {setting.max_steps:,} steps"


def _grace(setting: Setting) -> int:
    """Return the least steps of a trial, by which HyperBand has as many halvings as there are
    trials for.
    """
    trials, halvings = expected_trials(setting, early=True), MOST_HALVINGS
    if trials is not None:
        while halvings > 1 and ETA**halvings > FIRST_BRACKET * trials:
            halvings -= 1
    return int((setting.max_steps or 1) // ETA ** (halvings + 1)) + 1
