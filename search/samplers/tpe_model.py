"""Optuna's TPE over our columns. What it does not publish of itself is named in `optuna_private.py`.

What is Optuna's own code: the study and its one trial, the random proposals at the start, the densities of
the good trials and of the others, the candidates, the choice among them. What is ours: which trials are good
(`tpe_history.py` as in Optuna, `tpe_budget.py` where trials are ended early), further random proposals where they are, the
subspaces, and with more than `EXACT` other trials the evaluation of the two
densities at the candidates (`tpe_density.py`), which is the same function up to rounding. No trial is left
out at any size. `tests/unit/test_tpe_beside_optuna.py` compares with plain Optuna; a version that moves one of the
names used here fails there.
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
from regrow.search.samplers.optuna_private import RELATIVE_PARAMS_KEY, OpenTpe, ParzenEstimator, default_gamma
from regrow.search.samplers.tpe_axes import Axis, axis
from regrow.search.samplers.tpe_budget import BudgetHistory
from regrow.search.samplers.tpe_density import FastDensity
from regrow.search.samplers.tpe_history import TpeHistory
from regrow.search.space import Space
from regrow.search.space.domains import Constant, Grid, Json

EXACT = 200
"""Up to so many other trials the densities are computed by Optuna itself, bit for bit; at 1,000 that costs
30 ms."""


class Model:
    """The told history, and the trials to propose from it."""

    def __init__(self, space: Space, mode: Mode, options: dict[str, Any], random_fraction: float | None) -> None:
        """`random_fraction`: of the proposals once a trial was ended early; None for trials in Optuna's order, and none."""
        self._axes = {p.name: axis(p.domain) for p in space.flat if not isinstance(p.domain, (Constant, Grid))}
        self._options, self._random_fraction = options, random_fraction
        coordinate = {name: a.coordinate for name, a in self._axes.items()}
        self._history = (
            TpeHistory(coordinate, mode) if random_fraction is None
            else BudgetHistory(coordinate, mode, options["n_startup_trials"])
        )
        self._empty = _empty_storage(mode)

    def tell(self, result: Result) -> None:
        """Takes in a result. Raises ValueError as `TpeHistory.tell` does."""
        self._history.tell(result, _shared(result.state) if result.status == "running" else {})

    @contextmanager
    def trial(self, number: int, seed: int) -> Iterator[ProposedTrial]:
        """A trial to suggest parameters for, in the order of `Space.flat`."""
        storage = copy.deepcopy(self._empty)  # 0.1 ms; a study that is kept would keep every trial ever asked
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # of `group`
            options = self._options | {"n_startup_trials": math.inf} if self._explores(seed) else self._options
            sampler = _ColumnTPE(self._history, self._axes, number, seed, options)
            study = optuna.load_study(study_name=_STUDY, storage=storage, sampler=sampler, pruner=optuna.pruners.NopPruner())
        yield ProposedTrial(study, self._axes)

    def _explores(self, seed: int) -> bool:
        """Whether the proposal is a random one whatever is known."""
        early = isinstance(self._history, BudgetHistory) and self._history.early()
        return early and uniform_draw(seed, "tpe: a random configuration") < (self._random_fraction or 0.0)


class ProposedTrial:
    """One Optuna trial, in terms of our domains."""

    def __init__(self, study: optuna.Study, axes: Mapping[str, Axis]) -> None:
        self._study = study
        self._trial = study.ask()
        self._axes = axes

    def suggest(self, name: str) -> Json:
        """The value of a parameter that is not a constant nor under `grid`."""
        return self._axes[name].suggest(self._trial, name)

    @property
    def state(self) -> dict[str, Json]:
        """What Optuna noted at the trial: the coordinates it drew at once, for other proposals to keep away
        from."""
        return dict(self._study.get_trials(deepcopy=False)[0].system_attrs)


class _ColumnTPE(OpenTpe):
    """TPESampler with the history taken from columns in place of a study's trials."""

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
        """What is drawn together: the parameters that every trial has or, with `group`, each maximal
        group."""
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
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial, space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Nothing at first, then TPE for all of them at once."""
        return {} if not space or self._history.ended() < self.startup_trials else self._proposed(space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """What is not drawn together with others: random at first, then TPE for this parameter alone."""
        if self._history.ended() < self.startup_trials:
            return self.at_random(study, trial, param_name, param_distribution)
        return self._proposed({param_name: param_distribution})[param_name]

    def _proposed(self, space: dict[str, BaseDistribution]) -> dict[str, Any]:
        below, above = self._history.split(default_gamma(self._history.ended()), liar=self.liar, number=self._number)
        others = self._history.observed(space, above)
        kind = ParzenEstimator if len(next(iter(others.values()))) <= EXACT else FastDensity
        good = self.density(kind, self._history.observed(space, below), space)
        best = self.best(good, self.density(kind, others, space))
        return {name: d.to_external_repr(best[name]) for name, d in space.items()}


_STUDY = "regrow"


def _empty_storage(mode: Mode) -> optuna.storages.InMemoryStorage:
    """A storage with one empty study. Optuna logs its creation, at a level that belongs to the user's
    process."""
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
    """The coordinates that a proposal drew at once; Optuna notes them as JSON, cut into pieces."""
    pieces: list[str] = []
    while (piece := state.get(f"{RELATIVE_PARAMS_KEY}:{len(pieces)}")) is not None:
        pieces.append(piece)
    return {name: float(value) for name, value in json.loads("".join(pieces) or "{}").items()}
