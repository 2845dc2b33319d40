"""PB2: population based training in which a bandit, not chance, chooses the explore step.

Parker-Holder, Nguyen and Roberts, "Provably Efficient Online Hyperparameter Optimization with
Population-Based Bandits", NeurIPS 2020, arXiv:2002.02518, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.one_thread import on_one_thread
from regrow.search.schedulers.base import Verdict
from regrow.search.schedulers.pbt import Pbt
from regrow.search.space.domains import Float, Json
from regrow.search.space.setting import Setting

ENOUGH = 3
"""Fewest observations for a model."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A trial's progress between two decisions.

    Attributes:
        step: where it begins.
        cost: at the beginning.
        config: the flat configuration.
        gain: improvement for each step.

    """

    step: int
    cost: float
    config: Mapping[str, Json]
    gain: float


class Pb2(Pbt):
    """Like "pbt", but the continuous parameters (uniform and loguniform) of a trial that exploits
    another are those with the highest upper confidence bound on the improvement for each step,
    given the step and the source's score.

    The model is a Gaussian process with a squared exponential kernel over score and parameters (a
    loguniform one in its logarithm) times (1 - epsilon) ** (|t - t'| / 2) in time, t in intervals.
    Its length, epsilon and noise are those of a small grid with the highest marginal likelihood.
    The parameters that other trials are trying reduce the variance, so that trials differ. The
    bound is maximised over 256 random points and four rounds of 32 near the best. With fewer than 3
    observations, and for other parameters, the explore step is that of "pbt". A stretch whose score
    is not finite is no observation; the newest 100 count. The options are those of "pbt".
    """

    chance = "pb2"

    def __init__(self, setting: Setting, **options: Any) -> None:
        super().__init__(setting, **options)
        domains = {p.name: p.domain for p in setting.space.flat}
        self._continuous = {
            name: domain
            for name in self._mutate
            if isinstance(domain := domains[name], Float) and domain.step is None
        }
        if not self._continuous:
            problem = "has no continuous parameter to explore"
            hint = "give it a uniform or loguniform one, or take another schedule"
            raise SpecError("mutate", self._mutate, problem, hint)
        self._stretches: list[_Stretch] = []
        self._begun: dict[int, tuple[int, float]] = {}
        """By trial, step and cost at the beginning of its current stretch."""

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """Store how much the trial improved since the last decision."""
        step, cost = len(values), self.setting.sign * values[-1]
        if trial in self._begun:
            before, from_cost = self._begun[trial]
            gain = (from_cost - cost) / (step - before)
            if math.isfinite(gain):
                self._stretches.append(
                    _Stretch(before, from_cost, self._members[trial].config, gain)
                )
        source = self._members.get(verdict.source) if verdict.source is not None else None
        cloned = source.cost if source is not None and verdict.action != "continue" else None
        self._begun[trial] = (step, cost if cloned is None else cloned)
        super().tell(trial, values, verdict)

    def explored(self, trial: int, step: int, source: int) -> dict[str, Json]:
        """Return the bandit's choice for continuous parameters, and PBT's for the others."""
        chosen = self._members[source]
        modelled = len(self._stretches) >= ENOUGH and math.isfinite(chosen.cost or 0.0)
        names = [name for name in self._mutate if not modelled or name not in self._continuous]
        config = self._explored(trial, step, source, names)
        if modelled:
            best = self._suggest(trial, step, chosen.cost or 0.0)
            for name, u in zip(self._continuous, best, strict=True):
                if name in config:
                    config[name] = self._continuous[name].quantile(u)
        return config

    @on_one_thread
    def _suggest(self, trial: int, step: int, cost: float) -> list[float]:
        import numpy as np

        from regrow.search.schedulers.pb2_model import NEWEST, Bandit

        known = self._stretches[-NEWEST:]
        least = min(stretch.cost for stretch in known)
        spread = max(stretch.cost for stretch in known) - least or 1.0

        def row(at: int, before: float, config: Mapping[str, Json]) -> list[float]:
            return [
                at / self._interval,
                (before - least) / spread,
                *(self._unit(name, config) for name in self._continuous),
            ]

        x = np.array([row(stretch.step, stretch.cost, stretch.config) for stretch in known])
        others = [
            row(*self._begun[other], member.config)
            for other, member in sorted(self._members.items())
            if other != trial and other in self._begun and math.isfinite(self._begun[other][1])
        ]
        pending = np.array(others).reshape(len(others), x.shape[1])
        bandit = Bandit(x, np.array([stretch.gain for stretch in known]), pending)
        fixed = [step / self._interval, (cost - least) / spread]
        return bandit.best(fixed, len(self._continuous), lambda name: self._draw(trial, step, name))

    def _unit(self, name: str, config: Mapping[str, Json]) -> float:
        """Return a parameter's place in its range, the middle if it isn't active."""
        if name not in config:
            return 0.5
        domain, value = self._continuous[name], config[name]
        if domain.log:
            return (math.log(value) - math.log(domain.low)) / (
                math.log(domain.high) - math.log(domain.low)
            )
        return float((value - domain.low) / (domain.high - domain.low))
