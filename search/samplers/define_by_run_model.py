"""The study behind `define_by_run.py`: each trial has the parameters, and their distributions, that it asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution, json_to_distribution
from optuna.pruners import NopPruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from regrow.search.samplers.base import Result
from regrow.search.samplers.optuna_private import contains
from regrow.search.samplers.optuna_study_model import STUDY, StudyModel, frozen, quiet
from regrow.search.space.domains import Json

CONSTRAINTS = "optuna:constraints"
"""The attribute in which a trial notes by how much it breaks each of its constraints, by their names."""
_RELATIVE = "relative"


class DefinedModel(StudyModel):
    """The told history, and values to suggest from it."""

    def begin(self, number: int, seed: int) -> dict[str, Json]:
        """The state of a new trial: what the sampler draws together, and what it notes."""
        with self.trial(number, seed) as trial:
            together = {name: _plain(value) for name, value in trial.together.items()}
            return {**trial.state, **({_RELATIVE: together} if together else {})}

    def suggest(self, name: str, distribution: Mapping[str, Json], trial: Result, seed: int) -> Json:
        """The value of one parameter."""
        made = json_to_distribution(json.dumps(distribution))
        if made.single():
            return _plain(made.to_external_repr(_only(made)))
        together = trial.state.get(_RELATIVE, {})
        if isinstance(together, dict) and name in together and contains(made, together[name]):
            return together[name]
        with self.opened(trial.number) as storage, quiet():
            here = self._frozen(trial, trial.number)
            storage.put(here)
            study = Study(STUDY, storage, self.make(seed), NopPruner())
            return _plain(study.sampler.sample_independent(study, here, name, made))

    def _supersedes(self, result: Result, before: Result | None) -> bool:
        if before is not None and result.status == before.status == "running":
            return len(result.config) >= len(before.config)
        return super()._supersedes(result, before)

    def _fits(self, result: Result) -> bool:
        return True

    def _frozen(self, result: Result, place: int) -> FrozenTrial:
        state, values = self._end(result)
        distributions = {name: json_to_distribution(json.dumps(one)) for name, one in result.distributions.items()}
        tried = {name: one for name, one in distributions.items() if contains(one, result.config[name])}
        if state is TrialState.FAIL:
            tried = {}
        noted: Any = result.state.get("trial", {})
        one = len(self.modes) == 1
        made = frozen(
            place, state, values=values, params={name: result.config[name] for name in tried}, distributions=tried,
            system_attrs=dict(noted), intermediate_values=dict(result.intermediate) if one else {},
        )
        broken: Any = result.attributes.get(CONSTRAINTS, {})
        for name, violation in broken.items():
            made.set_constraint(name, violation)
        return made


def _only(distribution: BaseDistribution) -> float:
    """The internal form of the one value of a distribution."""
    return float(distribution.low) if isinstance(distribution, FloatDistribution | IntDistribution) else 0.0


def _plain(value: Any) -> Json:
    """As the log has it: numbers of numpy as Python's."""
    found: Json = value.item() if hasattr(value, "item") else value
    return found
