"""Parameters as axes: which vary, and where a value lies."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from regrow.search.history import History, TrialRecord
from regrow.search.space.domains import Choice, Constant, Float, Int
from regrow.show.exports.frames import numeric
from regrow.show.figures import series
from regrow.show.views import summaries

MOST_DECADES = 12
"""Powers of ten from which on not each of an axis has a tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterAxis:
    """A parameter that varies.

    Attributes:
        categories: the texts of non-numeric values, else None.
        quoted: whether text has quotes there, as "1" stands beside 1, or "true" beside true.

    """

    name: str
    log: bool
    categories: tuple[str, ...] | None
    quoted: bool = False

    def place(self, config: Mapping[str, Any]) -> float | None:
        """Return the position of the configuration: a number (its decimal logarithm on a
        logarithmic axis), or the index of a category.

        None if the parameter is inactive.
        """
        if self.name not in config:
            return None
        value = config[self.name]
        if self.categories is None:
            return math.log10(value) if self.log and value > 0 else float(value)
        text = _text(value, quoted=self.quoted)
        return float(self.categories.index(text)) if text in self.categories else None


def varied(history: History) -> tuple[list[TrialRecord], list[ParameterAxis]]:
    """Return the trials with a value, best first, and the parameters that differ between them (or
    that only some of them have), in the order of the space; none for fewer than two trials.
    """
    trials = [trial for trial in summaries.ranked(history) if trial.best is not None]
    configs = [summaries.reached_with(history, trial) for trial in trials]
    found = []
    for parameter in history.spec.space.parameters if len(trials) > 1 else ():
        name, domain = parameter.name, parameter.domain
        values = [config[name] for config in configs if name in config]
        texts = {json.dumps(value): value for value in values}
        conditional = len(values) < len(configs) and not isinstance(domain, Constant)
        if not values or not (len(texts) > 1 or conditional):
            continue
        categories: Collection[Any] | None = None
        if isinstance(domain, Choice):
            categories = sorted(domain.values) if numeric(domain.values) else domain.values
        elif not numeric(values):
            categories = texts.values()
        shown = [] if categories is None else [_text(one) for one in categories]
        quoted = len({*shown}) < len(shown)
        log = categories is None and isinstance(domain, Float | Int) and domain.log
        found.append(
            ParameterAxis(
                name=name,
                log=log and min(values) > 0,
                categories=None
                if categories is None
                else tuple(_text(one, quoted=quoted) for one in categories),
                quoted=quoted,
            )
        )
    return trials, found


def _text(value: Any, *, quoted: bool = False) -> str:
    plain = isinstance(value, str) and not quoted
    return value if plain else json.dumps(value, ensure_ascii=False)


def decades(low: float, high: float) -> list[tuple[float, str]]:
    """Return (position, label) of ticks on an axis whose positions are decimal logarithms."""
    first, last = math.floor(low), math.floor(high)
    factors: tuple[float, ...] = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    if high - low > 0.5:
        factors = (1,) if high - low > 2 else (1, 2, 5)
    every = max(1, (last - first) // MOST_DECADES)
    found = [by * 10.0**n for n in range(first, last + 1, every) for by in factors]
    ticks = [(math.log10(value), series.short(value)) for value in found if value]
    return [tick for tick in ticks if low - 1e-9 <= tick[0] <= high + 1e-9]


def ticks(low: float, high: float) -> list[float]:
    """Return four to eight round numbers between two values."""
    if low == high:
        return [low]
    if not sys.float_info.min < (high - low) / 4 < math.inf:
        return [low, high]
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(by for by in (1, 2, 5, 10) if (high - low) / (step * by) < 8)
    if low.is_integer() and high.is_integer():
        step = max(1.0, step)
    digits = 12 - math.floor(math.log10(step))
    return [
        round(n * step, digits)
        for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]
