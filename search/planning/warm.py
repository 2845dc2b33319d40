"""Warm start: the trials of an earlier experiment as results in the space of a new one."""

from __future__ import annotations

import itertools
import math

from regrow.search.errors import SpecError
from regrow.search.events import Known
from regrow.search.history import History, TrialRecord
from regrow.search.options import nearest
from regrow.search.schedulers import FINAL
from regrow.search.space.domains import Constant, Json
from regrow.search.spec import Spec
from regrow.search.spec.parts import WarmStart

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
        if not trial.state.final or trial.changes:
            continue
        config = _mapped(trial, spec, start)
        if config is None:
            outside += 1
        else:
            known.append(_known(history, trial, spec, config))
    return known, outside


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
        violations=[c.violation(last) for c in spec.limits],
        origin=f"{history.spec.name}:{trial.number}",
    )
