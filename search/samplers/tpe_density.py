"""The density of many trials at few candidates, computed fast. Knows nothing about searching.

Optuna's `ParzenEstimator` is the same mixture of products. For thousands of trials its `log_pdf`
spends its time in the tails of discrete parameters, which it computes one at a time in Python (0.1
s of 0.15 s for each proposal with 10,000 trials), and in building arrays of candidates x trials x
parameters.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from regrow.search.samplers.optuna_private import (
    Categorical,
    Kernels,
    ParzenEstimator,
    TruncatedLogNormal,
    TruncatedNormal,
    unique_pairs,
)
from regrow.search.samplers.tpe_history import Floats

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class FastDensity(ParzenEstimator):
    """A Parzen estimator whose `log_pdf` is Optuna's up to rounding (1e-9 relative)."""

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
