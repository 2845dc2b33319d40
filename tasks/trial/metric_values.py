"""Validation of reported metrics: Python and NumPy numbers and one-element tensors. The objective
must be present and finite.

Other metrics that are not numbers are left out, whatever code reports them.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Mapping
from decimal import Decimal

from regrow.search.bounds import MOST
from regrow.tasks.errors import ReportError
from regrow.tasks.output.traces import printable

MOST_METRICS = 10_000
"""Metrics in one report, at most."""
MOST_CHARACTERS = 1_000
"""Characters of a metric's name, at most."""
_SHOWN = 80
"""Characters of a value in a message: a tensor may have millions of numbers."""

MISSING = "the metric {!r} was not reported"
"""Message about a report without the objective."""


def clean(
    metrics: Mapping[str, float],
    objective: str,
    where: str,
    step: str | None = None,
    dropped: Callable[[str, str], object] = lambda _name, _what: None,
) -> dict[str, float | None]:
    """Return the metrics of a report as floats; those that are not finite, other than the
    objective, become None.

    Metrics that are not numbers are left out. Raises ReportError for a report that cannot be used.

    Args:
        metrics: the report.
        objective: name of the objective.
        where: place of the report, for messages.
        step: name of the metric that counts steps, None for none. It may be missing; if present, it
            must be exact as a float.
        dropped: called with the name and a description of each metric left out.

    """

    def refused(what: str) -> ReportError:
        return ReportError(f"{where}: {what}")

    if not isinstance(metrics, Mapping):
        form = f"report a map, such as {{{objective!r}: 0.5}}"
        raise refused(f"{described(metrics)} was reported; {form}")
    if len(metrics) > MOST_METRICS:
        limit = f"report at most {MOST_METRICS:,} at a time"
        raise refused(f"{len(metrics):,} metrics were reported; {limit}")
    if objective not in metrics:
        near = difflib.get_close_matches(objective, [str(m) for m in metrics], n=1)
        seen = f"reported were: {', '.join(map(str, metrics)) or 'none'}"
        hint = f"did you mean {near[0]!r}?" if near else seen
        raise refused(f"{MISSING.format(objective)}; {hint}")
    clean: dict[str, float | None] = {}
    for key, value in metrics.items():
        if not isinstance(key, str):
            kind = type(key).__name__
            raise refused(f"the metric {key!r} ({kind}) is no name; name metrics by text")
        # Text of NumPy or of an enumeration is a subclass.
        name = key if type(key) is str else str.__str__(key)
        if len(name) > MOST_CHARACTERS or not name.isascii():
            _check_name(name, where)
        number = value if type(value) is float else number_of(value)
        if name == step and (number is None or not abs(number) <= MOST):  # also where it is NaN
            many = f"steps are counted from -{MOST:,} to {MOST:,}"
            raise refused(f"metric {name!r}, which counts steps, is {described(value)}; {many}")
        if number is None:
            if name == objective:
                what = f"metric {name!r} is {described(value)}"
                raise refused(f"{what}, not a number; report one number for each metric")
            dropped(name, described(value))
        elif math.isfinite(number):
            clean[name] = number
        elif name == objective:
            what = f"metric {name!r} is {number}, not a finite number"
            raise refused(f"{what}; the trial cannot be ranked")
        else:
            clean[name] = None
    return clean


def _check_name(name: str, where: str) -> None:
    """Raise ReportError for a name that other systems could not store."""
    if len(name) > MOST_CHARACTERS:
        long = f"a metric's name has {len(name):,} characters"
        raise ReportError(
            f"{where}: {long} ({name[:_SHOWN]!a}...); {MOST_CHARACTERS:,} are the most"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ReportError(
            f"{where}: the metric {name!a} has half of a surrogate pair, which is no letter;"
            " rename it"
        ) from None


def number_of(value: object) -> float | None:
    """Convert any real number (Python's, NumPy's, a Decimal, or a one-element tensor) to a float;
    None for anything else.

    A bool is not a number. A number that is too large for a float becomes infinite.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, numbers.Real | Decimal):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf  # type: ignore[operator]  # mypy takes a Real for no number
        except ValueError:  # a signalling NaN
            return None
    item = getattr(value, "item", None)
    if callable(item) and (
        getattr(value, "size", 1) == 1 or callable(getattr(value, "numel", None))
    ):
        try:
            single = item()
        except OverflowError:
            return math.inf
        except (TypeError, ValueError, RuntimeError):
            return None
        return number_of(single) if isinstance(single, numbers.Real) else None
    return None


def described(value: object) -> str:
    try:
        text = printable(" ".join(repr(value).split()))
    except Exception:  # noqa: BLE001 - the user's own class; Python's own integers beyond 4,300 digits
        return f"a value of type {type(value).__name__}"
    return f"{text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'} ({type(value).__name__})"
