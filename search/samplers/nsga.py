"""Genetic samplers for several metrics: "nsga2" and "nsga3", which are Optuna's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regrow.search.errors import SpecError
from regrow.search.samplers.optuna_study import StudySampler
from regrow.search.setting import Setting

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class Nsga2(StudySampler):
    """Optuna's NSGAIISampler (Deb et al., 2002, IEEE TEC 6:182).

    The first `population_size` trials are random; each further generation descends from the best `population_size` of
    the one before and its parents. A generation is closed by as many trials that are done or stopped (by their last
    values): failed ones are replaced by further proposals. Earlier results, and trials that the user proposed, belong
    to the first generation. `mutation_prob`: of each parameter to be drawn at random, None for 1 / parameters;
    `crossover_prob`: of having two parents; `swapping_prob`: of each parameter to come from the second one.
    Parameters that not every trial has are drawn at random.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        population_size: int = 50,
        mutation_prob: float | None = None,
        crossover_prob: float = 0.9,
        swapping_prob: float = 0.5,
    ) -> None:
        self._options = _checked(
            "nsga2",
            population_size=population_size,
            mutation_prob=mutation_prob,
            crossover_prob=crossover_prob,
            swapping_prob=swapping_prob,
        )
        super().__init__(setting, self._made, stopped_count=True)

    def _made(self, seed: int) -> BaseSampler:
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler(**self._options, seed=seed)


class Nsga3(StudySampler):
    """Optuna's NSGAIIISampler (Deb and Jain, 2014, IEEE TEC 18:577), for three metrics and more.

    As `Nsga2`, but parents are spread along reference points, of which there are `dividing_parameter` + 1 on each
    edge between two metrics.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        population_size: int = 50,
        mutation_prob: float | None = None,
        crossover_prob: float = 0.9,
        swapping_prob: float = 0.5,
        dividing_parameter: int = 3,
    ) -> None:
        if dividing_parameter < 1:
            raise SpecError("search.nsga3.dividing_parameter", dividing_parameter, "is below 1", "write 3")
        self._options = _checked(
            "nsga3",
            population_size=population_size,
            mutation_prob=mutation_prob,
            crossover_prob=crossover_prob,
            swapping_prob=swapping_prob,
        ) | {"dividing_parameter": dividing_parameter}
        super().__init__(setting, self._made, stopped_count=True)

    def _made(self, seed: int) -> BaseSampler:
        from optuna.samplers import NSGAIIISampler

        return NSGAIIISampler(**self._options, seed=seed)


def _checked(name: str, *, population_size: int, **chances: float | None) -> dict[str, Any]:
    """The options. Raises SpecError for one that Optuna would refuse at the first proposal."""
    if population_size < 2:
        raise SpecError(f"search.{name}.population_size", population_size, "is below 2", "write 50")
    for option, chance in chances.items():
        number = isinstance(chance, (int, float)) and not isinstance(chance, bool)
        if chance is not None and not (number and 0 <= chance <= 1):
            raise SpecError(f"search.{name}.{option}", chance, "is not a probability", "write a number from 0 to 1")
    return {"population_size": population_size, **chances}
