"""What a new experiment learns from experiments on other tasks: which of their trials its sampler
gets, and which configurations it tries first.

Values of another task are not comparable with its own, so only ranks within each experiment count.
Rules of a particular sampler do not live here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from msgspec import structs

from regrow.search.events import Created, Known
from regrow.search.history import History
from regrow.search.one_thread import on_one_thread
from regrow.search.planning.results import as_result
from regrow.search.planning.warm import known_from
from regrow.search.samplers import Result
from regrow.search.samplers.told import looks
from regrow.search.space.domains import Grid, Json
from regrow.search.spec import Spec
from regrow.search.spec.parts import WarmStart

MOST_TRIALS: Final = 60
"""Trials of an experiment that are kept at most, half of them the best ones."""
MOST_EXPERIMENTS: Final = 8
"""Experiments to learn from at most if they are not named: the last ones."""
MOST_FIRST: Final = 8
"""Configurations that are tried first at most; also no more than a quarter of all trials."""
CANDIDATES: Final = 10
"""Candidates for these from each experiment: the best trials among those that got furthest, which
come first in what is kept.
"""


def learnt_from(history: History, spec: Spec, name: str, key: str) -> list[Known]:
    """Return the trials of an experiment that are kept. Raises SpecError at `key` if its parameters
    or its metric differ.
    """
    found, _ = known_from(history, spec, WarmStart(experiment=name), key)
    told = [one for one in found if one.status != "failed" and one.value is not None]
    told = [one for one in told if max(one.violations, default=0.0) <= 0]
    told.sort(key=lambda one: (-_reached(one), spec.objective.sign * (one.value or 0.0)))
    others = told[MOST_TRIALS // 2 :]
    kept = told[: MOST_TRIALS // 2] + others[:: max(-(-len(others) * 2 // MOST_TRIALS), 1)]
    return [structs.replace(one, curve=_thinned(one.curve, spec.objective.sign)) for one in kept]


def _thinned(curve: Sequence[tuple[int, float]], sign: float) -> list[tuple[int, float]]:
    """Return the best value so far at a few steps: a log must not grow by the curves of other
    experiments.
    """
    return [(step, sign * cost) for step, cost in looks(curve, sign)]


def _reached(known: Known) -> int:
    return max((step for step, _ in known.curve), default=0)


def by_experiment(created: Created) -> list[list[Result]]:
    """Return the trials that were learnt as results, one list for each experiment."""
    groups = groupby(created.learnt, key=lambda one: one.origin.rpartition(":")[0])
    kept = [list(group) for _, group in groups]
    return [
        [as_result(place - len(group), one) for place, one in enumerate(group)] for group in kept
    ]


@on_one_thread
def first_configurations(spec: Spec, others: Sequence[Sequence[Result]]) -> list[dict[str, Any]]:
    """Return the configurations to try first. Each adds most to the best values that those before
    it are expected to reach in the other experiments.

    A greedy portfolio (Wistuba, Schilling and Schmidt-Thieme, 2015, section 4.2; Feurer et al.,
    NeurIPS 2015). The value of a configuration in an experiment where it was not tried is predicted
    by a Gaussian process over that experiment.
    """
    import numpy as np

    if any(isinstance(p.domain, Grid) for p in spec.space.flat):
        return []  # a grid prescribes the configuration of each trial
    from regrow.search.samplers.mobster import Mobster

    experts = [Mobster.told(spec.setting, results) for results in others]
    best = [result.config for results in others for result in results[:CANDIDATES]]
    candidates = [_own(spec, config) for config in best]
    points = [experts[0].point(config) for config in candidates]
    if not candidates or not all(points):
        return []
    scores = np.stack([expert.expected(np.array(points)) for expert in experts], axis=1)
    reached, found = np.full(len(experts), scores.max() + 1.0), []
    for _ in range(min(MOST_FIRST, (spec.trials or 0) // spec.repeats // 4, len(candidates))):
        gains = np.maximum(reached - scores, 0.0).sum(axis=1)
        place = int(np.argmax(gains))
        if gains[place] <= 0:
            break
        found.append(candidates[place])
        reached = np.minimum(reached, scores[place])
    return found


def _own(spec: Spec, config: Mapping[str, Json]) -> dict[str, Any]:
    """Return a configuration in values of this space. Older logs hold values of the types of the
    experiment that they come from.
    """
    domains = {p.name: p.domain for p in spec.space.flat}
    return {
        name: own if (own := domains[name].own(value)) == value else value
        for name, value in config.items()
    }
