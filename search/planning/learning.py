"""Earlier experiments: their trials as results in the space of a new one (a warm start), and what
it learns from experiments on other tasks: which of their trials its sampler gets, and which
configurations it tries first.

Values of another task are not comparable with its own, so only ranks within each experiment count.
Rules of a particular sampler do not live here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import structs

from regrow.search.errors import SpecError
from regrow.search.events import Created
from regrow.search.history import History, TrialRecord
from regrow.search.measured import Known
from regrow.search.one_thread import on_one_thread
from regrow.search.options import nearest
from regrow.search.planning.results import as_result, violations
from regrow.search.samplers.base import Result
from regrow.search.samplers.result_rules import sampled
from regrow.search.schedulers.base import FINAL
from regrow.search.space.domains import Constant, Grid, Json
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec
from regrow.search.spec.auto import expected_trials
from regrow.search.spec.parts import WarmStart

MOST_TRIALS: Final = 60
"""Trials of an experiment that are kept at most, half of them the best ones."""
MOST_EXPERIMENTS: Final = 8
"""Experiments to learn from at most if they are not named: the last ones."""
MOST_FIRST: Final = 8
"""Configurations that are tried first at most; also no more than a quarter of all trials."""
CANDIDATES: Final = 10
"""Candidates from each experiment: the best of the trials that got furthest, kept first."""
_OTHERS = "it learns from experiments of the same parameters; warm_start has `given` and `ignore`"


def known_from(history: History, spec: Spec, start: WarmStart, key: str) -> tuple[list[Known], int]:
    """Return the ended trials of `history` as results in the space of `spec`, and how many are left
    out because they are outside of it.

    A parameter of the new space that the earlier one did not have needs a value in `start.given`;
    one that only the earlier one had must be in `start.ignore`. Raises SpecError at `key` for
    spaces or metrics that cannot be compared.
    """
    _check(history, spec, start, key)
    known, outside = [], 0
    for trial in history.trials:
        # the result of a changed configuration belongs to no single one
        if not trial.state.final or trial.changes or trial.excluded:
            continue
        config = _mapped(trial, spec, start)
        if config is None:
            outside += 1
        else:
            known.append(_known(history, trial, spec, config))
    return known, outside


def comparable(
    history: History, spec: Spec, name: str, key: str
) -> Iterator[tuple[TrialRecord, dict[str, Json]]]:
    """Yield the trials of an experiment that reported a value, kept their configuration and lie in
    the space of `spec`, with this configuration. Raises SpecError at `key` as `known_from` does.
    """
    start = WarmStart(experiment=name)
    _check(history, spec, start, key)
    for trial in history.trials:
        if trial.step and not trial.changes and not trial.excluded:
            config = _mapped(trial, spec, start)
            if config is not None:
                yield trial, config


def _check(history: History, spec: Spec, start: WarmStart, key: str) -> None:
    old, name = history.spec, start.experiment
    mapped = key.startswith("warm_start")
    modes = {metric.name: metric.mode for metric in old.metrics}
    for metric in spec.metrics:
        if modes.get(metric.name) != metric.mode:
            there = ", ".join(f"{mode} {other}" for other, mode in modes.items())
            problem = f"optimised {there}, this experiment {metric.mode} {metric.name}"
            raise SpecError(key, name, problem, "name an experiment of the same metric")
    before = {p.name for p in old.space.flat}
    now = {p.name: p for p in spec.space.flat}
    for unknown in (*start.given, *start.ignore):
        names = set(now) if unknown in start.given else before
        if unknown not in names:
            raise SpecError(key, unknown, "is no parameter there", nearest(unknown, names))
    for parameter in now.values():
        if (
            parameter.name not in before
            and parameter.name not in start.given
            and not isinstance(parameter.domain, Constant)
        ):
            problem = f"had no parameter {parameter.name!r}"
            hint = f"say what it was there: given: {{{parameter.name}: ...}}"
            raise SpecError(key, name, problem, hint if mapped else _OTHERS)
    for other in old.space.flat:
        if (
            other.name not in now
            and other.name not in start.ignore
            and not isinstance(other.domain, Constant)
        ):
            problem = f"had a parameter {other.name!r} that this one has not"
            hint = f"if it made no difference, write ignore: [{other.name}]"
            raise SpecError(key, name, problem, hint if mapped else _OTHERS)


def _mapped(trial: TrialRecord, spec: Spec, start: WarmStart) -> dict[str, Json] | None:
    """Return the trial's configuration in the new space, None if it is outside of it."""
    config: dict[str, Json] = {}
    for parameter in spec.space.flat:
        if not parameter.active(config):
            continue
        name, domain = parameter.name, parameter.domain
        if name in trial.config:
            value = trial.config[name]
        elif name in start.given:
            value = start.given[name]
        elif isinstance(domain, Constant):
            value = domain.value
        else:
            return None  # active here, but not in the earlier experiment
        try:
            config[name] = domain.own(value)
        except ValueError:
            return None
    return config


