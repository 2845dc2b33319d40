"""Which experiments of a state root run: a lock that the driver's process holds, and from afar its signs of life."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from regrow.infra.machine import locks
from regrow.infra.state.places import Places
from regrow.infra.state.presence import elsewhere
from regrow.tasks.errors import UserError

WIND_UP_SECONDS = 60.0
"""How long a driver may take, after its log is closed, to tell MLflow and Prefect."""
_TICK = 0.1
_LOOKS_TAKE_SECONDS = 0.5
"""Whoever looks whether an experiment runs holds its lock for an instant; who wants to run it must not trip over that."""


@contextmanager
def driving(places: Places, experiment: str) -> Iterator[None]:
    """Marks the experiment as being run by this process. Raises UserError if another one on this machine runs it.

    A driver on another machine is not seen here; the log fences one of the two off.
    """
    path = lock_file(places, experiment)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = locks.take(path, wait=_LOOKS_TAKE_SECONDS)
    if lock is None:
        raise UserError(f"experiment {experiment!r} is running already; follow it with `regrow show`, end it with `regrow stop`")
    with lock:
        yield


def await_wound_up(places: Places, experiment: str, is_closed: Callable[[], bool]) -> bool:
    """Whether nobody on this machine runs the experiment, after waiting for a driver that only tells others of its end.

    `is_closed`: whether the log says that the last session has ended. On a station the prompt comes back before all is told.
    """
    deadline = time.monotonic() + WIND_UP_SECONDS
    while runs_here(places, experiment):
        if time.monotonic() > deadline or not is_closed():
            return False
        time.sleep(_TICK)
    return True


def runs_here(places: Places, experiment: str) -> bool:
    """Whether a process on this machine runs the experiment; see `runs` for others."""
    return locks.is_held(lock_file(places, experiment))


def runs(places: Places, experiment: str) -> bool:
    """Whether the experiment runs, here or, with the state in S3 or shared with a cluster, elsewhere, as far as that shows."""
    return runs_here(places, experiment) or elsewhere(places.store(experiment))


def lock_file(places: Places, experiment: str) -> Path:
    """The file that is locked while this machine runs the experiment."""
    return places.services / "running" / experiment
