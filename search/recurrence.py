"""How the runs of a schedule follow one another: what each is called, which it learns from, which are removed.

Pure functions of names and of times that are given: the time zone's rules are looked up by the caller.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from datetime import datetime
from itertools import count

LONGEST = 63
"""Characters of an experiment's name."""
_ROOM = LONGEST - len("-2026-11-22T023015-999")
"""Characters of the schedule's name that fit before the time and a number."""
_DIGEST = 6


def stem(schedule: str) -> str:
    """What the names of a schedule's experiments begin with: its own name, cut where a time would not fit behind it.

    Two long names that begin alike stay apart, by a hash.
    """
    if len(schedule) <= _ROOM:
        return schedule
    digest = hashlib.sha256(schedule.encode()).hexdigest()[:_DIGEST]
    return f"{schedule[: _ROOM - _DIGEST - 1]}-{digest}"


def stamp(when: datetime) -> str:
    """A time to the hour, minute or second, the shortest that is exact: 2026-11-22T02, T0230, T023015.

    `when` is in the schedule's time zone; fractions of a second are left out, as of a run that a trigger started.
    """
    form = "%Y-%m-%dT%H" if not (when.minute or when.second) else "%Y-%m-%dT%H%M" if not when.second else "%Y-%m-%dT%H%M%S"
    return when.strftime(form)


def run_name(schedule: str, when: datetime, taken: Collection[str]) -> str:
    """The name of the experiment of a schedule's run that is due at `when` (local time), `-2` and so on where it is taken.

    An hour that comes twice, as summer time ends, is such a case.
    """
    name = f"{stem(schedule)}-{stamp(when)}"
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(found for found in numbered if found not in taken)


def run_seed(seed: int, name: str) -> int:
    """The seed of a schedule's experiment, a 32-bit number that depends on the file's seed and the experiment's name alone.

    With the same one, each run would begin with the random trials of the run before.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def experiments_of(schedule: str, names: Iterable[str]) -> list[str]:
    """The experiments of a schedule among `names`, the oldest first."""
    found = [(key, name) for name in names if (key := _order(schedule, name)) is not None]
    return [name for _, name in sorted(found)]


def before(schedule: str, name: str, names: Iterable[str]) -> list[str]:
    """The schedule's experiments that came before `name`, the last one first: those that it may begin with."""
    ordered = experiments_of(schedule, {*names, name})
    return ordered[: ordered.index(name)][::-1]


def outdated(schedule: str, names: Iterable[str], keep: int | None) -> list[str]:
    """The schedule's experiments that are to be removed so that the `keep` latest stay, the oldest first; None: none of them."""
    ordered = experiments_of(schedule, names)
    return [] if keep is None else ordered[: max(0, len(ordered) - keep)]


def _order(schedule: str, name: str) -> tuple[str, int] | None:
    """By what a schedule's experiment is sorted: its time to the second, and its number; None for a name of another kind."""
    form = rf"{re.escape(stem(schedule))}-(\d{{4}}-\d\d-\d\dT\d\d(?:\d\d){{0,2}})(?:-(\d+))?"
    if (match := re.fullmatch(form, name)) is None:
        return None
    return match[1].ljust(len("2026-11-22T023015"), "0"), int(match[2] or 1)
