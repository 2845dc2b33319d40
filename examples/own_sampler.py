"""A sampler of one's own: each configuration is tried together with its opposite (antithetic
pairs).

Named in a specification as `search: "own_sampler:Pairs"` (see own_search.yaml); checked by
`python -c 'from regrow.testing import check_sampler; check_sampler("own_sampler:Pairs")'`.
"""

from __future__ import annotations

import random
from typing import Any

from regrow.testing import Proposal, Result, Setting


class Pairs:
    """Trial 2k is random; trial 2k + 1 is its mirror image in the unit cube of the space."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def ask(self, number: int, seed: int) -> Proposal:
        """A function of the experiment's seed and the number: nothing to remember, the same after a
        restart.
        """
        chance = random.Random(f"{self._setting.seed}:{number // 2}")
        config: dict[str, Any] = {}
        for parameter in self._setting.space.flat:
            u = chance.uniform(1e-9, 1 - 1e-9)  # one draw a parameter, active or not
            if parameter.active(config):
                config[parameter.name] = parameter.domain.quantile(1 - u if number % 2 else u)
        return Proposal(config=config)

    def tell(self, result: Result) -> None:
        """It learns nothing."""
