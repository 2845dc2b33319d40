"""Optuna's TPE over our columns. Private names of Optuna are in `optuna_private.py`.

Optuna's own code: the study and its one trial, the random proposals at the start, the densities of
the good trials and of the others, the candidates, the choice among them. Ours: which trials are
good (`tpe_history.py` as in Optuna, `tpe_budget.py` if trials are ended early), further random
proposals in that case, the subspaces, and with more than `EXACT` other trials the evaluation of the
two densities at the candidates (`tpe_density.py`), which is the same function up to rounding. No
trial is left out at any size. `tests/unit/test_tpe_beside_optuna.py` compares with plain Optuna; a
version that moves one of the names used here fails there.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning

from regrow.search.chance import uniform_draw
from regrow.search.mode import Mode
from regrow.search.samplers.base import Result
from regrow.search.samplers.optuna_private import (
    RELATIVE_PARAMS_KEY,
    OpenTpe,
    ParzenEstimator,
    default_gamma,
)
from regrow.search.samplers.tpe_axes import Axis, axis
from regrow.search.samplers.tpe_budget import BudgetHistory
from regrow.search.samplers.tpe_density import FastDensity
from regrow.search.samplers.tpe_history import TpeHistory
from regrow.search.space import Space
from regrow.search.space.domains import Constant, Grid, Json

EXACT = 200
"""Up to this many other trials Optuna computes the densities, bit for bit. At 1,000 that takes 30
ms.
"""


class Model:
    """The results so far, and the trials to propose from them."""

    def __init__(
        self, space: Space, mode: Mode, options: dict[str, Any], random_fraction: float | None
    ) -> None:
        """Make an empty model. `random_fraction`: of the proposals once a trial was ended early;
        None for Optuna's order of trials, without such proposals.
        """
        self._axes = {
            p.name: axis(p.domain) for p in space.flat if not isinstance(p.domain, (Constant, Grid))
        }
        self._options, self._random_fraction = options, random_fraction
        coordinate = {name: a.coordinate for name, a in self._axes.items()}
        self._history = (
            TpeHistory(coordinate, mode)
            if random_fraction is None
            else BudgetHistory(coordinate, mode, options["n_startup_trials"])
        )
        self._empty = _empty_storage(mode)

    def tell(self, result: Result) -> None:
        """Add a result. Raises ValueError as `TpeHistory.tell` does."""
        self._history.tell(result, _shared(result.state) if result.status == "running" else {})

    @contextmanager
    def trial(self, number: int, seed: int) -> Iterator[ProposedTrial]:
        """Open a trial to suggest parameters for, in the order of `Space.flat`."""
        # 0.1 ms; a reused study would keep every trial ever asked
        storage = copy.deepcopy(self._empty)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # `group` is experimental
            options = (
                self._options | {"n_startup_trials": math.inf}
                if self._explores(seed)
                else self._options
            )
            sampler = _ColumnTPE(self._history, self._axes, number, seed, options)
            study = optuna.load_study(
                study_name=_STUDY,
                storage=storage,
                sampler=sampler,
                pruner=optuna.pruners.NopPruner(),
            )
        yield ProposedTrial(study, self._axes)

    def _explores(self, seed: int) -> bool:
        """Return whether the proposal is random regardless of results."""
        early = isinstance(self._history, BudgetHistory) and self._history.early()
        return early and uniform_draw(seed, "tpe: a random configuration") < (
            self._random_fraction or 0.0
        )


class ProposedTrial:
    """One Optuna trial, in terms of our domains."""

    def __init__(self, study: optuna.Study, axes: Mapping[str, Axis]) -> None:
        self._study = study
        self._trial = study.ask()
        self._axes = axes

    def suggest(self, name: str) -> Json:
        """Return the value of a parameter that is neither a constant nor under `grid`."""
        return self._axes[name].suggest(self._trial, name)

    @property
    def state(self) -> dict[str, Json]:
        """The attributes that Optuna set on the trial: the coordinates drawn at once, which other
        proposals avoid.
        """
        return dict(self._study.get_trials(deepcopy=False)[0].system_attrs)


class _ColumnTPE(OpenTpe):
    """TPESampler with the history in columns instead of a study's trials."""

    def __init__(
        self,
        history: TpeHistory,
        axes: Mapping[str, Axis],
        number: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(seed=seed, **options)
        self._history = history
        self._axes = axes
        self._number = number

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return what is drawn together: the parameters that every trial has or, with `group`, each
        maximal group.
        """
        if not self.is_joint(study):
            return {}
        activities = list(self._history.activities())
        spaces: Sequence[Mapping[str, BaseDistribution]] | None
        spaces = self.groups({n: self._axes[n].distribution for n in names} for names in activities)
        if spaces is None:
            common = frozenset.intersection(*activities) if activities else frozenset()
            spaces = [{name: self._axes[name].distribution for name in common}]
        return {name: d for space in spaces for name, d in sorted(space.items()) if not d.single()}

    def sample_together(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return nothing during startup, then TPE's values for all parameters at once."""
        return (
            {}
            if not space or self._history.ended() < self.startup_trials
            else self._proposed(space)
        )

    def sample_independent(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the value of a parameter that is drawn alone: random during startup, then
        TPE's.
        """
        if self._history.ended() < self.startup_trials:
            return self.at_random(study, trial, param_name, param_distribution)
        return self._proposed({param_name: param_distribution})[param_name]

    def _proposed(self, space: dict[str, BaseDistribution]) -> dict[str, Any]:
        below, above = self._history.split(
            default_gamma(self._history.ended()), liar=self.liar, number=self._number
        )
        others = self._history.observed(space, above)
        kind = ParzenEstimator if len(next(iter(others.values()))) <= EXACT else FastDensity
        good = self.density(kind, self._history.observed(space, below), space)
        best = self.best(good, self.density(kind, others, space))
        return {name: d.to_external_repr(best[name]) for name, d in space.items()}


_STUDY = "regrow"


def _empty_storage(mode: Mode) -> optuna.storages.InMemoryStorage:
    """Return a storage with one empty study. Optuna logs its creation, at a level that belongs to
    the user's process.
    """
    storage = optuna.storages.InMemoryStorage()
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        direction = optuna.study.StudyDirection["MINIMIZE" if mode == "min" else "MAXIMIZE"]
        optuna.create_study(study_name=_STUDY, storage=storage, direction=direction)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return storage


def _shared(state: Mapping[str, Json]) -> dict[str, float]:
    """Return the coordinates that a proposal drew at once. Optuna stores them as JSON, cut into
    pieces.
    """
    pieces: list[str] = []
    while (piece := state.get(f"{RELATIVE_PARAMS_KEY}:{len(pieces)}")) is not None:
        pieces.append(piece)
    return {name: float(value) for name, value in json.loads("".join(pieces) or "{}").items()}
