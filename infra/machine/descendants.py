"""Ending the processes that a trial has started, when its attempt is over. A worker process
outlives an attempt, and its children would keep memory, GPUs and ports from the next one.

All descendants of the worker are ended, also daemons and those in other sessions: processes whose
parents end become children of the worker. If the worker itself was killed, nothing inherits them.
They are then recognised by its environment variables, and ended by the next worker that looks.
Works only where /proc exists; elsewhere nothing is ended.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from regrow.infra.machine.processes import all_processes, marked, stat
from regrow.tasks.process import background
from regrow.tasks.process.usage import has_children

GRACE_SECONDS = 1.0
"""How long processes may take to exit after SIGTERM, before they are killed."""
MOST_SECONDS = 10.0
"""Seconds to keep killing what restarts, or cannot be interrupted."""
_TRACKER = b"resource_tracker import main"
"""Part of the command of Python's (and loky's) cleaner of shared memory. It exits with the last
process that it serves and is not ended earlier: what it would have removed would stay until the
machine restarts.
"""
_LOG = logging.getLogger("regrow.trial")


class _Process(NamedTuple):
    parent: int
    dead: bool
    """Whether it is a zombie."""


def adopt() -> None:
    """Become the parent of orphaned descendants from now on. Linux only."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end_children() -> None:
    """End all descendants of this process. Returns when they are gone, or after `MOST_SECONDS`."""
    if not has_children() or not (seen := _below(os.getpid(), _processes())):
        return
    servers = [process for process in seen if b"forkserver import main" in _command(process)]
    with _no_news_of_children():
        # as an exit does, first: they restart workers that end
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            # In a thread, because it waits for the pools' threads: a pool whose worker died with a
            # lock would wait forever.
            finalize = util._run_finalizers  # noqa: SLF001 - there is no public way (3.14)
            # 15: the priority of its pools at an exit
            background.start(finalize, 15, name="pools").join(GRACE_SECONDS)
        _end(lambda: _below(os.getpid(), _processes()))
        # Reap the dead: first the children that `multiprocessing` knows, then those that became
        # children of this process. Not fork servers: `multiprocessing` restarts one only if it
        # notices the death itself.
        multiprocessing.active_children()
        me = os.getpid()
        for process, one in _processes().items():
            if one.parent == me and one.dead and process not in servers:
                with suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)


def end_orphans() -> None:
    """End what remains of workers of this node's Ray that were killed while they ran a trial."""
    raylet = os.environ.get("RAY_RAYLET_PID", "")
    if raylet.isdigit() and int(raylet) in (_above(os.getpid(), _processes()) or ()):
        _end(lambda: _orphans(int(raylet)))


def descendants(top: int) -> list[int]:
    """Return the living descendants of a process; empty where /proc does not exist."""
    return _below(top, _processes())


def ancestors(process: int) -> list[int]:
    """Return the ancestors of a process; empty where /proc does not exist."""
    return _above(process, _processes()) or []


def _orphans(raylet: int) -> list[int]:
    processes = _processes()
    apart = (
        process
        for process, one in processes.items()
        if not one.dead
        and (above := _above(process, processes)) is not None
        and raylet not in above
    )
    found = marked(f"RAY_RAYLET_PID={raylet}", "REGROW_TRIAL=1", among=apart)
    return [process for process in found if _TRACKER not in _command(process)]


def _end(find: Callable[[], list[int]]) -> None:
    began, asked_to_end = time.monotonic(), set[int]()
    while left := find():
        lasted = time.monotonic() - began
        if lasted > MOST_SECONDS:
            _LOG.warning(
                "processes that a trial has started could not be ended: %s",
                ", ".join(map(str, left)),
            )
            return
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                if lasted > GRACE_SECONDS:
                    os.kill(process, signal.SIGKILL)
                elif process not in asked_to_end:
                    asked_to_end.add(process)
                    os.kill(process, signal.SIGTERM)
        time.sleep(0.02)


@contextmanager
def _no_news_of_children() -> Iterator[None]:
    """Disable the user's SIGCHLD handler within the block: PyTorch's raises an error in the main
    thread when a data loader's worker was killed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def _processes() -> dict[int, _Process]:
    """Return all processes by process id; empty where /proc does not exist."""
    found = {}
    for process in all_processes():
        with suppress(OSError):  # the process is gone
            state, parent, *_ = stat(process)
            found[process] = _Process(int(parent), state in "ZX")
    return found


def _below(top: int, processes: Mapping[int, _Process]) -> list[int]:
    """Return the living descendants but for resource trackers, which exit by themselves."""
    found, looked = list[int](), {top}
    while looked:
        looked = {process for process, one in processes.items() if one.parent in looked}
        found += [
            process
            for process in looked
            if not processes[process].dead and _TRACKER not in _command(process)
        ]
    return found


def _above(process: int, processes: Mapping[int, _Process]) -> list[int] | None:
    """Return the ancestors of a process; None if one of them was gone already."""
    found = list[int]()
    while (one := processes.get(process)) is not None:
        if one.parent == 0:
            return found
        found.append(process := one.parent)
    return None


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
