"""Means of numbers, and numbers as people read them: one way for terminals, pages, reports, MLflow
and notifications.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

_DIGITS = 5
"""Significant digits of a number that nothing else is to be told apart from."""
_EXACT = 17
"""Significant digits that tell any two numbers apart."""
_ERROR = 14
"""Significant digits that a computed number is exact to."""
_WHOLE = 1e15
"""Numbers from here on are written with an exponent."""


def mean(values: Sequence[float]) -> float:
    """Return the mean of finite numbers, also of those whose sum is too large for a float."""
    try:
        return fmean(values)
    except OverflowError:
        # halves, as the sum of rounded quotients may be just above the largest float
        half = math.fsum(value / len(values) / 2 for value in values)
        return min(max(half * 2, min(values)), max(values))


def finite(value: float) -> float:
    """Return the nearest number that is not infinite."""
    return min(max(value, -sys.float_info.max), sys.float_info.max)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of finite numbers: 0 for one, the largest float at most."""
    try:
        return stdev(values) if len(values) > 1 else 0.0
    except OverflowError:
        return sys.float_info.max


def readable(value: float, digits: int = _DIGITS) -> str:
    """Format a number with `digits` significant digits; the whole part of one below 1e15 in full.

    It gets more digits if it would otherwise look like a whole number that it is not: 0.9999996,
    not 1. So a value is never taken for the bound that it is near. One that differs from a whole
    number by an error of its computation, as 2.9999999999999996, is written as that.
    """
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if 10.0**digits <= abs(value) < _WHOLE:
        digits = math.floor(math.log10(abs(value))) + 1
    while True:
        text = f"{value:.{digits}g}"
        if digits >= _ERROR or value.is_integer() or not float(text).is_integer():
            return text
        if abs(value) >= 10.0**_DIGITS:  # the digits behind the point tell nothing
            return text
        digits += 1


def money(amount: float) -> str:
    """Format an amount of money: 1,234.50, and three digits of less than 0.1: 0.0125."""
    if abs(amount) >= 0.1 or amount == 0:
        return f"{amount:,.2f}"
    text = f"{amount:.3g}"
    return text if "e" not in text and len(text) > len("0.5") else f"{amount:.2f}"


def columned(values: Sequence[Any], digits: int = _DIGITS) -> list[str]:
    """Format the numbers of a column with as many digits as tell different ones apart; None and
    other values that are no numbers by `str`, None as "".
    """
    floats = {value for value in values if isinstance(value, float)}
    while digits < _EXACT and len({readable(value, digits) for value in floats}) < len(floats):
        digits += 1
    return [
        readable(value, digits) if isinstance(value, float) else "" if value is None else str(value)
        for value in values
    ]
