"""Private Optuna APIs that we depend on, under our own names. The computations remain Optuna's.

Each name is in the canary test (`tests/unit/test_private_names.py`), with what breaks without it.
Imports Optuna at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseGASampler, BaseSampler, CmaEsSampler, TPESampler
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator
from optuna.samplers._tpe.probability_distributions import (
    _BatchedCategoricalDistributions as Categorical,
)
from optuna.samplers._tpe.probability_distributions import _BatchedDistributions as Kernels
from optuna.samplers._tpe.probability_distributions import (
    _BatchedTruncLogNormDistributions as TruncatedLogNormal,
)
from optuna.samplers._tpe.probability_distributions import (
    _BatchedTruncNormDistributions as TruncatedNormal,
)
from optuna.samplers._tpe.probability_distributions import _unique_inverse_2d as unique_pairs
from optuna.samplers._tpe.sampler import _RELATIVE_PARAMS_KEY as RELATIVE_PARAMS_KEY
from optuna.samplers._tpe.sampler import default_gamma
from optuna.search_space.group_decomposed import _SearchSpaceGroup
from optuna.storages import InMemoryStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from regrow.search.samplers.tpe_history import TpeHistory

__all__ = [
    "RELATIVE_PARAMS_KEY",
    "Categorical",
    "ColumnTpe",
    "FoldedCmaEs",
    "Kernels",
    "OneStudy",
    "ParzenEstimator",
    "TruncatedLogNormal",
    "TruncatedNormal",
    "contains",
    "generation_key",
    "unique_pairs",
]


def generation_key(sampler: BaseSampler) -> str | None:
    """Return the attribute with a genetic sampler's generation, None for other samplers."""
    return sampler._get_generation_key() if isinstance(sampler, BaseGASampler) else None  # noqa: SLF001 - this module wraps private names


class ParzenEstimator(_ParzenEstimator):
    """Optuna's density of trials: a mixture of products of kernels, one for each parameter."""

    @property
    def weights(self) -> Any:
        """Weights of the products of kernels, an array."""
        return self._mixture_distribution.weights

    def kernels(self) -> Iterator[tuple[str, Kernels]]:
        """Return the kernels of each parameter."""
        return zip(self._search_space, self._mixture_distribution.distributions, strict=True)


