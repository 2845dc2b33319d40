"""Following a log that lies in a store, from wherever the store can be read: for who does not write, and must not disturb.

New segments are asked for by their names, one small request each; the log is listed only when that finds nothing for a
while, since what is asked for may have been merged into a larger object meanwhile, and where a claim or damage is met.
"""

from __future__ import annotations

from regrow.infra.log.log import ANSWER_BYTES, Cut, Log, Segments, full
from regrow.infra.log.segments import PREFIX, Extent, decode, extents
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports import Missing, Store

LIST_EVERY = 5
"""Looks that find nothing until the log is listed."""


class Vanished(RegrowError):
    """The log that was followed is not there any more."""

    def __str__(self) -> str:
        return "its log is not there any more"


class Follower:
    """Reads a log from its beginning, and then what is added. It only reads. `after`: the last segment that is not wanted."""

    def __init__(self, store: Store, after: int = 0) -> None:
        self._store = store
        self._after = after
        self._looks = LIST_EVERY  # the first look lists

    @property
    def after(self) -> int:
        """The last segment that was read."""
        return self._after

    def read(self) -> Segments:
        """The segments that came since the last call, in order, as many as one answer holds; empty if there are none.

        A segment whose end is missing, as its writer was killed or is still at it, comes once it is whole or its successor
        says how much of it counts. Raises CorruptLog for other damage, Vanished, and Unavailable.
        """
        if self._looks >= LIST_EVERY:
            return self._listed()
        found, doubtful = self._named()
        self._looks = LIST_EVERY if doubtful or full(found) else 0 if found else self._looks + 1
        return found if found or self._looks < LIST_EVERY else self._listed()

    def _named(self) -> tuple[Segments, bool]:
        """By their names, and whether what follows can be told only from the list."""
        found, size = Segments(), 0
        while size < ANSWER_BYTES:
            extent = Extent(self._after + 1, self._after + 1)
            try:
                segment = decode(self._store.read(extent.key), extent)[0]
            except Missing:
                return found, False
            if segment.why or segment.claim:
                # The writer of a claim may have slept while that number was written and merged away by another one.
                return found, True
            self._after = segment.number
            found.append((segment.number, segment.lines))
            size += sum(map(len, segment.lines))
        return found, False

    def _listed(self) -> Segments:
        cuts: list[Cut] = []
        found, size = Segments(), 0
        for number, lines in Log.read(self._store, self._after, on_cut=cuts.append):
            if cuts:
                break
            found.append((number, lines))
            self._after = number
            if (size := size + sum(map(len, lines))) >= ANSWER_BYTES:
                self._looks = LIST_EVERY  # there is more, in objects that are found by listing
                return found
        if not found and self._after and max((e.last for e in extents(self._store.list(PREFIX))), default=0) < self._after:
            raise Vanished
        self._looks = 0
        return found
