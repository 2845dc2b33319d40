"""Quasi-random points: the sampler "qmc". scipy is imported at the first `ask`."""

from __future__ import annotations

from typing import Any

from regrow.search.errors import SpecError
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.cube import inside, modelled
from regrow.search.samplers.grid import Cells
from regrow.search.space.domains import Grid
from regrow.search.space.setting import Setting

TYPES = {"sobol": "Sobol", "halton": "Halton"}
BLOCK = 256
"""Points that are computed at a time. Jumping to a block takes about 1 ms, wherever it is."""


class Qmc:
    """Trial n takes point n of a low-discrepancy sequence (Bergstra and Bengio, 2012, JMLR 13:281,
    section 4.3).

    `qmc_type`: "sobol" (Joe and Kuo, 2008) or "halton"; `scramble`: with Owen's scrambling, drawn
    from the experiment's seed, so that all trials belong to one sequence. Every parameter has its
    own dimension, also a conditional one: its coordinate is unused while it is inactive. Parameters
    under `grid` take cell n mod the cells and have no dimension. Sobol's points are balanced after
    2**k trials. It learns nothing from results.
    """

    several = True

    def __init__(self, setting: Setting, *, qmc_type: str = "sobol", scramble: bool = True) -> None:
        if qmc_type not in TYPES:
            raise SpecError("qmc_type", qmc_type, "is not known", "write sobol or halton")
        self._cells = Cells(setting.space, Grid)
        self._dimension = {p.name: d for d, p in enumerate(modelled(setting.space))}
        self._engine, self._scramble, self._seed = TYPES[qmc_type], scramble, setting.seed
        self._block = -1
        self._points: Any = None

    def ask(self, number: int, seed: int) -> Proposal:
        """See Sampler; never None. `seed` is not used: the sequence depends on the experiment's
        seed.

        Raises ValueError beyond 2**30 trials, where Sobol's sequence ends.
        """
        point = self._point(number)
        coordinates = {name: inside(point[d]) for name, d in self._dimension.items()}
        return Proposal(config=self._cells.placed(number, seed, coordinates))

    def tell(self, result: Result) -> None:
        """Ignore the result."""

    def _point(self, number: int) -> Any:
        """Return point `number`, one coordinate for each dimension, in [0, 1]."""
        if not self._dimension:
            return ()
        block, row = divmod(number, BLOCK)
        if block != self._block:
            from scipy.stats import qmc

            engine = getattr(qmc, self._engine)(
                len(self._dimension), scramble=self._scramble, seed=self._seed
            )
            if block:  # scipy 1.17 fails for a jump of 0
                engine.fast_forward(block * BLOCK)
            self._block, self._points = block, engine.random(BLOCK)
        return self._points[row]
