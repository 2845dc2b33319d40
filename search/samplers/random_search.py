"""Independent draws from the prior of each parameter."""

from __future__ import annotations

from collections.abc import Mapping

from regrow.search.chance import uniform_draw
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.grid import Cells
from regrow.search.space import Space
from regrow.search.space.domains import Grid, Json
from regrow.search.space.setting import Setting


def drawn(space: Space, number: int, seed: int, given: Mapping[str, Json]) -> dict[str, Json]:
    """Return RandomSearch's proposal for trial `number` with the values in `given` instead of its
    own, and with parameters that these make active.
    """
    usual = {**Cells(space, Grid).placed(number, seed, {}), **given}
    config: dict[str, Json] = {}
    for p in space.flat:
        if p.active(config):
            config[p.name] = (
                usual[p.name] if p.name in usual else p.domain.quantile(uniform_draw(seed, p.name))
            )
    return config


class RandomSearch:
    """Random search (Bergstra and Bengio, 2012, JMLR 13:281). It learns nothing from results."""

    several = True

    def __init__(self, setting: Setting) -> None:
        self._cells = Cells(setting.space, Grid)

    def ask(self, number: int, seed: int) -> Proposal:
        """See Sampler; never None. Grids take cell `number` mod their cells."""
        return Proposal(config=self._cells.placed(number, seed, {}))

    def tell(self, result: Result) -> None:
        """Ignore the result."""
