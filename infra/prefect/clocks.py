"""The times of a schedule, by Prefect's classes, and how they are described.

Prefect is imported where it is needed, as the server may have to be known first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import ValidationError

from regrow.search.durations import in_words
from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.spec import When
from regrow.tasks.process import background

_HINTS = {
    "cron": 'write minute, hour, day of the month, month, day of the week: "0 2 * * *"',
    "every": 'write seconds, or text such as "6h"',
    "rrule": 'write a rule of RFC 5545: "FREQ=WEEKLY;BYDAY=MO;BYHOUR=2;BYMINUTE=0;BYSECOND=0"',
}
_UNTIL = re.compile(r"(UNTIL=)(\d{8}T\d{6})Z", re.IGNORECASE)
_LOOK_SECONDS = 10.0
"""Seconds to find the next time; 0.1 are normal."""


def clock(when: When) -> dict[str, Any] | None:
    """Return the times as plain data for Prefect's schedule classes; None for a schedule that is
    started by triggers only.

    Raises SpecError for times that Prefect does not accept, for an unknown time zone, and for times
    that never come.
    """
    try:
        zone = ZoneInfo(when.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        from zoneinfo import available_timezones

        near = nearest(when.timezone or "", sorted(available_timezones()))
        usual = "write a name of the time zone database, such as Europe/Zurich"
        hint = near if near.startswith("did") else usual
        wrong = "is no time zone that this machine knows"
        raise SpecError("when.timezone", when.timezone, wrong, hint) from None
    key = next((key for key in _HINTS if getattr(when, key) is not None), None)
    if key is None:
        return None
    given = getattr(when, key)
    made: dict[str, Any] = {key: given, "timezone": zone.key}
    if key == "rrule" and "DTSTART" not in given.upper():
        made = {**made, key: _UNTIL.sub(lambda until: _local(until, zone), given)}
    if key == "every":
        # The interval starts at a midnight in the zone, not now: schedules made again with other
        # options keep their times, and names are short. It is counted in UTC: in a zone, Prefect
        # counts whole days by the wall clock, but by elapsed time from the moment it looks, so that
        # after each clock change an interval of a day or more would come at two hours, both of
        # them.
        anchor = datetime(2020, 1, 1, tzinfo=zone).astimezone(UTC)
        made = {"interval": given, "anchor_date": anchor.isoformat(), "timezone": "UTC"}
    if problem := _wrong(made, given):
        raise SpecError(f"when.{key}", given, problem, _HINTS[key])
    return made


def _local(until: re.Match[str], zone: ZoneInfo) -> str:
    """Return a rule's end, given in UTC, as Prefect 3.8 takes it: in the schedule's time zone."""
    try:
        end = datetime.strptime(f"{until[2]}+0000", "%Y%m%dT%H%M%S%z").astimezone(zone)
    except (ValueError, OverflowError):  # Prefect says what is wrong with it
        return until[0]
    return f"{until[1]}{end:%Y%m%dT%H%M%S}"


def _wrong(made: Mapping[str, Any], given: Any) -> str:
    """Return what is wrong with times that Prefect computes; "": nothing."""
    from regrow.infra.prefect.private import next_times

    found: list[str] = []

    def look() -> None:
        try:
            found.append("" if next_times(made, 1) else "never comes")
        except ValidationError as error:
            message = str(error.errors(include_url=False)[0].get("ctx", {}).get("error", ""))
            why = message.rpartition(": ")[2].strip('"')
            found.append("has no times" if why == given else f"has no times ({why})")
        except ValueError as error:  # of Prefect's libraries, such as for a 30th of February
            found.append(f"has no times ({error})")

    # Their search for the next time has no end, such as for FREQ=DAILY;INTERVAL=0.
    background.start(look, name="next-time").join(_LOOK_SECONDS)
    return found[0] if found else f"has no next time that is found within {_LOOK_SECONDS:g} s"


def short_text(clock: Mapping[str, Any]) -> str:
    """Return the times in a few words: `0 2 * * * Europe/Zurich`, `every 6 h`."""
    zone = clock.get("timezone") or "UTC"
    if rule := clock.get("cron") or clock.get("rrule"):
        return f"{rule} {zone}"
    interval = clock.get("interval", 0.0)
    seconds = interval.total_seconds() if isinstance(interval, timedelta) else float(interval)
    return f"every {in_words(seconds)}"


def triggers_in_short(when: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield what else starts the schedule `name`, in a few words each."""
    if when.get("files"):
        yield f"on files {when['files']}"
    if when.get("after"):
        yield f"after {when['after']}"
    if when.get("event"):
        yield f"on event {when['event']}"
    if when.get("hook"):
        yield f"on POST /hooks/{name}"
