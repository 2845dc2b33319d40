"""What a report may hold: numbers of Python, of NumPy, one-element tensors; the objective, which must be there and be finite."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Mapping

from regrow.tasks.errors import ReportError

_SHOWN = 80
"""Characters of a value in a message: a tensor may have millions of numbers."""

MISSING = "the metric {!r} was not reported"
"""What is said of a report without the objective."""


def clean(metrics: Mapping[str, float], objective: str, where: str) -> dict[str, float | None]:
    """The metrics of a report at `where`: the objective as it is, others None where they are not finite. Raises ReportError."""
    if not isinstance(metrics, Mapping):
        raise ReportError(f"{where}: {_described(metrics)} was reported; report a map, such as {{{objective!r}: 0.5}}")
    if objective not in metrics:
        near = difflib.get_close_matches(objective, [str(m) for m in metrics], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"reported were: {', '.join(map(str, metrics)) or 'none'}"
        raise ReportError(f"{where}: {MISSING.format(objective)}; {hint}")
    clean: dict[str, float | None] = {}
    for name, value in metrics.items():
        if type(name) is not str:
            raise ReportError(f"{where}: the metric {name!r} ({type(name).__name__}) is no name; name metrics by text")
        number = value if type(value) is float else _number(value, f"{where}: metric {name!r}")
        if math.isfinite(number):
            clean[name] = number
        elif name == objective:
            raise ReportError(f"{where}: metric {name!r} is {number}, not a finite number; the trial cannot be ranked")
        else:
            clean[name] = None
    return clean


def _number(value: object, what: str) -> float:
    """A float from any real number: Python's, NumPy's, or a one-element tensor."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    item = getattr(value, "item", None)
    if callable(item) and (getattr(value, "size", 1) == 1 or callable(getattr(value, "numel", None))):
        try:
            return float(item())
        except (TypeError, ValueError, RuntimeError):
            pass
    raise ReportError(f"{what} is {_described(value)}, not a number; report one number for each metric")


def _described(value: object) -> str:
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'} ({type(value).__name__})"
