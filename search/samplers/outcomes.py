"""Where trials fail: how probable it is that one does not, by where its configuration lies in the unit cube.

A Gaussian process over outcomes, 1 and -1, whose sign is the class, its noise included: without that, a place of which nothing is
known would seem better than all others wherever most trials fail. The expected improvement is multiplied by this probability
(Gardner et al., ICML 2014, section 3.1; Gelbart, Snoek and Adams, UAI 2014). Where failures have nothing to do with parameters
the process takes them for noise, and the probability is about the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from regrow.search.samplers.curve_process import Hyperparameters, Observations, Process, fit

Floats = npt.NDArray[np.float64]

MOST: Final = 200
"""Outcomes that count at most: all failures up to half of it, and others; which ones is chance, by a hash of their numbers."""
MOST_FITTED: Final = 80
"""Outcomes that hyperparameters are fitted to at most."""


class Outcomes:
    """What has failed and what has not. It keeps the hyperparameters of the last fit, which its data alone determine."""

    def __init__(self, choice: npt.NDArray[np.bool_]) -> None:
        self._choice = choice
        self._fitted: tuple[bytes, Hyperparameters] | None = None

    def log_success(
        self, points: Mapping[int, Sequence[float]], failed: AbstractSet[int], others: AbstractSet[int]
    ) -> Callable[[Floats], Floats]:
        """Given trials that have failed, at least one, and others: points (m, d) of the unit cube to the logarithm of the
        probability that a trial there does not fail, (m,)."""
        bad = sorted(failed, key=_mixed)[: MOST if not others else max(MOST // 2, MOST - len(others))]
        good = sorted(others - failed, key=_mixed)[: MOST - len(bad)]
        numbers = sorted([*bad, *good])
        fitted = sorted(sorted(numbers, key=_mixed)[:MOST_FITTED])
        data = repr([(number, number in failed) for number in fitted]).encode()
        if self._fitted is None or self._fitted[0] != data:
            self._fitted = data, fit(self._seen(fitted, points, failed))
        process = Process(self._seen(numbers, points, failed), self._fitted[1])
        noise = np.exp(self._fitted[1].noise)

        def found(asked: Floats) -> Floats:
            mean, spread = process.at_the_end(asked)
            return np.asarray(log_ndtr(mean / np.sqrt(spread**2 + noise)))

        return found

    def _seen(self, numbers: Sequence[int], points: Mapping[int, Sequence[float]], failed: AbstractSet[int]) -> Observations:
        return Observations(
            points=np.array([points[number] for number in numbers]), times=np.ones(len(numbers)),
            values=np.array([-1.0 if number in failed else 1.0 for number in numbers]), choice=self._choice,
        )


def _mixed(number: int) -> int:
    return number * 2654435761 % 2**32
