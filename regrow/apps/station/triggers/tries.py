"""Retry state: what failed, how often, and when it is tried again. The callers do the retries."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, replace

from regrow.tasks.errors import RegrowError
from regrow.tasks.output.traces import in_a_line, one_line

TRIES = 12
"""It is given up after this many failures; with these pauses after three quarters of an hour."""
PAUSES = (2.0, 600.0)
"""Seconds before the second try, doubled each time; and the maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A failure, for people.

    Attributes:
        schedule: its name, "" for none.
        what: what cannot be done.
        reason: why.
        tries: how often it failed.

    """

    schedule: str
    what: str
    reason: str
    tries: int = 1


def reason(error: Exception) -> str:
    """Return why something failed, on one line."""
    text = one_line(str(error))
    return (
        text if text and isinstance(error, RegrowError | OSError | ValueError) else in_a_line(error)
    )


class Tries:
    """The current failures by key. `most`: maximum seconds between two tries."""

    def __init__(self, most: float = PAUSES[1]) -> None:
        self._most = most
        self._failed: dict[Hashable, tuple[Trouble, float]] = {}

    def is_due(self, key: Hashable) -> bool:
        """Return whether it is to be tried now."""
        known = self._failed.get(key)
        return known is None or time.monotonic() >= known[1]

    def failed(self, key: Hashable, trouble: Trouble, before: int = 0) -> bool:
        """Count a failure, after `before` of an earlier process; return whether it was the last
        allowed one.
        """
        count = 1 + (self._failed[key][0].tries if key in self._failed else before)
        pause = min(PAUSES[0] * 2 ** min(count - 1, 20), self._most)
        self._failed[key] = replace(trouble, tries=count), time.monotonic() + pause
        return count >= TRIES

    def over(self, key: Hashable) -> None:
        """Forget the failure: it succeeded, or is given up."""
        self._failed.pop(key, None)

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forget all keys but these; the others no longer exist."""
        self._failed = {key: known for key, known in self._failed.items() if key in keys}

    def __iter__(self) -> Iterator[Trouble]:
        return (trouble for trouble, _ in self._failed.values())
