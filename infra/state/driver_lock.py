"""Which experiments run: a lock of the driver's process, and for other machines signs of life."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from regrow.infra.machine import locks, private_files
from regrow.infra.machine.supervised import until
from regrow.infra.state import resume_failures
from regrow.infra.state.places import Places
from regrow.infra.state.presence import signs
from regrow.tasks.errors import UserError

WIND_UP_SECONDS = 60.0
"""How long a driver may take to inform MLflow and Prefect after its log is closed."""
_TICK = 0.1


@contextmanager
def driving(places: Places, experiment: str, *, by_agent: bool = False) -> Iterator[None]:
    """Mark the experiment as run by this process within the block.

    Raises UserError if another process runs it, here or on another host that has the state root on
    a file system with locks that work between hosts. Other drivers are not detected here; the log
    fences one of the two off. So it is for an agent's driver (`by_agent`), whose agent has claimed
    the lead: one that still runs here is suspended, or hangs.
    """
    path = lock_file(places, experiment)
    private_files.folder(path.parent)
    lock = locks.acquire(path, wait=0.5)  # others hold it for an instant to look at it
    if lock is None and by_agent:
        resume_failures.remove(places, experiment)
        yield
        return
    if lock is None:
        raise already(places, experiment)
    lock.truncate(0)
    lock.write(socket.gethostname())
    lock.flush()
    resume_failures.remove(places, experiment)
    with lock:
        yield


def already(places: Places, experiment: str) -> UserError:
    """Return the error for an experiment that runs already. It names another host."""
    host = lock_file(places, experiment).read_text().strip()
    where = f" on {host}" if host not in ("", socket.gethostname()) else ""
    hint = "follow it with `regrow show`, end it with `regrow stop`"
    return UserError(f"experiment {experiment!r} is running already{where}; {hint}")


def await_final_reports(places: Places, experiment: str, is_closed: Callable[[], bool]) -> bool:
    """Wait for a driver that is only informing MLflow and Prefect of its end. Returns whether no
    process on this machine runs the experiment.

    `is_closed`: whether the log says that the last session has ended. On a station the command
    returns before everything is sent.
    """
    here = partial(runs_here, places, experiment)
    until(lambda: not (here() and is_closed()), seconds=WIND_UP_SECONDS, tick=_TICK)
    return not here()


def runs_here(places: Places, experiment: str) -> bool:
    """Return whether a process of this machine runs the experiment, for certain."""
    return locks.is_held(lock_file(places, experiment))


def runs(places: Places, experiment: str) -> bool:
    """Return whether the experiment runs, here or, if the state is in S3 or shared with a cluster,
    on another machine that gives signs of life.
    """
    return runs_here(places, experiment) or signs(places.store(experiment))


def lock_file(places: Places, experiment: str) -> Path:
    """Return the file that a host locks while it runs the experiment; it has the host's name."""
    return places.common / "running" / experiment
