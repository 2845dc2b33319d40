"""Following a log: the one loop of all that read its new segments as they come.

Decides when a log is polled, how an unreachable one is reported, and how the rest is read at the
end. Where a log is read is a `Source`; what its events mean is the follower's own matter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from regrow.infra.log.log import Segments
from regrow.search.events import AnyEvent, decode
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.process import background

GROWTH = 1.5
"""Factor by which the wait grows with each poll without news."""
Pace = tuple[float, float]
"""Seconds between two polls: after news, and at most, after a while without."""


class Source(Protocol):
    """A log, and the position up to which it was read."""

    @property
    def more(self) -> bool:
        """Whether the last answer was cut off, so that more can be read at once."""
        ...

    def read(self, *, rest: bool = False) -> Segments:
        """Return the segments after the last read one, in order, as many as fit one answer.

        `rest`: do not wait for new ones, and leave out none that exist. Raises Unavailable if it
        cannot be read now. Any other error is final: LogGone, CorruptLog.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The result of one poll."""

    segments: Segments
    """New segments; empty if there are none."""
    more: bool
    """Whether the next batch exists already."""
    last: bool
    """Whether the subscription ends with it."""
    trouble: Unavailable | None
    """Why the log cannot be read now, None if it can."""

    def events(self) -> Iterator[AnyEvent]:
        """Yield the new events, in order."""
        for _, lines in self.segments:
            yield from map(decode, lines)


def available(source: Source) -> Iterator[Segments]:
    """Yield the segments that exist now, in parts. Raises what the source raises."""
    while True:
        if segments := source.read():
            yield segments
        if not source.more:
            return


class Subscription:
    """Yields a batch after each poll, also an empty one, until `stop` is set; then the rest.

    A log that cannot be read now is polled again. Any other error of the source ends it. A wait
    ends at once when `wake` is set; None: when `stop` is set. `stop` None: it is endless.
    """

    def __init__(
        self,
        source: Source,
        pace: Pace,
        stop: threading.Event | None = None,
        wake: threading.Event | None = None,
    ) -> None:
        self._source, self._pace = source, pace
        self._stop = stop or threading.Event()
        self._wake = wake or self._stop

    def __iter__(self) -> Iterator[Batch]:
        soon, late = self._pace
        pause = soon
        while True:
            last, trouble = self._stop.is_set(), None
            try:
                segments = self._source.read(rest=last)
            except Unavailable as error:
                segments, trouble = [], error
            more = trouble is None and self._source.more
            last = last and not more
            yield Batch(segments=segments, more=more, last=last, trouble=trouble)
            if last:
                return
            if not more:
                pause = soon if segments else min(late, pause * GROWTH)
                self._wake.wait(pause)

    @contextmanager
    def in_background(
        self, handle: Callable[[Batch], object], name: str, *, patience: float | None = None
    ) -> Iterator[threading.Thread]:
        """Call `handle` with each batch, in a thread of this name, within the block. Its end waits
        up to `patience` seconds for the rest; None: as long as that takes.

        An error ends the thread and is only logged: what is followed must not end with its reader.
        """

        def run() -> None:
            try:
                for batch in self:
                    handle(batch)
            except Exception:
                logging.getLogger(__name__).info("%s follows the log no more", name, exc_info=True)

        thread = background.start(run, name=name)
        try:
            yield thread
        finally:
            self._stop.set()
            thread.join(patience)
