"""A moment as people write it: `2026-12-04T08:00`, with or without a time zone, or a span."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from regrow.search.bounds import LAST_TIME
from regrow.search.durations import bounded_seconds

_WRITTEN = re.compile(r"(?P<time>\S+(?: \d\S*)?)(?:\s+|\[)(?P<zone>[A-Za-z][\w+/-]*)\]?")
"""A time, then the name of a time zone."""
_FORMS = (
    "write a time, such as 2026-12-04T08:00 (of this machine's time zone), \"2026-12-04T08:00"
    ' Europe/Berlin" or 2026-12-04T08:00+01:00, or a span from the creation, such as 8h'
)


def moment(value: Any) -> Any:
    """Return a span in seconds, or a time in ISO 8601 with its offset from UTC.

    A time without a zone is one of this machine's time zone. Raises ValueError, with what to write,
    for a time that cannot be read, that a clock never shows or shows twice, or too far away.
    """
    span = bounded_seconds(value)
    if isinstance(span, int | float) and not isinstance(span, bool):
        return float(span)
    if isinstance(value, timedelta):
        return bounded_seconds(value.total_seconds())
    if isinstance(value, datetime):
        return _zoned(value)
    text, zone = str(value).strip(), None  # a date of YAML's becomes text again
    if (parts := _WRITTEN.fullmatch(text)) is not None:
        text = parts["time"]
        try:
            zone = ZoneInfo(parts["zone"])
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"names the time zone {parts['zone']}, which is not known here; write one such as"
                " Europe/Berlin, or an offset such as +01:00"
            ) from None
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise ValueError(f"has no time of the day; {_FORMS}")
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"is no moment; {_FORMS}") from None
    if time.tzinfo is not None and zone is not None:
        raise ValueError("has an offset and a time zone; leave one of them out")
    return _zoned(time if zone is None else time.replace(tzinfo=zone))


def epoch(moment: float | str, created: float) -> float:
    """Return a moment in seconds since the epoch. `created`: when the experiment was created."""
    return (
        created + moment
        if isinstance(moment, float)
        else datetime.fromisoformat(moment).timestamp()
    )


def _zoned(time: datetime) -> str:
    """Return a time with its offset, as text. Raises ValueError."""
    try:
        first, second = (time.replace(fold=fold).astimezone() for fold in (0, 1))
    except (ValueError, OverflowError):  # the first and the last days that a calendar has
        raise ValueError(f"is too far away; {_FORMS}") from None
    if time.tzinfo is not None:
        first, second = (time.replace(fold=fold) for fold in (0, 1))
    if first.utcoffset() != second.utcoffset():
        twice = first.timestamp() < second.timestamp()
        kind = "which clocks show twice" if twice else "which clocks skip"
        raise ValueError(
            f"is in the hour {kind} as summer time {'ends' if twice else 'begins'}; write it with"
            f" an offset: {_text(first)} or {_text(second)}"
        )
    if not 0 < first.timestamp() < LAST_TIME:
        raise ValueError(f"is too far away; {_FORMS}")
    return _text(first)


def _text(time: datetime) -> str:
    exact = "minutes" if not (time.second or time.microsecond) else "auto"
    return datetime.fromisoformat(time.isoformat()).isoformat(timespec=exact)
