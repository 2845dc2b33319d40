"""What experiments on other tasks teach a new one: which of their trials it is told, and which configurations it tries first.

Values of another task do not compare with its own, so only ranks within each experiment count. No samplers' rules here.
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
from regrow.search.space.domains import Grid, Int, Json
from regrow.search.spec import Spec
from regrow.search.spec.parts import WarmStart

MOST_TRIALS: Final = 60
"""Of an experiment so many trials are kept, half of them the best."""
MOST_EXPERIMENTS: Final = 8
"""So many experiments are learnt from where they are not named: the last ones."""
MOST_FIRST: Final = 8
"""So many configurations are tried first, and no more than a quarter of all trials."""
CANDIDATES: Final = 10
"""Of each experiment so many are looked at for that: the best of those that got furthest, which are kept first."""


def learnt_from(history: History, spec: Spec, name: str, key: str) -> list[Known]:
    """What is kept of an experiment. Raises SpecError at `key` where its parameters or its metric are others."""
    found, _ = known_from(history, spec, WarmStart(experiment=name), key)
    told = [one for one in found if one.status != "failed" and one.value is not None]
    told = [one for one in told if max(one.violations, default=0.0) <= 0]
    told.sort(key=lambda one: (-_reached(one), spec.objective.sign * (one.value or 0.0)))
    others = told[MOST_TRIALS // 2 :]
    kept = told[: MOST_TRIALS // 2] + others[:: max(-(-len(others) * 2 // MOST_TRIALS), 1)]
    return [structs.replace(one, curve=_thinned(one.curve, spec.objective.sign)) for one in kept]


def _thinned(curve: Sequence[tuple[int, float]], sign: float) -> list[tuple[int, float]]:
    """The best value so far at a few steps: a log must not grow by the curves of others."""
    return [(step, sign * cost) for step, cost in looks(curve, sign)]


def _reached(known: Known) -> int:
    return max((step for step, _ in known.curve), default=0)


def by_experiment(created: Created) -> list[list[Result]]:
    """What was learnt, as results, an experiment each."""
    groups = groupby(created.learnt, key=lambda one: one.origin.rpartition(":")[0])
    kept = [list(group) for _, group in groups]
    return [[as_result(place - len(group), one) for place, one in enumerate(group)] for group in kept]


@on_one_thread
def first_configurations(spec: Spec, others: Sequence[Sequence[Result]]) -> list[dict[str, Any]]:
    """The configurations to try first: each adds most to the best that those before it are expected to reach in the others.

    A greedy portfolio (Wistuba, Schilling and Schmidt-Thieme, 2015, section 4.2; Feurer et al., NeurIPS 2015); what a
    configuration would have reached where it was not tried is what a Gaussian process makes of that experiment.
    """
    import numpy as np

    if any(isinstance(p.domain, Grid) for p in spec.space.flat):
        return []  # each trial has its turn there
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
    """A configuration in values of this space: what was a whole float elsewhere may be an integer here."""
    whole = {p.name for p in spec.space.flat if isinstance(p.domain, Int)}
    return {name: round(value) if name in whole and isinstance(value, float) else value for name, value in config.items()}
