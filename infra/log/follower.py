"""Following a log in a store, from any place that can read the store, for readers that must not
write or disturb.

New segments are read by name, one small request each. The log is listed only where names do not
suffice: when nothing was found for a while, since the next segment may have been merged into a
larger object meanwhile, and when a claim or damage is met.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile

from regrow.infra.log.log import Cut, Log, Segments, first_of, full
from regrow.infra.log.segments import PREFIX, Extent, decode, extents
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports.store import Missing, Store

LIST_EVERY = 5
"""Reads by name that find nothing before the log is listed. They are to be a second or so apart:
until then segments that were merged are not seen.
"""


class LogGone(RegrowError):
    """The followed log no longer exists."""

    def __str__(self) -> str:
        return "its log is not there any more"


class Follower:
    """Reads a log from after segment `after`, then what is appended. Never writes.

    `list_every`: the log is listed after so many reads by name that find nothing; 1 where reads are
    far apart.
    """

    def __init__(self, store: Store, after: int = 0, *, list_every: int = LIST_EVERY) -> None:
        self._store = store
        self._after = after
        self._list_every = list_every
        self._looks = list_every  # the first read lists

    @property
    def after(self) -> int:
        """Number of the last segment that was read."""
        return self._after

    @property
    def more(self) -> bool:
        """Whether more can be read at once: the next read lists the log."""
        return self._looks >= self._list_every

    def read(self, *, rest: bool = False) -> Segments:
        """Return the segments that came since the last call, in order, as many as fit one answer;
        empty if there are none. `rest`: list the log, also if names may suffice.

        A segment whose end is missing, because its writer was killed or is still writing, is
        returned once it is whole or its successor states how much of it counts. Raises CorruptLog
        for other damage, LogGone, and Unavailable.
        """
        if rest or self.more:
            return self._listed()
        doubts: list[int] = []
        found = self._taken(self._named(doubts))
        self._looks = self._list_every if doubts or full(found) else 0 if found else self._looks + 1
        return found if found or not self.more else self._listed()

    def _taken(self, segments: Iterator[tuple[int, list[bytes]]]) -> Segments:
        found = first_of(segments)
        self._after = found[-1][0] if found else self._after
        return found

    def _named(self, doubts: list[int]) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the next segments by name, until `doubts` get one that only a listing settles."""
        for number in count(self._after + 1):
            extent = Extent(number, number)
            try:
                segment = decode(self._store.read(extent.key), extent)[0]
            except Missing:
                return
            if segment.why or segment.claim:
                # The writer of the claim may have slept while another writer wrote that number and
                # merged it away.
                doubts.append(number)
                return
            yield number, segment.lines

    def _listed(self) -> Segments:
        cuts: list[Cut] = []
        segments = Log.read(self._store, self._after, on_cut=cuts.append)
        found = self._taken(takewhile(lambda _: not cuts, segments))
        if full(found):
            self._looks = self._list_every  # there is more, in objects that only a listing finds
            return found
        if (
            not found
            and self._after
            and max((e.last for e in extents(self._store.list(PREFIX))), default=0) < self._after
        ):
            raise LogGone
        self._looks = 0
        return found
