"""Gaussian processes: the sampler "gp", which is Optuna's and needs PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regrow.search.errors import SpecError
from regrow.search.samplers.optuna_study import StudySampler
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class Gp(StudySampler):
    """Optuna's GPSampler: a Gaussian process with a Matern 5/2 kernel, and log expected improvement
    (Ament et al., NeurIPS 2023), also of the hypervolume for several metrics and under constraints.
    It avoids the configurations of running trials.

    Proposals are random until `n_startup_trials` are done. `deterministic_objective`: the metric
    has no noise. It learns from trials that are done, not from stopped ones. The time of a proposal
    grows with the cube of their number: suited for some hundreds. Parameters that not every trial
    has are drawn at random.
    """

    def __init__(
        self, setting: Setting, *, n_startup_trials: int = 10, deterministic_objective: bool = False
    ) -> None:
        if n_startup_trials < 1:
            raise SpecError(
                "search.gp.n_startup_trials", n_startup_trials, "is below 1", "write 10"
            )
        self._startup, self._deterministic = n_startup_trials, deterministic_objective
        super().__init__(setting, self._made)

    def _made(self, seed: int) -> BaseSampler:
        from optuna.samplers import GPSampler

        return GPSampler(
            seed=seed,
            n_startup_trials=self._startup,
            deterministic_objective=self._deterministic,
            warn_independent_sampling=False,
        )
