"""Prevents trying a configuration twice, and detects that all of a small space were tried."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property

from regrow.search import samplers, schedulers
from regrow.search.chance import seed_for
from regrow.search.samplers.base import Proposal, Sampler
from regrow.search.samplers.grid import Cells, permuted
from regrow.search.samplers.random_search import drawn
from regrow.search.space.domains import Choice, Float, Grid, Int, Json, value_key
from regrow.search.spec import Spec

ASKED_AGAIN = 8
"""How often the sampler is asked again with other seeds: it does better than chance."""
DRAWN = 32
"""How many random configurations are tested after that."""
SMALL = 100_000
"""Most configurations of a space to enumerate. In a larger one a random one is surely new."""


def applies(spec: Spec) -> bool:
    """Return whether a second trial of one configuration is to be avoided.

    It is not if the user's code searches, or if a configuration is tried at several budgets, is
    made while its trial runs, or is changed by the schedule.
    """
    if spec.own_sampler or spec.own_scheduler:
        return False
    if samplers.gives_budgets(spec.search) or samplers.suggests(spec.search):
        return False
    kinds = map(schedulers.kind, schedulers.named(spec.schedule))
    return not any(kind.changes_configurations for kind in kinds)


class Untried:
    """The configurations proposed in an experiment: a fold, `note` for each trial in order."""

    def __init__(self, spec: Spec) -> None:
        self._space = spec.space
        self._tried: set[Hashable] = set()
        self._exhausted = False

    def note(self, config: Mapping[str, Json]) -> None:
        """Note that a configuration is proposed."""
        self._tried.add(_key(config))

    def instead(
        self, proposal: Proposal, sampler: Sampler, number: int, seed: int
    ) -> Proposal | None:
        """Return the proposal if it is new, else another one; None if the whole space was tried."""
        asked = proposal
        for again in range(ASKED_AGAIN):
            if self._new(asked.config):
                return asked
            asked = sampler.ask(number, seed_for(seed, number, f"again {again}")) or asked
        for again in range(DRAWN):
            config = drawn(self._space, number, seed_for(seed, number, f"drawn {again}"), {})
            if self._new(config):
                return Proposal(config=config)
        return self._left(number, seed) if self._cells is not None else proposal

    @property
    def all_tried(self) -> int | None:
        """Number of configurations if `instead` found that all were tried, else None."""
        return self._cells.count if self._exhausted and self._cells is not None else None

    def _new(self, config: Mapping[str, Json]) -> bool:
        return _key(config) not in self._tried

    def _left(self, number: int, seed: int) -> Proposal | None:
        """Return the first untried configuration in a random order, None if there is none."""
        assert self._cells is not None
        order = seed_for(seed, number, "order")
        for place in range(self._cells.count):
            config = self._cells.at(permuted(place, self._cells.count, order))
            if self._new(config):
                return Proposal(config=config)
        self._exhausted = True
        return None

    @cached_property
    def _cells(self) -> Cells | None:
        """All configurations of a small space; None for a larger or a continuous one."""
        counts = [parameter.domain.cells for parameter in self._space.flat]
        if any(count is None or count > SMALL for count in counts):
            return None
        cells = Cells(self._space, Choice, Grid, Int, Float)
        return cells if cells.count <= SMALL else None


def _key(config: Mapping[str, Json]) -> Hashable:
    return value_key(dict(config))
