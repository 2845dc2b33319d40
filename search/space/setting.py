"""What a sampler and a scheduler are made for, besides their own options."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.search.mode import Mode, sign_of
from regrow.search.space.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An experiment as its search sees it.

    `modes` has one entry a metric, the objective first. `max_steps`: steps of a trial at most, None where the trainable
    ends by itself. `trials`: how many there are to be by the specification, None for as many as the sampler has; a later
    session may want more. `seed` is the experiment's. `constraints`: how many conditions on metrics a trial should meet.
    """

    space: Space
    modes: tuple[Mode, ...]
    max_steps: int | None = None
    trials: int | None = None
    seed: int = 0
    constraints: int = 0

    @property
    def mode(self) -> Mode:
        """Whether less or more of the objective is better."""
        return self.modes[0]

    @property
    def sign(self) -> float:
        """What makes the objective a cost, of which less is better, by multiplication."""
        return sign_of(self.mode)
