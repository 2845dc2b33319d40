"""Any sampler of Optuna over an in-memory study, behind the port; and the sampler "optuna".

Optuna itself is imported at the first `ask`, except for the sampler "optuna", whose class the user
chooses.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from regrow.search.errors import SpecError
from regrow.search.one_thread import on_one_thread
from regrow.search.options import imported, is_path
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.grid import Cells
from regrow.search.space.domains import Grid, Json
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from regrow.search.samplers.optuna_study_model import StudyModel


class StudySampler:
    """Proposals of `make(seed)`, an Optuna sampler that is made again for each, in a study of all
    results so far.

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
        self, setting: Setting, make: Callable[[int], BaseSampler], *, stopped_count: bool = False
    ) -> None:
        self._setting, self._make = setting, make
        self._stopped_count = stopped_count or len(setting.modes) > 1
        self._cells = Cells(setting.space, Grid)
        self._untold: list[Result] = []
        self._model: StudyModel | None = None

    @on_one_thread
    def ask(self, number: int, seed: int) -> Proposal:
        """See Sampler; never None. `seed` counts modulo 2**32, the range of numpy's generator."""
        if self._model is None:
            from regrow.search.samplers.optuna_study_model import StudyModel

            self._model = StudyModel(self._setting, self._make, stopped_count=self._stopped_count)
        for result in self._untold:
            self._model.tell(result)
        self._untold.clear()
        with self._model.trial(number, seed % 2**32) as trial:
            config = self._cells.config(number, lambda p: trial.suggest(p.name))
            return Proposal(config=config, state=trial.state)

    def tell(self, result: Result) -> None:
        """See Sampler. A "running" result is a RUNNING trial of the study, which some samplers
        avoid.
        """
        self._untold.append(result)


OURS: Mapping[str, str] = {
    "CmaEsSampler": "cmaes",  # stores pickles of its optimizer, which must not go into a log
    "QMCSampler": "qmc",  # made again, it would scramble its sequence differently
    "GridSampler": "grid",  # needs the space as an argument, and stops the study itself
    # needs to know which subtrees are exhausted, and stops the study itself
    "BruteForceSampler": "brute_force",
}
"""Samplers of Optuna that cannot be made again for each proposal, and our samplers that replace
them.
"""


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
        key = "search.optuna.sampler"
        if not is_path(sampler):
            raise SpecError(
                key, sampler, "is not an import path", "write optuna.samplers:TPESampler"
            )
        chosen = {} if options is None else options
        if not isinstance(chosen, dict):
            raise SpecError(
                "search.optuna.options", options, "is not a map of options", "write {option: value}"
            )
        if "seed" in chosen:
            hint = "write seed: at the top of the specification"
            raise SpecError(
                "search.optuna.options.seed", chosen["seed"], "is given by the experiment", hint
            )
        self._class = usable(imported(sampler, key=key), sampler, key)
        self._options = chosen
        try:
            with warnings.catch_warnings():  # experimental options are the user's choice
                warnings.simplefilter("ignore")
                self._made(0)
        except (TypeError, ValueError) as error:
            raise SpecError(
                "search.optuna.options", chosen, f"are refused: {error}", "see its documentation"
            ) from error
        super().__init__(setting, self._made)

    def _made(self, seed: int) -> BaseSampler:
        sampler: BaseSampler = self._class(**self._options, seed=seed)
        return sampler


class TpeStudy(StudySampler):
    """Optuna's TPESampler in a study: TPE for several metrics (Ozaki et al., GECCO 2020) and
    constraints.

    The options are those of `Tpe`, with Optuna's defaults; here `multivariate` None means yes for
    one metric and no for several.
    """

    def __init__(self, setting: Setting, **options: Any) -> None:
        if options.get("group") and options.get("multivariate") is None:
            options = options | {"multivariate": True}
        self._options = options
        super().__init__(setting, self._made)

    def _made(self, seed: int) -> BaseSampler:
        from optuna.samplers import TPESampler

        return TPESampler(**self._options, seed=seed)


def usable(found: Any, path: str, key: str) -> Any:
    """Return the class `found` at a path if it can be made again for each proposal. Raises
    SpecError if not.
    """
    from optuna.samplers import BaseSampler

    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        raise SpecError(
            key, path, "is no sampler of Optuna", "it must derive from optuna.samplers.BaseSampler"
        )
    for base in found.__mro__:
        if base.__name__ in OURS and base.__module__.startswith("optuna."):
            problem = "cannot be made anew for each proposal"
            raise SpecError(key, path, problem, f"write search: {OURS[base.__name__]}")
    parameters = inspect.signature(found).parameters.values()
    if not any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise SpecError(
            key,
            path,
            "takes no seed, so its proposals could not be repeated",
            "give it an argument `seed`",
        )
    if not found.after_trial.__module__.startswith("optuna."):
        hint = (
            "note what must be kept while it proposes, in the trial's or the study's system"
            " attributes"
        )
        raise SpecError(key, path, "has an after_trial of its own, which is not called", hint)
    return found
