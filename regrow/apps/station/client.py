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
from contextlib import contextmanager
from typing import Any

from regrow.apps.station.orders import MESSAGES, DriverMessage, DriverSignal, hand_over
from regrow.infra.log.follower import Follower
from regrow.infra.log.subscription import Batch, Subscription, available
from regrow.infra.state import passwords, resume_failures
from regrow.infra.state import station_record as record
from regrow.infra.state.driver_lock import runs_here
from regrow.infra.state.places import Places
from regrow.infra.state.station_record import Station
from regrow.search.spec import Spec
from regrow.show.live.viewer import Viewer
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import background
from regrow.tasks.process.forking import handling
from regrow.tasks.process.json_lines import JsonLines

LOOK_SECONDS = ((0.05, 0.05), (0.5, 0.5))
"""Pace of the polls: in a folder, in a bucket."""
WAIT_SECONDS = 60.0
"""How long to wait for a driver that is starting, before the session is run without the station."""
TELL_SECONDS = 3.0
"""After this wait a line gives the reason; shorter waits are not worth a message."""
ATTEMPTS = 3
"""How many drivers are tried for a session that none of them has begun."""
ALONE_SECONDS = 30.0
"""Interval of the checks whether the station still runs; its supervisor may be restarting."""


def run_there(
    station: Station,
    name: str,
    *,
    spec: Spec | None,
    places: Places,
    trials: int | None,
    retry_failed: bool,
    code: str | None = None,
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
        "code": code,
        "folder": os.getcwdb(),
        "variables": list(os.environb.items()),
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
        messages = _DriverMessages(line, announce)
        with _signals(line) as signalled:
            if attempt == 0:
                for page in station.pages(passwords.make(places.services).shown)[1:]:
                    announce(page)
            if _watch(follower, viewer, messages, f"{socket.gethostname()}:{pid}:", places):
                return True
        if viewer.board.history.opened is not before:
            announce(
                "the driver on the station was lost; the station continues by itself, and Ctrl-C"
                " ends only this view"
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
    for segments in available(follower):
        viewer.skip(segments[-1][0])
        viewer.apply(segments)


def _driver(
    station: Station, order: dict[str, Any], announce: Callable[[str], None]
) -> tuple[JsonLines, int] | None:
    began, announced = time.monotonic(), False
    while True:
        if (found := hand_over(station.folder, order)) is not None:
            return found
        waited = time.monotonic() - began
        if waited > WAIT_SECONDS:
            return None
        if waited > TELL_SECONDS and not announced:
            announce("the station starts a driver for the session")
            announced = True
        time.sleep(0.1)


class _DriverMessages:
    """Reads the driver's messages in a thread."""

    def __init__(self, line: JsonLines, announce: Callable[[str], None]) -> None:
        self.last: DriverMessage | None = None
        self.over = threading.Event()
        self._line, self._announce = line, announce
        background.start(self._listen, name="driver-messages")

    def _listen(self) -> None:
        for word in self._line.messages(MESSAGES):
            if word.kind == "said":
                self._announce(word.text)
            else:
                self.last = word
                break
        self.over.set()


def _watch(
    follower: Follower, viewer: Viewer, messages: _DriverMessages, driver: str, places: Places
) -> bool:
    """Show the session of `driver` until it is closed; return False if the driver was lost."""
    with viewer.showing():
        for _ in _shown(
            Subscription(follower, LOOK_SECONDS[places.storage.metered], messages.over), viewer
        ):
            history = viewer.board.history
            if (
                history.opened is not None
                and history.opened.driver.startswith(driver)
                and history.closed is not None
            ):
                return True
    if messages.last is None:
        return False
    if messages.last.kind == "failed":
        if messages.last.error == "interrupted":
            raise KeyboardInterrupt
        messages.last.raise_it()
    return True  # the driver reported its end: nothing was left to do


def _watch_on(follower: Follower, viewer: Viewer, places: Places, name: str) -> None:
    """Show the session that another driver of the station continues, until it has ended or nothing
    can continue it.

    Ctrl-C ends only this view. Raises RegrowError if the station is gone or has given the
    experiment up.
    """
    seen, looked = viewer.board.history.opened, time.monotonic()
    with viewer.showing():
        for _ in _shown(Subscription(follower, LOOK_SECONDS[places.storage.metered]), viewer):
            history = viewer.board.history
            if history.opened is not seen and history.closed is not None:
                return
            if time.monotonic() - looked > ALONE_SECONDS:
                if (stuck := resume_failures.read(places).get(name)) is not None and not runs_here(
                    places, name
                ):
                    raise RegrowError(resume_failures.describe(places, name, stuck))
                if record.find(places) is None and not runs_here(places, name):
                    alone = f"`{places.command('resume', name)}` continues without it"
                    raise RegrowError(f"the station of {places.root} is gone; {alone}")
                looked = time.monotonic()


def _shown(log: Subscription, viewer: Viewer) -> Iterator[Batch]:
    for batch in log:
        if batch.trouble is None:
            viewer.apply(batch.segments)
            viewer.progress()
        yield batch


@contextmanager
def _signals(line: JsonLines) -> Iterator[list[int]]:
    """Forward SIGINT and SIGTERM to the driver; yield the list of received signals."""
    came: list[int] = []

    def forward(number: int, _: Any) -> None:
        came.append(number)
        line.send(DriverSignal(signal=number))

    with handling({signal.SIGINT: forward, signal.SIGTERM: forward}):
        yield came
