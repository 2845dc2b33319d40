"""`python -m regrow.flows.crash_report STATE NAME`: MLflow and Prefect hear that a driver has died.

Its runs would be shown as running permanently. A guard that outlives the driver starts this; after
a reboot, which ends the guard, too, the next command that uses the state root does. A later session
reports itself that the runs are running again.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import UUID

from regrow.infra.log.reading import replay
from regrow.infra.machine import locks, private_files
from regrow.infra.machine.processes import ProcessGuard
from regrow.infra.prefect import server as prefect_server
from regrow.infra.prefect.settings import own_home
from regrow.infra.ray.cluster import ClusterLost
from regrow.infra.state.driver_lock import lock_file, runs_here
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError

DELAY_SECONDS = 5.0
"""Seconds between a driver's death and the report: a driver that is resumed immediately should not
compete with this for the CPU.
"""
MOST_SECONDS = 120.0
"""Seconds that reporting may take; the next command tries again."""


@contextmanager
def prepare(places: Places, name: str) -> Iterator[None]:
    """Within the block, make sure that MLflow and Prefect record the end of this process, whatever
    ends it, and an error of the block.

    After a call of `mark_pending` within the block, the next command or the station records it.
    """
    marker = _marker(places, name)
    private_files.folder(marker.parent)
    private_files.replace(marker, "")
    guard = _guard(places, name)
    try:
        yield
    except ClusterLost:  # this process continues, with another guard
        guard.finish()
        raise
    except UserError:  # another process runs the experiment, so it has a driver
        cancel_pending(guard, marker)
        raise
    cancel_pending(guard, marker)


def mark_pending(places: Places, name: str) -> None:
    """Mark MLflow's records as incomplete although this process ends in order."""
    private_files.replace(_marker(places, name), "MLflow")


def hand_to_guard(places: Places, name: str) -> None:
    """Have a guard tell MLflow and Prefect what they lack once this process has ended."""
    marker = _marker(places, name)
    private_files.folder(marker.parent)
    private_files.replace(marker, "")
    if marker not in _left_behind:
        _left_behind[marker] = _guard(places, name)


_left_behind: dict[Path, ProcessGuard] = {}
"""Guards that last as long as this process, by their markers."""


def _guard(places: Places, name: str) -> ProcessGuard:
    # no process has this mark, so the guard kills nothing
    guard = ProcessGuard(f"REGROW_OBITUARY={os.getpid()}")
    guard.then(_command(places, name), unless_locked=lock_file(places, name), delay=DELAY_SECONDS)
    return guard


def cancel_pending(guard: ProcessGuard, marker: Path) -> None:
    """Cancel the pending report, unless `mark_pending` was called, and end the guard."""
    with suppress(FileNotFoundError):
        if not marker.read_text():
            marker.unlink()
    guard.finish()


def deliver_in_background(places: Places) -> list[subprocess.Popen[bytes]]:
    """Start the pending reports: of drivers that died unseen (the machine was rebooted), and of
    times when MLflow was unreachable.

    Costs one listing of a folder; returns the started processes.
    """
    folder, started = places.services / "unfinished", []
    with suppress(OSError):
        for name in os.listdir(folder):
            if not runs_here(places, name):
                null = subprocess.DEVNULL
                command = _command(places, name)
                started.append(
                    subprocess.Popen(
                        command, stdin=null, stdout=null, stderr=null, start_new_session=True
                    )
                )
    return started


def _marker(places: Places, name: str) -> Path:
    return places.services / "unfinished" / name


def _command(places: Places, name: str) -> list[str]:
    return [sys.executable, "-P", "-m", "regrow.flows.crash_report", str(places.root), name]


def report(places: Places, name: str, died: float) -> None:
    """Report to MLflow and Prefect, as far as each is reachable.

    `died`: time of death in seconds since 1970. Later states were set by other processes and stay.
    """
    from regrow.flows.recording.catch_up import record_missing

    marker = _marker(places, name)
    try:
        if not marker.exists() or (ours := locks.acquire(marker)) is None:
            return  # reported already, or another process is reporting it
        with ours:
            if runs_here(places, name) or name not in places.experiments():
                return
            opened = replay(places.known(name), name).opened
            # a driver on another machine may be running
            if opened is None or opened.driver.partition(":")[0] != socket.gethostname():
                return
            reported = 0
            with suppress(Exception):  # there is no output here; the next command retries
                record_missing(places, name, killed=True)
                reported += 1
            with suppress(Exception):
                if opened.flow_run is not None:
                    _report_to_prefect(places, name, opened.flow_run, died)
                reported += 1
            if reported == 2 and not runs_here(places, name):
                marker.unlink(missing_ok=True)
    except OSError:  # the folder is gone, or cannot be read
        return


def _report_to_prefect(places: Places, name: str, flow_run_id: str, died: float) -> None:
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    from regrow.infra.prefect.task_runs import close_crashed

    home = own_home(places)
    with ExitStack() as stack:
        server = stack.enter_context(prefect_server.prefect_server(places.prefect_home))
        os.environ.update({**home, **server.environment()})
        client = stack.enter_context(get_client(sync_client=True))
        try:
            flow_run = client.read_flow_run(UUID(flow_run_id))
        except ObjectNotFound:
            return
        state = flow_run.state
        if state is None or not state.is_running() or state.timestamp.timestamp() > died:
            return
        message = f"its driver was lost; `regrow resume {name}` continues"
        client.set_flow_run_state(flow_run.id, Crashed(message=message), force=True)
        close_crashed(client, flow_run.id, until=died)


def main() -> None:
    """Report, and end within MOST_SECONDS."""
    limit = threading.Timer(MOST_SECONDS, os._exit, [1])
    limit.daemon = True
    limit.start()
    os.nice(10)
    report(Places.at(sys.argv[1]), sys.argv[2], time.time() - DELAY_SECONDS)


if __name__ == "__main__":
    main()
