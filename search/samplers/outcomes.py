"""The probability that a trial does not fail, by the point of its configuration in the unit cube.

A Gaussian process over outcomes, 1 and -1, whose sign is the class, its noise included: without
that, an unexplored place would seem better than all others if most trials fail. The expected
improvement is multiplied by this probability (Gardner et al., ICML 2014, section 3.1; Gelbart,
Snoek and Adams, UAI 2014). If failures do not depend on parameters, the process takes them for
noise, and the probability is about the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from regrow.search.samplers.curve_process import (
    Floats,
    Hyperparameters,
    Observations,
    Process,
    fit,
)

MOST: Final = 200
"""Most outcomes that are used: failures up to half of it, and others. If there are more, a hash of
their numbers selects them.
"""
MOST_FITTED: Final = 80
"""Most outcomes that hyperparameters are fitted to."""


class Outcomes:
    """Which trials failed. It caches the last fit, which its data alone determine."""

    def __init__(self, choice: npt.NDArray[np.bool_]) -> None:
        self._choice = choice
        self._fitted: tuple[bytes, Hyperparameters] | None = None

    def log_success(
        self,
        points: Mapping[int, Sequence[float]],
        failed: AbstractSet[int],
        others: AbstractSet[int],
    ) -> Callable[[Floats], Floats]:
        """Return a function from points (m, d) of the unit cube to the logarithm of the probability
        that a trial there does not fail, (m,). At least one trial has failed.
        """
        bad = sorted(failed, key=_mixed)[
            : MOST if not others else max(MOST // 2, MOST - len(others))
        ]
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

    def _seen(
        self,
        numbers: Sequence[int],
        points: Mapping[int, Sequence[float]],
        failed: AbstractSet[int],
    ) -> Observations:
        return Observations(
            points=np.array([points[number] for number in numbers]),
            times=np.ones(len(numbers)),
            values=np.array([-1.0 if number in failed else 1.0 for number in numbers]),
            choice=self._choice,
        )


def _mixed(number: int) -> int:
    return number * 2654435761 % 2**32
