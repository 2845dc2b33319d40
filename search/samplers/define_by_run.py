"""The sampler "define_by_run": trials declare their parameters while they run. Optuna is imported
at the first proposal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from regrow.search.errors import SpecError
from regrow.search.one_thread import on_one_thread
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.optuna_study import StudySampler, check_usable
from regrow.search.space.domains import Json
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from regrow.search.samplers.define_by_run_model import DefinedModel

_TELLING = ("BruteForceSampler", "CmaEsSampler", "QMCSampler")
"""Samplers that need not know the space beforehand, as trials tell it."""


class DefineByRun(StudySampler):
    """Any sampler of `optuna.samplers`, by its class's name, for an objective that calls
    `trial.suggest_...` as it runs.

    As in Optuna: parameters that the sampler draws together (TPE: those that all trials so far
    have, as a joint density) are drawn when the trial is proposed and stored in its state. Every
    other parameter is drawn alone when the trial asks for it (TPE: by the densities of that
    parameter in good and in other trials), from the results at that time. `options` are the class's
    keyword arguments; `fixed` are values of parameters that are not drawn. QMCSampler gets the
    experiment's seed, as its points are those of one sequence. CmaEsSampler notes which trials a
    generation was made of. BruteForceSampler ends the experiment when all was tried.

    `external`: the sampler is an object of the trainable's, which answers by events
    (`external.py`); `sampler` is the name of its class, for people.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        sampler: str = "TPESampler",
        options: dict[str, Json] | None = None,
        fixed: dict[str, Json] | None = None,
        external: bool = False,
    ) -> None:
        if not sampler.isidentifier():
            hint = "write TPESampler, or another one of optuna.samplers"
            raise SpecError("sampler", sampler, "is no name of a class", hint)
        if setting.space.parameters:
            hint = "leave space empty, or take another search"
            problem = "is defined by trials while they run"
            raise SpecError("space", setting.space.to_json(), problem, hint)
        super().__init__(setting, f"optuna.samplers:{sampler}", options or {})
        self._class, self._fixed = sampler, dict(fixed or {})

    @on_one_thread
    def ask(self, number: int, seed: int) -> Proposal | None:
        """Return an empty configuration; the values drawn together are in `Proposal.state`. None if
        brute force has tried all.
        """
        if self._class == "BruteForceSampler" and self._defined().all_tried(number):
            return None
        return Proposal(config={}, state=self._defined().begin(number, seed % 2**32))

    @on_one_thread
    def suggest(
        self, name: str, distribution: Mapping[str, Json], trial: Result, seed: int
    ) -> Json:
        """See Suggesting."""
        return self._defined().suggest(name, distribution, trial, seed % 2**32)

    def _made(self, seed: int) -> BaseSampler:
        from optuna.samplers import PartialFixedSampler, QMCSampler, RandomSampler

        from regrow.search.samplers.optuna_private import FoldedCmaEs

        given = {"warn_independent_sampling": False, **self._options}
        given["independent_sampler"] = RandomSampler(seed=seed)
        found: BaseSampler
        if self._class == "QMCSampler":
            found = QMCSampler(**given, seed=self._setting.seed)
        elif self._class == "CmaEsSampler":
            found = FoldedCmaEs(**given, seed=seed)
        else:
            found = super()._made(seed)
        return PartialFixedSampler(self._fixed, found) if self._fixed else found

    def _defined(self) -> DefinedModel:
        return cast("DefinedModel", self._study())

    def _begun(self) -> DefinedModel:
        from regrow.search.samplers.define_by_run_model import DefinedModel

        check_usable(self._path, self._class, "search.define_by_run.sampler", _TELLING)
        return DefinedModel(self._setting, self._made, stopped_count=self._stopped_count)
