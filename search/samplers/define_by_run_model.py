"""The study behind `define_by_run.py`: each trial has the parameters that it asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
    json_to_distribution,
)
from optuna.pruners import NopPruner
from optuna.study import Study
from optuna.trial import FrozenTrial

from regrow.search.bounds import MOST
from regrow.search.samplers.base import Result
from regrow.search.samplers.optuna_private import contains
from regrow.search.samplers.optuna_study_model import STUDY, StudyModel, frozen, quiet
from regrow.search.space.domains import Json


class StoppableStudy(Study):
    """A study that notes whether its sampler stops it."""

    def __init__(self, study: Study) -> None:
        vars(self).update(vars(study))
        self.stopped = False

    def stop(self) -> None:
        """Note it."""
        self.stopped = True


CONSTRAINTS = "optuna:constraints"
"""Attribute of a trial: by how much it breaks each of its constraints, by their names."""
RELATIVE = "relative"
"""Key of a trial's state for the values that its sampler drew together."""


class DefinedModel(StudyModel):
    """The results so far, and values suggested from them."""

    def begin(self, number: int, seed: int) -> dict[str, Json]:
        """Return a new trial's state: values drawn together, attributes of the sampler."""
        with self.trial(number, seed) as trial:
            together = {name: _plain(value) for name, value in trial.together.items()}
            return {**trial.state, **({RELATIVE: together} if together else {})}

    def suggest(
        self, name: str, distribution: Mapping[str, Json], trial: Result, seed: int
    ) -> Json:
        """Return the value of one parameter."""
        made = json_to_distribution(json.dumps(distribution))
        known, value = beforehand(name, made, trial.state)
        if known:
            return value
        with self.opened(trial.number) as storage, quiet():
            here = self._frozen(trial, trial.number)
            storage.put(here)
            study = Study(STUDY, storage, self.make(seed), NopPruner())
            return _plain(study.sampler.sample_independent(study, here, name, made))

    def all_tried(self, number: int) -> bool:
        """Return whether Optuna's sampler would stop the study before this trial."""
        with self.opened(number) as storage, quiet():
            study = Study(STUDY, storage, self.make(0), NopPruner())
            ended = [one for one in storage.all_trials if one.params and one.state.is_finished()]
            if not ended:
                return False
            stopping = StoppableStudy(study)
            study.sampler.after_trial(stopping, ended[-1], ended[-1].state, ended[-1].values)
            return stopping.stopped

    def _supersedes(self, result: Result, before: Result | None) -> bool:
        if before is not None and result.status == before.status == "running":
            return len(result.config) >= len(before.config)
        return super()._supersedes(result, before)

    def _fits(self, result: Result) -> bool:
        return True

    def _frozen(self, result: Result, place: int) -> FrozenTrial:
        state, values = self._end(result)
        tried: dict[str, BaseDistribution] = {}
        for name, form in result.distributions.items():  # of a failed trial only brute force asks
            distribution = json_to_distribution(json.dumps(form))
            if contains(distribution, result.config[name]):
                tried[name] = distribution
        noted: Any = result.state.get("trial", {})
        one = len(self.modes) == 1
        made = frozen(
            place,
            state,
            values=values,
            params={name: result.config[name] for name in tried},
            distributions=tried,
            system_attrs=dict(noted),
            intermediate_values=dict(result.intermediate) if one else {},
        )
        broken: Any = result.attributes.get(CONSTRAINTS, {})
        # the trainable may have recorded anything there
        for name, violation in broken.items() if isinstance(broken, dict) else ():
            if isinstance(violation, int | float):
                made.set_constraint(name, violation)
        return made


def beforehand(
    name: str, distribution: BaseDistribution, state: Mapping[str, Any]
) -> tuple[bool, Json]:
    """Return whether a parameter's value is known before a sampler is asked, and the value: the
    only one, or the one drawn together with others for the trial's `state`.
    """
    if distribution.single():
        return True, _plain(distribution.to_external_repr(_only(distribution)))
    together = state.get(RELATIVE, {})
    if isinstance(together, dict) and name in together and contains(distribution, together[name]):
        return True, together[name]
    return False, None


def clash(name: str, first: Mapping[str, Any], distribution: Mapping[str, Any]) -> str:
    """Return why a parameter that was first asked from the distribution `first` cannot be asked
    from another one, "" if it can.

    This is Optuna's rule: choices, kind of number and `log` are the same in all trials, bounds may
    differ.
    """
    try:
        check_distribution_compatibility(
            *(json_to_distribution(json.dumps(one)) for one in (first, distribution))
        )
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        change = f"It was {_written(first)} before and is {_written(distribution)}"
        return f"{name!r}: {error} {change}; give the other one another name"
    return ""


def unusable(name: str, distribution: Mapping[str, Any]) -> str:
    """Return why no sampler can draw from a distribution that Optuna accepts, "" if it can."""
    made = json_to_distribution(json.dumps(distribution))
    if not isinstance(made, FloatDistribution | IntDistribution):
        return ""
    numbers = [made.low, made.high, made.high - made.low, made.step or 0]
    exact = isinstance(made, FloatDistribution) or max(map(abs, numbers)) <= MOST
    if exact and all(math.isfinite(number) for number in numbers):
        return ""
    limit = "a bound is finite"
    if isinstance(made, IntDistribution):
        limit = f"an integer lies between -{MOST:,} and {MOST:,}"
    return f"{name!r}: nothing can be drawn from {_written(distribution)}; {limit}"


def _written(distribution: Mapping[str, Any]) -> str:
    attributes: Any = distribution.get("attributes", {})
    arguments = ", ".join(f"{key}={value!r}" for key, value in attributes.items())
    return f"{distribution.get('name')}({arguments})"


def _only(distribution: BaseDistribution) -> float:
    """Return the internal form of the single value of a distribution."""
    if isinstance(distribution, FloatDistribution | IntDistribution):
        return float(distribution.low)
    return 0.0


def _plain(value: Any) -> Json:
    """Return a value as it is logged, with Python's numbers for numpy's."""
    found: Json = value.item() if hasattr(value, "item") else value
    return found
