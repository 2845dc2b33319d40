"""What of Optuna is used that its documentation does not promise, by names that are ours. What it computes stays Optuna's own.

Each name is in the canary test (`tests/unit/test_private_names.py`), with what breaks without it. Imports Optuna at the top.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseGASampler, BaseSampler, TPESampler
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator
from optuna.samplers._tpe.probability_distributions import _BatchedCategoricalDistributions as Categorical
from optuna.samplers._tpe.probability_distributions import _BatchedDistributions as Kernels
from optuna.samplers._tpe.probability_distributions import _BatchedTruncLogNormDistributions as TruncatedLogNormal
from optuna.samplers._tpe.probability_distributions import _BatchedTruncNormDistributions as TruncatedNormal
from optuna.samplers._tpe.probability_distributions import _unique_inverse_2d as unique_pairs
from optuna.samplers._tpe.sampler import _RELATIVE_PARAMS_KEY as RELATIVE_PARAMS_KEY
from optuna.samplers._tpe.sampler import default_gamma
from optuna.search_space.group_decomposed import _SearchSpaceGroup
from optuna.storages import InMemoryStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

__all__ = [
    "RELATIVE_PARAMS_KEY", "Categorical", "Kernels", "OneStudy", "OpenTpe", "ParzenEstimator", "TruncatedLogNormal",
    "TruncatedNormal", "contains", "default_gamma", "generation_key", "unique_pairs",
]


def generation_key(sampler: BaseSampler) -> str | None:
    """The attribute in which a genetic sampler notes a trial's generation; None for any other sampler."""
    return sampler._get_generation_key() if isinstance(sampler, BaseGASampler) else None  # noqa: SLF001 - what this module is for


class ParzenEstimator(_ParzenEstimator):
    """Optuna's density of trials: a mixture of products of kernels, one a parameter."""

    @property
    def weights(self) -> Any:
        """Of each product of kernels, an array."""
        return self._mixture_distribution.weights

    def kernels(self) -> Iterator[tuple[str, Kernels]]:
        """Of each parameter."""
        return zip(self._search_space, self._mixture_distribution.distributions, strict=True)


class OpenTpe(TPESampler):
    """Optuna's TPE in parts, for a sampler that gets its history otherwise."""

    @abstractmethod
    def sample_together(self, study: Study, trial: FrozenTrial, space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """Values for parameters that are drawn at once; those that it leaves out are drawn one by one."""

    def _sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        return self.sample_together(study, trial, search_space)

    def is_joint(self, study: Study) -> bool:
        """Whether parameters are drawn together (`multivariate`)."""
        return self._is_multivariate(study)

    @property
    def startup_trials(self) -> float:
        """How many trials have to end before proposals are more than random."""
        return self._n_startup_trials

    @property
    def liar(self) -> bool:
        """Whether running trials count as bad ones (`constant_liar`)."""
        return self._constant_liar

    def groups(self, spaces: Iterable[dict[str, BaseDistribution]]) -> list[dict[str, BaseDistribution]] | None:
        """The maximal groups of parameters that occur together in `spaces`; None without the option `group`."""
        if not self._group:
            return None
        self._search_space_group = _SearchSpaceGroup()
        for space in spaces:
            self._search_space_group.add_distributions(space)
        return self._search_space_group.search_spaces

    def at_random(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        """A value of one parameter, whatever is known."""
        return self._random_sampler.sample_independent(study, trial, name, distribution)

    def density(
        self, kind: type[ParzenEstimator], observed: Mapping[str, Any], space: dict[str, BaseDistribution]
    ) -> ParzenEstimator:
        """The density of observed trials, with this sampler's options."""
        return kind(dict(observed), space, self._parzen_estimator_parameters)

    def best(self, good: ParzenEstimator, other: ParzenEstimator) -> dict[str, Any]:
        """Of candidates that are drawn from `good` the one at which it exceeds `other` most."""
        candidates = good.sample(self._rng.rng, self._n_ei_candidates)
        return self._compare(candidates, self._compute_acquisition_func(candidates, good, other))


def contains(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a value is one of a distribution."""
    try:
        return distribution._contains(distribution.to_internal_repr(value))  # noqa: SLF001 - what this module is for
    except (TypeError, ValueError):
        return False


class OneStudy(InMemoryStorage):
    """A storage in memory of one study, whose trials can be put at any place."""

    @property
    def all_trials(self) -> list[FrozenTrial]:
        """The list itself, by number."""
        return self._studies[0].trials

    def put(self, trial: FrozenTrial) -> None:
        """Sets the trial at the place of its number, which is among those that there are or the next."""
        place = trial.number
        self._trial_id_to_study_id_and_number[place] = (0, place)
        self.all_trials[place : place + 1] = [trial]

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Has the study's system attributes be these."""
        self._studies[0].system_attrs = dict(attributes)

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """Of equal ones the first by number, whichever ended first."""
        done = [t for t in self.all_trials if t.state is TrialState.COMPLETE]
        if not done:
            raise ValueError("No trials are completed yet.")
        sign = 1.0 if self.get_study_directions(0)[0] is StudyDirection.MINIMIZE else -1.0
        return min(done, key=lambda t: sign * t.values[0])
