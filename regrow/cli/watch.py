"""`watch`: the live view of an experiment that runs elsewhere. It only reads the log."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Protocol

import msgspec

from regrow.cli import exit_codes, options
from regrow.infra.log.follower import Follower, LogGone
from regrow.infra.log.log import CorruptLog
from regrow.infra.log.reading import fold
from regrow.infra.log.subscription import Subscription
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.search.lifecycle import IllegalMove
from regrow.search.spec import NAME
from regrow.show.live import Viewer, words
from regrow.show.live.terminal import Events, PlainConsole, echo, only_events
from regrow.show.live.text import ending, summary
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Store, Unavailable

LOOK_SECONDS = ((0.25, 0.25), (0.5, 2.0))
"""Pace of the polls: in a folder, in a bucket."""
SILENT_SECONDS = 2.0
"""After this time without events it is checked whether a driver runs the experiment."""
SIGNS_SECONDS = (1.0, 10.0)
"""Seconds between these checks: in a folder, in a bucket."""


def watch(
    name: options.Name,
    state: options.State = None,
    quiet: options.Quiet = False,
    as_json: options.Events = False,
) -> None:
    """Watch an experiment that runs in another terminal or on another machine; Ctrl-C ends only the
    view.

    It only reads. It waits if the experiment has not begun, or was interrupted, and continues when
    it is resumed. The exit code is that of `run` when the experiment has ended. With --json the
    whole log is printed, from its beginning.
    """
    places = Places.at(state)
    say = partial(echo, error=as_json, flush=True)
    if (store := _begun(places, name, say, quiet=quiet)) is None:
        return
    try:
        history = view(store, _Presence(places, name), places, name, quiet=quiet, as_json=as_json)
    except KeyboardInterrupt:
        if not quiet:
            say(f"{name} is watched no longer, and continues as it was")
        return
    if history is not None:
        sys.exit(exit_codes.of_experiment(history))


class RunnerStatus(Protocol):
    """What is known of who runs an experiment."""

    def log_grew(self) -> None:
        """Take note that the log has grown."""

    def banner(self, history: History) -> str:
        """Return a message about who runs it, "" for none. Called again and again; it asks others
        only from time to time.
        """


def view(
    store: Store, runs_it: RunnerStatus, places: Places, name: str, *, quiet: bool, as_json: bool
) -> History | None:
    """Show an experiment until it has ended, and how; None if the reader of the events has gone.

    Raises UserError if it is removed meanwhile, KeyboardInterrupt on Ctrl-C, and what `runs_it`
    raises.
    """
    say = partial(echo, error=as_json, flush=True)
    with only_events() if as_json else nullcontext() as events:
        viewer = Viewer(
            PlainConsole(stderr=as_json),
            quiet=quiet,
            events=events,
            called=name,
            notes=lambda: notes.read(store),
        )
        try:
            with viewer.showing():
                history = _follow(store, viewer, places, runs_it, events)
        except CorruptLog:
            if viewer.board.history.created is not None and not quiet:
                for line in summary(viewer.board.history, places, alive=False, now=time.time()):
                    say(line)
            raise
        except LogGone:
            raise UserError(
                f"experiment {name!r} was removed from {places.root} while it was watched"
            ) from None
        if history is not None and not (as_json and quiet):
            for line in ending(history, places):
                say(line)
    return history


def _begun(places: Places, name: str, say: Callable[[str], None], *, quiet: bool) -> Store | None:
    """Wait for the experiment and return its store; None if the user stops waiting."""
    announced = False
    try:
        while True:
            try:
                return places.known(name)
            except UserError as missing:
                if not re.match(NAME, name):
                    raise
                if not announced and not quiet:
                    say(f"{missing}; waiting for it, Ctrl-C ends that")
                announced = True
            time.sleep(SIGNS_SECONDS[places.storage.metered])
    except KeyboardInterrupt:
        return None


class _Presence:
    """Checks whether a driver runs it, only without new events, and not too often."""

    def __init__(self, places: Places, name: str) -> None:
        self._places, self._name = places, name
        self._grew = time.monotonic()
        self._asked: float | None = None
        self._absent = self._returns = False

    def log_grew(self) -> None:
        self._grew = time.monotonic()
        self._absent = self._returns = False

    def banner(self, history: History) -> str:
        """Return a message about the driver, or an unreachable store; "" for none."""
        now = time.monotonic()
        due = (
            now - self._grew > SILENT_SECONDS
            and now - (self._asked or 0.0) > SIGNS_SECONDS[self._places.storage.metered]
        )
        if self._asked is None or due:
            self._asked = now
            try:
                running = runs(self._places, self._name)
            except Unavailable as error:
                return _away(error)
            self._returns = running and (self._absent or self._returns)
            self._absent = not running
        if self._absent:
            last_heard = words.ago(time.time() - history.t_last)
            return (
                f"interrupted: no driver runs it (last event {last_heard} ago); waiting for"
                f" {self._places.command('resume', self._name)}"
            )
        return "interrupted: a driver resumes it ..." if self._returns else ""


def _follow(
    store: Store, viewer: Viewer, places: Places, runs_it: RunnerStatus, events: Events | None
) -> History | None:
    """Follow the log until the experiment has ended; None if the reader of the events has gone."""
    first = True
    if events is not None:
        viewer.skip(0)
    for batch in Subscription(Follower(store), LOOK_SECONDS[places.storage.metered]):
        history, segments = viewer.board.history, batch.segments
        if batch.trouble is None:
            if first and segments and events is None:
                # Earlier events are shown in the view, not line by line.
                viewer.skip(segments[-1][0])
            try:
                viewer.apply(segments)
            except (IllegalMove, msgspec.MsgspecError):
                fold(store, History().apply)
                raise
            if batch.more:
                continue
            if segments and not first:
                runs_it.log_grew()
            first = first and not segments
            if history.closed is not None and history.closed.status != "interrupted":
                return history
        if events is not None and events.failed:
            return None
        banner = _away(batch.trouble) if batch.trouble else runs_it.banner(history)
        if viewer.banner.partition("(")[0] != banner.partition("(")[0]:
            viewer.line(banner or "it continues")
        viewer.banner = banner
        viewer.progress()
    return None


def _away(error: Unavailable) -> str:
    return f"the state store is out of reach, the experiment may continue meanwhile ({error.why})"
