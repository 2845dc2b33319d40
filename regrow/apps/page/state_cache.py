"""All experiments of a state root, each with its fold in memory while it is used: when its log is
read again, and when its fold is dropped.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from regrow.apps.page.experiment_state import ExperimentState, Summary
from regrow.infra.log.follower import Follower, LogGone
from regrow.infra.log.reading import fold
from regrow.infra.log.subscription import available
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports.store import Unavailable

LIST_SECONDS = (1.0, 15.0)
"""Seconds between two listings of the experiments: in a folder, in a bucket."""
KEPT = 8
"""Number of folds of ended experiments that are kept, the most recently viewed ones."""
IDLE_SECONDS = 600.0
"""Such a fold is dropped after this time without a view."""
BUDGET_SECONDS = 1.0
"""Maximum duration of one refresh of all experiments; the rest is read by the next one."""
SLICE_SECONDS = 0.3
"""Maximum part of it for one experiment, and for notes that were read before."""
LOOK_SECONDS = (1.0, 2.0)
"""Seconds between two reads of the log of a running experiment: in a folder, in a bucket."""
ENDED_SECONDS = (1.0, 60.0)
"""The same if it has ended, or no driver runs it: only a user starts another session."""
DAMAGED_SECONDS = 60.0
"""The same if its log is damaged: it would be read again completely."""
NOTES_SECONDS = (2.0, 30.0)
"""Seconds between two reads of the notes, while they are shown."""


class StateWatcher:
    """An experiment: its fold, while it is in memory, and its last summary."""

    def __init__(self, places: Places, name: str) -> None:
        self.name = name
        self.summary: Summary | None = None
        """None until its log was first read to its end."""
        self.turns = 0
        """How often it was read from before that."""
        self.gone = False
        """Whether its log no longer exists."""
        self.used = -math.inf
        """When more than its summary was last viewed, in monotonic seconds."""
        self.noted_at = -math.inf
        """When its notes were last read, in monotonic seconds."""
        self._places, self._store = places, places.store(name)
        self._lock = threading.Lock()
        self._looked = -math.inf
        self._notes = notes.NONE
        self._alive = False
        self._start()

    def _start(self) -> None:
        self._follower, self._fold = Follower(self._store), ExperimentState(self.name)
        self._folded = True
        """Whether the fold contains everything that the follower read; False once it was dropped.
        """

    @property
    def live(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.summary is not None and self.summary.status == "running"

    @property
    def holds(self) -> bool:
        """Whether it has a fold in memory that may be dropped."""
        return self._folded and self._follower.after > 0

    def refresh(self, deadline: float = math.inf) -> None:
        """Read new events if it is time to, until `deadline` (monotonic seconds), after which
        `summary` may still be None.

        The summary reports what cannot be read.
        """
        with self._lock:
            self._refresh(deadline)

    @contextmanager
    def open(self) -> Iterator[ExperimentState | None]:
        """Yield its current fold, unchanged within the block; None if it cannot be read."""
        with self._lock:
            self.used = time.monotonic()
            if not self._folded:
                self._start()
                self._looked = -math.inf
            self._refresh(math.inf)
            yield self._fold if self._fold.history.created is not None else None

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags as of `noted_at`."""
        return self._notes.tags

    def noted(self) -> notes.Notes:
        """Return its notes, as of a few seconds ago."""
        now = time.monotonic()
        if now - self.noted_at > NOTES_SECONDS[self._places.storage.metered]:
            self.noted_at = now
            try:
                self._notes = notes.read(self._store)
            except RegrowError:  # the store is unavailable; the log's problem reports it
                return self._notes
        return self._notes

    def drop(self) -> None:
        """Drop its fold, unless it is in use at this moment."""
        if self._lock.acquire(blocking=False):
            try:
                self._fold, self._folded = ExperimentState(self.name), False
            finally:
                self._lock.release()

    # ---- under the lock

    def _refresh(self, deadline: float) -> None:
        began = time.monotonic()
        if self.summary is not None and began - self._looked < self._pause(self.summary.status):
            return
        try:
            if self._read(deadline):
                self._looked = began
        except LogGone:
            self.gone = True
        except Unavailable as error:
            self._looked = began
            trouble = f"the state store is out of reach ({error.why})"
            self.summary = replace(
                self.summary or Summary(name=self.name, status="unreachable"), trouble=trouble
            )
        except (RegrowError, LookupError) as error:
            self._looked = began
            self._say("damaged", str(error))
            self._start()  # another experiment may have taken its name

    def _read(self, deadline: float) -> bool:
        """Read the log; return whether everything was read."""
        if self.summary is None and self._places.removal_begun(self.name):
            self._say(
                "half-removed",
                f"its removal was cut off; {self._places.command('rm', self.name)} removes the"
                " rest",
            )
            return True
        self.turns += 1
        news = False
        for segments in available(self._follower):
            if not self._folded:  # new events arrived after its fold was dropped
                self._start()
                return self._read(deadline)
            news = True
            fold(self._store, self._fold.apply, segments)
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

    def _pause(self, status: str) -> float:
        if status == "damaged":
            return DAMAGED_SECONDS
        return (LOOK_SECONDS if status == "running" else ENDED_SECONDS)[
            self._places.storage.metered
        ]

    def _say(self, status: str, trouble: str) -> None:
        self.summary = Summary(name=self.name, status=status, trouble=trouble)


