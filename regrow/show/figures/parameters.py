"""Parameters as axes: which of them vary, and where a value lies on a linear scale, a logarithmic
scale or among categories.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.search.history import History, TrialRecord
from regrow.search.space.domains import Choice, Constant, Float, Int
from regrow.show.figures import series


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A parameter that varies. `categories`: the values of a non-numeric one, else None."""

    name: str
    log: bool
    categories: tuple[Any, ...] | None

    def place(self, config: Mapping[str, Any]) -> float | None:
        """Return the position of the configuration: a number (its decimal logarithm on a
        logarithmic axis), or the index of a category.

        None if the parameter is inactive.
        """
        if self.name not in config:
            return None
        value = config[self.name]
        if self.categories is not None:
            return (
                float(self._texts().index(_text(value))) if _text(value) in self._texts() else None
            )
        return math.log10(value) if self.log and value > 0 else float(value)

    def labels(self) -> list[str]:
        """Return the categories as texts."""
        return self._texts()

    def _texts(self) -> list[str]:
        return [_text(value) for value in self.categories or ()]


def axes(history: History, trials: Sequence[TrialRecord]) -> list[Axis]:
    """Return the parameters that differ between the trials (or that only some of them have), in the
    order of the space.
    """
    configs = [series.settings(history, trial) for trial in trials]
    found = []
    for parameter in history.spec.space.parameters:
        name, domain = parameter.name, parameter.domain
        values = [config[name] for config in configs if name in config]
        several = len({_text(value) for value in values}) > 1
        if not values or not (
            several or (len(values) < len(configs) and not isinstance(domain, Constant))
        ):
            continue
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if isinstance(domain, Choice):
            numbers = all(
                isinstance(v, int | float) and not isinstance(v, bool) for v in domain.values
            )
            values_of = sorted(domain.values) if numbers else domain.values
            found.append(Axis(name=name, log=False, categories=tuple(values_of)))
        elif numeric:
            log = isinstance(domain, Float | Int) and domain.log and min(values) > 0
            found.append(Axis(name=name, log=log, categories=None))
        else:
            found.append(
                Axis(name=name, log=False, categories=tuple(dict.fromkeys(map(_text, values))))
            )
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def decades(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return positions and labels of ticks on a logarithmic axis, whose positions are decimal
    logarithms.
    """
    first, last = math.floor(low), math.ceil(high)
    factors = (
        (1,)
        if high - low > 2
        else (1, 2, 5)
        if high - low > 0.5
        else (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    )
    found = [by * 10.0**n for n in range(first, last + 1) for by in factors]
    inside = [value for value in found if low - 1e-9 <= math.log10(value) <= high + 1e-9]
    return [math.log10(value) for value in inside], [series.short(value) for value in inside]


def ticks(low: float, high: float) -> list[float]:
    """Return four to eight round numbers between two values."""
    if low == high:
        return [low]
    if not math.isfinite(high - low):
        return [low, high]
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(by for by in (1, 2, 5, 10) if (high - low) / (step * by) < 8)
    if low.is_integer() and high.is_integer():
        step = max(1.0, step)
    return [
        round(n * step, 12)
        for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]
