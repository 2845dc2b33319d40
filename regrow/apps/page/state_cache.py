"""All experiments of a state root, each with its fold in memory while it is used."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from regrow.apps.page.experiment_state import ExperimentState, Summary
from regrow.apps.page.state_watcher import StateWatcher
from regrow.infra.state.places import Places
from regrow.tasks.errors import RegrowError

LIST_SECONDS = (1.0, 15.0)
"""Seconds between two listings of the experiments: in a folder, in a bucket."""
KEPT = 8
"""Number of folds of ended experiments that are kept, the most recently viewed ones."""
IDLE_SECONDS = 600.0
"""Such a fold is dropped after this time without a view."""
BUDGET_SECONDS = 1.0
"""Maximum duration of one refresh of all experiments; the rest is read by the next one."""

SLICE_SECONDS = 0.3
"""Maximum part of it for one experiment."""


class StateCache:
    """The page's cache of experiments. Thread-safe."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.trouble = ""
        """Why the experiments cannot be listed, "" if they can."""
        self._watched: dict[str, StateWatcher] = {}
        self._listed = -math.inf
        self._listing = threading.Lock()

    def summaries(self) -> tuple[list[Summary], list[str]]:
        """Return the summaries, running experiments first, then by their last event; and the names
        of those not read yet.
        """
        self._list()
        deadline = time.monotonic() + BUDGET_SECONDS
        for one in self._all():
            if one.summary is not None:
                one.refresh()
        # A long log does not delay the others: those with the fewest turns come first.
        while (unread := [one for one in self._all() if one.summary is None]) and (
            now := time.monotonic()
        ) < deadline:
            one = min(unread, key=lambda one: one.turns)
            one.refresh(min(deadline, now + SLICE_SECONDS))
            if one.gone:
                self._forget(one.name)
        everything = self._all()
        for one in everything:
            if one.gone:
                self._forget(one.name)
        found = [one.summary for one in everything if one.summary is not None and not one.gone]
        unread_names = [one.name for one in everything if one.summary is None and not one.gone]
        self._tidy()
        return sorted(found, key=lambda s: (s.status != "running", -s.heard, s.name)), unread_names

    def get(self, name: str) -> StateWatcher | None:
        """Return the experiment of this name, None if there is none."""
        if name not in self._watched:
            self._list()
        return self._watched.get(name)

    @contextmanager
    def open(self, names: Sequence[str]) -> Iterator[dict[str, ExperimentState]]:
        """Yield the folds of the experiments that exist and can be read, by name; they do not
        change within the block.
        """
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
