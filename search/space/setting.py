"""The input from which a sampler or a scheduler is made, besides its own options."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.search.mode import Mode, sign_of
from regrow.search.space.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The parts of an experiment that its search needs.

    Attributes:
        space: the search space.
        modes: one for each metric, the objective first.
        max_steps: most steps of a trial, None if the trainable ends by itself.
        trials: total number at first (a session may raise it), None for what the sampler has.
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

    @property
    def mode(self) -> Mode:
        """Whether less or more of the objective is better."""
        return self.modes[0]

    @property
    def sign(self) -> float:
        """The factor that makes the objective a cost, of which less is better."""
        return sign_of(self.mode)
