"""Following a log: the one loop of all that read its new segments as they come.

Decides how often a log is polled, how an unreachable one is reported, and how the rest is read at
the end. Where a log is read is a `Source`; what its events mean is the follower's own matter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from regrow.infra.log.log import Segments
from regrow.search.events import AnyEvent, decode
from regrow.tasks.ports.store import Unavailable

GROWTH = 1.5
"""Factor by which the wait grows with each poll without news."""


class Source(Protocol):
    """A log, and the position up to which it was read."""

    @property
    def more(self) -> bool:
        """Whether the last answer was cut off, so that more can be read at once."""
        ...

    def read(self, *, rest: bool = False) -> Segments:
        """Return the segments after the last read one, in order, as many as fit one answer.

        `rest`: do not wait for new ones, and leave out none that exist. Raises Unavailable if it
        cannot be read now. Any other error is final: Vanished, CorruptLog.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two polls."""

    soon: float
    """After news."""
    late: float | None = None
    """At most, after a while without news; None: as after news."""
    trouble: float | None = None
    """While the log cannot be read; None: as without news."""


class Backoff:
    """The waits between polls. A wait ends at once when `wake` is set."""

    def __init__(self, pace: Pace, wake: threading.Event) -> None:
        self._pace, self._wake = pace, wake
        self._pause = pace.soon

    def wait(self, *, news: bool, trouble: bool = False) -> None:
        """Wait until the next poll is due."""
        pace = self._pace
        late = pace.soon if pace.late is None else pace.late
        self._pause = pace.soon if news else min(late, self._pause * GROWTH)
        self._wake.wait(self._pause if pace.trouble is None or not trouble else pace.trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The result of one poll."""

    segments: Segments
    """New segments; empty if there are none."""
    more: bool = False
    """Whether the next batch exists already."""
    trouble: Unavailable | None = None
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

    A log that cannot be read now is polled again. Any other error of the source ends it.

    Args:
        source: the log.
        pace: how often it is polled.
        stop: ends the subscription; None: it is endless.
        wake: ends a wait, without ending the subscription; None: `stop` does.

    """

    def __init__(
        self,
        source: Source,
        pace: Pace,
        stop: threading.Event | None = None,
        wake: threading.Event | None = None,
    ) -> None:
        self._source = source
        self._stop = stop or threading.Event()
        self._backoff = Backoff(pace, wake or self._stop)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            rest = self._stop.is_set()
            batch = self._next(rest=rest)
            yield batch
            if batch.more:
                continue
            if rest:
                return
            self._backoff.wait(news=bool(batch.segments), trouble=batch.trouble is not None)

    def _next(self, *, rest: bool) -> Batch:
        try:
            segments = self._source.read(rest=rest)
        except Unavailable as error:
            return Batch(segments=[], trouble=error)
        return Batch(segments=segments, more=self._source.more)

    def in_background(
        self, take: Callable[[Batch], object], name: str, *, patience: float | None = None
    ) -> AbstractContextManager[threading.Thread]:
        """Call `take` with each batch within the block; its end waits for the rest. See
        `background`.
        """

        def run() -> None:
            for batch in self:
                take(batch)

        return background(run, name, self._stop, patience)


@contextmanager
def background(
    run: Callable[[], None], name: str, stop: threading.Event, patience: float | None = None
) -> Iterator[threading.Thread]:
    """Run a follower in a thread of this name within the block. Its end sets `stop`, and waits up
    to `patience` seconds for the thread; None: as long as it takes.

    An error ends the thread and is only logged: what is followed must not end with its follower.
    """

    def guarded() -> None:
        try:
            run()
        except Exception:
            logging.getLogger(__name__).info("%s follows the log no more", name, exc_info=True)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(patience)
