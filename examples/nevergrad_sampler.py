"""A foreign optimiser as a sampler: Nevergrad (`pip install 'regrow[nevergrad]'`), `search:
"nevergrad_sampler:Nevergrad"`.

The recipe for any library with ask and tell whose only chance is a seed: each proposal notes which
results the optimiser had been told before it (`state`, which goes into the log). A fresh optimiser
that is told and asked the same again is where the one before it was, so there is nothing else to
store, and nothing that a crash could lose.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from regrow.testing import Proposal, Result, Setting


class Nevergrad:
    """`optimizer`: a name in nevergrad.optimizers.registry; `budget`: how many proposals it may
    count on.
    """

    def __init__(
        self, setting: Setting, *, optimizer: str = "TwoPointsDE", budget: int = 100
    ) -> None:
        self._setting, self._optimizer, self._budget = setting, optimizer, budget
        self._results: dict[int, Result] = {}

    def ask(self, number: int, seed: int) -> Proposal:
        """A point of the unit cube, and the configuration that lies there. The seed is the
        experiment's, for all proposals.
        """
        import nevergrad as ng

        cube = ng.p.Array(shape=(len(self._setting.space.flat),), lower=0.0, upper=1.0)
        cube.random_state = np.random.RandomState(self._setting.seed)
        optimizer = ng.optimizers.registry[self._optimizer](cube, budget=self._budget)
        asked: dict[int, Any] = {}
        for n in range(number):
            if "told" in self._results[n].state:  # not a point of the user's own
                self._tell(optimizer, asked, self._results[n].state["told"])
                asked[n] = optimizer.ask()
        told = {m for result in self._results.values() for m in result.state.get("told", ())}
        new = [
            n
            for n in sorted(asked)
            if n not in told and self._results[n].status in ("done", "stopped")
        ]
        self._tell(optimizer, asked, new)
        config: dict[str, Any] = {}
        for parameter, u in zip(self._setting.space.flat, optimizer.ask().value, strict=True):
            if parameter.active(config):
                config[parameter.name] = parameter.domain.quantile(
                    min(max(float(u), 1e-9), 1 - 1e-9)
                )
        return Proposal(config=config, state={"told": new})

    def tell(self, result: Result) -> None:
        """Results of earlier experiments are left out; of the others, the last word counts."""
        if result.number >= 0 and (
            result.number not in self._results or result.status != "running"
        ):
            self._results[result.number] = result

    def _tell(self, optimizer: Any, asked: dict[int, Any], numbers: list[int]) -> None:
        for n in numbers:
            if (value := self._results[n].value) is not None:
                optimizer.tell(asked[n], self._setting.sign * value)