def _known(history: History, trial: TrialRecord, spec: Spec, config: dict[str, Json]) -> Known:
    # a constraint may be on a metric that the earlier experiment did not record by step
    last = trial.curve.shown(trial.step)
    values = [v for m in spec.metrics if (v := last.get(m.name)) is not None]
    name = spec.objective.name
    steps = trial.curve.clock if history.spec.step_metric is not None else itertools.count(1)
    # if a step was reported several times, the last report counts
    values_by_step = dict(zip(steps, trial.curve.column(name), strict=False))
    curve = [(step, v) for step, v in values_by_step.items() if not math.isnan(v)]
    numbers = [v for _, v in curve]
    status = FINAL[trial.state]
    return Known(
        config=config,
        status=status if numbers or status == "failed" else "failed",
        value=min(numbers, key=lambda value: spec.objective.sign * value, default=None),
        values=values if len(values) == len(spec.metrics) > 1 else None,
        curve=curve,
        violations=violations(spec, last),
        origin=f"{history.spec.name}:{trial.number}",
    )


def learnt_from(history: History, spec: Spec, name: str, key: str) -> list[Known]:
    """Return an experiment's trials to keep. Raises SpecError if parameters or metric differ."""
    found, _ = known_from(history, spec, WarmStart(experiment=name), key)
    usable = [one for one in found if one.status != "failed" and one.value is not None]
    usable = [one for one in usable if all(v is not None and v <= 0 for v in one.violations)]
    usable.sort(key=lambda one: (-_reached(one), spec.objective.sign * (one.value or 0.0)))
    others = usable[MOST_TRIALS // 2 :]
    kept = usable[: MOST_TRIALS // 2] + others[:: max(-(-len(others) * 2 // MOST_TRIALS), 1)]
    return [structs.replace(one, curve=_thinned(one.curve, spec.objective.sign)) for one in kept]


def _thinned(curve: Sequence[tuple[int, float]], sign: float) -> list[tuple[int, float]]:
    """Return the best value so far at a few steps, so that a log grows little."""
    return [(step, sign * cost) for step, cost in sampled(curve, sign)]


def _reached(known: Known) -> int:
    return max((step for step, _ in known.curve), default=0)


def by_experiment(created: Created) -> list[list[Result]]:
    """Return the trials that were learnt as results, one list for each experiment."""
    groups = itertools.groupby(created.learnt, key=lambda one: one.origin.rpartition(":")[0])
    kept = [list(group) for _, group in groups]
    return [
        [as_result(place - len(group), one) for place, one in enumerate(group)] for group in kept
    ]


@on_one_thread
def first_configurations(
    spec: Spec, others: Sequence[Sequence[Result]], setting: Setting | None = None
) -> list[dict[str, Any]]:
    """Return the configurations to try first. Each adds most to the best values that those before
    it are expected to reach in the other experiments. `setting`: that of the experiment as it was
    created; None: the specification's.

    A greedy portfolio (Wistuba, Schilling and Schmidt-Thieme, 2015, section 4.2; Feurer et al.,
    NeurIPS 2015). The value of a configuration in an experiment where it was not tried is predicted
    by a Gaussian process over that experiment.
    """
    import numpy as np

    if any(isinstance(p.domain, Grid) for p in spec.space.flat):
        return []  # a grid prescribes the configuration of each trial
    from regrow.search.samplers.mobster import Mobster

    experts = [Mobster.from_results(spec.setting, results) for results in others]
    best = [result.config for results in others for result in results[:CANDIDATES]]
    candidates = [_own(spec, config) for config in best]
    points = [experts[0].point(config) for config in candidates]
    if not candidates or not all(points):
        return []
    scores = np.stack([expert.expected(np.array(points)) for expert in experts], axis=1)
    reached, found = np.full(len(experts), scores.max() + 1.0), []
    trials = expected_trials(setting or spec.setting) or 0
    for _ in range(min(MOST_FIRST, trials // spec.repeats // 4, len(candidates))):
        gains = np.maximum(reached - scores, 0.0).sum(axis=1)
        place = int(np.argmax(gains))
        if gains[place] <= 0:
            break
        found.append(candidates[place])
        reached = np.minimum(reached, scores[place])
    return found


def _own(spec: Spec, config: Mapping[str, Json]) -> dict[str, Any]:
    """Return a configuration in values of this space; older logs may hold other types."""
    domains = {p.name: p.domain for p in spec.space.flat}
    return {
        name: own if (own := domains[name].own(value)) == value else value
        for name, value in config.items()
    }
