"""`regrow run` and `regrow resume` with a station: they hand the session to it and watch it.

The station owns the session: it continues if this process ends or its terminal is closed. Ctrl-C
and SIGTERM end the session, as they would end one in this process.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from regrow.apps.station.orders import MESSAGES, DriverMessage, DriverSignal, hand_over
from regrow.infra.log.follower import Follower, Vanished
from regrow.infra.log.log import full
from regrow.infra.state import passwords, unhealed
from regrow.infra.state import station_record as record
from regrow.infra.state.driver_lock import runs_here
from regrow.infra.state.places import Places
from regrow.infra.state.station_record import Station
from regrow.search.spec import Spec
from regrow.show.live.viewer import Viewer
from regrow.tasks.errors import RegrowError
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.process.forking import handling
from regrow.tasks.process.json_lines import JsonLines

LOOK_SECONDS = (0.05, 0.5)
"""Seconds between polls of the log: in a folder, in a bucket."""
WAIT_SECONDS = 60.0
"""How long to wait for a driver that is starting, before the session is run without the station."""
TELL_SECONDS = 3.0
"""After this wait a line gives the reason; shorter waits are not worth a message."""
ATTEMPTS = 3
"""How many drivers are tried for a session that none of them has begun."""
ALONE_SECONDS = 30.0
"""Interval of the checks whether the station still runs; its supervisor may be restarting."""
LEFT_SECONDS = 2.0
"""How long to wait for the rest of the log after the driver has ended."""


def run_there(
    station: Station,
    name: str,
    *,
    spec: Spec | None,
    places: Places,
    trials: int | None,
    retry_failed: bool,
    viewer: Viewer,
    announce: Callable[[str], None],
) -> bool:
    """Run a session on the station and show it until it has ended; return False if no driver was
    available.

    What the session still has to send to MLflow and Prefect then continues in the station. Raises
    what `launch` would raise.
    """
    follower = Follower(places.store(name))
    _skip(follower, viewer)
    order = {
        "name": name,
        "spec": None if spec is None else spec.to_json(),
        "trials": trials,
        "retry_failed": retry_failed,
        "folder": os.getcwd(),
        "variables": dict(os.environ),
    }
    before = viewer.board.history.opened
    for attempt in range(ATTEMPTS):
        if (driver := _driver(station, order, announce)) is None:
            announce(
                f"no driver of the station was ready within {WAIT_SECONDS:.0f} s; this session runs"
                " without it"
            )
            return False
        line, pid = driver
        said = _Said(line, announce)
        with _signals(line) as signalled:
            if attempt == 0:
                for page in station.pages(passwords.make(places.services).shown)[1:]:
                    announce(page)
            if _watch(follower, viewer, said, f"{socket.gethostname()}:{pid}:", places):
                return True
        if viewer.board.history.opened is not before:
            announce(
                "the driver on the station was lost; the station goes on by itself, and Ctrl-C ends"
                " only this view"
            )
            _watch_on(follower, viewer, places, name)
            return True
        if signalled:
            raise KeyboardInterrupt
        announce(
            "the driver on the station was lost before the session began; another one is given it"
        )
    announce("the station loses its drivers; this session runs without it")
    return False


def _skip(follower: Follower, viewer: Viewer) -> None:
    """Read the existing log without showing it."""
    viewer.skip(0)
    with suppress(Vanished):
        while segments := follower.read():
            viewer.skip(segments[-1][0])
            viewer.take(segments)
            if not full(segments):
                break


def _driver(
    station: Station, order: dict[str, Any], announce: Callable[[str], None]
) -> tuple[JsonLines, int] | None:
    began, told = time.monotonic(), False
    while True:
        if (found := hand_over(station.folder, order)) is not None:
            return found
        waited = time.monotonic() - began
        if waited > WAIT_SECONDS:
            return None
        if waited > TELL_SECONDS and not told:
            announce("the station starts a driver for the session")
            told = True
        time.sleep(0.1)


class _Said:
    """Reads the driver's messages in a thread."""

    def __init__(self, line: JsonLines, announce: Callable[[str], None]) -> None:
        self.last: DriverMessage | None = None
        self.over = threading.Event()
        self._line, self._announce = line, announce
        threading.Thread(target=self._listen, name="regrow-driver-said", daemon=True).start()

    def _listen(self) -> None:
        for word in self._line.messages(MESSAGES):
            if word.kind == "said":
                self._announce(word.text)
            else:
                self.last = word
                break
        self.over.set()


def _watch(follower: Follower, viewer: Viewer, said: _Said, driver: str, places: Places) -> bool:
    """Show the session of `driver` until it is closed; return False if the driver was lost before
    that.
    """
    deadline = None
    with viewer.showing():
        while True:
            over, more = said.over.is_set(), _look(follower, viewer)
            history = viewer.board.history
            if (
                history.opened is not None
                and history.opened.driver.startswith(driver)
                and history.closed is not None
            ):
                return True
            if over and not more:
                if said.last is not None and said.last.kind == "failed":
                    break
                deadline = deadline or time.monotonic() + LEFT_SECONDS
                if time.monotonic() > deadline or said.last is None:
                    # If the driver reported its end, nothing was left to do.
                    return said.last is not None
            if not more:
                _wait(said.over, LOOK_SECONDS[places.remote])
    if said.last.error == "interrupted":
        raise KeyboardInterrupt
    said.last.raise_it()
    return True


def _watch_on(follower: Follower, viewer: Viewer, places: Places, name: str) -> None:
    """Show the session that another driver of the station continues, until it has ended or nothing
    can continue it.

    Ctrl-C ends only this view. Raises RegrowError if the station is gone or has given the
    experiment up.
    """
    seen, looked = viewer.board.history.opened, time.monotonic()
    with viewer.showing():
        while True:
            more = _look(follower, viewer)
            history = viewer.board.history
            if history.opened is not seen and history.closed is not None:
                return
            if time.monotonic() - looked > ALONE_SECONDS:
                if (stuck := unhealed.told(places).get(name)) is not None and not runs_here(
                    places, name
                ):
                    raise RegrowError(unhealed.line(places, name, stuck))
                if record.find(places) is None and not runs_here(places, name):
                    alone = f"`{places.command('resume', name)}` goes on without it"
                    raise RegrowError(f"the station of {places.root} is gone; {alone}")
                looked = time.monotonic()
            if not more:
                time.sleep(LOOK_SECONDS[places.remote])


def _look(follower: Follower, viewer: Viewer) -> bool:
    """Show new segments of the log; return whether more can be read immediately."""
    try:
        segments = follower.read()
    except Unavailable:
        return False
    if segments:
        viewer.take(segments)
    viewer.progress()
    return full(segments)


def _wait(over: threading.Event, seconds: float) -> None:
    if over.is_set():
        time.sleep(seconds)
    else:
        over.wait(seconds)


@contextmanager
def _signals(line: JsonLines) -> Iterator[list[int]]:
    """Forward SIGINT and SIGTERM to the driver; yield the list of received signals."""
    came: list[int] = []

    def hand_on(number: int, _: Any) -> None:
        came.append(number)
        line.send(DriverSignal(signal=number))

    with handling({signal.SIGINT: hand_on, signal.SIGTERM: hand_on}):
        yield came
