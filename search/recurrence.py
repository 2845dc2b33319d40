"""How the runs of a schedule follow one another: their names, which experiments they learn from,
and which are removed.

Pure functions of given names and times: the caller applies the time zone's rules.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from datetime import datetime
from itertools import count

LONGEST = 63
"""Most characters of an experiment's name."""
_ROOM = LONGEST - len("-2026-11-22T023015-999")
"""Characters of the schedule's name that fit before the time and a number."""
_DIGEST = 6


def name_prefix(schedule: str) -> str:
    """Return the beginning of the names of a schedule's experiments: its own name, cut if a time
    would not fit behind it.

    A hash keeps two long names with the same beginning distinct.
    """
    if len(schedule) <= _ROOM:
        return schedule
    digest = hashlib.sha256(schedule.encode()).hexdigest()[:_DIGEST]
    return f"{schedule[: _ROOM - _DIGEST - 1]}-{digest}"


def stamp(when: datetime) -> str:
    """Format a time to the hour, minute or second, the shortest that is exact: 2026-11-22T02,
    T0230, T023015.

    `when` is in the schedule's time zone. Fractions of a second, as of a run that a trigger
    started, are dropped.
    """
    exact = when.strftime("%Y-%m-%dT%H%M%S")
    return exact.removesuffix("00").removesuffix("" if when.second else "00")


def run_name(schedule: str, when: datetime, taken: Collection[str]) -> str:
    """Return the name of the experiment of a schedule's run that is due at `when` (local time),
    with `-2` and so on if it is taken.

    That happens for example in the hour that occurs twice when summer time ends.
    """
    name = f"{name_prefix(schedule)}-{stamp(when)}"
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(found for found in numbered if found not in taken)


def run_seed(seed: int, name: str) -> int:
    """Return the seed of a schedule's experiment, a 32-bit number that depends only on the file's
    seed and the experiment's name.

    With the same seed, each run would begin with the same random trials as the previous one.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def experiments_of(schedule: str, names: Iterable[str]) -> list[str]:
    """Return the experiments of a schedule among `names`, the oldest first."""
    found = [(key, name) for name in names if (key := _order(schedule, name)) is not None]
    return [name for _, name in sorted(found)]


def before(schedule: str, name: str, names: Iterable[str]) -> list[str]:
    """Return the schedule's experiments before `name`, from which it learns, latest first."""
    ordered = experiments_of(schedule, {*names, name})
    return ordered[: ordered.index(name)][::-1]


def outdated(schedule: str, names: Iterable[str], keep: int | None) -> list[str]:
    """Return the schedule's experiments to remove so that the `keep` latest remain, the oldest
    first. None keeps all.
    """
    ordered = experiments_of(schedule, names)
    return [] if keep is None else ordered[: max(0, len(ordered) - keep)]


def _order(schedule: str, name: str) -> tuple[str, int] | None:
    """Return the sort key of a schedule's experiment, its time and number; None for other names."""
    form = rf"{re.escape(name_prefix(schedule))}-(\d{{4}}-\d\d-\d\dT\d\d(?:\d\d){{0,2}})(?:-(\d+))?"
    if (match := re.fullmatch(form, name)) is None:
        return None
    return match[1].ljust(len("2026-11-22T023015"), "0"), int(match[2] or 1)
