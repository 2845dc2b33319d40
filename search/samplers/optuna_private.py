"""Private Optuna APIs that we depend on, under our own names. The computations remain Optuna's.

Each name is in the canary test (`tests/unit/test_private_names.py`), with what breaks without it.
Imports Optuna at the top.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseGASampler, BaseSampler, TPESampler
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

__all__ = [
    "RELATIVE_PARAMS_KEY",
    "Categorical",
    "Kernels",
    "OneStudy",
    "OpenTpe",
    "ParzenEstimator",
    "TruncatedLogNormal",
    "TruncatedNormal",
    "contains",
    "default_gamma",
    "generation_key",
    "unique_pairs",
]


def generation_key(sampler: BaseSampler) -> str | None:
    """Return the attribute in which a genetic sampler stores a trial's generation, None for any
    other sampler.
    """
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


class OpenTpe(TPESampler):
    """Optuna's TPE in parts, for a sampler that keeps its history elsewhere."""

    @abstractmethod
    def sample_together(
        self, study: Study, trial: FrozenTrial, space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return values for parameters that are drawn at once. Parameters that it leaves out are
        drawn one by one.
        """

    def _sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.sample_together(study, trial, search_space)

    def is_joint(self, study: Study) -> bool:
        """Return whether parameters are drawn together (`multivariate`)."""
        return self._is_multivariate(study)

    @property
    def startup_trials(self) -> float:
        """How many trials must end before proposals stop being random."""
        return self._n_startup_trials

    @property
    def liar(self) -> bool:
        """Whether running trials count as bad ones (`constant_liar`)."""
        return self._constant_liar

    def groups(
        self, spaces: Iterable[dict[str, BaseDistribution]]
    ) -> list[dict[str, BaseDistribution]] | None:
        """Return the maximal groups of parameters that occur together in `spaces`, None without the
        option `group`.
        """
        if not self._group:
            return None
        self._search_space_group = _SearchSpaceGroup()
        for space in spaces:
            self._search_space_group.add_distributions(space)
        return self._search_space_group.search_spaces

    def at_random(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Return a random value of one parameter."""
        return self._random_sampler.sample_independent(study, trial, name, distribution)

    def density(
        self,
        kind: type[ParzenEstimator],
        observed: Mapping[str, Any],
        space: dict[str, BaseDistribution],
    ) -> ParzenEstimator:
        """Return the density of observed trials, with this sampler's options."""
        return kind(dict(observed), space, self._parzen_estimator_parameters)

    def best(self, good: ParzenEstimator, other: ParzenEstimator) -> dict[str, Any]:
        """Return the candidate, drawn from `good`, at which it exceeds `other` most."""
        candidates = good.sample(self._rng.rng, self._n_ei_candidates)
        return self._compare(candidates, self._compute_acquisition_func(candidates, good, other))


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
