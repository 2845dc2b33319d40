"""Optuna's TPE over our columns. Private names of Optuna are in `optuna_private.py`.

Optuna's own code: the study and its one trial, the random proposals at the start, the densities of
the good trials and of the others, the candidates, the choice among them. Ours: which trials are
good (`tpe_history.py`, as in Optuna until trials are ended early), further random
proposals in that case, the subspaces, and with more than `EXACT` other trials the evaluation of the
two densities at the candidates (`FastDensity`), which is the same function up to rounding. No
trial is left out at any size. `tests/unit/test_tpe_beside_optuna.py` compares with plain Optuna; a
version that moves one of the names used here fails there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
from scipy.special import log_ndtr, ndtr

from regrow.search.chance import uniform_draw
from regrow.search.mode import Mode
from regrow.search.samplers.base import Result
from regrow.search.samplers.cube import modelled
from regrow.search.samplers.optuna_private import (
    RELATIVE_PARAMS_KEY,
    Categorical,
    ColumnTpe,
    Kernels,
    ParzenEstimator,
    TruncatedLogNormal,
    TruncatedNormal,
    unique_pairs,
)
from regrow.search.samplers.optuna_study_model import STUDY, ProposedTrial, StudyStorage, quiet
from regrow.search.samplers.tpe_axes import axis
from regrow.search.samplers.tpe_history import BudgetHistory, Floats, TpeHistory
from regrow.search.space import Space
from regrow.search.space.domains import Json

EXACT = 200
"""Up to this many other trials Optuna computes the densities, bit for bit; 30 ms at 1,000."""
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class TpeModel:
    """The results so far, and the trials to propose from them."""

    def __init__(
        self, space: Space, mode: Mode, options: dict[str, Any], random_fraction: float | None
    ) -> None:
        """Make an empty model. `random_fraction`: of the proposals once a trial was ended early;
        None for Optuna's order of trials, without such proposals.
        """
        self._axes = {p.name: axis(p.domain) for p in modelled(space)}
        self._distributions = {name: a.distribution for name, a in self._axes.items()}
        self._options, self._random_fraction = options, random_fraction
        coordinate = {name: a.coordinate for name, a in self._axes.items()}
        self._history = TpeHistory(coordinate, mode)
        if random_fraction is not None:
            self._history = BudgetHistory(coordinate, mode, options["n_startup_trials"])
        self._storage = StudyStorage((mode,))

    def tell(self, result: Result) -> None:
        """Add a result. Raises ValueError as `TpeHistory.tell` does."""
        self._history.tell(result, _shared(result.state) if result.status == "running" else {})

    @contextmanager
    def trial(self, number: int, seed: int) -> Iterator[ProposedTrial]:
        """Open a trial to suggest parameters for, in the order of `Space.flat`."""
        endless = {"n_startup_trials": math.inf} if self._explores(seed) else {}
        self._storage.open(0, {})
        try:
            with quiet():
                options = self._options | endless | {"seed": seed}
                sampler = ColumnTpe(self._history, self._distributions, number, _kind, **options)
                study = optuna.Study(STUDY, self._storage, sampler, optuna.pruners.NopPruner())
                yield ProposedTrial(study, self._axes, self._storage, {})
        finally:
            self._storage.close()

    def _explores(self, seed: int) -> bool:
        """Return whether the proposal is random regardless of results."""
        early = isinstance(self._history, BudgetHistory) and self._history.early()
        drawn = uniform_draw(seed, "tpe: a random configuration")
        return early and drawn < (self._random_fraction or 0.0)


def _kind(others: int) -> type[ParzenEstimator]:
    return ParzenEstimator if others <= EXACT else FastDensity


def _shared(state: Mapping[str, Json]) -> dict[str, float]:
    """Return the coordinates that a proposal drew at once, which Optuna cuts into pieces."""
    pieces: list[str] = []
    while (piece := state.get(f"{RELATIVE_PARAMS_KEY}:{len(pieces)}")) is not None:
        pieces.append(piece)
    return {name: float(value) for name, value in json.loads("".join(pieces) or "{}").items()}


class FastDensity(ParzenEstimator):
    """A Parzen estimator whose `log_pdf` is Optuna's up to rounding (1e-9 relative).

    It is for many trials at few candidates. Optuna's spends its time in the tails of discrete
    parameters, which it computes one at a time in Python (0.1 s of 0.15 s for each proposal with
    10,000 trials), and in building arrays of candidates x trials x parameters.
    """

    def log_pdf(self, samples_dict: dict[str, Floats]) -> Floats:
        """Return the log density at each sample, -inf where the density is 0."""
        weights = self.weights
        total = np.zeros((len(next(iter(samples_dict.values()))), len(weights)))
        for name, kernels in self.kernels():
            _add_log_pdf(total, kernels, samples_dict[name])
        total += np.log(weights)  # added last, as Optuna does: with only categories no bit differs
        largest = total.max(axis=1)
        largest[np.isneginf(largest)] = 0.0
        total -= largest[:, None]
        np.exp(total, out=total)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(total.sum(axis=1)) + largest)


def _add_log_pdf(total: Floats, kernels: Kernels, x: Floats) -> None:
    """Add to `total` (samples x kernels) the log density of one parameter."""
    if isinstance(kernels, Categorical):
        total += np.log(kernels.weights.T)[x.astype(np.intp)]
        return
    mu, sigma, low, high = kernels.mu, kernels.sigma, kernels.adapted_low, kernels.adapted_high
    if isinstance(kernels, (TruncatedNormal, TruncatedLogNormal)):
        x = np.log(x) if kernels.is_log else x
        total -= log_mass((low - mu) / sigma, (high - mu) / sigma) + np.log(sigma) + _HALF_LOG_TAU
        z = x[:, None] - mu
        z *= math.sqrt(0.5) / sigma
        z *= z
        total -= z
        total[(x < low) | (x > high)] = -np.inf
        return
    # Discrete: few different values, so each pair of a candidate and a kernel is computed once and
    # looked up.
    half = kernels.step / 2
    values, of_sample = np.unique(x, return_inverse=True)
    left, right = values - half, values + half
    if kernels.is_log:
        left, right = np.log(left), np.log(right)
    mu, sigma, of_kernel = unique_pairs(mu, sigma)
    mass = log_mass((left[:, None] - mu) / sigma, (right[:, None] - mu) / sigma)
    mass -= log_mass((low - mu) / sigma, (high - mu) / sigma)
    total += mass[:, of_kernel][of_sample]


def log_mass(a: Floats, b: Floats) -> Floats:
    """Return the log of the standard normal's mass from `a` to `b`, precise in both tails."""
    # large masses: nothing cancels, and 3 times faster
    if a.max() <= 0.0 <= b.min() and (b - a).min() >= 1.0:
        return np.asarray(np.log(ndtr(b) - ndtr(a)))
    mirrored = a > 0
    near, far = np.where(mirrored, -a, b), np.where(mirrored, -b, a)
    log_near = log_ndtr(near)
    return np.asarray(log_near + np.log1p(-np.exp(log_ndtr(far) - log_near)))
