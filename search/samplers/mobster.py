"""The sampler "mobster", which implements the port. It chooses the results that the model gets, as
curves over points of the unit cube.

numpy and scipy are imported at the first proposal of its model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from regrow.search.chance import uniform_draw
from regrow.search.options import check_whole, check_within
from regrow.search.samplers import cube
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.cube import inside, modelled
from regrow.search.samplers.grid import Cells
from regrow.search.samplers.result_rules import sampled, supersedes
from regrow.search.space.domains import Grid, Json
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from regrow.search.samplers.curve_process import Floats, Process
    from regrow.search.samplers.mobster_model import Curve, MobsterModel

LEAST_ADVICE: Final = 4
"""Fewest trials with a curve of another experiment that is used for advice."""


class Mobster:
    """A Gaussian process over configuration and step, which learns from curves that were cut off:
    the sampler of model-based asynchronous successive halving (MOBSTER; Klein, Tiao, Lienart,
    Archambeau and Seeger, 2020, arXiv:2003.10865), with our kernel over steps (`curve_process.py`)
    and with values by their rank (Salinas, Shen and Perrone, ICML 2020, section 4).

    Proposals are random until `n_startup_trials` have reported (None: one more than there are
    parameters, at least 4), and for `random_fraction` of the proposals after that. Otherwise a
    proposal is the point of the largest expected improvement at `max_steps`, over the best trial as
    the process expects it there; running trials count as if they ended as expected. It works with
    every scheduler, and learns from trials that still run. Without `max_steps` a trial is one
    value. Results of earlier experiments count like others if they fit the space; parameters under
    `grid` are not modelled. A failed trial counts by its curve up to there, but never as the best;
    less is expected around failures that have anything in common (`outcomes.py`). A
    proposal takes 10 ms, with 1,000 curves 40 ms.

    Each experiment on another task (`learn_from`) has its own process. The mean at the beginning is
    what these expect at the end, in scores by rank, with inferred weights (an ensemble as that of
    Feurer, Letham and Bakshy, 2018, arXiv:1802.02219, with weights by regression, not by ranks).
    Then two trials that have reported are enough to begin.

    `by_step`: costs are scored within their step (`step_scores`), not by rank over all of them.
    `augmented`: a point whose outcome is known but for noise, as that of a near-copy of a trial
    that was seen whole, promises next to nothing (`acquisition.py`).
    """

    def __init__(
        self,
        setting: Setting,
        *,
        n_startup_trials: int | None = None,
        random_fraction: float = 0.1,
        by_step: bool = False,
        augmented: bool = False,
    ) -> None:
        check_whole("n_startup_trials", n_startup_trials, 2)
        check_within("random_fraction", random_fraction, 0, 1, "write 0.1")
        self._setting = setting
        self._parameters = modelled(setting.space)
        self._cells = Cells(setting.space, Grid)
        self._startup = (
            max(len(self._parameters) + 1, 4) if n_startup_trials is None else n_startup_trials
        )
        self._random = random_fraction
        self._by_step, self._augmented = by_step, augmented
        self._results: dict[int, Result] = {}
        self._points: dict[int, list[float]] = {}
        """The point of each trial that fits the space, MIDDLE where inactive."""
        self._curves: dict[int, Curve] = {}
        """Curves of the trials that have one and did not fail."""
        self._cut: dict[int, Curve] = {}
        """Curves of trials that failed, up to there."""
        self._running: dict[int, Curve] = {}
        self._model: MobsterModel | None = None
        self._process: Process | None = None
        """The process of `expected`, once it was needed."""
        self._others: list[Mobster] = []

    @classmethod
    def from_results(
        cls, setting: Setting, results: Iterable[Result], *, by_step: bool = False
    ) -> Self:
        """Return a sampler that has the results of a whole experiment."""
        made = cls(setting, by_step=by_step)
        for result in results:
            made.tell(result)
        return made

    @property
    def reported(self) -> int:
        """Number of trials with a curve; running ones that are only watched are not counted."""
        return len(self._curves)

    def advise(self, others: Sequence[Sequence[Result]]) -> None:
        """Make a sampler for each of the other experiments that has enough trials."""
        by_step = self._by_step
        made = (Mobster.from_results(self._setting, results, by_step=by_step) for results in others)
        self._others = [other for other in made if other.reported >= LEAST_ADVICE]
        if self._others:
            self._startup = min(self._startup, 2)

    def expected(self, points: Floats) -> Floats:
        """Return the values that the results so far predict at the last step of points (m, d) of
        the unit cube, in normal scores: (m,).
        """
        if self._process is None:
            self._process = self._modelling().process(self._points, self._curves)
        return self._process.at_the_end(points)[0]

    def ask(self, number: int, seed: int) -> Proposal:
        """See Sampler; never None. `seed` counts modulo 2**32."""
        curves = {**self._curves, **self._running}
        drawn: list[float] = []
        enough = len(curves) >= self._startup and len(self._parameters) > 0
        if enough and uniform_draw(seed, "mobster: a random configuration") >= self._random:
            failed = {number for number in self._points if self._results[number].status == "failed"}
            drawn = self._modelling().propose(
                self._points, curves, self._cut, self._pending(), failed, seed % 2**32
            )
        names = [p.name for p in self._parameters]
        coordinates = dict(zip(names, map(inside, drawn), strict=False))
        return Proposal(config=self._cells.placed(number, seed, coordinates))

    def tell(self, result: Result) -> None:
        """See Sampler. A "running" result keeps proposals away from its configuration."""
        before = self._results.get(result.number)
        if not supersedes(result, before):
            return
        self._results[result.number] = result
        self._process = None
        point = self._points.get(result.number) or self.point(result.config)
        if point is None:
            return
        self._points[result.number] = point
        self._curves.pop(result.number, None)
        self._cut.pop(result.number, None)
        if curve := self._curve(result):
            (self._cut if result.status == "failed" else self._curves)[result.number] = curve

    def watch(self, running: Sequence[Result]) -> None:
        """See Watching. Replaces all curves of the previous call."""
        known = [result for result in running if result.number in self._points]
        curves = {result.number: self._curve(result) for result in known}
        self._running = {number: curve for number, curve in curves.items() if curve}

    def _pending(self) -> Iterable[int]:
        """Yield the trials that still run."""
        return (
            number
            for number in self._points
            if self._results[number].status == "running" or number in self._running
        )

    def _curve(self, result: Result) -> Curve:
        most = self._setting.max_steps or 1
        values = [(step, value) for step, value in result.intermediate if not math.isnan(value)]
        ended, value = result.status in ("done", "stopped"), result.value
        known = value is not None and not math.isnan(value)
        if ended and value is not None and known and (not values or most == 1):
            values = [(most, value)]
        if not values or (most == 1 and not ended):
            return ()
        within = [one for one in values if one[0] <= most] or values[:1]
        span = math.log(most) or 1.0
        found = [
            (math.log(min(max(step, 1), most)) / span, cost)
            for step, cost in sampled(within, self._setting.sign)
        ]
        if result.status == "done" or most == 1:
            found[-1] = 1.0, found[-1][1]  # it may have returned early: no later steps will follow
        return found

    def point(self, config: Mapping[str, Json]) -> list[float] | None:
        """Return the point of a configuration, None if it does not fit the space."""
        return cube.point(self._setting.space, self._parameters, config, cube.MIDDLE)

    def _modelling(self) -> MobsterModel:
        if self._model is None:
            from regrow.search.samplers.acquisition import CubePoints
            from regrow.search.samplers.mobster_model import MobsterModel, advice

            points = CubePoints(self._setting.space, self._parameters)
            others = advice([other.expected for other in self._others]) if self._others else None
            self._model = MobsterModel(
                points, self._startup, others, by_step=self._by_step, augmented=self._augmented
            )
        return self._model
