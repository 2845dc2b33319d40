"""One experiment that the page knows: when its log is read again, and when its fold is let go."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from regrow.infra.log.follower import Follower, Vanished
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.page.fold import Fold, Summary
from regrow.search.errors import SpecError
from regrow.search.lifecycle import IllegalMove
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports import Unavailable

LOOK_SECONDS = (1.0, 2.0)
"""Between looks at the log of one that may go on by itself: in a folder, in a bucket."""
ENDED_SECONDS = (1.0, 60.0)
"""The same where it has ended, or nobody runs it: another session is somebody's wish."""
DAMAGED_SECONDS = 60.0
"""The same where all of it would be read again."""
NOTES_SECONDS = (2.0, 30.0)
"""Between looks at what people noted, while that is shown."""


class Watched:
    """An experiment: its fold, while there is one, and how it last stood."""

    def __init__(self, places: Places, name: str) -> None:
        self.name = name
        self.summary: Summary | None = None
        """None until its log was read once to its end."""
        self.turns = 0
        """How often it was read from, before that."""
        self.gone = False
        """Whether its log is not there any more."""
        self.used = -math.inf
        """When somebody last looked at more than its summary, of the monotonic clock."""
        self._places, self._store = places, places.store(name)
        self._lock = threading.Lock()
        self._looked = self._noted = -math.inf
        self._notes = notes.NONE
        self._alive = False
        self._start()

    def _start(self) -> None:
        self._follower, self._fold = Follower(self._store), Fold(self.name)
        self._pending: deque[tuple[int, list[bytes]]] = deque()
        """Segments that are to be folded."""
        self._folded = True
        """Whether the fold has all that the follower read; not so once it was dropped."""

    @property
    def live(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.summary is not None and self.summary.status == "running"

    @property
    def holds(self) -> bool:
        """Whether it has a fold in memory that may be dropped."""
        return self._folded and self._follower.after > 0

    def refresh(self, deadline: float = math.inf) -> None:
        """Reads what came, where it is time to; until `deadline` of the monotonic clock, after which `summary` may still be None.

        What cannot be read is said in the summary.
        """
        with self._lock:
            self._refresh(deadline)

    @contextmanager
    def open(self) -> Iterator[Fold | None]:
        """Its fold as of now, which nobody changes within the block; None where it cannot be read."""
        with self._lock:
            self.used = time.monotonic()
            if not self._folded:
                self._start()
                self._looked = -math.inf
            self._refresh(math.inf)
            yield self._fold if self._fold.history.created is not None else None

    def noted(self) -> notes.Notes:
        """What people noted of it, as of a moment ago."""
        now = time.monotonic()
        if now - self._noted > NOTES_SECONDS[self._places.remote]:
            self._noted = now
            try:
                self._notes = notes.read(self._store)
            except RegrowError:  # the store is away; the log's trouble tells it
                return self._notes
        return self._notes

    def drop(self) -> None:
        """Lets its fold go, if nobody uses it at this moment."""
        if self._lock.acquire(blocking=False):
            try:
                self._fold, self._folded = Fold(self.name), False
            finally:
                self._lock.release()

    # ---- under the lock ----------------------------------------------------------------------------------------------

    def _refresh(self, deadline: float) -> None:
        began = time.monotonic()
        if self.summary is not None and began - self._looked < self._pause(self.summary.status):
            return
        try:
            if self._read(deadline):
                self._looked = began
        except Vanished:
            self.gone = True
        except Unavailable as error:
            self._looked = began
            trouble = f"the state store is out of reach ({error.why})"
            self.summary = replace(self.summary or Summary(name=self.name, status="unreachable"), trouble=trouble)
        except (RegrowError, IllegalMove, SpecError, LookupError, msgspec.MsgspecError) as error:
            self._looked = began
            self._say("damaged", str(error))
            self._start()  # one of the same name may have taken its place

    def _read(self, deadline: float) -> bool:
        """Whether all was read that there was."""
        if self.summary is None and self._places.removal_begun(self.name):
            self._say("half-removed", f"its removal was cut off; {self._places.command('rm', self.name)} removes the rest")
            return True
        self.turns += 1
        news = False
        while self._pending or self._fetch():
            news = True
            if not self._folded:  # it went on after its fold was dropped
                self._start()
                continue
            self._fold.take([self._pending.popleft()])
            if time.monotonic() > deadline:
                return False
        if not self._folded:
            self.summary = replace(self.summary, trouble="") if self.summary is not None else None
            return True
        history = self._fold.history
        if history.created is None:
            self._say("empty", "its log holds nothing that can be read yet")
            return True
        before = self._alive
        self._alive = history.closed is None and runs(self._places, self.name)
        if news or self._alive or before or self.summary is None or self.summary.trouble:
            self.summary = self._fold.summary(alive=self._alive, now=time.time())
        return True

    def _fetch(self) -> bool:
        self._pending.extend(self._follower.read())
        return bool(self._pending)

    def _pause(self, status: str) -> float:
        if status == "damaged":
            return DAMAGED_SECONDS
        return (LOOK_SECONDS if status == "running" else ENDED_SECONDS)[self._places.remote]

    def _say(self, status: str, trouble: str) -> None:
        self.summary = Summary(name=self.name, status=status, trouble=trouble)
