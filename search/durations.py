"""Spans of time as people write and read them: 90s, 10min, 2h."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field

from regrow.search.bounds import LONGEST

_MINUTES, _HOURS, _DAYS = 60.0, 3600.0, 86400.0
_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "m", "minute", "minutes"), _MINUTES),
    **dict.fromkeys(("h", "hour", "hours"), _HOURS),
    **dict.fromkeys(("d", "day", "days"), _DAYS),
}
_WRITTEN = rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})\s*"
Span = Annotated[float, Field(gt=0)] | Annotated[str, Field(pattern=f"^{_WRITTEN}$")]
"""The forms in which a user may write a span: seconds, or text with a unit."""


def seconds(value: Any) -> Any:
    """Return '10min' or '1.5 h' in seconds; anything else unchanged, for pydantic to check."""
    if isinstance(value, str) and (m := re.fullmatch(_WRITTEN, value.lower())):
        return float(m[1]) * _UNITS[m[2]]
    return value


def bounded_seconds(value: Any) -> Any:
    """Return `seconds(value)`. Raises ValueError, with what to write, for more than 100 years."""
    span = seconds(value)
    if isinstance(span, int | float) and span > LONGEST:
        raise ValueError("is longer than 100 years; write a shorter span, or leave it out")
    return span


def in_words(span: float) -> str:
    """Return a span for people, in the largest unit with at least two: '45 s', '10 min', '2 h'."""
    if span >= 2 * _HOURS:
        return f"{span / _HOURS:.3g} h"
    return f"{span / _MINUTES:.3g} min" if span >= 2 * _MINUTES else f"{span:.3g} s"


def on_clock(span: float) -> str:
    """Return a span as clocks show it: 1:02:03, 2:03 or 0:05."""
    minutes, rest = divmod(int(span), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(span: float) -> str:
    """Return a span in seconds with a digit below a minute, else as on a clock: 4.2 s, 2:03."""
    return f"{max(0.0, span):.1f} s" if span < 60 else on_clock(span)
