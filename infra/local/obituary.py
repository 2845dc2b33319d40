"""Saying in MLflow and in Prefect that an experiment's driver is dead: `python -m regrow.infra.local.obituary STATE NAME`.

Whoever is killed cannot say so himself: his runs would be shown as running for good. A guard that outlives the driver
starts this; after a reboot, when there was no guard either, the next command that looks at the state root does. A later
session says by itself that they run again.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

from regrow.infra.log.reading import replay
from regrow.infra.machine import locks
from regrow.infra.machine.processes import Guard
from regrow.infra.prefect import server as prefect_server
from regrow.infra.ray.cluster import ClusterLost
from regrow.infra.state.driver_lock import lock_file, runs_here
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError

DELAY_SECONDS = 5.0
"""From a driver's death until it is told: who resumes at once must not compete with this for the processor."""
MOST_SECONDS = 120.0
"""How long telling may take; a service that is away by then is told by the next command."""


@contextmanager
def prepare(places: Places, name: str) -> Iterator[None]:
    """If this process ends within the block, however, MLflow and Prefect are told; also if the block raises.

    They are told as well, by the next command or the station, after a block within which `owe` was called.
    """
    marker = _marker(places, name)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text("")
    guard = Guard(f"REGROW_OBITUARY={os.getpid()}")  # no process has this mark: there is nothing to kill
    guard.then(_command(places, name), unless_locked=lock_file(places, name), delay=DELAY_SECONDS)
    try:
        yield
    except ClusterLost:  # this process goes on, with a further guard
        guard.finish()
        raise
    except UserError:  # another process took the experiment over: it is alive
        _withdraw(guard, marker)
        raise
    _withdraw(guard, marker)


def owe(places: Places, name: str) -> None:
    """Says that MLflow could not be told everything, though this process ends well."""
    _marker(places, name).write_text("MLflow")


def bequeath(places: Places, name: str) -> None:
    """Once this process has ended, MLflow and Prefect are told what they do not know by then."""
    marker = _marker(places, name)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    guard = Guard(f"REGROW_OBITUARY={os.getpid()}")
    guard.then(_command(places, name), unless_locked=lock_file(places, name), delay=DELAY_SECONDS)
    _left_behind.append(guard)


_left_behind: list[Guard] = []
"""Guards that end with this process and not before."""


def _withdraw(guard: Guard, marker: Path) -> None:
    with suppress(FileNotFoundError):
        if not marker.read_text():
            marker.unlink()
    guard.finish()


def tell_in_background(places: Places) -> list[subprocess.Popen[bytes]]:
    """Starts what is still to be told: of drivers that died unseen (the machine was rebooted), and while MLflow was away.

    Costs one look at a folder; returns the processes that do it.
    """
    folder, telling = places.services / "unfinished", []
    with suppress(OSError):
        for name in os.listdir(folder):
            if not runs_here(places, name):
                null = subprocess.DEVNULL
                command = _command(places, name)
                telling.append(subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True))
    return telling


def _marker(places: Places, name: str) -> Path:
    return places.services / "unfinished" / name


def _command(places: Places, name: str) -> list[str]:
    return [sys.executable, "-P", "-m", "regrow.infra.local.obituary", str(places.root), name]


def tell(places: Places, name: str, died: float) -> None:
    """Tells both, each if it can be reached. `died`: seconds since 1970; what happened after that is somebody else's."""
    marker = _marker(places, name)
    try:
        if not marker.exists() or (ours := locks.take(marker)) is None:
            return  # it was told already, or somebody is at it
        with ours:
            if runs_here(places, name) or name not in places.experiments():
                return
            opened = replay(places.known(name), name).opened
            if opened is None or opened.driver.partition(":")[0] != socket.gethostname():  # one on another machine goes on
                return
            run = opened.flow_run
            told = [_told(lambda: _tell_mlflow(places, name)), _told(lambda: _tell_prefect(places, name, run, died))]
            if all(told) and not runs_here(places, name):
                marker.unlink(missing_ok=True)
    except OSError:  # the folder is gone, or cannot be read
        return


def _told(how: Callable[[], None]) -> bool:
    try:
        how()
    except Exception:  # noqa: BLE001 - nobody reads what this process says; the next command tries again
        return False
    return True


def _tell_mlflow(places: Places, name: str) -> None:
    from regrow.infra.mlflow.catch_up import record_missing

    record_missing(places, name, killed=True)


def _tell_prefect(places: Places, name: str, flow_run: str | None, died: float) -> None:
    if flow_run is None:
        return
    home = {} if prefect_server.configured_api_url() else {"PREFECT_HOME": str(places.prefect_home)}
    with prefect_server.prefect_server(places.prefect_home) as server:
        os.environ.update({**home, **server.environment()})
        _mark_crashed(flow_run, name, died)


def _mark_crashed(flow_run_id: str, name: str, died: float) -> None:
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, TaskRunFilter, TaskRunFilterState
    from prefect.client.schemas.filters import TaskRunFilterStateType as StateFilter
    from prefect.client.schemas.objects import StateType
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    with get_client(sync_client=True) as client:
        try:
            flow_run = client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return
        state = flow_run.state
        if state is None or not state.is_running() or state.timestamp.timestamp() > died:
            return
        told = f"its driver was lost; `regrow resume {name}` goes on"
        client.set_flow_run_state(flow_run.id, Crashed(message=told), force=True)
        left = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id])),
            task_run_filter=TaskRunFilter(
                state=TaskRunFilterState(type=StateFilter(any_=[StateType.RUNNING, StateType.PENDING]))
            ),
        )
        for task_run in left:
            if task_run.state is not None and task_run.state.timestamp.timestamp() <= died:
                client.set_task_run_state(task_run.id, Crashed(message="its driver was lost"), force=True)


def main() -> None:
    """Tells, and ends in any case."""
    limit = threading.Timer(MOST_SECONDS, os._exit, [1])
    limit.daemon = True
    limit.start()
    os.nice(10)
    tell(Places.at(sys.argv[1]), sys.argv[2], time.time() - DELAY_SECONDS)


if __name__ == "__main__":
    main()
