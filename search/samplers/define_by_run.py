"""The sampler "define_by_run": trials declare their parameters while they run. Optuna is imported
at the first proposal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from regrow.search.errors import SpecError
from regrow.search.one_thread import on_one_thread
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.optuna_study import usable
from regrow.search.space.domains import Json
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from regrow.search.samplers.define_by_run_model import DefinedModel

_OWN = "optuna.samplers:"


class DefineByRun:
    """Any sampler of `optuna.samplers`, by its class's name, for an objective that calls
    `trial.suggest_...` as it runs.

    As in Optuna: parameters that the sampler draws together (TPE: those that all trials so far
    have, as a joint density) are drawn when the trial is proposed and stored in its state. Every
    other parameter is drawn alone when the trial asks for it (TPE: by the densities of that
    parameter in good and in other trials), from the results at that time. `options` are the class's
    keyword arguments.
    """

    several = True

    def __init__(
        self,
        setting: Setting,
        *,
        sampler: str = "TPESampler",
        options: dict[str, Json] | None = None,
    ) -> None:
        if not sampler.isidentifier():
            raise SpecError(
                "sampler",
                sampler,
                "is no name of a class",
                "write TPESampler, or another one of optuna.samplers",
            )
        if setting.space.parameters:
            hint = "leave space empty, or take another search"
            raise SpecError(
                "space", setting.space.to_json(), "is told by trials while they run", hint
            )
        self._setting, self._class, self._options = setting, sampler, options or {}
        self._untold: list[Result] = []
        self._made: DefinedModel | None = None

    @on_one_thread
    def ask(self, number: int, seed: int) -> Proposal:
        """Return an empty configuration; the values drawn together are in `Proposal.state`."""
        return Proposal(config={}, state=self._model.begin(number, seed % 2**32))

    @on_one_thread
    def suggest(
        self, name: str, distribution: Mapping[str, Json], trial: Result, seed: int
    ) -> Json:
        """See Suggesting."""
        return self._model.suggest(name, distribution, trial, seed % 2**32)

    def tell(self, result: Result) -> None:
        """See StudySampler."""
        self._untold.append(result)

    @property
    def _model(self) -> DefinedModel:
        if self._made is None:
            from regrow.search.samplers.define_by_run_model import DefinedModel

            self._made = DefinedModel(
                self._setting, self._sampler, stopped_count=len(self._setting.modes) > 1
            )
        for result in self._untold:
            self._made.tell(result)
        self._untold.clear()
        return self._made

    def _sampler(self, seed: int) -> BaseSampler:
        from regrow.search.options import imported

        key = "search.define_by_run.sampler"
        found: Any = usable(imported(f"{_OWN}{self._class}", key=key), self._class, key)
        made: BaseSampler = found(**self._options, seed=seed)
        return made