class ColumnTpe(TPESampler):
    """Optuna's TPE with its history in columns instead of a study's trials, for trial `number`.

    `density`: the kind of density for a number of other trials.
    """

    def __init__(
        self,
        history: TpeHistory,
        distributions: Mapping[str, BaseDistribution],
        number: int,
        density: Callable[[int], type[ParzenEstimator]],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._history, self._distributions = history, distributions
        self._number, self._density = number, density

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return what is drawn together: what all trials have or, grouped, each group."""
        if not self._is_multivariate(study):
            return {}
        activities = list(self._history.activities())
        spaces = [{name: self._distributions[name] for name in names} for names in activities]
        if self._group:
            self._search_space_group = _SearchSpaceGroup()
            for space in spaces:
                self._search_space_group.add_distributions(space)
            spaces = self._search_space_group.search_spaces
        else:
            common = frozenset.intersection(*activities) if activities else frozenset()
            spaces = [{name: self._distributions[name] for name in common}]
        return {name: d for space in spaces for name, d in sorted(space.items()) if not d.single()}

    def _sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return nothing during startup, then TPE's values for all parameters at once."""
        if not search_space or self._history.ended() < self._n_startup_trials:
            return {}
        return self._proposed(search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the value of a parameter drawn alone: random during startup, then TPE's."""
        if self._history.ended() < self._n_startup_trials:
            start = self._random_sampler
            return start.sample_independent(study, trial, param_name, param_distribution)
        return self._proposed({param_name: param_distribution})[param_name]

    def _proposed(self, space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """Return the candidate at which the good trials' density exceeds the others' most."""
        best = default_gamma(self._history.ended())
        parts = self._history.split(best, liar=self._constant_liar, number=self._number)
        below, above = (self._history.observed(space, rows) for rows in parts)
        kind, options = (
            self._density(len(next(iter(above.values())))),
            self._parzen_estimator_parameters,
        )
        good, others = kind(below, space, options), kind(above, space, options)
        candidates = good.sample(self._rng.rng, self._n_ei_candidates)
        improvement = self._compute_acquisition_func(candidates, good, others)
        found = self._compare(candidates, improvement)
        return {name: d.to_external_repr(found[name]) for name, d in space.items()}


def contains(distribution: BaseDistribution, value: Any) -> bool:
    """Return whether a distribution contains a value."""
    try:
        return distribution._contains(distribution.to_internal_repr(value))  # noqa: SLF001 - this module wraps private names
    except (TypeError, ValueError):
        return False


class OneStudy(InMemoryStorage):
    """An in-memory storage of one study, whose trials can be set at any place."""

    @property
    def all_trials(self) -> list[FrozenTrial]:
        """The list itself, by number."""
        return self._studies[0].trials

    def put(self, trial: FrozenTrial) -> None:
        """Set the trial at the place of its number: an existing place, or the next one."""
        place = trial.number
        self._trial_id_to_study_id_and_number[place] = (0, place)
        self.all_trials[place : place + 1] = [trial]

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Replace the study's system attributes."""
        self._studies[0].system_attrs = dict(attributes)

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """Return the best trial; of equal ones the first by number, not by time."""
        done = [t for t in self.all_trials if t.state is TrialState.COMPLETE]
        if not done:
            raise ValueError("No trials are completed yet.")
        sign = 1.0 if self.get_study_directions(0)[0] is StudyDirection.MINIMIZE else -1.0
        return min(done, key=lambda t: sign * t.values[0])


class FoldedCmaEs(CmaEsSampler):
    """Optuna's CMA-ES, whose optimizer is computed from the trials that it was told.

    Optuna keeps the optimizer as a pickle in the trial that begins a generation. Here that trial
    notes the numbers of the trials that the generation is made of, and the trial whose note came
    before.
    """

    _parents: Sequence[FrozenTrial] = ()
    _before: int | None = None

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the values of the numeric parameters that all trials have."""
        self._study, self._space = study, search_space
        return super().sample_relative(study, trial, search_space)

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> Any:
        noted = {t.number: note for t in completed_trials if (note := self._note(t)) is not None}
        self._before = max(noted, default=None)
        if self._before is None:
            return None
        trials = {trial.number: trial for trial in completed_trials}
        path, at = [], self._before
        while at is not None:
            parents, before = noted[at]
            path.append(parents)
            at = before
        transform = _SearchSpaceTransform(
            self._space, transform_step=not self._with_margin, transform_0_1=True
        )
        direction = self._study.direction
        sign = 1.0 if direction is StudyDirection.MINIMIZE else -1.0
        optimizer = self._init_optimizer(transform, direction)
        for parents in reversed(path):
            solutions = []
            for number in parents[: optimizer.population_size]:
                one = trials[number]
                x = transform.transform(one.params)
                if self._with_margin:
                    x = np.array(one.system_attrs["x_for_tell"])
                solutions.append((x, sign * float(one.value or 0.0)))
            optimizer.tell(solutions)
        return optimizer

    def _get_solution_trials(self, trials: list[FrozenTrial], generation: int) -> list[FrozenTrial]:
        found = super()._get_solution_trials(trials, generation)
        self._parents = found
        return found

    def _split_optimizer_str(self, optimizer_str: str) -> Any:
        parents = [trial.number for trial in self._parents]
        return {f"{self._attr_key_optimizer}:told": [parents, self._before]}

    def _note(self, trial: FrozenTrial) -> Any:
        """Return the trials that a generation is made of and the trial before; None if the trial
        began none.
        """
        return trial.system_attrs.get(f"{self._attr_key_optimizer}:told")
