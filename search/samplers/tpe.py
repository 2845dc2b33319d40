"""The sampler "tpe", which implements the port. Optuna and numpy are imported only at the first
`ask`.

A specification is validated by making its sampler, also in processes that never ask it (the command
line, a worker), where importing Optuna would take half a second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from regrow.search.errors import SpecError
from regrow.search.options import check_whole, check_within
from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.grid import Cells
from regrow.search.samplers.optuna_study import TpeStudy
from regrow.search.space.domains import Grid
from regrow.search.space.setting import Setting

if TYPE_CHECKING:
    from regrow.search.samplers.tpe_model import TpeModel


class Tpe:
    """Optuna's TPESampler (Watanabe, 2023, arXiv:2304.11127), corrected for schedulers that end
    trials early.

    As long as no trial was ended early, and always with `like_optuna`, each proposal equals that of
    a plain Optuna study with the same seed and the same trials: `tpe_model.py` lists what is
    Optuna's and what is ours. Optuna counts all trials that ran to their end as good, whatever they
    reached. Here, once a scheduler stopped or paused a trial, the good ones are the best 15 % at
    the largest step that at least `n_startup_trials` reached (as in BOHB, Falkner et al., ICML
    2018), all others are the bad ones, and `random_fraction` of the proposals are random.

    Parameters under `grid` are not modelled: trial n takes cell n mod the cells. The other options
    are Optuna's, with its defaults: random proposals until `n_startup_trials` have ended,
    `n_ei_candidates` candidates for each proposal, `multivariate` (None: Optuna decides, which is
    yes), `group`ed subspaces for conditional spaces, `constant_liar`, which avoids running trials.
    With several metrics (Ozaki et al., GECCO 2020) or constraints the proposals are those of an
    unmodified Optuna study, which is slower: 0.1 s at 1,000 trials.
    """

    several = True

    def __init__(
        self,
        setting: Setting,
        *,
        n_startup_trials: int = 10,
        n_ei_candidates: int = 24,
        multivariate: bool | None = None,
        group: bool = False,
        constant_liar: bool = True,
        random_fraction: float = 0.2,
        like_optuna: bool = False,
    ) -> None:
        check_whole("n_startup_trials", n_startup_trials, 0)
        check_whole("n_ei_candidates", n_ei_candidates, 1)
        if not isinstance(multivariate, bool | None):
            raise SpecError("multivariate", multivariate, "is not a bool", "write true or false")
        if group and multivariate is False:
            raise SpecError("group", group, "needs multivariate", "write multivariate: true")
        check_within("random_fraction", random_fraction, 0, 1, "write 0.2")
        self._random_fraction = None if like_optuna else random_fraction
        self._options = {
            "n_startup_trials": n_startup_trials,
            "n_ei_candidates": n_ei_candidates,
            "multivariate": multivariate,
            "group": group,
            "constant_liar": constant_liar,
        }
        # Several metrics and constraints are handled by Optuna's study instead of our columns.
        several = len(setting.modes) > 1 or setting.constraints > 0
        self._study = TpeStudy(setting, **self._options) if several else None
        self._space = setting.space
        self._mode = setting.mode
        self._cells = Cells(setting.space, Grid)
        self._untold: list[Result] = []
        self._earlier = 0
        self._model: TpeModel | None = None

    def ask(self, number: int, seed: int) -> Proposal | None:
        """See Sampler; never None. `seed` counts modulo 2**32, the range of numpy's generator."""
        if self._study is not None:
            return self._study.ask(number, seed)
        if self._model is None:
            from regrow.search.samplers.tpe_model import TpeModel

            self._model = TpeModel(self._space, self._mode, self._options, self._random_fraction)
            # Results of earlier experiments, whose numbers are -1, -2, ..., are the first rows.
            self._earlier = sum(result.number < 0 for result in self._untold)
        for result in self._untold:
            row = result.number + self._earlier if result.number >= 0 else -1 - result.number
            self._model.tell(replace(result, number=row))
        self._untold.clear()
        with self._model.trial(number + self._earlier, seed % 2**32) as trial:
            config = self._cells.config(number, lambda p: trial.suggest(p.name))
            return Proposal(config=config, state=trial.noted)

    def tell(self, result: Result) -> None:
        """See Sampler. Results of earlier experiments must come before the first `ask`.

        A "running" result is kept for `constant_liar`; "failed", and "done" without a (finite or
        infinite) value, are ignored. Raises ValueError at the next `ask` if a trial ended in two
        different ways.
        """
        if self._study is not None:
            self._study.tell(result)
        else:
            self._untold.append(result)
