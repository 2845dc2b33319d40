"""prototype"""

from __future__ import annotations

import math
from typing import Any

from regrow.search.chance import uniform_draw
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.cube import inside, modelled, position
from regrow.search.samplers.grid import Cells
from regrow.search.samplers.told import supersedes
from regrow.search.space import Parameter
from regrow.search.space.domains import Choice, Grid, Json
from regrow.search.space.setting import Setting


class Mobster:
    """p"""

    def __init__(self, setting: Setting, *, n_startup_trials: int | None = None, random_fraction: float = 0.1, transform: str = "rank", watches: bool = True, cap: int = 400, fitcap: int = 120) -> None:
        self._setting = setting
        self._parameters = modelled(setting.space)
        self._cells = Cells(setting.space, Grid)
        self._start = max(len(self._parameters) + 1, 4) if n_startup_trials is None else n_startup_trials
        self._random = random_fraction
        self._results: dict[int, Result] = {}
        self._points: dict[int, list[float]] = {}
        self._curves: dict[int, list[tuple[float, float]]] = {}
        self.transform, self.cap, self.fitcap = transform, cap, fitcap
        self._watched = {}; self.watches = watches
        self._fits: dict[Any, Any] = {}

    def ask(self, number: int, seed: int) -> Proposal:
        drawn = None
        if len(self._curves) >= self._start and uniform_draw(seed, "mobster: a random configuration") >= self._random:
            from regrow.search.samplers.mobster_model import propose
            drawn = propose(self, seed % 2**32)
        by_name = dict(zip((p.name for p in self._parameters), drawn or (), strict=False))

        def draw(p: Parameter) -> Json:
            return p.domain.quantile(inside(by_name[p.name]) if p.name in by_name else uniform_draw(seed, p.name))

        return Proposal(config=self._cells.config(number, draw))

    def watch(self, running):
        self._watched = {}
        if not self.watches: return
        for r in running:
            c = self._levels(r)
            if c and r.number in self._points: self._watched[r.number] = c

    def tell(self, result: Result) -> None:
        before = self._results.get(result.number)
        if not supersedes(result, before):
            return
        self._results[result.number] = result
        point = self._point(result)
        if point is None:
            return
        self._points[result.number] = point
        if result.status == "failed":
            self._curves.pop(result.number, None)
            return
        c = self._levels(result)
        if c: self._curves[result.number] = c

    def _levels(self, result):
        most = self._setting.max_steps or 0
        curve = [(s, v) for s, v in result.intermediate if not math.isnan(v)]
        if not curve and result.status in ("done", "stopped") and result.value is not None:
            curve = [(most, result.value)]
        if not curve:
            return None
        sign, best, found, want = self._setting.sign, math.inf, [], 1.0
        last = curve[-1][0]
        for s, v in curve:
            best = min(best, sign * v)
            if s >= want or s == last:
                t = math.log(min(s, most)) / math.log(most) if most > 1 else 1.0
                found.append((t, best))
                while want <= s:
                    want *= 3.0
        if result.status == "done":
            found[-1] = (1.0, best)
        return found

    def _point(self, result: Result) -> list[float] | None:
        active = set(self._setting.space.active(result.config))
        try:
            return [position(p.domain, result.config[p.name]) if p.name in active else 0.5 for p in self._parameters]
        except (KeyError, ValueError):
            return None
