"""Ending the processes that a trial has started, when its attempt is over: a worker process outlives an attempt, and its
children would keep memory, GPUs and ports from the next one.

All that descends from the worker is ended, daemons and sessions of their own as well: what their own parents leave behind
falls to the worker. Where the worker itself was killed they fall to nobody; they are known by its environment, and ended by
the next worker that looks. Only where there is /proc; elsewhere nothing is ended.
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
from dataclasses import dataclass
from pathlib import Path

GRACE_SECONDS = 1.0
"""What they have to end by themselves, after SIGTERM, before they are killed."""
MOST_SECONDS = 10.0
"""How long to go on killing: a process in an uninterruptible call, or a program that starts others anew, would have no end."""
_PR_SET_CHILD_SUBREAPER = 36
_TRACKER = b"resource_tracker import main"
"""In the command of Python's (and loky's) cleaner of shared memory. It ends by itself with the last process that it serves,
and is not ended before: what it would have cleaned up would stay until the machine is restarted."""
_POOLS = 15
"""The priority with which `multiprocessing` ends its pools at the exit of a process."""
_LOG = logging.getLogger("regrow.trial")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    parent: int
    dead: bool
    """A zombie."""


def adopt() -> None:
    """From now on what this process's descendants leave behind are its own children (Linux; elsewhere nothing happens)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Ends all that descends from this process; returns when it is gone, or after `MOST_SECONDS`."""
    if not _has_children() or not (seen := _below(os.getpid(), _processes())):
        return
    servers = [process for process in seen if b"forkserver import main" in _command(process)]
    with _no_news_of_children():
        _end_pools()
        _end(lambda: _below(os.getpid(), _processes()))
        _reap(servers)


def end_orphans(environment: Mapping[str, str] = os.environ) -> None:
    """Ends what workers of this node's Ray left that were killed while they ran a trial."""
    raylet = environment.get("RAY_RAYLET_PID", "")
    if raylet.isdigit() and int(raylet) in (_above(os.getpid(), _processes()) or ()):
        _end(lambda: _orphans(int(raylet)))


def descendants(top: int) -> list[int]:
    """The living processes that descend from one; none where there is no /proc."""
    return _below(top, _processes())


def _orphans(raylet: int) -> list[int]:
    marks = {f"RAY_RAYLET_PID={raylet}".encode(), b"REGROW_TRIAL=1"}
    processes, found = _processes(), []
    for process, one in processes.items():
        above = _above(process, processes)
        if one.dead or above is None or raylet in above:
            continue
        with suppress(OSError):  # gone, or another user's
            if marks <= set(Path(f"/proc/{process}/environ").read_bytes().split(b"\0")) and _TRACKER not in _command(process):
                found.append(process)
    return found


def _end(find: Callable[[], list[int]]) -> None:
    began, told = time.monotonic(), set[int]()
    while left := find():
        lasted = time.monotonic() - began
        if lasted > MOST_SECONDS:
            _LOG.warning("processes that a trial has started could not be ended: %s", ", ".join(map(str, left)))
            return
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                if lasted > GRACE_SECONDS:
                    os.kill(process, signal.SIGKILL)
                elif process not in told:
                    told.add(process)
                    os.kill(process, signal.SIGTERM)
        time.sleep(0.02)


def _end_pools() -> None:
    """Pools start workers anew for those that end, so they are ended first, in the way in which they are at a process's exit."""
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        # In a thread, as it waits for the pools' own: one whose worker died with a lock would wait for good.
        ending = threading.Thread(target=util._run_finalizers, args=(_POOLS,), name="regrow-pools", daemon=True)  # noqa: SLF001 - no public way (3.14)
        ending.start()
        ending.join(GRACE_SECONDS)


@contextmanager
def _no_news_of_children() -> Iterator[None]:
    """Without the user's handler of SIGCHLD: PyTorch's raises an error in the main thread where a loader's worker was killed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


def _reap(servers: list[int]) -> None:
    """Takes note of the dead: first those who started them, then this, for those that fell to this process.

    Not of a fork server, which `multiprocessing` starts anew only if it learns of the death itself.
    """
    multiprocessing.active_children()
    me = os.getpid()
    for process, one in _processes().items():
        if one.parent == me and one.dead and process not in servers:
            with suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)


def _has_children() -> bool:
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13: there is no /proc to find them in either
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _processes() -> dict[int, _Process]:
    """All processes by their number; none where there is no /proc."""
    found = {}
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):  # it is gone
                    # The name, in parentheses, may hold anything.
                    state, parent = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[:2]
                    found[int(name)] = _Process(parent=int(parent), dead=state in b"ZX")
    return found


def _below(top: int, processes: Mapping[int, _Process]) -> list[int]:
    """The living descendants of a process, but for those that end by themselves."""
    found, looked = list[int](), {top}
    while looked:
        looked = {process for process, one in processes.items() if one.parent in looked}
        found += [process for process in looked if not processes[process].dead and _TRACKER not in _command(process)]
    return found


def _above(process: int, processes: Mapping[int, _Process]) -> list[int] | None:
    """The ancestors of a process; None if one was gone when it was looked at."""
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