class StateCache:
    """The page's cache of experiments. Thread-safe."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.trouble = ""
        """Why the experiments cannot be listed, "" if they can."""
        self.untagged = 0
        """Number of the last summaries whose tags are not read yet."""
        self._watched: dict[str, StateWatcher] = {}
        self._listed = -math.inf
        self._listing = threading.Lock()

    def summaries(self) -> tuple[list[Summary], list[str]]:
        """Return the summaries, running ones first, then the latest; and the names still unread."""
        self._list()
        deadline = time.monotonic() + BUDGET_SECONDS
        for one in self._all():
            if one.summary is not None:
                one.refresh()
        # A long log does not delay the others: those with the fewest turns come first.
        while (unread := [one for one in self._all() if one.summary is None and not one.gone]) and (
            now := time.monotonic()
        ) < deadline:
            one = min(unread, key=lambda one: one.turns)
            one.refresh(min(deadline, now + SLICE_SECONDS))
        for one in self._all():
            if one.gone:
                self._forget(one.name)
        readable = [one for one in self._all() if one.summary is not None]
        again = time.monotonic() + SLICE_SECONDS
        for one in sorted(readable, key=lambda one: one.noted_at):
            if time.monotonic() > (deadline if one.noted_at == -math.inf else again):
                break
            one.noted()
        found = [replace(one.summary, tags=one.tags) for one in readable if one.summary is not None]
        self.untagged = sum(one.noted_at == -math.inf for one in readable)
        self._tidy()
        found.sort(key=lambda s: (s.status != "running", -s.heard, s.name))
        return found, [one.name for one in unread]

    def get(self, name: str) -> StateWatcher | None:
        """Return the experiment of this name, None if there is none."""
        if name not in self._watched:
            self._list()
        return self._watched.get(name)

    @contextmanager
    def open(self, names: Sequence[str]) -> Iterator[dict[str, ExperimentState]]:
        """Yield the folds that can be read, by name; they do not change within the block."""
        with ExitStack() as stack:
            found: dict[str, ExperimentState] = {}
            # In one order, so that two callers who open several never deadlock.
            for name in sorted(set(names)):
                one = self.get(name)
                fold = stack.enter_context(one.open()) if one is not None else None
                if one is not None and one.gone:
                    self._forget(name)
                elif fold is not None:
                    found[name] = fold
            yield {name: found[name] for name in dict.fromkeys(names) if name in found}
        self._tidy()

    @property
    def held(self) -> list[str]:
        """Names of the experiments whose fold is in memory."""
        return [one.name for one in self._all() if one.holds]

    def _all(self) -> list[StateWatcher]:
        with self._listing:
            return list(self._watched.values())

    def _forget(self, name: str) -> None:
        with self._listing:
            self._watched.pop(name, None)
            self._listed = -math.inf

    def _list(self) -> None:
        with self._listing:
            if time.monotonic() - self._listed < LIST_SECONDS[self.places.storage.metered]:
                return
            try:
                names = self.places.experiments(known=self._watched)
                self.trouble = ""
            except RegrowError as error:
                self.trouble = str(error)
                return
            finally:
                self._listed = time.monotonic()
            self._watched = {
                name: self._watched.get(name) or StateWatcher(self.places, name) for name in names
            }

    def _tidy(self) -> None:
        """Drop the folds of ended experiments that were not viewed for long; summaries stay."""
        ended = sorted(
            (one for one in self._all() if one.holds and one.summary and not one.live),
            key=lambda one: -one.used,
        )
        now = time.monotonic()
        for place, one in enumerate(ended):
            if place >= KEPT or now - one.used > IDLE_SECONDS:
                one.drop()
