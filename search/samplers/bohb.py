"""BOHB's model of the space: the sampler "bohb". This module chooses the results that the model
gets, and at which budget.

numpy and scipy are imported at the first `ask`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from regrow.search.chance import uniform_draw
from regrow.search.options import check_between, check_whole, check_within
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.cube import inside, modelled, point
from regrow.search.samplers.grid import Cells
from regrow.search.samplers.result_rules import supersedes
from regrow.search.space.domains import Choice, Grid
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from regrow.search.samplers.bohb_model import Kde


class Bohb:
    """The sampler of BOHB (Falkner, Klein and Hutter, ICML 2018, section 3.2 and algorithm 2); with
    `schedule: hyperband` it is BOHB.

    With probability `random_fraction` a proposal is random. Otherwise it is the best of
    `num_samples` points drawn from a kernel density of the good configurations, by its ratio to the
    density of the bad ones. Both are fitted at the largest budget at which at least
    `min_points_in_model` + 2 trials have a value (None: d + 1 for d parameters, which is the least;
    the fit needs more points than parameters). Good are the best `top_n_percent`, at least
    `min_points_in_model`; equal values are ordered by number. Candidates come from a bandwidth
    `bandwidth_factor` times as wide; no bandwidth is below `min_bandwidth`, in widths of the unit
    cube.

    A budget is a step at which some trial ended, done or stopped: with a scheduler that is a rung
    or `max_steps`. All values at that step count, including those of trials that continued, or
    still run and whose curve is known. A trial without a curve counts by its value at `max_steps`.
    Failed trials are ignored. Results of earlier experiments count like others if they fit the
    space, and so do trials that the user proposed. Parameters under `grid` are not modelled.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        min_points_in_model: int | None = None,
        top_n_percent: int = 15,
        num_samples: int = 64,
        random_fraction: float = 1 / 3,
        bandwidth_factor: float = 3.0,
        min_bandwidth: float = 1e-3,
    ) -> None:
        self._parameters = modelled(setting.space)
        least = len(self._parameters) + 1
        hint = f"write {least}, the number of parameters plus 1, or more"
        check_whole("min_points_in_model", min_points_in_model, least, hint)
        check_between("top_n_percent", top_n_percent, 0, 100, "write 15")
        check_whole("num_samples", num_samples, 1, "write 64")
        check_within("random_fraction", random_fraction, 0, 1, "write 0.33")
        check_between("bandwidth_factor", bandwidth_factor, 0, math.inf, "write 3")
        check_between("min_bandwidth", min_bandwidth, 0, math.inf, "write 0.001")
        self._space = setting.space
        self._cells = Cells(setting.space, Grid)
        self._setting = setting
        self._least = min_points_in_model or least
        self._random = random_fraction
        self._options: dict[str, Any] = {
            "top": top_n_percent,
            "samples": num_samples,
            "factor": bandwidth_factor,
            "narrowest": min_bandwidth,
        }
        self._results: dict[int, Result] = {}
        self._points: dict[int, list[float]] = {}
        """The point of each usable trial, NaN for an inactive parameter."""
        self._budgets: dict[int, dict[int, float]] = {}
        """By step that any trial reported, the costs by trial."""
        self._ends: set[int] = set()
        self._kde: Kde | None = None

    def ask(self, number: int, seed: int) -> Proposal:
        """See Sampler; never None. `seed` counts modulo 2**32."""
        drawn: list[float] = []
        if self._parameters and uniform_draw(seed, "bohb: a random configuration") >= self._random:
            budget = max(
                (b for b in self._ends if len(self._budgets[b]) >= self._least + 2), default=None
            )
            if budget is not None:
                drawn = self._model().draw(self._sorted(budget), seed % 2**32)
        names = [p.name for p in self._parameters]
        coordinates = dict(zip(names, map(inside, drawn), strict=False))
        return Proposal(config=self._cells.placed(number, seed, coordinates))

    def tell(self, result: Result) -> None:
        """See Sampler. A "running" result counts by its curve, if it has one."""
        before = self._results.get(result.number)
        if result.status in ("done", "stopped", "paused") and result.intermediate:
            # even if it is only paused here, others will be compared with it at this step
            self._ends.add(max(s for s, value in result.intermediate if not math.isnan(value)))
        if not supersedes(result, before):
            return
        self._results[result.number] = result
        for step, _ in before.intermediate if before else ():
            # nothing was entered for a failed one
            self._budgets.get(step, {}).pop(result.number, None)
        curve = [(step, value) for step, value in result.intermediate if not math.isnan(value)]
        ended = result.status in ("done", "stopped")
        if ended and not curve and result.value is not None and not math.isnan(result.value):
            curve = [(self._setting.max_steps or 0, result.value)]
        if result.status == "failed" or not curve:
            return
        if (found := point(self._space, self._parameters, result.config, math.nan)) is None:
            return
        self._points[result.number] = found
        for step, value in curve:
            self._budgets.setdefault(step, {})[result.number] = self._setting.sign * value
        if ended:
            self._ends.add(max(curve)[0])

    def _sorted(self, budget: int) -> list[list[float]]:
        """Return the points with a value at a budget, the best first, ties by number."""
        costs = self._budgets[budget]
        return [self._points[number] for number in sorted(costs, key=lambda n: (costs[n], n))]

    def _model(self) -> Kde:
        if self._kde is None:
            from regrow.search.samplers.bohb_model import Kde

            levels = [
                p.domain.cells or 1 if isinstance(p.domain, Choice) else 0 for p in self._parameters
            ]
            self._kde = Kde(levels=levels, least=self._least, **self._options)
        return self._kde
