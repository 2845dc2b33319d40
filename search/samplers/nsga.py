"""Genetic samplers for several metrics: "nsga2" and "nsga3", which are Optuna's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regrow.search.errors import SpecError
from regrow.search.samplers.optuna_study import StudySampler
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class _Genetic(StudySampler):
    """Base of both: generations, and trials that descend from two of the previous generation.

    Raises SpecError for an option that Optuna would refuse at the first proposal.
    """

    name: str
    optunas: str
    """The name of the class in Optuna."""

    def __init__(
        self,
        setting: Setting,
        *,
        population_size: int = 50,
        mutation_prob: float | None = None,
        crossover_prob: float = 0.9,
        swapping_prob: float = 0.5,
    ) -> None:
        if population_size < 2:
            raise SpecError(
                f"search.{self.name}.population_size", population_size, "is below 2", "write 50"
            )
        chances = {
            "mutation_prob": mutation_prob,
            "crossover_prob": crossover_prob,
            "swapping_prob": swapping_prob,
        }
        for option, chance in chances.items():
            number = isinstance(chance, (int, float)) and not isinstance(chance, bool)
            if chance is not None and not (number and 0 <= chance <= 1):
                raise SpecError(
                    f"search.{self.name}.{option}",
                    chance,
                    "is not a probability",
                    "write a number from 0 to 1",
                )
        self._options: dict[str, Any] = {"population_size": population_size, **chances}
        super().__init__(setting, self._made, stopped_count=True)

    def _made(self, seed: int) -> BaseSampler:
        from optuna import samplers

        made: BaseSampler = getattr(samplers, self.optunas)(**self._options, seed=seed)
        return made


class Nsga2(_Genetic):
    """Optuna's NSGAIISampler (Deb et al., 2002, IEEE TEC 6:182).

    The first `population_size` trials are random; each further generation descends from the best
    `population_size` of the previous one and its parents. A generation is complete with that many
    trials that are done or stopped (by their last values): failed ones are replaced by further
    proposals. Earlier results, and trials that the user proposed, belong to the first generation.
    `mutation_prob`: of each parameter to be drawn at random, None for 1 / parameters;
    `crossover_prob`: of having two parents; `swapping_prob`: of each parameter to come from the
    second one. Parameters that not every trial has are drawn at random.
    """

    name = "nsga2"
    optunas = "NSGAIISampler"


class Nsga3(_Genetic):
    """Optuna's NSGAIIISampler (Deb and Jain, 2014, IEEE TEC 18:577), for three metrics and more.

    Like `Nsga2`, but parents are spread along reference points, of which there are
    `dividing_parameter` + 1 on each edge between two metrics.
    """

    name = "nsga3"
    optunas = "NSGAIIISampler"

    def __init__(self, setting: Setting, *, dividing_parameter: int = 3, **options: Any) -> None:
        if dividing_parameter < 1:
            raise SpecError(
                "search.nsga3.dividing_parameter", dividing_parameter, "is below 1", "write 3"
            )
        super().__init__(setting, **options)
        self._options["dividing_parameter"] = dividing_parameter
