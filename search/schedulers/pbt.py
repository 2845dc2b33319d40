"""Population based training: the worst trials continue with weights and configuration of the best,
slightly changed.

Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846, section 3
and appendix A.1 (truncation selection, perturbation); details where the paper is silent are those
of Ray Tune's PopulationBasedTraining.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.options import check_whole, check_within, nearest
from regrow.search.schedulers.base import Candidate, Final, Layout, Scheduler, Verdict
from regrow.search.space import Space
from regrow.search.space.domains import (
    Choice,
    Constant,
    Domain,
    Float,
    Grid,
    Int,
    Json,
    Normal,
)
from regrow.search.space.setting import Setting

FACTORS = (1.2, 0.8)
"""Jaderberg et al., 2017, appendix A.1."""


@dataclass(slots=True)
class Member:
    """A trial of the population. `step` and `cost` are those of its last decision."""

    config: Mapping[str, Json]
    step: int = 0
    cost: float | None = None
    paused: bool = False


class Pbt(Scheduler):
    """Decides every `perturbation_interval` steps of a trial; the population is all trials that are
    not over.

    A trial in the worst `quantile_fraction` by last score (the objective at its last decision)
    exploits a random one of the best `quantile_fraction`. It takes that trial's newest checkpoint
    and configuration, and explores: each parameter in `mutate` (names; None: all but constants and
    grids) is resampled with `resample_probability`, else perturbed (see `explore`), numbers by one
    of `perturbation_factors` (None: 1.2 and 0.8). A quantile is ceil(n * quantile_fraction) of the
    n trials with a score, at most half of them; of equal scores the trial with the lower number is
    worse. No trial exploits one with an equal score. A trial that is over (done or failed) is no
    source and takes no place in a quantile; a failed one that is retried gets its place back. If
    the source has no checkpoint, the trial continues unchanged. A trial's steps are its own: they
    continue after an exploit.

    With more trials than slots, a trial pauses at its decision if a waiting trial, or one that is
    still to be proposed, has fewer steps; of those that wait, the one with the fewest steps
    continues. If the experiment has no number of trials, none pauses.
    """

    needs_max_steps = False
    changes_configurations = True
    exact = True
    layout: Layout = "population"
    chance = "pbt"
    """Name in the seeds of its draws. Logs are recomputed with it: it must never change."""

    def __init__(
        self,
        setting: Setting,
        *,
        perturbation_interval: int = 5,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: list[float] | None = None,
        mutate: list[str] | None = None,
    ) -> None:
        super().__init__(setting)
        check_whole("perturbation_interval", perturbation_interval, 1, "it is in steps")
        check_within("quantile_fraction", quantile_fraction, 0, 0.5, "0.25 is usual")
        check_within("resample_probability", resample_probability, 0, 1, "0.25 is usual")
        self._interval = perturbation_interval
        self._fraction = quantile_fraction
        self._resample = resample_probability
        self._factors = _factors("perturbation_factors", perturbation_factors)
        self._mutate = _names("mutate", mutate, setting)
        self._added = 0
        self._members: dict[int, Member] = {}
        self._failed: dict[int, Member] = {}

    # ---- the fold

    def added(self, candidate: Candidate) -> None:
        """Add a trial to the population."""
        self._added += 1
        self._members[candidate.trial] = Member(dict(candidate.config))

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        """Store the trial's score, and its configuration if that changed."""
        member = self._members[trial]
        member.step, member.cost = len(values), self.setting.sign * values[-1]
        member.paused = verdict.action == "pause"
        if verdict.config is not None:
            member.config = dict(verdict.config)

    def started(self, trial: int) -> None:
        """Note that the trial no longer waits."""
        self._members[trial].paused = False

    def ended(self, trial: int, how: Final) -> None:
        """Remove the trial from the population; a failed one may come back."""
        member = self._members.pop(trial, None)
        if member is not None and how == "failed":
            self._failed[trial] = member

    def revived(self, trial: int, *, held: bool) -> None:
        """Return the trial to the population, with its last score."""
        self._members[trial] = self._failed.pop(trial)
        self._members[trial].paused = held

    # ---- queries

    def first(self, trial: int, after: int) -> int | None:
        """Return the next multiple of the interval, below max_steps."""
        return self.regular(after, self._interval, self._interval)

    def first_of_next(self, trial: int) -> int | None:
        """Return the first decision, which is the same for all trials."""
        return self.first(trial, 0)

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        """Decide whether the trial exploits another, and whether it pauses for others."""
        step, cost = len(values), self.setting.sign * values[-1]
        until = self.first(trial, step)
        turn = self._waiting_before(trial, step)
        source = self._source(trial, step, cost)
        if source is None:
            return Verdict(until=until) if turn is None else Verdict(action="pause", why=turn)
        chosen = self._members[source]
        score = self.setting.sign * (chosen.cost or 0.0)
        config = self.explored(trial, step, source)
        why = f"exploits trial {source} ({score:g} at step {chosen.step})"
        return Verdict(
            action="restart" if turn is None else "pause", why=why, source=source, config=config
        )

    def promote(self, *, complete: bool) -> int | None:
        """Return the waiting trial with the fewest steps, once all have been proposed."""
        if not complete and not self._all_proposed:
            return None
        waiting = [(member.step, trial) for trial, member in self._members.items() if member.paused]
        return min(waiting)[1] if waiting else None

    def explored(self, trial: int, step: int, source: int) -> dict[str, Json]:
        """Return the configuration with which a trial continues from `source`."""
        return self._explored(trial, step, source, self._mutate)

    def _explored(
        self, trial: int, step: int, source: int, names: Sequence[str]
    ) -> dict[str, Json]:
        return explore(
            self.setting.space,
            self._members[source].config,
            names,
            lambda name: self._draw(trial, step, name),
            resample_probability=self._resample,
            factors=self._factors,
        )

    def quantiles(self, trial: int, cost: float) -> tuple[list[int], list[int]]:
        """Return the worst and the best, worst first, with `cost` as the score of `trial`."""
        costs = {
            other: member.cost for other, member in self._members.items() if member.cost is not None
        }
        costs[trial] = cost
        order = sorted(costs, key=lambda other: (-costs[other], other))
        n = min(math.ceil(len(order) * self._fraction), len(order) // 2)
        return order[:n], order[len(order) - n :]

    def _source(self, trial: int, step: int, cost: float) -> int | None:
        worst, best = self.quantiles(trial, cost)
        if trial not in worst:
            return None
        source = best[int(self._draw(trial, step, "source") * len(best))]
        better = self._members[source].cost
        return source if better is not None and better < cost else None

    @property
    def _all_proposed(self) -> bool:
        return self.setting.trials is None or self._added >= self.setting.trials

    def _waiting_before(self, trial: int, step: int) -> str | None:
        """Return which trial has its turn before `trial`, None if `trial` continues."""
        if not self._all_proposed:
            return "a new trial has its turn"
        others = ((m.step, other) for other, m in self._members.items() if m.paused)
        waiting = [pair for pair in others if pair[0] < step and pair[1] != trial]
        return f"trial {min(waiting)[1]} has its turn" if waiting else None

    def _draw(self, trial: int, step: int, name: str) -> float:
        return uniform_draw(self.setting.seed, f"{self.chance}:{trial}:{step}:{name}")


def mutable(space: Space) -> list[str]:
    """Return the parameters that are explored if none are named: all but constants and grids."""
    return [p.name for p in space.flat if not isinstance(p.domain, (Constant, Grid))]


def explore(
    space: Space,
    config: Mapping[str, Json],
    names: Sequence[str],
    draw: Callable[[str], float],
    *,
    resample_probability: float,
    factors: Sequence[float],
) -> dict[str, Json]:
    """Return `config` with each parameter in `names` resampled from its domain, or else perturbed.

    Numbers are multiplied by one of `factors`, then clipped to their bounds and rounded to their
    steps; a whole number that this does not change moves by one step in that direction. A choice
    becomes its left or right neighbour, or at the ends possibly itself. Parameters become active or
    inactive by their conditions; new ones are sampled. `draw` gives a number in (0, 1) by name:
    "NAME:resample" decides, "NAME:perturb" selects the change and "NAME:value" gives a new value.
    """
    found: dict[str, Json] = {}
    for parameter in space.flat:
        name, domain = parameter.name, parameter.domain
        if not parameter.active(found):
            continue
        if name not in config:
            found[name] = domain.quantile(draw(f"{name}:value"))
        elif name not in names:
            found[name] = config[name]
        elif draw(f"{name}:resample") < resample_probability:
            found[name] = domain.quantile(draw(f"{name}:value"))
        else:
            found[name] = _perturbed(domain, config[name], draw(f"{name}:perturb"), factors)
    return found


def _perturbed(domain: Domain, value: Json, u: float, factors: Sequence[float]) -> Json:
    if isinstance(domain, Choice):
        index = domain.index(value) + (-1 if u < 0.5 else 1)
        return domain.cell(min(max(index, 0), domain.cells - 1))
    factor = factors[int(u * len(factors))]
    if isinstance(domain, Float) and not domain.step:
        return min(max(value * factor, domain.low), domain.high)
    if isinstance(domain, (Float, Int)):
        return _in_steps(domain, value, value * factor)
    return value * factor if isinstance(domain, Normal) and math.isfinite(value * factor) else value


def _in_steps(domain: Float | Int, value: float, wanted: float) -> Json:
    before, index = domain.nearest(value), domain.nearest(wanted)
    if index == before and wanted != value:
        index += 1 if wanted > value else -1
    return domain.cell(min(max(index, 0), (domain.cells or 1) - 1))


def _factors(key: str, given: Any) -> tuple[float, ...]:
    if given is None:
        return FACTORS
    listed = given if isinstance(given, (list, tuple)) else []
    numbers = [f for f in listed if isinstance(f, (int, float)) and not isinstance(f, bool)]
    if not numbers or len(numbers) < len(listed) or not all(0 < f < math.inf for f in numbers):
        raise SpecError(key, given, "is not a list of positive numbers", "write [1.2, 0.8]")
    return tuple(float(f) for f in numbers)


def _names(key: str, given: Any, setting: Setting) -> list[str]:
    known = mutable(setting.space)
    if given is None:
        return known
    if not isinstance(given, (list, tuple)):
        raise SpecError(key, given, "is not a list of parameters", "write [lr, momentum]")
    possible = [p.name for p in setting.space.flat if p.domain.cells != 1]
    for name in given:
        if name not in possible:
            raise SpecError(key, name, "is no parameter that can change", nearest(name, possible))
    return list(given)
