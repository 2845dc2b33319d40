"""Any sampler of Optuna over an in-memory study, behind the port: the samplers "optuna", "gp",
"nsga2" and "nsga3", and TPE for several metrics.

Optuna itself is imported at the first `ask`, except for the sampler "optuna", whose class the user
chooses.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from regrow.search.errors import SpecError
from regrow.search.one_thread import on_one_thread
from regrow.search.options import check_whole, check_within, imported, is_path
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.grid import Cells
from regrow.search.space.domains import Grid, Json
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from regrow.search.samplers.optuna_study_model import StudyModel


class StudySampler:
    """Proposals of an Optuna sampler that is made again for each, in a study of all results so far.

    `path` is that of its class, `options` are its keyword arguments, beside the proposal's `seed`.

    The study equals Optuna's own: trials by number (earlier results first), their curves, states
    and constraints, and the attributes that the sampler set on trials and on the study, which are
    kept in the proposals' `state`. A trial is COMPLETE if all its metrics and constraints are known
    and its configuration fits the space; otherwise it is FAIL, which every sampler of Optuna
    ignores. A stopped trial is PRUNED; with `stopped_count`, and with several metrics, for which
    Optuna has no pruning, it is COMPLETE with its last values. Parameters are suggested in the
    order of `Space.flat`, those of unmet conditions never; constants and parameters under `grid`
    are not part of the study.
    """

    several = True

    def __init__(
        self,
        setting: Setting,
        path: str,
        options: Mapping[str, Any],
        *,
        stopped_count: bool = False,
    ) -> None:
        self._setting, self._path, self._options = setting, path, options
        self._stopped_count = stopped_count or len(setting.modes) > 1
        self._cells = Cells(setting.space, Grid)
        self._untold: list[Result] = []
        self._model: StudyModel | None = None

    @on_one_thread
    def ask(self, number: int, seed: int) -> Proposal | None:
        """See Sampler; None only from a subclass. `seed` counts modulo 2**32, as numpy takes it."""
        with self._study().trial(number, seed % 2**32) as trial:
            config = self._cells.config(number, lambda p: trial.suggest(p.name))
            return Proposal(config=config, state=trial.state)

    def tell(self, result: Result) -> None:
        """See Sampler. A "running" result is a RUNNING trial, which some samplers avoid."""
        self._untold.append(result)

    def _study(self) -> StudyModel:
        """Return the study with all results."""
        if self._model is None:
            self._model = self._begun()
        for result in self._untold:
            self._model.tell(result)
        self._untold.clear()
        return self._model

    def _begun(self) -> StudyModel:
        from regrow.search.samplers.optuna_study_model import StudyModel

        return StudyModel(self._setting, self._made, stopped_count=self._stopped_count)

    def _made(self, seed: int) -> BaseSampler:
        made: BaseSampler = imported(self._path, key="search")(**self._options, seed=seed)
        return made


OURS: Mapping[str, str] = {
    "CmaEsSampler": "cmaes",  # stores pickles of its optimizer, which must not go into a log
    "QMCSampler": "qmc",  # made again, it would scramble its sequence differently
    "GridSampler": "grid",  # needs the space as an argument, and stops the study itself
    # needs to know which subtrees are exhausted, and stops the study itself
    "BruteForceSampler": "brute_force",
}
"""Samplers of Optuna that cannot be made again for each proposal, and ours that replace them."""


class OptunaStudy(StudySampler):
    """Any `optuna.samplers.BaseSampler`: `{optuna: {sampler: "optuna.samplers:TPESampler", options:
    {...}}}`.

    `sampler` is the import path of its class, `options` are its keyword arguments. It is made again
    for each proposal, with the proposal's seed as `seed`. So its own attributes are lost;
    attributes that it sets on the trial or the study while it proposes are kept. Its `after_trial`
    is not called. Raises SpecError for a class that cannot work this way (it takes no `seed`, or
    overrides `after_trial`, or is one of `OURS`), or that refuses its options.
    """

    def __init__(
        self, setting: Setting, *, sampler: str = "", options: dict[str, Json] | None = None
    ) -> None:
        if not is_path(sampler):
            hint = "write optuna.samplers:TPESampler"
            raise SpecError("sampler", sampler, "is not an import path", hint)
        given = {} if options is None else options
        if not isinstance(given, dict):
            hint = "write {option: value}"
            raise SpecError("options", options, "is not a map of options", hint)
        if "seed" in given:
            hint = "write seed: at the top of the specification"
            raise SpecError("options.seed", given["seed"], "is given by the experiment", hint)
        check_usable(sampler, sampler, "search.optuna.sampler")
        super().__init__(setting, sampler, given)
        try:
            with warnings.catch_warnings():  # experimental options are the user's choice
                warnings.simplefilter("ignore")
                self._made(0)
        except (TypeError, ValueError) as error:
            problem, hint = f"are refused: {error}", "see its documentation"
            raise SpecError("options", given, problem, hint) from error


class TpeStudy(StudySampler):
    """Optuna's TPESampler in a study: TPE for several metrics (Ozaki et al., GECCO 2020) and
    constraints.

    The options are those of `Tpe`, with Optuna's defaults; here `multivariate` None means yes for
    one metric and no for several.
    """

    def __init__(self, setting: Setting, **options: Any) -> None:
        if options.get("group") and options.get("multivariate") is None:
            options = options | {"multivariate": True}
        super().__init__(setting, "optuna.samplers:TPESampler", options)


class Gp(StudySampler):
    """Optuna's GPSampler, which needs PyTorch: a Gaussian process with a Matern 5/2 kernel, and log
    expected improvement (Ament et al., NeurIPS 2023), also of the hypervolume for several metrics
    and under constraints. It avoids the configurations of running trials.

    Proposals are random until `n_startup_trials` are done. `deterministic_objective`: the metric
    has no noise. It learns from trials that are done, not from stopped ones. The time of a proposal
    grows with the cube of their number: suited for some hundreds. Parameters that not every trial
    has are drawn at random.
    """

    def __init__(
        self, setting: Setting, *, n_startup_trials: int = 10, deterministic_objective: bool = False
    ) -> None:
        check_whole("n_startup_trials", n_startup_trials, 1, "write 10")
        options = {
            "n_startup_trials": n_startup_trials,
            "deterministic_objective": deterministic_objective,
            "warn_independent_sampling": False,
        }
        super().__init__(setting, "optuna.samplers:GPSampler", options)


class Nsga2(StudySampler):
    """Optuna's NSGAIISampler (Deb et al., 2002, IEEE TEC 6:182), a genetic sampler for several
    metrics.

    The first `population_size` trials are random; each further generation descends from the best
    `population_size` of the previous one and its parents. A generation is complete with that many
    trials that are done or stopped (by their last values): failed ones are replaced by further
    proposals. Earlier results, and trials that the user proposed, belong to the first generation.
    `mutation_prob`: of each parameter to be drawn at random, None for 1 / parameters;
    `crossover_prob`: of having two parents; `swapping_prob`: of each parameter to come from the
    second one. Parameters that not every trial has are drawn at random.
    """

    kind = "optuna.samplers:NSGAIISampler"

    def __init__(
        self,
        setting: Setting,
        *,
        population_size: int = 50,
        mutation_prob: float | None = None,
        crossover_prob: float = 0.9,
        swapping_prob: float = 0.5,
    ) -> None:
        check_whole("population_size", population_size, 2, "write 50")
        chances = {
            "mutation_prob": mutation_prob,
            "crossover_prob": crossover_prob,
            "swapping_prob": swapping_prob,
        }
        for name, chance in chances.items():
            check_within(name, chance, 0, 1, "write a probability")
        options = {"population_size": population_size, **chances}
        super().__init__(setting, self.kind, options, stopped_count=True)


class Nsga3(Nsga2):
    """Optuna's NSGAIIISampler (Deb and Jain, 2014, IEEE TEC 18:577), for three metrics and more.

    Like `Nsga2`, but parents are spread along reference points, of which there are
    `dividing_parameter` + 1 on each edge between two metrics.
    """

    kind = "optuna.samplers:NSGAIIISampler"

    def __init__(self, setting: Setting, *, dividing_parameter: int = 3, **options: Any) -> None:
        check_whole("dividing_parameter", dividing_parameter, 1, "write 3")
        super().__init__(setting, **options)
        self._options = {**self._options, "dividing_parameter": dividing_parameter}


def check_usable(path: str, name: str, key: str, usable: Collection[str] = ()) -> None:
    """Raise SpecError unless a class can be made again for each proposal. `name`: as written;
    `usable`: classes that can be in spite of their state.
    """
    from optuna.samplers import BaseSampler

    found = imported(path, key=key)
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        hint = "it must derive from optuna.samplers.BaseSampler"
        raise SpecError(key, name, "is no sampler of Optuna", hint)
    if found.__name__ in usable:
        return
    for base in found.__mro__:
        if base.__name__ in OURS and base.__module__.startswith("optuna."):
            problem = "cannot be made anew for each proposal"
            raise SpecError(key, name, problem, f"write search: {OURS[base.__name__]}")
    parameters = inspect.signature(found).parameters.values()
    if not any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters):
        problem = "takes no seed, so its proposals could not be repeated"
        raise SpecError(key, name, problem, "give it an argument `seed`")
    if not found.after_trial.__module__.startswith("optuna."):
        where = "in the trial's or the study's system attributes"
        hint = f"note what must be kept while it proposes, {where}"
        raise SpecError(key, name, "has an after_trial of its own, which is not called", hint)
