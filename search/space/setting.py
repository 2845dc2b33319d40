"""The input from which a sampler or a scheduler is made, besides its own options."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.search.mode import Mode, sign_of
from regrow.search.space.space import Space

EARLY = 4
"""Trials that take the steps of a full training, where a schedule ends the worse ones early: 3 to 5
with "async_hyperband", rungs at powers of 3 and 52 steps.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The parts of an experiment that its search needs.

    Attributes:
        space: the search space.
        modes: one for each metric, the objective first.
        max_steps: most steps of a trial, None if the trainable ends by itself.
        trials: total number by the specification, None for as many as the sampler has. A later
            session may raise it.
        trainings: full trainings that the budget allows all trials together; None for no budget.
        seed: the experiment's.
        constraints: number of conditions on metrics.

    """

    space: Space
    modes: tuple[Mode, ...]
    max_steps: int | None = None
    trials: int | None = None
    trainings: float | None = None
    seed: int = 0
    constraints: int = 0

    def expected(self, *, early: bool = False) -> int | None:
        """Return the number of trials to be expected, None if nothing limits it. `early`: trials of
        a budget are ended early, so that there are EARLY times as many as it has trainings.
        """
        if self.trainings is None:
            return self.trials
        found = max(1, int(self.trainings * (EARLY if early else 1)))
        return found if self.trials is None else min(self.trials, found)

    @property
    def mode(self) -> Mode:
        """Whether less or more of the objective is better."""
        return self.modes[0]

    @property
    def sign(self) -> float:
        """The factor that makes the objective a cost, of which less is better."""
        return sign_of(self.mode)
